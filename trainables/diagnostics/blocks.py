"""The layers of a model, one by one and in parts: what is behind the attention, and behind the feed-forward network."""

import copy
from collections.abc import Iterator
from typing import Any

import torch

from trainables.data.store.batches import IGNORED
from trainables.errors import InputError
from trainables.model.analysed import AnalysedBlock
from trainables.model.residual import PostNormBlock

Tensor = torch.Tensor


def embedded(model: Any, inputs: Tensor) -> Tensor:
    """What goes into the first layer, in fp32 [B, T, d], of tokens [B, T]."""
    body = model.transformer
    positions = torch.arange(inputs.shape[1], device=inputs.device)
    states: Tensor = body.wte(inputs).float() + body.wpe(positions).float()
    return states


def blocks(model: Any) -> Iterator[Any]:
    """The layers in order, each in fp32: in bf16 nothing below 0.4 % of a representation can be told from zero.

    A layer in another precision is copied, and the copy is let go with the next.
    """
    for block in model.transformer.h:
        yield _in_fp32(block)


def behind_attention(block: Any, states: Tensor, *, skip: bool = True) -> Tensor:
    """The stream [B, T, d] behind the attention of a layer, with its skip connection or without."""
    added: Tensor = block.attn(attention_input(block, states))[0]
    if isinstance(block, PostNormBlock):
        normed: Tensor = block.ln_1(_weighted(states, block.omega_attn) + added if skip else added)
        return normed
    return states + added if skip else added


def behind_feed(block: Any, states: Tensor, *, skip: bool = True) -> Tensor:
    """The stream behind the feed-forward network of a layer, of what is behind its attention."""
    if isinstance(block, AnalysedBlock):
        return states
    if isinstance(block, PostNormBlock):
        added = block.mlp(states)
        normed: Tensor = block.ln_2(_weighted(states, block.omega_mlp) + added if skip else added)
        return normed
    fed: Tensor = block.mlp(block.ln_2(states))
    return states + fed if skip else fed


def attention_input(block: Any, states: Tensor) -> Tensor:
    """What the attention of a layer sees of the stream: its norm, where that is in front."""
    if isinstance(block, PostNormBlock | AnalysedBlock):
        return states
    normed: Tensor = block.ln_1(states)
    return normed


def mean_loss(model: Any, states: Tensor, targets: Tensor) -> Tensor:
    """Loss in nats a target that is scored, of what the last layer put out, [B, T, d]."""
    logits = _in_fp32(model.transformer.ln_f)(states) @ model.lm_head.weight.float().T
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED)


def check_blocks(model: Any, inputs: Tensor) -> None:
    """Refuse a model whose first layer is not what its parts here add up to.

    Raises:
        InputError: the diagnostics would measure another network.
    """
    states = embedded(model, inputs)
    block = next(blocks(model))
    after = behind_feed(block, behind_attention(block, states))
    if not torch.allclose(block(states), after, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise InputError(
            "The diagnostics know layers of an attention and a feed-forward network with GPT-2's skip connections and "
            "norms, and those of `network` and `residual`; this model's are others. Take the diagnostics out."
        )


def _in_fp32(module: Any) -> Any:
    is_so = all(parameter.dtype == torch.float32 for parameter in module.parameters())
    return module if is_so else copy.deepcopy(module).float()


def _weighted(stream: Tensor, weight: Tensor | None) -> Tensor:
    return stream if weight is None else stream * weight
