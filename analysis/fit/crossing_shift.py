"""The shift of a crossing when a key of a study changes.

`shift_by` is for runs of the same shapes and seeds in which one key differs, so that most noise cancels. Their
differences change the gap of the two depths by δ, and the crossing moves to where the gap plus δ is zero. The intervals
invert tests, as that of a crossing does (Fieller's method): that the gap plus δ is zero, for the crossing after the
change, and that the change of the gap since the crossing plus δ is zero, for the shift.

`shift_between` is for two studies: the difference of ln N at a crossing between two fits, with an interval from their
two intervals (MOVER, Zou and Donner 2008, Statistics in Medicine 27, 1693). It assumes independent studies. Shared
seeds and data order make the true error smaller.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from analysis.curves.noise import Floats
from analysis.intervals import Interval, difference_ends, ends_of, interval_of, params_interval
from analysis.law.crossings import Crossing, Gap, inverted_test, root
from analysis.law.reasons import Because, Reason
from analysis.law.words import texts_of


@dataclass(frozen=True)
class CrossingShift:
    """The shift of the crossing of two neighbouring depths under one change.

    Attributes:
        params, status: the crossing of the study itself, as in `Crossing`.
        changed_params, changed_interval, changed_status: the crossing after the change.
        shift: difference of ln N; None if one of the crossings is missing or outside the sizes measured.
        shift_interval: interval of `shift`; an open end is None. None without any bound or without a noise estimate.
        runs, diverged: runs after the change that were used, and those of the two depths that diverged.
        reasons: why there is no shift.
    """

    JSON_PROPERTIES: ClassVar = ("reason",)

    shallow: int
    deep: int
    params: float | None
    status: str
    changed_params: float | None = None
    changed_interval: Interval | None = None
    changed_status: str = "insufficient"
    shift: float | None = None
    shift_interval: Interval | None = None
    runs: int = 0
    diverged: int = 0
    reasons: tuple[Because, ...] = ()

    @property
    def reason(self) -> str | None:
        """The words of `reasons`."""
        return texts_of(self.reasons)

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        low, high = ends_of(self.shift_interval)
        return low > 0 or high < 0


def shift_by(item: Crossing, gap: Gap, change: float, variance: float, quantile: float) -> CrossingShift:
    """The shift of a crossing that has N when its `gap` changes by `change` ± √`variance` nats per token.

    `quantile` is that of the intervals, NaN without a noise estimate.
    """
    where = math.log(item.params or 1.0)
    after = Gap(gap.x, gap.value + change, gap.covariance + variance)
    moved = CrossingShift(item.shallow, item.deep, item.params, item.status)
    if math.isfinite(quantile):
        gain = np.eye(len(gap.x)) - interpolation(gap.x, where)
        since = replace(after, covariance=gain @ gap.covariance @ gain.T + variance)
        low, high = inverted_test(since, quantile)
        moved = replace(
            moved,
            shift_interval=_bounds(low - where, high - where),
            changed_interval=params_interval(inverted_test(after, quantile)),
        )
    place = root(gap.x, after.value)
    if math.isfinite(place):
        return replace(moved, shift=place - where, changed_params=math.exp(place), changed_status="bracketed")
    below = place < 0
    return replace(
        moved,
        changed_status="left_censored" if below else "right_censored",
        reasons=(Because(Reason.MOVED_BELOW if below else Reason.MOVED_ABOVE),),
    )


def interpolation(x: Floats, where: float) -> Floats:
    """Weights of linear interpolation at `where` between ascending places; outside them the nearest place alone."""
    return np.array([np.interp(where, x, row) for row in np.eye(len(x))])


def shift_between(first: Crossing, other: Crossing) -> CrossingShift:
    """The shift of one crossing between two independent studies.

    Of a crossing outside the sizes measured only bounds are known: the ends are then subtracted, which is wider.
    """
    (below, above), (low, high) = _log_ends(first.params_interval), _log_ends(other.params_interval)
    shift, ends = None, (low - above, high - below)
    if first.params is not None and other.params is not None:
        x, y = math.log(first.params), math.log(other.params)
        shift = y - x
        ends = difference_ends(x, (below, above), y, (low, high))
    after = (other.params, other.params_interval, other.status)
    return CrossingShift(first.shallow, first.deep, first.params, first.status, *after, shift, _bounds(*ends))


def _log_ends(interval: Interval | None) -> tuple[float, float]:
    """Interval of ln N; infinite where open, and without an interval."""
    low, high = ends_of(interval)
    return (math.log(low) if low > 0 else -math.inf), math.log(high)


def _bounds(low: float, high: float) -> Interval | None:
    """An interval whose infinite ends are None; None without any bound."""
    interval = interval_of(low, high)
    return None if interval == (None, None) else interval
