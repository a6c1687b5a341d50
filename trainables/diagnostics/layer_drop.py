"""The rise of the loss when a layer is skipped (Sun et al. 2025, arXiv 2502.05795; Csordás et al. 2025, 2505.13898)."""

from typing import Any

import torch

from trainables.diagnostics.blocks import blocks, embedded, mean_loss

Tensor = torch.Tensor


def layer_drop(model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the loss without each layer minus the full loss, in nats per scored target, as `layer_drop/LAYER`.

    The model must be in evaluation mode; inputs and targets are tokens [B, T], -100 where nothing is scored.
    """
    sequences = len(inputs)
    states = embedded(model, inputs)
    # One batch: the full model's sequences, then those of each model that skipped an earlier layer.
    for block in blocks(model):
        states = torch.cat([block(states), states[:sequences]])
    # One by one: with a large vocabulary the logits of all models would take gigabytes.
    means = [mean_loss(model, part, targets) for part in torch.split(states, sequences)]
    return {f"layer_drop/{layer}": loss - means[0] for layer, loss in enumerate(means[1:], 1)}
