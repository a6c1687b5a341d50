"""The model that the theory analyses, made trainable: attention without softmax, no ReLU, no norm.

Levine et al. 2020 (arXiv 2006.12467), eq. 3: y^i = sum over j and heads of <W^Q x^i, W^K x^j> W^O W^V x^j, composed L
times. Its output is a polynomial of degree 3^L in the input, the origin of the theory's threshold L = log3 d. To
train it as a language model, the following is added, which keeps that degree:

- the mask: position i attends to j <= i;
- a skip connection around each layer, whose output is multiplied by 1/sqrt(L);
- fixed scales instead of norms: scores are divided by sqrt(d_h) and by the number of positions attended to, embeddings
  start with a variance of 1, and logits are divided by sqrt(d).

A layer has 4·d² weights and no biases, a third of the 12·d² that N counts.
"""

import math
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from trainables.model.gpt2 import GPT2Parts
from trainables.model.residual import JoinedBlock

Tensor = torch.Tensor

#: The name under which transformers finds the attention.
LINEAR = "interplay_linear"


def linear_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Causal attention whose weights are the scores: [B, H, T, d_h] to [B, T, H, d_h], in transformers' interface."""
    length = query.shape[-2]
    seen = torch.arange(1, length + 1, device=query.device, dtype=query.dtype)
    scores = (query * scaling) @ key.transpose(-1, -2)
    mixed = scores.tril() @ value / seen[:, None]
    return mixed.transpose(1, 2), None


class AnalysedParts(GPT2Parts):
    """The model in parts; it has no feed-forward networks."""

    def attention_input(self, layer: Any, stream: Tensor) -> Any:
        """Return the stream itself: there is no norm."""
        return stream

    def feed(self, layer: Any, stream: Tensor, *, skip: bool = True) -> Any:
        """Return the stream."""
        return stream


class _Divided(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states / self.by


def to_analysed(model: Any) -> None:
    """Turn a GPT-2 with `nn.Linear` layers into the analysed model in place."""
    AttentionInterface.register(LINEAR, linear_attention)
    model.config._attn_implementation = LINEAR
    for block in model.transformer.h:
        block.__class__ = JoinedBlock
        del block.mlp, block.ln_1, block.ln_2
        for layer in (block.attn.c_attn, block.attn.c_proj):
            layer.bias = None
    model.transformer.ln_f = _Divided(math.sqrt(model.config.n_embd))
