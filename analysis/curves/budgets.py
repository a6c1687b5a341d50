"""Which rows belong to one budget, and the one size at which its depths can be compared."""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.noise import Floats

#: Sizes without a named budget form one group while neighbours differ by less than this, and the whole by
#: less than 2.
NEIGHBOUR = 1.35
#: A budget's losses are compared at one N that all its depths cover; it may differ from the budget by this
#: factor.
SHIFT = 1.35
#: A depth is compared at an N only where two of its sizes enclose it that are at most so far apart: on a smooth curve
#: through all its sizes, and on a straight line between the two.
CURVE_REACH, LINE_REACH = 10.0, 4.0
#: More named budgets than this are neighbours on one curve rather than groups; sizes are then grouped as if unnamed.
MOST_BUDGETS = 40


class Sizes(Protocol):
    """What is measured at which size: `analysis.curves.curves.Curves`, or the bare points."""

    @property
    def depths(self) -> Sequence[int]:
        """The depths, ascending."""

    @property
    def x(self) -> Floats:
        """Ln N of the points."""

    def at(self, depth: int) -> npt.NDArray[np.int64]:
        """Indices of the points of one depth, in order of N."""

    def range(self, depth: int) -> tuple[float, float]:
        """Smallest and largest ln N of a depth."""


def budget_of(rows: pd.DataFrame) -> pd.Series:
    """The budget of every row: as planned, or, where a row has none, the geometric mean of its group of sizes.

    Args:
        rows: column params, and budget where the study named one. Groups are cut from small to large, so
            leaving the largest sizes away changes no other group.

    Returns:
        N in parameters, with the index of `rows`.
    """
    if "budget" in rows and rows["budget"].notna().all() and rows["budget"].nunique() <= MOST_BUDGETS:
        return rows["budget"].astype(float)
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
    groups = rows.groupby(budget_of(rows), sort=True)["depth"].unique()
    values = groups.index.to_numpy(dtype=float)
    return [
        (float(value), sorted(int(d) for d in depths)) for value, depths in zip(values, groups, strict=True)
    ]


def common_size(
    points: Sizes, target: float, trained: list[int], reach: float = CURVE_REACH
) -> tuple[float, list[int]]:
    """The ln N near a budget at which most of its depths can be compared, and the depths that can be.

    Widths are whole, so the depths of one budget have slightly different sizes: at the budget itself one of them may
    lie outside its measured range, or far from its next size, while all meet at a size measured close by. Of the
    sizes that serve equally many of the trained depths the nearest to the budget is taken.

    Args:
        points: all points of the study.
        target: ln of the budget.
        trained: the depths trained for it.
        reach: factor between two sizes that may enclose an N.
    """
    knots = np.concatenate([points.x[points.at(depth)] for depth in points.depths])
    sizes = np.unique(np.array([target, *knots[np.abs(knots - target) <= math.log(SHIFT)]]))
    served = {depth: _enclosed(points, depth, sizes, reach) for depth in points.depths}
    counts = np.sum([served[depth] for depth in trained if depth in served], axis=0)
    order = np.lexsort((np.abs(sizes - target), -np.asarray(counts)))
    best = int(order[0])
    return float(sizes[best]), [depth for depth in points.depths if served[depth][best]]


def enclosed(points: Sizes, depth: int, x: float) -> bool:
    """Whether ln N = `x` is a measured size of the depth or lies between two that are close enough for a curve."""
    return bool(_enclosed(points, depth, np.array([x]), CURVE_REACH)[0])


def _enclosed(points: Sizes, depth: int, x: Floats, reach: float) -> npt.NDArray[np.bool_]:
    knots = points.x[points.at(depth)]
    right = np.clip(np.searchsorted(knots, x), 0, len(knots) - 1)
    left = np.maximum(right - 1, 0)
    # The ln of a size, made on two ways, may differ in the last digits.
    near = np.minimum(np.abs(knots[right] - x), np.abs(knots[left] - x)) < 1e-9
    inside = (x >= knots[0]) & (x <= knots[-1])
    return np.asarray(near | (inside & (knots[right] - knots[left] <= math.log(reach))))
