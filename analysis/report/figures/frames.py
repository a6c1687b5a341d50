"""Tables and laws that several figures use."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.curves.noise import Floats
from analysis.fit.document import Fit
from analysis.fit.study import Study
from analysis.law.projection import Law

#: Points of a smooth line.
LINE = 61


def study_of_fit(fit: Fit) -> Study:
    """The rows, curves and gaps that a fit was made from.

    Raises:
        ValueError: the fit was read from a file, which does not hold them.
    """
    if fit.study is None:
        raise ValueError("a fit that was read from a file has no curves to draw; fit the run table again")
    return fit.study


def shape_points(fit: Fit) -> pd.DataFrame:
    """One row per shape: depth, params, width, low and high loss over the seeds, and the mean loss."""
    study = study_of_fit(fit)
    grouped = study.rows.groupby(["depth", "params"], sort=True).agg(
        width=("width", "first"), low=("loss", "min"), high=("loss", "max")
    )
    return grouped.reset_index().assign(loss=study.curves.mean)


def width_interval(law: Law, depth: Floats) -> tuple[Floats, Floats]:
    """Smallest and largest exp(a + b·L) over the region of the law, at each depth; NaN where there is no limit."""
    points = [*law.boundary(), (law.a, law.b, False)]
    values = np.vstack([np.exp(a + b * depth) for a, b, _ in points])
    cut = np.array([is_open for _, _, is_open in points])
    values = np.where(np.isfinite(values), values, np.inf)
    low, high = values.min(axis=0), values.max(axis=0)
    # An end is open if it is attained where the search of the region was cut off.
    low_open = ((values == low) & cut[:, None]).any(axis=0) | ~np.isfinite(low)
    high_open = ((values == high) & cut[:, None]).any(axis=0) | ~np.isfinite(high)
    return np.where(low_open, np.nan, low), np.where(high_open, np.nan, high)


def concat(parts: Sequence[pd.DataFrame], *columns: str) -> pd.DataFrame:
    """The parts below each other; without parts an empty table with these columns."""
    if parts:
        return pd.concat(parts, ignore_index=True)
    return pd.DataFrame({name: pd.Series(dtype=float) for name in columns})


def by_depth(frame: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """(depth, its rows) from shallow to deep."""
    return [(int(depth), frame[frame["depth"] == depth]) for depth in sorted(set(frame["depth"]))]


def stack(**parts: pd.DataFrame) -> pd.DataFrame:
    """The non-empty parts below each other, with their names in the column `what`."""
    table = pd.concat(
        [part.assign(what=name) for name, part in parts.items() if len(part)], ignore_index=True
    )
    return table[["what", *(name for name in table.columns if name != "what")]]
