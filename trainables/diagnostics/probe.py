"""The diagnostics of a cell in training, all on the same few sequences."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from trainables.data.store.batches import validation_batches
from trainables.data.store.token_store import TokenStore
from trainables.diagnostics.induction import induction
from trainables.diagnostics.layer_drop import layer_drop
from trainables.diagnostics.names import Diagnostic
from trainables.diagnostics.rank import rank
from trainables.model.family import Parts

#: Tokens of the probe, in whole sequences, so that its cost does not grow with the batch.
PROBE_TOKENS = 512


class Probe:
    """The first sequences of the validation set, and the measures of a model on them."""

    def __init__(
        self, names: Sequence[Diagnostic], model: Any, parts: Parts, store: TokenStore, context: int
    ) -> None:
        self.names, self.model, self.parts = names, model, parts
        x, y = next(validation_batches(store, context=context, batch=max(1, PROBE_TOKENS // context)))
        self.inputs, self.targets = (torch.from_numpy(np.asarray(part)).to(model.device) for part in (x, y))

    def measures(self) -> dict[str, float]:
        """Return the finite measures of the current model by name, without an effect on training."""
        found: dict[str, torch.Tensor] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            if "rank" in self.names:
                found |= rank(self.parts, self.inputs)
            if "layer_drop" in self.names:
                found |= layer_drop(self.parts, self.inputs, self.targets)
            if "induction" in self.names:
                found |= induction(self.parts, self.inputs)
        self.model.train(was_training)
        # One transfer from the device.
        values = torch.stack(list(found.values())).tolist() if found else []
        return {name: value for name, value in zip(found, values, strict=True) if math.isfinite(value)}
