"""The rise of the loss when a layer is skipped (Sun et al. 2025, arXiv 2502.05795; Csordás et al. 2025, 2505.13898)."""

import torch

from trainables.data.store.batches import IGNORED
from trainables.model.family import Parts

Tensor = torch.Tensor


def layer_drop(parts: Parts, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the loss without each layer minus the full loss, in nats per scored target, as `layer_drop/LAYER`.

    The model must be in evaluation mode; inputs and targets are tokens [B, T], -100 where nothing is scored.
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


def mean_loss(parts: Parts, states: Tensor, targets: Tensor) -> Tensor:
    """Return the loss in nats per scored target, given the last layer's output [B, T, d]."""
    logits = parts.logits(states).transpose(1, 2)
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED)
