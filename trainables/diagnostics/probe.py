"""The diagnostics of a cell in training, all on the same few sequences."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from trainables.cell import Cell
from trainables.data.store.batches import validation_batches
from trainables.data.store.token_store import TokenStore
from trainables.diagnostics.gradients import StepMeter
from trainables.diagnostics.induction import induction
from trainables.diagnostics.layer_drop import layer_drop
from trainables.diagnostics.names import Diagnostic
from trainables.diagnostics.rank import rank
from trainables.layout import Layout

Tensor = torch.Tensor

#: Tokens of the probe, in whole sequences, so that its cost does not grow with the batch.
PROBE_TOKENS = 512


class Probe:
    """The first sequences of the validation set, and the measures on them."""

    def __init__(
        self,
        names: Sequence[Diagnostic],
        engine: Any,
        cell: Cell,
        layout: Layout,
        store: TokenStore,
        device: torch.device,
    ) -> None:
        """Prepare the measurements of a DeepSpeed engine's model."""
        self.names, self.model = frozenset(names), engine.module
        context = cell.recipe.context
        x, y = next(validation_batches(store, context=context, batch=max(1, PROBE_TOKENS // context)))
        self.inputs, self.targets = (torch.from_numpy(np.asarray(part)).to(device) for part in (x, y))
        is_metered = "gradients" in self.names
        self.meter = StepMeter(self.model, engine.optimizer, cell, layout.zero) if is_metered else None
        self.step: dict[str, float] = {}

    def before_step(self) -> None:
        """Measure the gradients of a step; call `after_step` after it."""
        if self.meter:
            self.meter.before()

    def after_step(self, steps: int) -> None:
        """Measure the last of `steps` steps into `step`."""
        if self.meter:
            self.step = _finite(self.meter.after(steps))

    def of_model(self) -> dict[str, float]:
        """Return the finite measures of the current model by name, without an effect on training."""
        found: dict[str, Tensor] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            if "rank" in self.names:
                found |= rank(self.model, self.inputs)
            if "layer_drop" in self.names:
                found |= layer_drop(self.model, self.inputs, self.targets)
            if "induction" in self.names:
                found |= induction(self.model, self.inputs)
        self.model.train(was_training)
        # One transfer from the device.
        values = torch.stack(list(found.values())).tolist() if found else []
        return _finite(dict(zip(found, values, strict=True)))


def _finite(measures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in measures.items() if math.isfinite(value)}
