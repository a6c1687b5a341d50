"""The distance of the tokens' representations from a single one (Dong et al. 2021, arXiv 2103.03404).

Attention alone, without skip connections and feed-forward networks, drives all tokens of a sequence to one
representation: doubly exponentially in depth with full attention (their main theorem), exponentially with causal
attention (Wu et al. 2024, arXiv 2405.18781). At initialisation attention is nearly the mean of its inputs, and the
causal mean has the second eigenvalue 1/2, so each layer removes about half of the distance. As Dong et al. do, the same
weights are run as they are, and without skip connections, feed-forward networks or both.
"""

from collections.abc import Mapping

import torch

from trainables.model.family import Parts

Tensor = torch.Tensor

#: Name of the measure -> whether layers run with skip connections, and with the feed-forward network.
PATHS: Mapping[str, tuple[bool, bool]] = {
    "rank_residual": (True, True),
    "rank_residual_noskip": (False, True),
    "rank_residual_noffn": (True, False),
    "rank_residual_attention": (False, False),
}


def rank(parts: Parts, inputs: Tensor) -> dict[str, Tensor]:
    """Return after every layer the relative distance from rank one on all `PATHS`, and the full model's `token_cosine`.

    The model must be in evaluation mode; inputs are tokens [B, T]. Keys are `NAME/LAYER`, layers from 1.
    """
    states = dict.fromkeys(PATHS, parts.embedded(inputs))
    measures: dict[str, Tensor] = {}
    for layer, block in enumerate(parts.layers(), 1):
        for name, (skip, feed) in PATHS.items():
            states[name] = parts.attention(block, states[name], skip=skip)
            if feed:
                states[name] = parts.feed(block, states[name], skip=skip)
            measures[f"{name}/{layer}"] = residual(states[name])
        measures[f"token_cosine/{layer}"] = token_cosine(states["rank_residual"])
    return measures


def residual(states: Tensor) -> Tensor:
    """Return ||X - 1 xᵀ|| / ||X|| in the Frobenius norm, mean over sequences of states [B, T, d]; 0 is rank one.

    x is the mean of the tokens. The norm of Dong et al. has no closed form of the minimum; the rate is the same.
    """
    centred = states - states.mean(1, keepdim=True)
    distances, sizes = (part.square().sum((1, 2)).sqrt() for part in (centred, states))
    return (distances / sizes).mean()


def token_cosine(states: Tensor) -> Tensor:
    """Return the mean cosine between different tokens of a sequence, mean over sequences, for states [B, T, d]."""
    tokens = states.shape[1]
    units = torch.nn.functional.normalize(states, dim=-1)
    # The squared sum is the sum over all pairs; subtract the pairs of a token with itself.
    pairs = units.sum(1).square().sum(-1) - units.square().sum((1, 2))
    return (pairs / (tokens * (tokens - 1))).mean()
