"""Build the model of a cell: its family's class, with weights drawn by the roles of the parameters."""

import math
from typing import Any

import torch

from trainables.cell import Recipe, Shape
from trainables.model.family import family
from trainables.model.parametrisation import depth_ratio, scale, width_ratio

#: Standard deviation of every matrix under the initialisation `gpt2`.
GPT2_STD = 0.02


def build_model(shape: Shape, recipe: Recipe, vocabulary: int, seed: int) -> Any:
    """Build and initialise the model of a cell on the CPU in fp32, deterministically by seed.

    Draw all matrices from one generator in the order of the parameters; biases are 0, gains of norms 1. A
    parametrisation scales matrices and gains.
    """
    model_family = family(recipe.network)
    model_family.check(recipe)
    model = model_family.build(shape, recipe, vocabulary)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if model_family.role(name).is_matrix:
                std = standard_deviation(name, parameter.shape[1], shape, recipe)
                parameter.normal_(0.0, std, generator=generator)
            elif name.endswith(".bias"):
                parameter.zero_()
            else:
                parameter.fill_(scale(name, shape, recipe).start)
    model_family.finish_weights(model, recipe, seed)
    return model


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
        # `scale` contains the rest.
        depth = shape.depth / depth_ratio(shape, recipe)
        std /= math.sqrt(model_family.summed_branches(shape, recipe, depth))
    return std * scale(name, shape, recipe).start
