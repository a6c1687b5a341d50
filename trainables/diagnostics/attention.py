"""What the heads of a layer attend to, after Clark et al. 2019 (arXiv 1906.04341, section 3).

They find heads that attend to the current, the previous or the next token and to a separator. The causal mask excludes
the next token; the first token is what a decoder has in place of the separator.
"""

import torch

from trainables.model.family import Parts

Tensor = torch.Tensor


def attention(parts: Parts, inputs: Tensor) -> dict[str, Tensor]:
    """Return the shares of attention per layer as `NAME/LAYER`, means over heads; none with fewer than three tokens.

    The model must have softmax and be in evaluation mode; inputs are tokens [B, T].
    """
    if inputs.shape[1] < 3:
        return {}
    measures: dict[str, Tensor] = {}
    states = parts.embedded(inputs)
    for number, layer in enumerate(parts.layers(), 1):
        paid = shares(parts.attention_weights(layer, states), inputs)
        measures |= {f"{name}/{number}": share for name, share in paid.items()}
        states = parts.feed(layer, parts.attention(layer, states))
    return measures


def shares(weights: Tensor, inputs: Tensor) -> dict[str, Tensor]:
    """Return the share of attention that the tokens pay to four places, means over sequences, heads and tokens.

    `attention_self` is to the token itself, `attention_previous` to the one before, `attention_first` to the first, and
    `attention_same` to all earlier tokens that equal it. The tokens are those from the third on, so that the first
    three places differ; the fourth may contain the second and the third. Weights are [B, heads, T, T], tokens [B, T].
    """
    length = inputs.shape[1]
    is_earlier = torch.ones(length, length, dtype=torch.bool, device=inputs.device).tril(-1)
    is_same = (inputs[:, :, None] == inputs[:, None, :]) & is_earlier
    paid = {
        "attention_self": weights.diagonal(0, 2, 3)[..., 2:],
        "attention_previous": weights.diagonal(-1, 2, 3)[..., 1:],
        "attention_first": weights[..., 2:, 0],
        "attention_same": (weights * is_same[:, None]).sum(3)[..., 2:],
    }
    return {name: share.mean() for name, share in paid.items()}
