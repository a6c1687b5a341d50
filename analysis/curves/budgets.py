"""The budgets of a study: a named size, or a group of sizes near each other."""

import math

import numpy as np
import pandas as pd

#: Sizes without a named budget form one group while neighbours differ by less than this, and the whole group by less
#: than 2.
NEIGHBOUR = 1.35
#: With more named budgets than this, sizes are grouped as if unnamed.
MOST_BUDGETS = 40


def width_step(used: pd.DataFrame) -> int | None:
    """What all widths are multiples of, 64 if that is a multiple of 64; None without widths."""
    if "width" not in used:
        return None
    step = math.gcd(*(int(width) for width in used["width"].unique()))
    return 64 if step % 64 == 0 else step


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
