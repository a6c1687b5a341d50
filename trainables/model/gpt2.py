"""Shape -> HuggingFace's own `GPT2LMHeadModel`, with the initialisation and parametrisation the recipe names."""

import math
from collections.abc import Iterator

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.initialization import no_init_weights
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.pytorch_utils import Conv1D

from trainables.cell import Recipe, Shape
from trainables.model.analysed import EMBEDDED_STD, to_analysed
from trainables.model.parametrisation import attention_ratio, depth_ratio, scale, width_ratio
from trainables.model.residual import to_post_norm, weigh_streams

#: Standard deviation of embeddings under both initialisations, and of every matrix under `gpt2`.
GPT2_STD = 0.02


def model_config(shape: Shape, recipe: Recipe, vocabulary: int) -> GPT2Config:
    """Return the GPT-2 configuration of a shape: tied embeddings, four-fold MLP, `context` learned positions."""
    return GPT2Config(
        vocab_size=vocabulary,
        n_positions=recipe.context,
        n_embd=shape.width,
        n_layer=shape.depth,
        n_head=shape.heads,
        # The same function as GPT-2's gelu_new in one fused kernel: 6-17 % of a step on CPU.
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=recipe.dropout,
        embd_pdrop=recipe.dropout,
        attn_pdrop=recipe.dropout,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
    )


def build_model(shape: Shape, recipe: Recipe, vocabulary: int, seed: int) -> GPT2LMHeadModel:
    """Build and initialise the model of a cell on the CPU in fp32; the same seed gives the same weights."""
    with no_init_weights():
        model = GPT2LMHeadModel(model_config(shape, recipe, vocabulary))
    # Transformers finds the loss by the class's name, and "GPT2LMHeadModel" tells it nothing: it would warn of that.
    model.loss_type = "ForCausalLM"
    conv1d_to_linear(model)
    if recipe.network == "analysed":
        to_analysed(model)
    elif recipe.residual in ("post", "admin"):
        to_post_norm(model, weighted=recipe.residual == "admin")
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

    DeepSpeed's tensor parallelism and its flops profiler know Linear layers only (DeepSpeed issue 3711).
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
    """Draw all weights from one generator, in the order of the parameters' names."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in _matrices(model):
            std = standard_deviation(name, parameter.shape[1], shape, recipe)
            parameter.normal_(0.0, std, generator=generator)
        for name, module in model.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
                module.weight.mul_(scale(f"{name}.weight", shape, recipe).start)
            elif isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()


def standard_deviation(name: str, fan_in: int, shape: Shape, recipe: Recipe) -> float:
    """Return the standard deviation a matrix starts with, by its name.

    `gpt2` is Radford et al. 2019: std 0.02, outputs into the residual stream divided by sqrt(2L). `fan_in` has
    std 1/sqrt(fan in) with the same division and embeddings of 0.02: at widths of tens the difference is worth as
    much as a layer, so it is part of the recipe. Where the parametrisation follows width or depth, this is that of
    the base shape, scaled.
    """
    is_flat = recipe.init == "gpt2" or "wte" in name or "wpe" in name
    std = GPT2_STD if is_flat else 1 / math.sqrt(fan_in / width_ratio(shape, recipe))
    if recipe.network == "analysed" and ("wte" in name or "wpe" in name):
        std = EMBEDDED_STD
    if name.endswith("c_proj.weight"):
        std /= math.sqrt(2 * _branch_depth(shape, recipe))
    return std * scale(name, shape, recipe).start


def _branch_depth(shape: Shape, recipe: Recipe) -> float:
    """The L of the 1/sqrt(2L) that the output of a branch starts with; what else it has of L is in its scale."""
    if recipe.residual in ("sqrt", "linear") or recipe.network == "analysed":
        return 1.0
    if recipe.residual in ("post", "admin"):
        # As in Vaswani et al. 2017: behind the sum is a norm, and no branch starts smaller for it.
        return 0.5
    return shape.depth / depth_ratio(shape, recipe)


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            yield name, parameter
