"""How initialisation, learning rate, weight decay and AdamW's epsilon follow width and depth: sp, mup and completep.

`sp` is the model as it is. `mup` (Yang et al. 2022, Tensor Programs V, arXiv 2203.03466, table 8, for tied embeddings)
and `completep` (Dey et al. 2025, arXiv 2505.01618, table 1, alpha = 1) give each kind of weight a scale by m = d / d0
and, for `completep`, l = L / L0, so that one base rate is right for all shapes. At the base shape all three are the
same training.

The tables ask for two multipliers in forward: logits / m, and residual branches / l. To AdamW a weight with the
multiplier c is a weight c times as large with the rate c·lr, weight decay / c and epsilon / c (start and rate: lemma
J.1 of Yang et al.), so they are absorbed: into the final norm, whose gain and
bias are in front of the tied head and nowhere else, and into the last matrix and bias of each branch. The model stays
HuggingFace's own class under any layout, and is exported as it is. Only the gradient's norm, and so the clipping, is
that of the absorbed weights. Attention over d_h instead of sqrt(d_h) cannot be absorbed while training, because query,
key and value are one matrix; it is the scale of the attention, and `fold_attention` brings it into the queries.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainables.cell import Recipe, Residual, Shape
from trainables.model.family import Role, family


@dataclass(frozen=True, slots=True)
class Scale:
    """What a parametrisation multiplies the recipe's values by, for one parameter. All 1 under `sp`."""

    start: float = 1.0
    """Its initial standard deviation, or its initial gain."""
    lr: float = 1.0
    """Its share of the cell's learning rate."""
    decay: float = 1.0
    """Its weight decay; times `lr` it is what a step takes away."""
    epsilon: float = 1.0
    """Its AdamW epsilon."""

    def absorb(self, multiplier: float) -> "Scale":
        """Return the scale of the weight that has a multiplier of forward in itself."""
        return Scale(
            self.start * multiplier,
            self.lr * multiplier,
            self.decay / multiplier,
            self.epsilon / multiplier,
        )


def width_ratio(shape: Shape, recipe: Recipe) -> float:
    """The m of the tables, d / d0; 1 where the parametrisation does not follow the width."""
    return 1.0 if recipe.parametrisation == "sp" else shape.width / recipe.base.width


def depth_ratio(shape: Shape, recipe: Recipe) -> float:
    """The l of the tables, L / L0; 1 where the parametrisation does not follow the depth."""
    return shape.depth / recipe.base.depth if recipe.parametrisation == "completep" else 1.0


def attention_ratio(shape: Shape, recipe: Recipe) -> float:
    """What the scores of attention are multiplied by beside 1/sqrt(d_h): sqrt(d_h0 / d_h), so that they go as 1/d_h."""
    if recipe.parametrisation == "sp":
        return 1.0
    return math.sqrt(recipe.base.head_width * shape.heads / shape.width)


def scale(name: str, shape: Shape, recipe: Recipe) -> Scale:
    """Return the scale of a parameter, by its name in the model.

    Gradients are as 1/m everywhere and as 1/l inside the blocks; the epsilons follow them.
    """
    wide, deep = width_ratio(shape, recipe), depth_ratio(shape, recipe)
    model_family = family(recipe.network)
    residual, role = model_family.residual(recipe), model_family.role(name)
    if residual != "pre":
        return residual_scale(role, residual, shape.depth)
    if role.layer is None:
        # The embedding is an input and, behind the multiplier 1/m, the head: both want the same start and rate.
        outer = Scale(epsilon=1 / wide)
        return outer.absorb(1 / wide) if role.kind == "final_norm" else outer
    epsilon = 1 / (wide * deep)
    if role.is_matrix:
        inner = Scale(start=1 / math.sqrt(wide), lr=1 / wide, decay=wide, epsilon=epsilon)
    else:
        inner = Scale(epsilon=epsilon)
    return inner.absorb(1 / deep) if role.kind == "branch_output" else inner


def residual_scale(role: Role, residual: Residual, depth: int) -> Scale:
    """Return the scale of a parameter where the recipe changes how branches join the residual stream.

    `sqrt` and `linear` multiply the output of each branch by 1/sqrt(L) and 1/L, and `scaled_norm` that of each norm in
    front of a branch by 1/sqrt(l), l = 1 for the first layer (Sun et al. 2025, arXiv 2502.05795). All three are
    absorbed like those of a parametrisation, so that the model stays HuggingFace's own.
    """
    if residual == "scaled_norm" and role.kind == "norm" and role.layer is not None:
        return Scale().absorb(1 / math.sqrt(role.layer + 1))
    if residual in ("sqrt", "linear") and role.kind == "branch_output":
        return Scale().absorb(1 / depth if residual == "linear" else 1 / math.sqrt(depth))
    return Scale()


def param_groups(
    named: Iterable[tuple[str, nn.Parameter]], shape: Shape, recipe: Recipe, lr: float
) -> list[dict[str, Any]]:
    """Return the optimizer's groups: parameters of one learning rate, weight decay and epsilon each.

    Biases and norms have no weight decay. The first group holds the embedding, whose rate is the cell's own under
    every parametrisation. Under `sp`, and at the base shape, there are two: matrices, and the rest.
    """
    groups: dict[tuple[bool, Scale], dict[str, Any]] = {}
    for name, parameter in named:
        one, is_matrix = scale(name, shape, recipe), parameter.ndim >= 2
        values = {
            "params": [],
            "lr": lr * one.lr,
            "weight_decay": recipe.weight_decay * one.decay if is_matrix else 0.0,
            "eps": recipe.epsilon * one.epsilon,
        }
        groups.setdefault((is_matrix, one), values)["params"].append(parameter)
    return list(groups.values())


def fold_attention(
    state: Mapping[str, torch.Tensor], shape: Shape, recipe: Recipe
) -> dict[str, torch.Tensor]:
    """Return the weights of a plain GPT-2, which divides scores by sqrt(d_h), that computes the same function.

    Args:
        state: the whole state of a model of `trainables.model.gpt2.build_model`, by name.
        shape: its shape.
        recipe: its recipe.
    """
    ratio = attention_ratio(shape, recipe)
    if ratio == 1:
        return dict(state)
    return {name: _queries(value, ratio) if ".c_attn." in name else value for name, value in state.items()}


def _queries(value: torch.Tensor, ratio: float) -> torch.Tensor:
    """Multiply the first of query, key and value, one above the other in `value`."""
    rows = len(value) // 3
    return torch.cat([(value[:rows].float() * ratio).to(value.dtype), value[rows:]])
