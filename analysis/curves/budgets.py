"""The rows of each budget, and the size at which its depths can be compared."""

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.noise import Floats
from analysis.curves.shape_means import ShapeMeans

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
    served = {depth: _enclosed(points, depth, sizes, reach) for depth in points.depths}
    counts = np.sum([served[depth] for depth in trained if depth in served], axis=0)
    best = int(np.lexsort((np.abs(sizes - target), -np.asarray(counts)))[0])
    return float(sizes[best]), [depth for depth in points.depths if served[depth][best]]


def _enclosed(points: ShapeMeans, depth: int, x: Floats, reach: float) -> npt.NDArray[np.bool_]:
    knots = points.x[points.at(depth)]
    right = np.clip(np.searchsorted(knots, x), 0, len(knots) - 1)
    left = np.maximum(right - 1, 0)
    # The ln of a size, computed in two ways, may differ in the last digits.
    near = np.minimum(np.abs(knots[right] - x), np.abs(knots[left] - x)) < 1e-9
    inside = (x >= knots[0]) & (x <= knots[-1])
    return np.asarray(near | (inside & (knots[right] - knots[left] <= math.log(reach))))
