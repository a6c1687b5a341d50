"""The layers of a HuggingFace GPT-2, one by one and in parts, as `h -> h + attention(h)` and `h -> h + feed(h)`."""

import copy
from collections.abc import Iterator
from typing import Any

import torch

from trainables.errors import InputError

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
        if all(parameter.dtype == torch.float32 for parameter in block.parameters()):
            yield block
        else:
            yield copy.deepcopy(block).float()


def attention(block: Any, states: Tensor) -> Tensor:
    """What the attention of a layer adds to its input, [B, T, d] -> [B, T, d]."""
    added: Tensor = block.attn(block.ln_1(states))[0]
    return added


def feed(block: Any, states: Tensor) -> Tensor:
    """What the feed-forward network of a layer adds, [B, T, d] -> [B, T, d]."""
    added: Tensor = block.mlp(block.ln_2(states))
    return added


def token_losses(model: Any, states: Tensor, targets: Tensor) -> Tensor:
    """Loss of each token in nats, [B, T], of what the last layer put out."""
    body = model.transformer
    normed = torch.nn.functional.layer_norm(
        states, states.shape[-1:], body.ln_f.weight.float(), body.ln_f.bias.float(), body.ln_f.eps
    )
    logits = normed @ model.lm_head.weight.float().T
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


def check_blocks(model: Any, inputs: Tensor) -> None:
    """Refuse a model whose first layer is not what its parts here add up to.

    Raises:
        InputError: the diagnostics would measure another network.
    """
    states = embedded(model, inputs)
    block = next(blocks(model))
    after = states + attention(block, states)
    after = after + feed(block, after)
    if not torch.allclose(block(states), after, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise InputError(
            "The diagnostics know the layers of GPT-2 (h + attention(norm(h)), then h + feed(norm(h))), and this "
            "model's are others. Take the diagnostics out."
        )
