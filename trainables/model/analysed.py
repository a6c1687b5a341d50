"""The network that the theory is about, as a model that can be trained: attention without softmax, no ReLU, no norm.

Levine et al. 2020 (arXiv 2006.12467), eq. 3: y^i = sum over j and heads of <W^Q x^i, W^K x^j> W^O W^V x^j, composed
L times. Its output is a polynomial of degree 3^L in the input, and 3^L is what the threshold of the theory, L = log3 d,
comes from. What is added here so that it trains as a language model, none of which changes that degree:

- the mask: position i sees j <= i;
- a skip connection around each layer, whose output is multiplied by 1/sqrt(L);
- fixed scales in the place of norms: scores are divided by sqrt(d_h) and by the number of positions seen, embeddings
  start with a variance of 1, and logits are divided by sqrt(d).

A layer has 4·d² weights and no biases, a third of the 12·d² that N counts; at equal N models of all depths have equally
many, so their comparison is one at equal size.
"""

import math
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from trainables.model.residual import JoinedBlock

#: The name under which transformers finds the attention.
LINEAR = "interplay_linear"


def linear_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention whose weights are the scores themselves.

    Args:
        module: not used; part of the interface.
        query: [B, H, T, d_h].
        key: [B, H, T, d_h].
        value: [B, H, T, d_h].
        attention_mask: not used: every position sees itself and all before it.
        scaling: 1/sqrt(d_h).

    Returns:
        [B, T, H, d_h], and no weights.
    """
    length = query.shape[-2]
    seen = torch.arange(1, length + 1, device=query.device, dtype=query.dtype)
    scores = (query * scaling) @ key.transpose(-1, -2)
    mixed = scores.tril() @ value / seen[:, None]
    return mixed.transpose(1, 2), None


class AnalysedBlock(JoinedBlock):
    """A block that is its attention and a skip connection."""

    def join(self, stream: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Add."""
        return stream + added


class Divided(nn.Module):
    """Division by a fixed number, in the place of the last norm."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the vectors, smaller."""
        return hidden_states / self.by


def to_analysed(model: Any) -> None:
    """Turn a GPT-2 with `nn.Linear` layers into the analysed network, in place."""
    AttentionInterface.register(LINEAR, linear_attention)
    model.config._attn_implementation = LINEAR
    for block in model.transformer.h:
        block.__class__ = AnalysedBlock
        del block.mlp, block.ln_1, block.ln_2
        for layer in (block.attn.c_attn, block.attn.c_proj):
            layer.bias = None
    model.transformer.ln_f = Divided(math.sqrt(model.config.n_embd))
