"""How near the tokens' representations are to being one and the same (Dong et al. 2021, arXiv 2103.03404).

Attention alone, without skip connections and feed-forward networks, drives all tokens of a sequence to one
representation: doubly exponentially in depth where each sees all others (their main theorem), exponentially where each
sees only those before it (Wu et al. 2024, arXiv 2405.18781). At initialisation attention is nearly the mean of what it
sees, and the causal mean has 1/2 as its second eigenvalue: about a half of the distance goes with every layer. The same
weights are therefore run four times: as they are, and without either or both, as Dong et al. do with trained models.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trainables.diagnostics.blocks import behind_attention, behind_feed, blocks, embedded

Tensor = torch.Tensor


def whole(block: Any, states: Tensor) -> Tensor:
    """One layer as it is."""
    return behind_feed(block, behind_attention(block, states))


def without_skip(block: Any, states: Tensor) -> Tensor:
    """One layer without its skip connections."""
    return behind_feed(block, behind_attention(block, states, skip=False), skip=False)


def alone(block: Any, states: Tensor) -> Tensor:
    """The attention of a layer, and nothing else but its norm."""
    return behind_attention(block, states, skip=False)


#: Name of the residual -> how its path goes through a layer.
PATHS: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "rank_residual": whole,
    "rank_residual_noskip": without_skip,
    "rank_residual_noffn": behind_attention,
    "rank_residual_attention": alone,
}


def rank(model: Any, inputs: Tensor) -> dict[str, Tensor]:
    """Relative distance from rank one after every layer on each path, and the tokens' mean cosine on the whole one.

    Args:
        model: a model of `trainables.model.family.build_model`, in evaluation mode.
        inputs: tokens [B, T], at least two a sequence.

    Returns:
        Numbers (tensors of one element) by `NAME/LAYER`, layers from 1 on: `token_cosine`, and the names of `PATHS`.
    """
    start = embedded(model, inputs)
    states = dict.fromkeys(PATHS, start)
    found: dict[str, Tensor] = {}
    for layer, block in enumerate(blocks(model), 1):
        for name, step in PATHS.items():
            states[name] = step(block, states[name])
            found[f"{name}/{layer}"] = residual(states[name])
        found[f"token_cosine/{layer}"] = token_cosine(states["rank_residual"])
    return found


def residual(states: Tensor) -> Tensor:
    """||X - 1 xᵀ|| / ||X|| in the Frobenius norm, mean over sequences; 0 is rank one, all tokens alike.

    The best x is then the mean of the tokens. Dong et al. take the square root of the l1 times the l-infinity norm,
    whose best x has no closed form; the rates of the two are the same.

    Args:
        states: [B, T, d].
    """
    centred = states - states.mean(1, keepdim=True)
    return (_norms(centred) / _norms(states)).mean()


def token_cosine(states: Tensor) -> Tensor:
    """Mean cosine between different tokens of a sequence, mean over sequences, of states [B, T, d]."""
    tokens = states.shape[1]
    units = torch.nn.functional.normalize(states, dim=-1)
    # The sum over all pairs is the square of the sum; a token with itself is left out.
    pairs = units.sum(1).square().sum(-1) - units.square().sum((1, 2))
    return (pairs / (tokens * (tokens - 1))).mean()


def _norms(states: Tensor) -> Tensor:
    return states.square().sum((1, 2)).sqrt()
