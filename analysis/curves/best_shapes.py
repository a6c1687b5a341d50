"""The best depth of each measured budget, from the curves alone: no law, no extrapolation.

A budget is a named size, or a group of sizes near each other; its depths are compared at one N.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.curves.shape_means import ShapeMeans
from analysis.intervals import width_of

#: Two depths differ when their paired gap exceeds this many standard errors.
Z_DIFFERENT = 2.0
#: Sizes without a named budget form one group while neighbours differ by less than this, and the whole group by less
#: than 2.
NEIGHBOUR = 1.35
#: A budget's losses are compared at one N that all its depths cover; it may differ from the budget by this
#: factor.
SHIFT = 1.35
#: A depth is compared at an N only if two of its sizes enclose it; these may differ by at most this factor, on a smooth
#: curve through all its sizes and on a straight line between the two.
CURVE_REACH, LINE_REACH = 10.0, 4.0
#: With more named budgets than this, sizes are grouped as if unnamed.
MOST_BUDGETS = 40


@dataclass(frozen=True)
class DepthAt:
    """One depth at one budget: the loss on its curve and the excess over the best depth's, nats per token.

    `se` and `z`, the excess in paired standard errors, are None if the noise is not known.
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
        near: all depths that do not differ from it (|z| < 2), itself included; None if the noise is not known.
        shapes: every depth measured there, by depth.
        width_step: what all widths of the study are multiples of, at most 64; widths at N are not multiples of it.
    """

    budget: float
    params: float
    depth: int
    width: float
    loss: float
    near: tuple[int, ...] | None
    shapes: tuple[DepthAt, ...]
    width_step: int | None = None


def best_shapes(used: pd.DataFrame, curves: Curves) -> tuple[BestShape, ...]:
    """The best depth of every budget of `used`, the rows of `curves`, at which two or more depths can be compared."""
    step = width_step(used)
    found = [_compare(curves, budget, depths, step) for budget, depths in budgets(used)]
    return tuple(shape for shape in found if shape is not None)


def width_step(used: pd.DataFrame) -> int | None:
    """What all widths are multiples of, 64 if that is a multiple of 64; None without widths."""
    if "width" not in used:
        return None
    step = math.gcd(*(int(width) for width in used["width"].unique()))
    return 64 if step % 64 == 0 else step


def _compare(curves: Curves, budget: float, trained: list[int], step: int | None) -> BestShape | None:
    x, depths = common_size(curves, math.log(budget), trained)
    if len(depths) < 2:
        return None
    weights = np.vstack([curves.rows(depth, np.array([x])) for depth in depths])
    loss = weights @ curves.values.ravel()
    best = int(np.argmin(loss))
    excess = loss - loss[best]
    known = curves.noise.known
    covariance = weights @ curves.covariance @ weights.T
    variance = np.diag(covariance)
    se = np.sqrt(np.maximum(variance, 0))
    apart = np.sqrt(np.maximum(variance + variance[best] - 2 * covariance[best], 0))
    z = np.divide(excess, apart, out=np.zeros_like(excess), where=apart > 0)
    params = math.exp(x)
    shapes = tuple(
        DepthAt(
            depth,
            width_of(params, depth),
            float(loss[i]),
            float(se[i]) if known else None,
            float(excess[i]),
            float(z[i]) if known else None,
        )
        for i, depth in enumerate(depths)
    )
    near = tuple(shape.depth for shape in shapes if shape.z is not None and shape.z < Z_DIFFERENT)
    winner = shapes[best]
    return BestShape(
        budget, params, winner.depth, winner.width, winner.loss, near if known else None, shapes, step
    )


def budget_of(rows: pd.DataFrame) -> pd.Series:
    """The budget of every row: as planned, or, if a row has none, the geometric mean of its group of sizes.

    Args:
        rows: column params, and budget if the study named one; budgets that are not all positive numbers do not
            count. Groups are cut from small to large, so dropping the largest sizes changes no other group.

    Returns:
        N in parameters, with the index of `rows`.
    """
    if "budget" in rows and rows["budget"].nunique() <= MOST_BUDGETS:
        named = rows["budget"].astype(float)
        if (np.isfinite(named) & (named > 0)).all():
            return named
    sizes = rows["params"].to_numpy(dtype=float)
    order = np.argsort(sizes, kind="stable")
    values = sizes[order]
    group = np.zeros(len(values), dtype=int)
    start = 0
    for index in range(1, len(values)):
        new = values[index] > NEIGHBOUR * values[index - 1] or values[index] > 2 * values[start]
        start = index if new else start
        group[index] = group[index - 1] + new
    means = np.exp(np.bincount(group, np.log(values)) / np.bincount(group))
    budget = np.empty(len(values))
    budget[order] = means[group]
    return pd.Series(budget, index=rows.index)


def budgets(rows: pd.DataFrame) -> list[tuple[float, list[int]]]:
    """(budget, depths trained for it), ascending; see `budget_of`."""
    groups = rows["depth"].groupby(budget_of(rows))
    return [(float(budget), sorted(int(depth) for depth in depths.unique())) for budget, depths in groups]


def common_size(
    points: ShapeMeans, target: float, trained: list[int], reach: float = CURVE_REACH
) -> tuple[float, list[int]]:
    """The ln N near a budget at which most of its depths can be compared, and the depths that can be.

    Widths are whole numbers, so the depths of one budget have slightly different sizes. At the budget itself one of
    them may lie outside its measured range, or far from its next size, while all can be compared at a size close by. Of
    the sizes at which equally many of the depths `trained` can be compared, the nearest to the budget, ln N = `target`,
    is chosen.
    """
    knots = np.concatenate([points.x[points.at(depth)] for depth in points.depths])
    sizes = np.unique(np.array([target, *knots[np.abs(knots - target) <= math.log(SHIFT)]]))
    served = {depth: enclosed(points, depth, sizes, reach) for depth in points.depths}
    counts = np.sum([served[depth] for depth in trained if depth in served], axis=0)
    best = int(np.lexsort((np.abs(sizes - target), -np.asarray(counts)))[0])
    return float(sizes[best]), [depth for depth in points.depths if served[depth][best]]


def enclosed(points: ShapeMeans, depth: int, x: Floats, reach: float) -> npt.NDArray[np.bool_]:
    """Whether a depth can be compared at each ln N = x: at its sizes, and between two within a factor `reach`."""
    knots = points.x[points.at(depth)]
    right = np.clip(np.searchsorted(knots, x), 0, len(knots) - 1)
    left = np.maximum(right - 1, 0)
    # The ln of a size, computed in two ways, may differ in the last digits.
    near = np.minimum(np.abs(knots[right] - x), np.abs(knots[left] - x)) < 1e-9
    inside = (x >= knots[0]) & (x <= knots[-1])
    return np.asarray(near | (inside & (knots[right] - knots[left] <= math.log(reach))))
