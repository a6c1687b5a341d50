"""Residual connections other than GPT-2's: norms after the sum (`post`), and ADMIN.

`pre` is GPT-2: x + f(norm(x)). `post` is the first transformer, norm(x + f(x)) (Vaswani et al. 2017). `admin` is `post`
with a weight on the stream, norm(w * x + f(x)), initialised to balance the branches (Liu et al. 2020, arXiv 2004.08249
and 2008.07772). `trainables.model.parametrisation.residual_scale` has the others.
"""

from typing import Any

import torch
from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from trainables.model.gpt2 import GPT2Parts

#: Sequences of random tokens on which ADMIN measures the initial branches.
PROFILED = 8


class JoinedBlock(GPT2Block):
    """A GPT-2 block whose attention reads the stream without a norm; it only adds the attention's output."""

    def forward(self, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        """Return the stream [B, T, d] after the block; the other arguments are those of `GPT2Attention`."""
        added, _ = self.attn(hidden_states, *arguments, **options)
        return self.join(hidden_states, added)

    def join(self, stream: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Return the stream after the block, given the one before it and the attention's output, [B, T, d] each."""
        return stream + added


class PostNormBlock(JoinedBlock):
    """A block with norms after the sums and optional weights [d] on the stream."""

    def join(self, stream: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Add and norm, then the same for the feed-forward network."""
        stream = self.ln_1(weigh(stream, self.omega_attn) + added)
        after: torch.Tensor = self.ln_2(weigh(stream, self.omega_mlp) + self.mlp(stream))
        return after


def weigh(stream: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the stream [B, T, d] times its weights [d], if any."""
    return stream if weight is None else stream * weight


class PostNormParts(GPT2Parts):
    """A model of `PostNormBlock`s in parts."""

    def attention_input(self, layer: Any, stream: torch.Tensor) -> Any:
        """Return the stream itself: no norm comes first."""
        return stream

    def attention(self, layer: Any, stream: torch.Tensor, *, skip: bool = True) -> Any:
        """Return the normed stream after the attention."""
        added = layer.attn(stream)[0]
        return layer.ln_1(weigh(stream, layer.omega_attn) + added if skip else added)

    def feed(self, layer: Any, stream: torch.Tensor, *, skip: bool = True) -> Any:
        """Return the normed stream after the feed-forward network."""
        added = layer.mlp(stream)
        return layer.ln_2(weigh(stream, layer.omega_mlp) + added if skip else added)


def to_post_norm(model: Any, *, weighted: bool) -> None:
    """Turn the blocks of a GPT-2 into `PostNormBlock`s in place; `weighted` adds stream weights of 1."""
    for block in model.transformer.h:
        block.__class__ = PostNormBlock
        for name in ("omega_attn", "omega_mlp"):
            weight = nn.Parameter(torch.ones(model.config.n_embd)) if weighted else None
            block.register_parameter(name, weight)


def weigh_streams(model: Any, seed: int) -> None:
    """Set ADMIN's stream weights: at branch i the root of the summed variances of the input and all earlier branches.

    The variances are those of the initial model over random tokens of the seed.
    """
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.vocab_size, (PROFILED, config.n_positions), generator=generator)
    variances: list[float] = []
    hooks, weights = [], []
    for block in model.transformer.h:
        # Hook the projection, because the attention returns a pair.
        for branch, weight in ((block.attn.c_proj, block.omega_attn), (block.mlp, block.omega_mlp)):
            hooks.append(branch.register_forward_hook(lambda _, __, out: variances.append(float(out.var()))))
            weights.append(weight)
    model.eval()
    with torch.no_grad():
        model.transformer(tokens)
        for hook in hooks:
            hook.remove()
        model.train()
        # The stream passes a norm, so its variance counts as 1.
        total = 1.0
        for weight, variance in zip(weights, variances, strict=True):
            weight.fill_(total**0.5)
            total += variance
