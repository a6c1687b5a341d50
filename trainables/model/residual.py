"""How branches join the residual stream where it is not GPT-2's own way: norms behind the sum, and ADMIN.

`pre` is GPT-2: x + f(norm(x)). `sqrt`, `linear` and `scaled_norm` keep that model and change its scales alone
(`trainables.model.parametrisation.residual_scale`). `post` is the first transformer, norm(x + f(x)) (Vaswani et al.
2017), which is hard to train when it is deep. `admin` is `post` with a weight on the stream, norm(w * x + f(x)), whose start
balances what the branches add (Liu et al. 2020, "Understanding the Difficulty of Training Transformers" and "Very Deep
Transformers for Neural Machine Translation", arXiv 2004.08249 and 2008.07772).
"""

from typing import Any

import torch
from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

#: Sequences of random tokens on which ADMIN measures the branches at the start.
PROFILED = 8


class JoinedBlock(GPT2Block):
    """A block of GPT-2 that attends to the stream as it is, without a norm in front."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        past_key_values: Any = None,
        attention_mask: torch.Tensor | None = None,
        _encoder: Any = None,
        use_cache: bool | None = False,
        **rest: Any,
    ) -> torch.Tensor:
        """Return the stream [B, T, d] behind the block."""
        rest.pop("encoder_attention_mask", None)
        added, _ = self.attn(
            hidden_states,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            use_cache=use_cache,
            **rest,
        )
        return self.join(hidden_states, added)

    def join(self, stream: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Return the stream behind the block from the one in front and what the attention adds, [B, T, d] each."""
        raise NotImplementedError


class PostNormBlock(JoinedBlock):
    """A block with its norms behind the sums; weights on the stream, [d] each, where there are any."""

    omega_attn: nn.Parameter | None
    omega_mlp: nn.Parameter | None

    def join(self, stream: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Add, norm, and the same for the feed-forward network."""
        stream = self.ln_1(_weighted(stream, self.omega_attn) + added)
        behind: torch.Tensor = self.ln_2(_weighted(stream, self.omega_mlp) + self.mlp(stream))
        return behind


def _weighted(stream: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    return stream if weight is None else stream * weight


def to_post_norm(model: Any, *, weighted: bool) -> None:
    """Turn the blocks of a GPT-2 into `PostNormBlock`s, in place; `weighted` gives them weights on the stream, at 1."""
    for block in model.transformer.h:
        block.__class__ = PostNormBlock
        for name in ("omega_attn", "omega_mlp"):
            weight = nn.Parameter(torch.ones(model.config.n_embd)) if weighted else None
            block.register_parameter(name, weight)


def weigh_streams(model: Any, seed: int) -> None:
    """Set ADMIN's weights on the stream: at branch i the root of the variances of the input and all branches before.

    The variances are those of the model at its start with all weights 1, over random tokens of the seed.
    """
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.vocab_size, (PROFILED, config.n_positions), generator=generator)
    blocks = list(model.transformer.h)
    branches = [branch for block in blocks for branch in (block.attn.c_proj, block.mlp)]
    variances: list[float] = []
    # A hook on the projection: the attention itself returns a pair.
    hooks = [
        branch.register_forward_hook(lambda _, __, out: variances.append(float(out.var())))
        for branch in branches
    ]
    was_training = model.training
    model.eval()
    with torch.no_grad():
        model.transformer(tokens)
        for hook in hooks:
            hook.remove()
        model.train(was_training)
        # The stream itself has passed a norm, or will: its variance counts as 1.
        total = 1.0
        weights = [w for block in blocks for w in (block.omega_attn, block.omega_mlp)]
        for weight, variance in zip(weights, variances, strict=True):
            weight.fill_(total**0.5)
            total += variance
