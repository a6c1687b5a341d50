"""The diagnostics of one cell while it trains: all of them on the same few sequences."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from trainables.cell import Cell
from trainables.data.store.batches import validation_batches
from trainables.data.store.token_store import TokenStore
from trainables.diagnostics.blocks import check_blocks
from trainables.diagnostics.gradients import StepMeter
from trainables.diagnostics.induction import induction
from trainables.diagnostics.layer_drop import layer_drop
from trainables.diagnostics.names import Diagnostic
from trainables.diagnostics.rank import rank
from trainables.layout import Layout

Tensor = torch.Tensor

#: Tokens of the probe, as far as whole sequences allow: what one evaluation costs must not grow with the batch.
PROBE_TOKENS = 512


class Probe:
    """The first sequences of the validation set, and what is measured on them."""

    def __init__(
        self,
        names: Sequence[Diagnostic],
        engine: Any,
        cell: Cell,
        layout: Layout,
        store: TokenStore,
        device: torch.device,
    ) -> None:
        """Look into the GPT-2 of a DeepSpeed engine.

        Raises:
            InputError: the model's layers are not those of GPT-2.
        """
        self.names, self.model = frozenset(names), engine.module
        context = cell.recipe.context
        x, y = next(validation_batches(store, context=context, batch=max(1, PROBE_TOKENS // context)))
        self.inputs, self.targets = (torch.from_numpy(np.asarray(part)).to(device) for part in (x, y))
        self.meter = (
            StepMeter(self.model, engine.optimizer, cell, layout.zero) if "gradients" in self.names else None
        )
        self._step: dict[str, float] = {}
        with self._at_rest():
            check_blocks(self.model, self.inputs)

    def before_step(self) -> None:
        """Look at the gradients of a step whose effect `after_step` is to look at."""
        if self.meter:
            self.meter.before()

    def after_step(self, steps: int) -> None:
        """Look at what the last of so many steps changed."""
        if self.meter:
            self._step = _finite(self.meter.after(steps))

    def of_step(self) -> dict[str, float]:
        """What was measured of the last step looked at."""
        return self._step

    def of_model(self) -> dict[str, float]:
        """What is measured of the model as it stands, by name; what is not finite is left out.

        It draws no random number and leaves the model in the mode it was in, so training goes on as if without.
        """
        found: dict[str, Tensor] = {}
        with self._at_rest():
            if "rank" in self.names:
                found |= rank(self.model, self.inputs)
            if "layer_drop" in self.names:
                found |= layer_drop(self.model, self.inputs, self.targets)
            if "induction" in self.names:
                found |= induction(self.model, self.inputs)
        # One transfer from the device for all.
        values = torch.stack(list(found.values())).tolist() if found else []
        return _finite(dict(zip(found, values, strict=True)))

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        """The model without dropout and gradients."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(was_training)


def _finite(measures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in measures.items() if math.isfinite(value)}
