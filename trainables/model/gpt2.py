"""Build HuggingFace's `GPT2LMHeadModel` with a recipe's initialisation and parametrisation, and convert its weights."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel
from transformers.initialization import no_init_weights
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.pytorch_utils import Conv1D

from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model.chunked_loss import ChunkedLoss
from trainables.model.family import family
from trainables.model.parametrisation import attention_ratio, depth_ratio, scale, width_ratio
from trainables.model.residual import weigh_streams

#: Standard deviation of every matrix under the initialisation `gpt2`.
GPT2_STD = 0.02
#: Tied to the embedding, so HuggingFace's files omit it.
TIED_HEAD = "lm_head.weight"
#: torch's attention under a name for which HuggingFace builds no mask. For its own name `sdpa` it looks for packed
#: sequences in every forward pass, which waits for the device; the attention itself is causal without a mask.
ATTENTION = "interplay_sdpa"
AttentionInterface.register(ATTENTION, sdpa_attention_forward)


class GPT2(ChunkedLoss, GPT2LMHeadModel):
    """HuggingFace's model with our loss."""


def model_config(shape: Shape, recipe: Recipe, vocabulary: int) -> GPT2Config:
    """Return the GPT-2 configuration of a shape: tied embeddings, four-fold MLP, `context` learned positions."""
    return GPT2Config(
        vocab_size=vocabulary,
        n_positions=recipe.context,
        n_embd=shape.width,
        n_layer=shape.depth,
        n_head=shape.heads,
        # GPT-2's gelu_new as one fused kernel, which saves 6-17 % of a step on CPU.
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=recipe.dropout,
        embd_pdrop=recipe.dropout,
        attn_pdrop=recipe.dropout,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=ATTENTION,
    )


def build_gpt2(
    shape: Shape, recipe: Recipe, vocabulary: int, seed: int, change: Callable[[Any, Recipe], None]
) -> GPT2LMHeadModel:
    """Build and initialise a model on the CPU in fp32 by its seed; `change` changes the blocks before the draw."""
    with no_init_weights():
        model = GPT2(model_config(shape, recipe, vocabulary))
    # Transformers looks up the loss by class name and warns, because it has none of this name.
    model.loss_type = "ForCausalLM"
    conv1d_to_linear(model)
    change(model, recipe)
    model.tie_weights()
    initialise(model, shape, recipe, seed)
    if recipe.residual == "admin":
        weigh_streams(model, seed)
    for module in model.modules():
        if isinstance(module, GPT2Attention):
            module.scaling *= attention_ratio(shape, recipe)
    return model


def conv1d_to_linear(model: nn.Module) -> None:
    """Turn each of GPT-2's `Conv1D` layers into the `nn.Linear` that computes the same function, in place.

    DeepSpeed's tensor parallelism and its FLOPs profiler support Linear layers only (DeepSpeed issue 3711).
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                fan_in, fan_out = child.weight.shape
                linear = nn.Linear(fan_in, fan_out, dtype=child.weight.dtype, device=child.weight.device)
                with torch.no_grad():
                    linear.weight.copy_(child.weight.t())
                    linear.bias.copy_(child.bias)
                setattr(parent, name, linear)


def initialise(model: nn.Module, shape: Shape, recipe: Recipe, seed: int) -> None:
    """Draw all weights from one generator in the order of the parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                std = standard_deviation(name, parameter.shape[1], shape, recipe)
                parameter.normal_(0.0, std, generator=generator)
        for name, module in model.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
                module.weight.mul_(scale(f"{name}.weight", shape, recipe).start)
            elif isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()


def standard_deviation(name: str, fan_in: int, shape: Shape, recipe: Recipe) -> float:
    """Return the initial standard deviation of a matrix; a parametrisation scales the value at the base shape.

    `gpt2` is Radford et al. 2019: 0.02, divided by sqrt(2L) for outputs into the residual stream. `fan_in` is
    1/sqrt(fan in) with the same division, and 0.02 for embeddings; at widths of tens the difference is worth a layer.
    """
    model_family = family(recipe.network)
    role = model_family.role(name)
    if role.kind == "embedding":
        std = model_family.embedding_std
    else:
        std = GPT2_STD if recipe.init == "gpt2" else 1 / math.sqrt(fan_in / width_ratio(shape, recipe))
    if role.kind == "branch_output":
        # The L in the factor 1/sqrt(2L) of a branch's initial output; `scale` contains the rest. Of post and admin the
        # factor is 1, as in Vaswani et al. 2017, because a norm follows the sum.
        fixed = {"sqrt": 1.0, "linear": 1.0, "post": 0.5, "admin": 0.5}
        depth = shape.depth / depth_ratio(shape, recipe)
        std /= math.sqrt(2 * fixed.get(model_family.residual(recipe), depth))
    return std * scale(name, shape, recipe).start


def use_local_heads(model: Any, layout: Layout) -> None:
    """Set the width of each attention's local heads, which DeepSpeed does not.

    It reports nothing if a pattern matches no layer, so a matrix that is not sharded is a RuntimeError here.
    """
    degree, width = layout.tensor_parallel, model.config.n_embd
    for name, module in model.named_modules():
        if isinstance(module, GPT2Attention):
            weight = module.c_attn.weight
            # Under ZeRO-3 the weight is an empty placeholder.
            rows = (getattr(weight, "ds_shape", None) or weight.shape)[0]
            if rows != 3 * width // degree:
                raise RuntimeError(f"DeepSpeed did not shard {name}.c_attn: it has {rows} rows on this rank")
            module.split_size = rows // 3
    for name, parameter in model.named_parameters():
        if ".mlp.c_fc.weight" in name and not getattr(parameter, "tensor_model_parallel", False):
            raise RuntimeError(f"DeepSpeed did not shard {name}")


def as_conv1d(state: Mapping[str, torch.Tensor], config: GPT2Config) -> dict[str, torch.Tensor]:
    """Convert weights to those of HuggingFace's `GPT2LMHeadModel` on the CPU; a RuntimeError if they are not all of it.

    Linear weights [out, in] become Conv1D's [in, out]; the tied head is omitted, as in HuggingFace's files.
    """
    with torch.device("meta"), no_init_weights():
        model = GPT2LMHeadModel(config)
    transposed = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
    wanted = {name: value.shape for name, value in model.state_dict().items() if name != TIED_HEAD}
    tensors = {
        name: (value.t() if name in transposed else value).detach().cpu().contiguous()
        for name, value in state.items()
        if name != TIED_HEAD
    }
    found = {name: value.shape for name, value in tensors.items()}
    if found != wanted:
        wrong = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        raise RuntimeError(f"the weights are not those of the whole model: {', '.join(wrong[:3])} differ")
    return tensors
