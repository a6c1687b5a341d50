"""The distance of the tokens' representations from a single one (Dong et al. 2021, arXiv 2103.03404).

Attention alone, without skip connections and feed-forward networks, drives all tokens of a sequence to one
representation: doubly exponentially in depth with full attention (their main theorem), exponentially with causal
attention (Wu et al. 2024, arXiv 2405.18781). At initialisation attention is nearly the mean of its inputs, and the
causal mean has the second eigenvalue 1/2, so each layer removes about half of the distance. The same weights are run
four times: as they are, and without skip connections, feed-forward networks or both, as Dong et al. do with trained
models.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trainables.diagnostics.blocks import behind_attention, behind_feed, blocks, embedded

Tensor = torch.Tensor


def whole(block: Any, states: Tensor) -> Tensor:
    """Run a layer as it is."""
    return behind_feed(block, behind_attention(block, states))


def without_skip(block: Any, states: Tensor) -> Tensor:
    """Run a layer without its skip connections."""
    return behind_feed(block, behind_attention(block, states, skip=False), skip=False)


def alone(block: Any, states: Tensor) -> Tensor:
    """Run only the attention of a layer, with its norm."""
    return behind_attention(block, states, skip=False)


#: Name of the measure -> how to run a layer.
PATHS: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "rank_residual": whole,
    "rank_residual_noskip": without_skip,
    "rank_residual_noffn": behind_attention,
    "rank_residual_attention": alone,
}


def rank(model: Any, inputs: Tensor) -> dict[str, Tensor]:
    """Return the relative distance from rank one after every layer, and the tokens' mean cosine in the full model.

    The model must be in evaluation mode; inputs are tokens [B, T]. The results are tensors of one element as
    `NAME/LAYER`, layers from 1: `token_cosine`, and the names of `PATHS`.
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
    """Return ||X - 1 xᵀ|| / ||X|| in the Frobenius norm, mean over sequences of states [B, T, d]; 0 is rank one.

    The minimising x is the mean of the tokens. Dong et al. use the square root of the l1 times the l-infinity norm,
    whose minimum has no closed form; both have the same rate.
    """
    centred = states - states.mean(1, keepdim=True)
    return (_norms(centred) / _norms(states)).mean()


def token_cosine(states: Tensor) -> Tensor:
    """Return the mean cosine between different tokens of a sequence, mean over sequences, for states [B, T, d]."""
    tokens = states.shape[1]
    units = torch.nn.functional.normalize(states, dim=-1)
    # The squared sum is the sum over all pairs; subtract the pairs of a token with itself.
    pairs = units.sum(1).square().sum(-1) - units.square().sum((1, 2))
    return (pairs / (tokens * (tokens - 1))).mean()


def _norms(states: Tensor) -> Tensor:
    return states.square().sum((1, 2)).sqrt()
