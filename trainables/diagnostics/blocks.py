"""Run the layers of a model one by one and in parts: attention, then feed-forward network."""

import copy
from collections.abc import Iterator
from typing import Any

import torch

from trainables.data.store.batches import IGNORED
from trainables.model.analysed import AnalysedBlock
from trainables.model.residual import PostNormBlock, weigh

Tensor = torch.Tensor


def embedded(model: Any, inputs: Tensor) -> Tensor:
    """Return the input of the first layer for tokens [B, T], in fp32 [B, T, d]."""
    positions = torch.arange(inputs.shape[1], device=inputs.device)
    states: Tensor = model.transformer.wte(inputs).float() + model.transformer.wpe(positions).float()
    return states


def blocks(model: Any) -> Iterator[Any]:
    """Yield the layers in order in fp32, copied one at a time: bf16 resolves only 0.4 % of a representation."""
    for block in model.transformer.h:
        yield _in_fp32(block)


def behind_attention(block: Any, states: Tensor, *, skip: bool = True) -> Any:
    """Return the stream [B, T, d] after the attention of a layer, with or without its skip connection."""
    added = block.attn(attention_input(block, states))[0]
    if isinstance(block, PostNormBlock):
        return block.ln_1(weigh(states, block.omega_attn) + added if skip else added)
    return states + added if skip else added


def behind_feed(block: Any, states: Tensor, *, skip: bool = True) -> Any:
    """Return the stream after a layer's feed-forward network, given the stream after its attention."""
    if isinstance(block, AnalysedBlock):
        return states
    if isinstance(block, PostNormBlock):
        added = block.mlp(states)
        return block.ln_2(weigh(states, block.omega_mlp) + added if skip else added)
    added = block.mlp(block.ln_2(states))
    return states + added if skip else added


def attention_input(block: Any, states: Tensor) -> Any:
    """Return the attention's input: the normed stream, or the stream itself if no norm comes first."""
    return states if isinstance(block, PostNormBlock | AnalysedBlock) else block.ln_1(states)


def mean_loss(model: Any, states: Tensor, targets: Tensor) -> Tensor:
    """Return the loss in nats per scored target, given the last layer's output [B, T, d]."""
    logits = _in_fp32(model.transformer.ln_f)(states) @ model.lm_head.weight.float().T
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED)


def _in_fp32(module: Any) -> Any:
    is_fp32 = all(parameter.dtype == torch.float32 for parameter in module.parameters())
    return module if is_fp32 else copy.deepcopy(module).float()
