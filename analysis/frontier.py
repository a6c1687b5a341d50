"""The best depth of each measured budget, straight from the data: no law, no extrapolation."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.curves import Curves, Floats

#: Two depths differ when their paired gap exceeds this many standard errors.
Z_DIFFERENT = 2.0
#: Sizes without a named budget form one group while neighbours differ by less than this, and the whole by
#: less than 2.
NEIGHBOUR = 1.35
#: A budget's losses are compared at one N that all its depths cover; it may differ from the budget by this
#: factor.
SHIFT = 1.35
#: A depth is compared at an N only where two of its sizes, at most this factor apart, enclose it.
REACH = 4.0


@dataclass(frozen=True)
class DepthAt:
    """One depth at one budget.

    Attributes:
        loss, se: interpolated in ln N, nats a token; `se` None when the noise is not known.
        excess: loss above the best depth, `z` the same in paired standard errors.
    """

    depth: int
    width: float
    loss: float
    se: float | None
    excess: float
    z: float | None


@dataclass(frozen=True)
class BestShape:
    """The frontier of one measured budget.

    Attributes:
        budget: as planned (or the geometric mean of a group of sizes).
        params: the N at which the losses are compared, covered by all `shapes`.
        depth, width, loss: of the depth with the lowest loss.
        near: all depths that cannot be told from it (|z| < 2), itself included; None when the noise is not
            known.
        shapes: every depth measured there, by depth.
    """

    budget: float
    params: float
    depth: int
    width: float
    loss: float
    near: tuple[int, ...] | None
    shapes: tuple[DepthAt, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "BestShape":
        """The inverse of `to_json`."""
        return cls(
            **{
                **value,
                "near": None if value["near"] is None else tuple(value["near"]),
                "shapes": tuple(DepthAt(**item) for item in value["shapes"]),
            }
        )


def best_shapes(used: pd.DataFrame, curves: Curves) -> tuple[BestShape, ...]:
    """The best depth of every budget at which two or more depths can be compared.

    Args:
        used: the rows `curves` was built from (columns depth, params, budget).
        curves: see `analysis.curves`.
    """
    found = []
    for budget, depths in _budgets(used):
        shape = _compare(curves, budget, depths)
        if shape is not None:
            found.append(shape)
    return tuple(found)


def _budgets(used: pd.DataFrame) -> list[tuple[float, list[int]]]:
    """(budget, depths trained for it), ascending."""
    if used["budget"].notna().all():
        groups = used.groupby("budget", sort=True)["depth"].unique()
        return [(float(budget), sorted(int(depth) for depth in depths)) for budget, depths in groups.items()]  # type: ignore[arg-type]
    rows = used.sort_values("params")
    sizes = rows["params"].to_numpy(dtype=float)
    group = np.zeros(len(sizes), dtype=int)
    start = 0
    for index in range(1, len(sizes)):
        new = sizes[index] > NEIGHBOUR * sizes[index - 1] or sizes[index] > 2 * sizes[start]
        start = index if new else start
        group[index] = group[index - 1] + new
    return [
        (float(np.exp(np.log(rows["params"][group == g]).mean())), sorted(set(rows["depth"][group == g])))
        for g in np.unique(group)
    ]


def _compare(curves: Curves, budget: float, trained: list[int]) -> BestShape | None:
    x, depths = _common_size(curves, math.log(budget), trained)
    if len(depths) < 2:
        return None
    weights = np.vstack([curves.weights(depth, np.array([x])) for depth in depths])
    loss = weights @ curves.mean
    best = int(np.argmin(loss))
    excess = loss - loss[best]
    known = curves.noise.known
    se = _errors(weights, curves.covariance)
    apart = _errors(weights - weights[best], curves.covariance)
    z = np.divide(excess, apart, out=np.zeros_like(excess), where=apart > 0)
    params = math.exp(x)
    shapes = tuple(
        DepthAt(
            depth,
            math.sqrt(params / (12 * depth)),
            float(loss[i]),
            float(se[i]) if known else None,
            float(excess[i]),
            float(z[i]) if known else None,
        )
        for i, depth in enumerate(depths)
    )
    near = tuple(shape.depth for shape in shapes if shape.z is not None and shape.z < Z_DIFFERENT)
    winner = shapes[best]
    return BestShape(budget, params, winner.depth, winner.width, winner.loss, near if known else None, shapes)


def _common_size(curves: Curves, target: float, trained: list[int]) -> tuple[float, list[int]]:
    """The ln N near a budget at which most of its depths can be compared, and the depths that can be.

    Widths are whole, so the depths of one budget have slightly different sizes: at the budget itself one of them may
    lie outside its measured range, or far from its next size, while all meet at a size measured close by. Of the
    sizes that serve equally many of the trained depths the nearest to the budget is taken.
    """
    knots = np.concatenate([curves.x[curves.at(depth)] for depth in curves.depths])
    sizes = [target, *knots[np.abs(knots - target) <= math.log(SHIFT)]]
    served = {size: [depth for depth in curves.depths if _enclosed(curves, depth, size)] for size in sizes}
    best = min(sizes, key=lambda size: (-len(set(served[size]) & set(trained)), abs(size - target)))
    return float(best), served[best]


def _enclosed(curves: Curves, depth: int, x: float) -> bool:
    low, high = curves.range(depth)
    if not low <= x <= high:
        return False
    knots = curves.x[curves.at(depth)]
    near = np.isclose(knots, x)
    if near.any():
        return True
    right = int(np.searchsorted(knots, x))
    return bool(knots[right] - knots[right - 1] <= math.log(REACH))


def _errors(weights: Floats, covariance: Floats) -> Floats:
    variance = np.einsum("kp,pq,kq->k", weights, covariance, weights)
    return np.asarray(np.sqrt(np.maximum(variance, 0)))
