"""Objective of a search, and its estimate from the cells so far.

The objective is the projected best depth of a size, or the crossings. The estimate is that of a
fit (`analysis.fit.study`) with its intervals, so that a search ends on the same numbers that the report shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.fit.study import Estimates, study_of
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
        evidence: the projection of the depth, or the least certain crossing; None without two depths.
    """

    value: float | None
    low: float | None
    high: float | None
    halfwidth: float
    evidence: Projection | Crossing | None


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
        return Estimate(None, None, None, math.inf, None)
    if objective.kind == "crossings":
        return _of_crossings(study.crossings)
    return _of_depth(study.predict(float(objective.params or 0)))


def reached(estimates: Sequence[Estimate], halfwidth: float) -> bool:
    """Return whether the last `CHECKS` estimates, oldest first, are all narrow enough for a search to end.

    The widths of estimates vary by chance; a search that ended on the first narrow one would select lucky ones.
    """
    last = estimates[-CHECKS:]
    return len(last) == CHECKS and all(item.halfwidth <= halfwidth for item in last)


def estimate_sentence(estimate: Estimate) -> str:
    """An estimate with its interval, or why there is none."""
    evidence = estimate.evidence
    if evidence is None:
        return "No estimate yet: fewer than two depths have a loss."
    ends = ["no limit" if end is None else f"{end:.3g}" for end in (estimate.low, estimate.high)]
    share = f", ±{estimate.halfwidth:.0%}" if math.isfinite(estimate.halfwidth) else ""
    interval = f"({ends[0]} to {ends[1]}{share})"
    if isinstance(evidence, Crossing):
        pair = f"{evidence.shallow} → {evidence.deep} layers"
        if math.isinf(estimate.halfwidth):
            why = evidence.reason or evidence.status.replace("_", "-")
            return f"The crossing {pair} has no closed interval yet: {why}."
        return f"The least certain crossing, {pair}, lies at N = {evidence.params:.3g} {interval}."
    what = f"The best depth at N = {evidence.params:.3g}"
    if evidence.depth_exact is not None:
        return f"{what} is {evidence.depth_exact:.3g} layers {interval}."
    if evidence.depth_interval == (None, None):
        return f"No estimate yet: {evidence.reason or 'there is no law'}."
    return f"{what} is not settled {interval}: {evidence.reason}."


def _of_depth(projection: Projection) -> Estimate:
    low, high = projection.depth_interval
    return Estimate(projection.depth_exact, low, high, projection.halfwidth, projection)


def _of_crossings(crossings: Crossings) -> Estimate:
    worst = max(crossings.items, key=_half_length)
    halfwidth = _half_length(worst)
    low, high = (None, None) if math.isinf(halfwidth) else worst.params_interval or (None, None)
    return Estimate(worst.params, low, high, halfwidth, worst)


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
