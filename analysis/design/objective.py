"""Objective of a search, and its estimate from the cells so far.

The objective is the projected best depth of a size, or the crossings. The estimate is that of a
fit (`analysis.fit.study`) with its intervals, so that a search ends on the same numbers that the report shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.fit.study import Estimates, study_of
from analysis.intervals import Interval
from analysis.law.crossings import Crossing, Crossings
from analysis.law.shape import Projection
from analysis.runs.table import RunTable
from analysis.threads import single_threaded
from core.errors import InputError

#: Successive estimates that must be narrow enough to end a search. One costs 16 % fewer FLOPs, three 13 % more
#: (docs/search.md); one selects intervals that are narrow by chance.
CHECKS = 2


@dataclass(frozen=True)
class Objective:
    """Objective of a search.

    Attributes:
        kind: `depth` is the projected best depth at `params`, `crossings`
            all crossings of neighbouring depths.
        params: N = 12·L·d² of the projection; only for `depth`.
    """

    kind: Literal["depth", "crossings"]
    params: float | None = None


@dataclass(frozen=True)
class Estimate:
    """Estimate of the objective.

    Attributes:
        value: depth, or N of the least certain crossing; None where there is none.
        low, high: its interval; an end is None where it is open.
        halfwidth: for a depth `Projection.halfwidth`; for crossings the largest
            half-length of the intervals of ln N; infinite where an interval is open.
        words: the same as a sentence.
    """

    value: float | None
    low: float | None
    high: float | None
    halfwidth: float
    words: str


@single_threaded
def estimate(runs: RunTable | None, objective: Objective, *, level: float = 0.95) -> Estimate:
    """Estimate the objective from the run table of the ended cells, None without any; their order does not matter.

    Args:
        runs: one row per ended cell, as a fit takes it.
        objective: what to estimate.
        level: of the interval.

    Raises:
        InputError: the objective is a depth without a size.
    """
    if objective.kind == "depth" and (objective.params is None or not 1 <= objective.params < math.inf):
        raise InputError(
            f"The objective `depth` needs a size to project to, and its `params` is {objective.params}; give N, as 7e9."
        )
    return estimate_from(None if runs is None or runs.used.empty else study_of(runs, level=level), objective)


@single_threaded
def estimate_from(study: Estimates | None, objective: Objective) -> Estimate:
    """Estimate the objective from a study; None is a study without a loss."""
    if study is None or len(study.curves.depths) < 2:
        return _nothing("fewer than two depths have a loss")
    if objective.kind == "crossings":
        return _of_crossings(study.crossings)
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


def _of_depth(projection: Projection) -> Estimate:
    what = f"The best depth at N = {projection.params:.3g}"
    if projection.depth_exact is not None:
        words = f"{what} is {projection.depth_exact:.3g} layers"
        return _estimate(projection.depth_exact, projection.depth_interval, projection.halfwidth, words)
    if projection.depth_interval == (None, None):
        return _nothing(projection.reason or "there is no law")
    return _estimate(
        None,
        projection.depth_interval,
        projection.halfwidth,
        f"{what} is not settled",
        f": {projection.reason}",
    )


def _of_crossings(crossings: Crossings) -> Estimate:
    worst = max(crossings.items, key=_half_length)
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
    """What a report says about a search besides its rows: its objective, and why it ended, a sentence if known."""

    objective: Objective
    ended: str = ""
