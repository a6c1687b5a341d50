"""Parametrisations sp, mup and completep: initialisation, learning rate, weight decay and epsilon by width and depth.

`mup` (Yang et al. 2022, Tensor Programs V, arXiv 2203.03466, table 8, for tied embeddings) and `completep` (Dey et al.
2025, arXiv 2505.01618, table 1, alpha = 1) scale each kind of weight by m = d / d0 and, for `completep`, l = L / L0, so
that one base rate fits all shapes. At the base shape both are `sp`.

The tables need two multipliers in forward: logits / m, and residual branches / l. For AdamW a weight with multiplier
c is a weight c times as large with the rate c·lr, weight decay / c and epsilon / c (start and rate: lemma J.1 of Yang
et al.). So the multipliers are absorbed into the final norm, whose gain and bias feed only the tied head, and into
the last matrix and bias of each branch. The model stays HuggingFace's class in any layout and is exported unchanged;
only the gradient norm, and so the clipping, is that of the absorbed weights. Attention over d_h instead of sqrt(d_h)
cannot be absorbed while training, because query, key and value are one matrix: it is set as the scale of the
attention, and the export moves it into the queries.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from trainables.cell import Recipe, Residual, Shape
from trainables.model.family import Role, family

#: Of Muon, as in Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon).
MOMENTUM = 0.95


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors of a parametrisation on the recipe's values for one parameter. All 1 under `sp`.

    `start` is that of the initial standard deviation or gain. A step applies weight decay times rate.
    """

    start: float = 1.0
    lr: float = 1.0
    decay: float = 1.0
    epsilon: float = 1.0

    def absorb(self, by: float) -> "Scale":
        """Return the scale after moving a multiplier of forward into the weight."""
        return Scale(self.start * by, self.lr * by, self.decay / by, self.epsilon / by)


def width_ratio(shape: Shape, recipe: Recipe) -> float:
    """Return m = d / d0; 1 if the parametrisation ignores the width."""
    return 1.0 if recipe.parametrisation == "sp" else shape.width / recipe.base.width


def depth_ratio(shape: Shape, recipe: Recipe) -> float:
    """Return l = L / L0; 1 if the parametrisation ignores the depth."""
    return shape.depth / recipe.base.depth if recipe.parametrisation == "completep" else 1.0


def attention_ratio(shape: Shape, recipe: Recipe) -> float:
    """Return sqrt(d_h0 / d_h), the factor of attention scores besides 1/sqrt(d_h), so that they scale as 1/d_h."""
    if recipe.parametrisation == "sp":
        return 1.0
    return math.sqrt(recipe.base.head_width * shape.heads / (shape.heads * shape.head_width))


def scale(name: str, shape: Shape, recipe: Recipe) -> Scale:
    """Return the scale of a parameter, by its name in the model."""
    # Gradients scale as 1/m everywhere and as 1/l inside the blocks, and so do the epsilons.
    wide, deep = width_ratio(shape, recipe), depth_ratio(shape, recipe)
    model_family = family(recipe.network)
    residual, role = model_family.residual(recipe), model_family.role(name)
    if residual != "pre":
        return residual_scale(role, residual, shape.depth)
    if role.layer is None:
        # The embedding is the input and, with the multiplier 1/m, the head: both need the same start and rate.
        outer = Scale(epsilon=1 / wide)
        return outer.absorb(1 / wide) if role.kind == "final_norm" else outer
    epsilon = 1 / (wide * deep)
    inner = Scale(1 / math.sqrt(wide), 1 / wide, wide, epsilon) if role.is_matrix else Scale(epsilon=epsilon)
    return inner.absorb(1 / deep) if role.kind == "branch_output" else inner


def residual_scale(role: Role, residual: Residual, depth: int) -> Scale:
    """Return the scale of a parameter for other residual connections than `pre`.

    `sqrt` and `linear` multiply the output of each branch by 1/sqrt(L) and 1/L; `scaled_norm` multiplies the norm
    before each branch by 1/sqrt(l), l = 1 for the first layer (Sun et al. 2025, arXiv 2502.05795).
    """
    by = 1.0
    if residual == "scaled_norm" and role.kind == "norm" and role.layer is not None:
        by = 1 / math.sqrt(role.layer + 1)
    elif residual in ("sqrt", "linear") and role.kind == "branch_output":
        by = 1 / depth if residual == "linear" else 1 / math.sqrt(depth)
    return Scale().absorb(by)


def param_groups(
    named: Iterable[tuple[str, nn.Parameter]], shape: Shape, recipe: Recipe, lr: float
) -> list[dict[str, Any]]:
    """Return the optimizer's groups, one per optimizer, learning rate, weight decay and epsilon.

    Biases and norms have no weight decay. The first group contains the embedding, whose rate is always the cell's. A
    group that Muon is to update has `MOMENTUM`.
    """
    groups: dict[tuple[bool, bool, Scale], dict[str, Any]] = {}
    for name, parameter in named:
        factor, is_matrix = scale(name, shape, recipe), parameter.ndim >= 2
        decay = recipe.weight_decay * factor.decay if is_matrix else 0.0
        values = {"lr": lr * factor.lr, "weight_decay": decay, "params": []}
        role = family(recipe.network).role(name)
        is_muon = recipe.optimizer == "muon" and role.is_matrix and role.layer is not None
        values |= {"momentum": MOMENTUM} if is_muon else {"eps": recipe.epsilon * factor.epsilon}
        groups.setdefault((is_muon, is_matrix, factor), values)["params"].append(parameter)
    return list(groups.values())
