"""Induction heads: attention to what followed the same token before (Elhage et al. 2021; Olsson et al. 2022).

A head that attends to the token after an earlier occurrence of the current token can copy what comes next. The score is
the prefix matching of Olsson et al. (arXiv 2209.11895): the mean attention to that position over the last half of the
positions. Models of the preset `induction` attend s = 7 places farther on, so a second score uses the best shift s. It
is also above zero for a head that looks back a fixed distance, if repetitions have few lengths.
"""

from collections.abc import Sequence

import torch

from trainables.model.family import Parts

Tensor = torch.Tensor

#: Number of shifts tried; shift 0 is the token right after the earlier occurrence.
SHIFTS = 16


def induction(parts: Parts, inputs: Tensor) -> dict[str, Tensor]:
    """Return the best head's scores per layer as `NAME/LAYER` and over all layers as `NAME`; none if no token repeats.

    `induction_score` is at shift 0, `induction_score_shifted` at the best shift, which is `induction_shift`. The model
    must have softmax and be in evaluation mode; inputs are tokens [B, T].
    """
    places = looked_at(inputs)
    if not places:
        return {}
    layers = []
    states = parts.embedded(inputs)
    for layer in parts.layers():
        layers.append(scores(parts.attention_weights(layer, states), places))
        states = parts.feed(layer, parts.attention(layer, states))
    table = torch.stack(layers)
    best, shift = table.max(1)
    columns = {
        "induction_score": table[:, 0],
        "induction_score_shifted": best,
        "induction_shift": shift.to(table.dtype),
    }
    measures = {f"{name}/{i}": value for name, column in columns.items() for i, value in enumerate(column, 1)}
    strongest = best.argmax()
    return measures | {
        "induction_score": table[:, 0].max(),
        "induction_score_shifted": best[strongest],
        "induction_shift": columns["induction_shift"][strongest],
    }


def looked_at(inputs: Tensor) -> list[Tensor]:
    """Return for each shift the position that an induction head attends to, [B, T]; -1 where nothing is scored.

    The list ends before the first shift with less than half as many scored positions as shift 0.
    """
    half = inputs.shape[1] // 2
    targets: list[Tensor] = []
    for shift in range(min(SHIFTS, half)):
        target = after_same(inputs, shift)
        target[:, :half] = -1
        scored = int((target >= 0).sum())
        if not scored or (targets and 2 * scored < int((targets[0] >= 0).sum())):
            break
        targets.append(target)
    return targets


def scores(weights: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Return the score of a layer's best head at each shift, given attention weights [B, heads, T, T]."""
    strongest = []
    for target in places:
        index = target.clamp(min=0)[:, None, :, None].expand(-1, weights.shape[1], -1, 1)
        paid = weights.gather(3, index)[..., 0].transpose(1, 2)
        strongest.append(paid[target >= 0].mean(0).max())
    return torch.stack(strongest)


def after_same(inputs: Tensor, shift: int = 0) -> Tensor:
    """Return the position `shift` places after the successor of an earlier occurrence of each token, [B, T], else -1.

    Uses the last occurrence for which that position is before the current one. Without a shift only the last occurrence
    counts, and a token that repeats its predecessor has none.
    """
    length = inputs.shape[1]
    places = torch.arange(length, device=inputs.device)
    is_same = inputs[:, :, None] == inputs[:, None, :]
    # The last occurrence, or with a shift the last one far enough back.
    far = shift + 1 if shift else 0
    last = torch.where(is_same & (places + far < places[:, None]), places, -1).amax(2)
    return torch.where((last >= 0) & (last + 1 + shift < places), last + 1 + shift, -1)
