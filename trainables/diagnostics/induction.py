"""Induction heads: attention to what followed the same token before (Elhage et al. 2021; Olsson et al. 2022).

A head that, at a token seen earlier, looks at the token after it can copy what comes next. It takes two layers: one
that tells each token its predecessor, and one that looks for it. The score is Olsson et al.'s prefix matching
(arXiv 2209.11895): the mean attention paid there over the last half of the positions.

Nothing says that the first layer must carry tokens on by one place. Where it tells each token the two that stand s + 1
and s places before, the second does the same by looking s places farther on: models of the preset `induction` do so with
s = 7, which the plain score takes for no induction at all. So there is a score at the best distance s too. A head that
looks back by a fixed number of tokens has some of that as well, where repetitions are of few lengths.
"""

from collections.abc import Sequence
from typing import Any

import torch

from trainables.diagnostics.blocks import attention_input, blocks, embedded

Tensor = torch.Tensor

#: Distances that are tried: 0 is the token right after the same one.
SHIFTS = 16


def induction(model: Any, inputs: Tensor) -> dict[str, Tensor]:
    """The best head's scores of each layer by `NAME/LAYER`, and of all layers as `NAME`.

    `induction_score` is of the token after the same one, `induction_score_shifted` of the one that stands
    `induction_shift` places behind that, where the score is highest. Empty where no token of the last half has been
    there before its predecessor.

    Args:
        model: a model of `trainables.model.family.build_model` with softmax, in evaluation mode.
        inputs: tokens [B, T].
    """
    places = looked_at(inputs)
    if not places:
        return {}
    layers = []
    states = embedded(model, inputs)
    for block in blocks(model):
        layers.append(scores(attention_weights(block, states), places))
        states = block(states)
    table = torch.stack(layers)
    best, shift = table.max(1)
    strongest = best.argmax()
    found: dict[str, Tensor] = {}
    for layer in range(len(table)):
        found[f"induction_score/{layer + 1}"] = table[layer, 0]
        found[f"induction_score_shifted/{layer + 1}"] = best[layer]
        found[f"induction_shift/{layer + 1}"] = shift[layer].to(table.dtype)
    return found | {
        "induction_score": table[:, 0].max(),
        "induction_score_shifted": best[strongest],
        "induction_shift": shift[strongest].to(table.dtype),
    }


def looked_at(inputs: Tensor) -> list[Tensor]:
    """What an induction head looks at from each position, by distance from 0 on, -1 where nothing is scored: [B, T].

    Scored are positions of the last half that have the same token far enough before them. Of the `SHIFTS` distances
    those are told for which half as many positions, or more, are scored as at 0.

    Args:
        inputs: tokens [B, T].
    """
    half = inputs.shape[1] // 2
    found: list[Tensor] = []
    for shift in range(min(SHIFTS, half)):
        target = after_same(inputs, shift)
        target[:, :half] = -1
        scored = int((target >= 0).sum())
        if not scored or (found and 2 * scored < int((found[0] >= 0).sum())):
            break
        found.append(target)
    return found


def scores(weights: Tensor, places: Sequence[Tensor]) -> Tensor:
    """The best head's score of one layer at each distance.

    Args:
        weights: of attention, [B, heads, T, T].
        places: as `looked_at` gives them.
    """
    found = []
    for target in places:
        index = target.clamp(min=0)[:, None, :, None].expand(-1, weights.shape[1], -1, 1)
        paid = weights.gather(3, index)[..., 0].transpose(1, 2)
        found.append(paid[target >= 0].mean(0).max())
    return torch.stack(found)


def after_same(inputs: Tensor, shift: int = 0) -> Tensor:
    """The position `shift` places behind the one after the last earlier same token, -1 where there is none, [B, T].

    Of the same tokens the last one is taken for which that position is before the present one: attention to oneself is
    no sign of looking back. With no shift only the last one counts, and a token right after itself has none.

    Args:
        inputs: tokens [B, T].
        shift: 0 or more.
    """
    length = inputs.shape[1]
    places = torch.arange(length, device=inputs.device)
    is_same = inputs[:, :, None] == inputs[:, None, :]
    # The last one of all, or with a shift the last one far enough back.
    far = shift + 1 if shift else 0
    last = torch.where(is_same & (places + far < places[:, None]), places, -1).amax(2)
    return torch.where((last >= 0) & (last + 1 + shift < places), last + 1 + shift, -1)


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
