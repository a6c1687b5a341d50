"""What each layer is worth: how much the loss rises when it is skipped.

In models with the norm in front of each branch many of the later layers can be taken out at little cost (Sun et al. 2025,
"The Curse of Depth", arXiv 2502.05795; Csordás et al. 2025, arXiv 2505.13898).
"""

from typing import Any

import torch

from trainables.diagnostics.blocks import blocks, embedded, mean_loss

Tensor = torch.Tensor


def layer_drop(model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Loss without a layer less the loss with all, in nats per scored target, by `layer_drop/LAYER`.

    All models with one layer less go through the remaining layers at once, each from where its own layer is left out.

    Args:
        model: a model of `trainables.model.family.build_model`, in evaluation mode.
        inputs: tokens [B, T].
        targets: [B, T]; -100 where nothing is scored.
    """
    sequences = len(inputs)
    whole = embedded(model, inputs)
    # Below the whole model's sequences those of the models that have lost a layer already.
    states = whole
    for block in blocks(model):
        states = torch.cat([block(states), states[:sequences]])
    # One after the other: the logits of all models at once would take gigabytes of a large vocabulary.
    means = [mean_loss(model, part, targets) for part in torch.split(states, sequences)]
    return {f"layer_drop/{layer}": loss - means[0] for layer, loss in enumerate(means[1:], 1)}
