"""What a search wants to know, and how well the runs so far say it.

A search has one objective: the projected best depth of a size nobody has trained, the slope b of the law, or the crossings.
The estimate is that of a fit (`build_curves`, `find_crossings`, `fit_threshold`, `recommend`), with its intervals, so
that a search ends on nothing that the report would not say.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.curves import build_curves
from analysis.errors import InputError
from analysis.groups import numbered
from analysis.law.crossings import Crossing, Crossings, find_crossings
from analysis.law.projection import law_of, recommend
from analysis.law.threshold import ThresholdFit, fit_threshold
from analysis.runs.learning_rates import choose_rates
from analysis.threads import single_threaded

Lost = tuple[tuple[int, float, int], ...]

#: Draws of the bootstrap. They only decide whether 95 % of them have one sign change; every interval here is an
#: inverted test and needs none.
DRAWS = 200
#: Successive estimates that must be narrow enough.
CHECKS = 2


@dataclass(frozen=True)
class Objective:
    """What is asked for.

    Attributes:
        kind: `depth` is the projected best depth at `params`, `b` the slope of the law in ln d a layer, `crossings` all
            crossings of neighbouring depths.
        params: N = 12·L·d² of the projection; only for `depth`.
    """

    kind: Literal["depth", "b", "crossings"]
    params: float | None = None


@dataclass(frozen=True)
class Estimate:
    """The answer so far.

    Attributes:
        value: depth, slope, or N of the least certain crossing; None where there is none.
        low, high: its interval; an end is None where it is open.
        halfwidth: for depth and slope (high - low)/(2·value); for crossings the largest half-length of the intervals of
            ln N; infinite where an interval is open.
        words: one sentence for people.
    """

    value: float | None
    low: float | None
    high: float | None
    halfwidth: float
    words: str


@single_threaded
def estimate(rows: pd.DataFrame, objective: Objective, *, level: float = 0.95) -> Estimate:
    """What the ended cells say about the objective; it depends neither on the order of the rows nor on their index.

    Args:
        rows: one row an ended cell: depth, width, params, lr, seed, loss (NaN where it diverged or failed for good). A
            column `status`, where there is one, tells the two apart: only `diverged` speaks against a crossing.
        objective: what is asked for.
        level: of the interval.

    Raises:
        InputError: a depth is asked for without a size.
    """
    if objective.kind == "depth" and (objective.params is None or not 1 <= objective.params < math.inf):
        raise InputError(
            f"The objective `depth` is a projection to a size, and its `params` is {objective.params}; give N, as 7e9."
        )
    used, lost = compared(rows)
    if used["depth"].nunique() < 2:
        return _nothing("fewer than two depths have a loss")
    curves = build_curves(used)
    found = find_crossings(curves, level=level, draws=DRAWS, delta=None, diverged=lost, neighbours=True)
    if objective.kind == "crossings":
        return _of_crossings(found)
    law = fit_threshold(found, "log-linear")
    return _of_slope(law) if objective.kind == "b" else _of_depth(law, float(objective.params or 0))


def reached(estimates: Sequence[Estimate], halfwidth: float) -> bool:
    """Whether a search may end: its last `CHECKS` estimates, asked with new cells between them, are all narrow enough.

    The widths of estimates vary by chance; a search that ended on the first narrow one would end on the lucky ones.

    Args:
        estimates: of the rows so far at successive numbers of cells, oldest first.
        halfwidth: that is asked for, in the units of `Estimate.halfwidth`.
    """
    last = estimates[-CHECKS:]
    return len(last) == CHECKS and all(item.halfwidth <= halfwidth for item in last)


def compared(rows: pd.DataFrame) -> tuple[pd.DataFrame, Lost]:
    """The losses a fit compares, one a shape and seed at one learning rate, and the shapes that all diverged.

    Returns:
        Rows ordered by depth, params and seed; (depth, N, runs) of every shape without a loss.
    """
    rows = _sorted(rows, ("depth", "params", "lr", "loss", "seed")).reset_index(drop=True)
    finite = np.isfinite(rows["loss"].to_numpy(dtype=float))
    lost = () if finite.all() else _lost(rows, finite)
    used = rows if finite.all() else rows[finite]
    return _sorted(choose_rates(used).rows, ("depth", "params", "seed")), lost


def _sorted(rows: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    """Rows by these columns, the first most; equal ones stay in their order."""
    return rows.iloc[np.lexsort([rows[name].to_numpy(dtype=float) for name in reversed(names)])]


def _lost(rows: pd.DataFrame, finite: npt.NDArray[np.bool_]) -> Lost:
    """(depth, N, runs that diverged) of shapes without a loss."""
    diverged = ~finite if "status" not in rows else ~finite & (rows["status"] == "diverged").to_numpy()
    depth, params = (rows[name].to_numpy(dtype=float) for name in ("depth", "params"))
    shape = numbered(depth, params)
    first = np.unique(shape, return_index=True)[1]
    alive, runs = np.bincount(shape, weights=finite), np.bincount(shape, weights=diverged)
    return tuple(
        (int(depth[first[i]]), float(params[first[i]]), int(runs[i]))
        for i in np.flatnonzero((alive == 0) & (runs > 0))
    )


def _nothing(why: str) -> Estimate:
    return Estimate(None, None, None, math.inf, f"No estimate yet: {why}.")


def _of_depth(law: ThresholdFit, params: float) -> Estimate:
    usable = law_of(law)
    if usable is None:
        return _nothing(law.reason or "there is no law")
    if not usable.b > 0:
        return _nothing(f"the slope of the law is {usable.b:.3g}, and only a positive one names a best depth")
    found = recommend(usable, [params])[0]
    value = float(found["depth_exact"])
    low, high = found["depth_interval"]
    what = f"The best depth at N = {params:.3g} is {value:.3g} layers"
    return _interval(value, low, high, what, "{:.3g}")


def _of_slope(law: ThresholdFit) -> Estimate:
    if law.b is None or law.b_interval is None:
        return _nothing(law.reason or "there is no law")
    low, high = law.b_interval
    return _interval(law.b, low, high, f"The slope b is {law.b:.3g} a layer", "{:.3g}")


def _interval(value: float, low: float | None, high: float | None, what: str, form: str) -> Estimate:
    closed = low is not None and high is not None and value > 0
    halfwidth = (high - low) / (2 * value) if low is not None and high is not None and closed else math.inf
    ends = ["no limit" if end is None else form.format(end) for end in (low, high)]
    share = f", that is ±{halfwidth:.0%}" if math.isfinite(halfwidth) else ""
    return Estimate(value, low, high, halfwidth, f"{what} ({ends[0]} to {ends[1]}{share}).")


def _of_crossings(found: Crossings) -> Estimate:
    adjacent = [item for item in found.items if item.adjacent]
    worst = max(adjacent, key=_half_length)
    halfwidth = _half_length(worst)
    pair = f"{worst.shallow} → {worst.deep} layers"
    if math.isinf(halfwidth):
        why = worst.reason or worst.status.replace("_", "-")
        words = f"The crossing {pair} has no closed interval yet: {why}."
        return Estimate(worst.params, None, None, halfwidth, words)
    low, high = worst.params_interval or (None, None)
    sentence = (
        f"The least certain crossing, {pair}, lies at N = {worst.params:.3g} ({low:.3g} to {high:.3g}, that is "
        f"±{halfwidth:.0%})."
    )
    return Estimate(worst.params, low, high, halfwidth, sentence)


def _half_length(item: Crossing) -> float:
    """Half the length of the interval of ln N; infinite unless the crossing is bracketed."""
    low, high = item.params_interval or (None, None)
    if item.status != "bracketed" or low is None or high is None:
        return math.inf
    return math.log(high / low) / 2
