"""The diagnostics of a cell in training, all on the same few sequences."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from trainables.data.store.batches import IGNORED, validation_batches
from trainables.data.store.token_store import TokenStore
from trainables.diagnostics import Diagnostic
from trainables.diagnostics.attention import attention
from trainables.diagnostics.induction import induction
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
        measures: dict[str, torch.Tensor] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            if "rank" in self.names:
                measures |= rank(self.parts, self.inputs)
            if "layer_drop" in self.names:
                measures |= layer_drop(self.parts, self.inputs, self.targets)
            if "induction" in self.names:
                measures |= induction(self.parts, self.inputs)
            if "attention" in self.names:
                measures |= attention(self.parts, self.inputs)
        self.model.train(was_training)
        # One transfer from the device.
        values = torch.stack(list(measures.values())).tolist() if measures else []
        return {name: value for name, value in zip(measures, values, strict=True) if math.isfinite(value)}


def layer_drop(parts: Parts, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the loss without each layer minus the full loss, in nats per scored target, as `layer_drop/LAYER`.

    As Sun et al. 2025 (arXiv 2502.05795) and Csordás et al. 2025 (2505.13898) measure it. The model must be in
    evaluation mode; inputs and targets are tokens [B, T], -100 where nothing is scored.
    """
    sequences = len(inputs)
    states = parts.embedded(inputs)
    # One batch: the full model's sequences, then those of each model that skipped an earlier layer.
    for layer in parts.layers():
        after = parts.feed(layer, parts.attention(layer, states))
        states = torch.cat([after, states[:sequences]])
    # One by one: with a large vocabulary the logits of all models would take gigabytes.
    means = [mean_loss(parts, part, targets) for part in torch.split(states, sequences)]
    return {f"layer_drop/{layer}": loss - means[0] for layer, loss in enumerate(means[1:], 1)}


def mean_loss(parts: Parts, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss in nats per scored target, given the last layer's output [B, T, d]."""
    logits = parts.logits(states).transpose(1, 2)
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED)
