"""Objective of a search, its estimate from the cells so far, and the history of the estimate.

The objective is the projected best depth of a size, the slope b of the law, or the crossings. The estimate is that of a
fit (`analysis.fit.study`) with its intervals, so that a search ends on the same numbers that the report shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from analysis.errors import InputError
from analysis.fit.study import Estimates, study_of
from analysis.intervals import Interval
from analysis.law.crossings import Crossing, Crossings
from analysis.law.prediction import rejected
from analysis.law.shape import Shape
from analysis.law.threshold_law import ThresholdLaw
from analysis.runs.table import RunTable
from analysis.threads import single_threaded

#: Successive estimates that must be narrow enough to end a search.
CHECKS = 2
#: Most points of a history; each is a fit that takes some hundredths of a second.
MOST_POINTS = 40


@dataclass(frozen=True)
class Objective:
    """Objective of a search.

    Attributes:
        kind: `depth` is the projected best depth at `params`, `b` the slope of the law in ln d per layer, `crossings`
            all crossings of neighbouring depths.
        params: N = 12·L·d² of the projection; only for `depth`.
    """

    kind: Literal["depth", "b", "crossings"]
    params: float | None = None


@dataclass(frozen=True)
class Estimate:
    """Estimate of the objective.

    Attributes:
        value: depth, slope, or N of the least certain crossing; None where there is none.
        low, high: its interval; an end is None where it is open.
        halfwidth: for the slope (high - low)/(2·value), for a depth `Projection.halfwidth`; for crossings the largest
            half-length of the intervals of ln N; infinite where an interval is open.
        words: the same as a sentence.
    """

    value: float | None
    low: float | None
    high: float | None
    halfwidth: float
    words: str


@single_threaded
def estimate(rows: pd.DataFrame, objective: Objective, *, level: float = 0.95) -> Estimate:
    """Estimate the objective from the ended cells; order and index of the rows do not matter.

    Args:
        rows: one row per ended cell: depth, width, params, lr, seed, loss (NaN where it diverged or failed). Rows
            count as diverged if their column `status` is `diverged`.
        objective: what to estimate.
        level: of the interval.

    Raises:
        InputError: the objective is a depth without a size.
    """
    if objective.kind == "depth" and (objective.params is None or not 1 <= objective.params < math.inf):
        raise InputError(
            f"The objective `depth` needs a size to project to, and its `params` is {objective.params}; give N, as 7e9."
        )
    runs = None if rows.empty else RunTable.from_frame(rows)
    return estimate_from(None if runs is None or runs.used.empty else study_of(runs, level=level), objective)


@single_threaded
def estimate_from(study: Estimates | None, objective: Objective) -> Estimate:
    """Estimate the objective from a study; None is a study without a loss."""
    if study is None or len(study.curves.depths) < 2:
        return _nothing("fewer than two depths have a loss")
    if objective.kind == "crossings":
        return _of_crossings(study.crossings)
    if objective.kind == "b":
        return _of_slope(study.laws[0])
    return _of_depth(study.predict(float(objective.params or 0)))


def reached(estimates: Sequence[Estimate], halfwidth: float) -> bool:
    """Return whether the last `CHECKS` estimates, oldest first, are all narrow enough for a search to end.

    The widths of estimates vary by chance; a search that ended on the first narrow one would select lucky ones.
    """
    last = estimates[-CHECKS:]
    return len(last) == CHECKS and all(item.halfwidth <= halfwidth for item in last)


def _nothing(why: str) -> Estimate:
    return Estimate(None, None, None, math.inf, f"No estimate yet: {why}.")


def _estimate(
    value: float | None, interval: Interval, halfwidth: float, what: str, why: str = ""
) -> Estimate:
    ends = ["no limit" if end is None else f"{end:.3g}" for end in interval]
    share = f", ±{halfwidth:.0%}" if math.isfinite(halfwidth) else ""
    return Estimate(value, *interval, halfwidth, f"{what} ({ends[0]} to {ends[1]}{share}){why}.")


def _of_depth(found: Shape) -> Estimate:
    what = f"The best depth at N = {found.params:.3g}"
    if found.depth_exact is not None:
        words = f"{what} is {found.depth_exact:.3g} layers"
        return _estimate(found.depth_exact, found.depth_interval, found.halfwidth, words)
    if found.depth_interval == (None, None):
        return _nothing(found.reason or "there is no law")
    return _estimate(
        None, found.depth_interval, found.halfwidth, f"{what} is not settled", f": {found.reason}"
    )


def _of_slope(law: ThresholdLaw) -> Estimate:
    if law.b is None or law.b_interval is None:
        return _nothing(law.reason or "there is no law")
    low, high = law.b_interval
    halfwidth, why = math.inf, ""
    if rejected(law.p_value):
        why = f": the crossings reject the law (p = {law.p_value:.1g})"
    elif low is not None and high is not None and law.b > 0:
        halfwidth = (high - low) / (2 * law.b)
    return _estimate(law.b, law.b_interval, halfwidth, f"The slope b is {law.b:.3g} per layer", why)


def _of_crossings(found: Crossings) -> Estimate:
    worst = max(found.items, key=_half_length)
    halfwidth, pair = _half_length(worst), f"{worst.shallow} → {worst.deep} layers"
    if math.isinf(halfwidth):
        why = worst.reason or worst.status.replace("_", "-")
        words = f"The crossing {pair} has no closed interval yet: {why}."
        return Estimate(worst.params, None, None, halfwidth, words)
    what = f"The least certain crossing, {pair}, lies at N = {worst.params:.3g}"
    return _estimate(worst.params, worst.params_interval or (None, None), halfwidth, what)


def _half_length(item: Crossing) -> float:
    """Half the length of the interval of ln N; infinite unless the crossing is bracketed."""
    low, high = item.params_interval or (None, None)
    if item.status != "bracketed" or low is None or high is None:
        return math.inf
    return math.log(high / low) / 2


@dataclass(frozen=True)
class SearchInfo:
    """Input of a report on a search besides its rows.

    Attributes:
        objective: of the search.
        stop_when: the half-width that ends the search, None without.
        ended: why the search ended, a sentence; empty where unknown.
    """

    objective: Objective
    stop_when: float | None
    ended: str = ""


@dataclass(frozen=True)
class SearchData:
    """History of a search as tables.

    Attributes:
        cells: order, flops (summed up to the cell's end), depth, params, seed, loss, outcome (its status).
        steps: cells, flops, value, low, high, halfwidth; NaN where there is none.
        search: objective and end of the search.
    """

    cells: pd.DataFrame
    steps: pd.DataFrame
    search: SearchInfo

    def table(self) -> pd.DataFrame:
        """Return all tables as one for the CSV, distinguished by the column `what`."""
        parts = [self.cells.assign(what="cell"), self.steps.assign(what="step")]
        table = pd.concat(parts, ignore_index=True)
        return table[["what", *(name for name in table.columns if name != "what")]]


def rows_in_order(runs: RunTable) -> pd.DataFrame | None:
    """Return the rows of the study itself in the order in which they ended; None where the table has no order.

    Returns:
        depth, width, params, lr, seed, loss (NaN without one), status, flops, order.
    """
    frame = runs.frame
    if "order" not in frame.columns:
        return None
    if "purpose" in frame.columns:
        frame = frame[frame["purpose"] == ""]
    rows = frame.sort_values("order", kind="stable")
    types = dict.fromkeys(("depth", "width", "seed", "order"), "int64") | {"flops": "float64"}
    rows = rows.assign(loss=rows["loss"].where(rows.index.isin(runs.used.index)))
    kept = ["depth", "width", "params", "lr", "seed", "status", "order", "loss", "flops"]
    return rows[kept].astype(types).reset_index(drop=True)


def history(
    rows: pd.DataFrame, objective: Objective, *, points: int = MOST_POINTS, level: float = 0.95
) -> pd.DataFrame:
    """Estimate the objective from the first of `rows_in_order`, at `points` evenly spaced counts: `SearchData.steps`.

    `level` is that of the intervals. The last count is of all rows.
    """
    spent = np.cumsum(rows["flops"].to_numpy(dtype=float))
    counts = np.unique(np.linspace(1, len(rows), min(points, len(rows))).round().astype(int))
    names = ["value", "low", "high", "halfwidth"]
    known = [vars(estimate(rows.iloc[:count], objective, level=level)) for count in counts]
    found = pd.DataFrame(known)[names].astype(float).replace([np.inf, -np.inf], np.nan)
    return found.assign(cells=counts, flops=spent[counts - 1])[["cells", "flops", *names]]


def search_data(
    runs: RunTable, search: SearchInfo, *, level: float = 0.95, points: int = MOST_POINTS
) -> SearchData | None:
    """Compute the history of a search; None where the run table has no order of its rows."""
    rows = rows_in_order(runs)
    if rows is None or rows.empty:
        return None
    cells = rows.assign(flops=rows["flops"].cumsum(), outcome=rows["status"])
    cells = cells[["order", "flops", "depth", "params", "seed", "loss", "outcome"]]
    steps = history(rows, search.objective, level=level, points=points)
    return SearchData(cells, steps, search)
