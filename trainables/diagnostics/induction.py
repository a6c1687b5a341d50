"""Induction heads: attention to what followed the same token before (Elhage et al. 2021; Olsson et al. 2022).

A head that, at a token seen earlier, looks at the token after it can copy what comes next. It takes two layers: one
that tells each token its predecessor, and one that looks for it. The score is Olsson et al.'s prefix matching
(arXiv 2209.11895): the mean attention paid there over the last half of the positions.
"""

from typing import Any

import torch

from trainables.diagnostics.blocks import attention_input, blocks, embedded

Tensor = torch.Tensor


def induction(model: Any, inputs: Tensor) -> dict[str, Tensor]:
    """The best head's score of each layer by `induction_score/LAYER`, and of all layers as `induction_score`.

    Empty where no token of the last half has been there before its predecessor.

    Args:
        model: a model of `trainables.model.build_model` with softmax, in evaluation mode.
        inputs: tokens [B, T].
    """
    target = after_same(inputs)
    counted = target >= 0
    counted[:, : inputs.shape[1] // 2] = False
    if not counted.any():
        return {}
    found: dict[str, Tensor] = {}
    states = embedded(model, inputs)
    for layer, block in enumerate(blocks(model), 1):
        weights = attention_weights(block, states)
        index = target.clamp(min=0)[:, None, :, None].expand(-1, weights.shape[1], -1, 1)
        paid = weights.gather(3, index)[..., 0].transpose(1, 2)[counted]
        found[f"induction_score/{layer}"] = paid.mean(0).max()
        states = block(states)
    found["induction_score"] = torch.stack(list(found.values())).max()
    return found


def after_same(inputs: Tensor) -> Tensor:
    """The position after the last earlier one with the same token, -1 where there is none, of tokens [B, T].

    A token right after itself has none: the position after the earlier one is its own.
    """
    length = inputs.shape[1]
    places = torch.arange(length, device=inputs.device)
    is_same = inputs[:, :, None] == inputs[:, None, :]
    last = torch.where(is_same & (places < places[:, None]), places, -1).amax(2)
    return torch.where((last >= 0) & (last + 1 < places), last + 1, -1)


def attention_weights(block: Any, states: Tensor) -> Tensor:
    """Causal attention of a layer, [B, heads, T, T] of states [B, T, d]; the fused kernel of training gives none."""
    module = block.attn
    batch, length, _ = states.shape
    query, key, _ = module.c_attn(attention_input(block, states)).split(module.split_size, dim=2)
    query, key = (x.view(batch, length, -1, module.head_dim).transpose(1, 2) for x in (query, key))
    scores = (query @ key.transpose(2, 3)) * module.scaling
    is_later = torch.ones(length, length, dtype=torch.bool, device=states.device).triu(1)
    weights: Tensor = scores.masked_fill(is_later, float("-inf")).softmax(3)
    return weights
