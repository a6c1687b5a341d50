"""Whether two studies of the same shapes and data under two parametrisations cross at the same sizes.

If the threshold is a property of the shape, it does not ask how the model was tuned. The comparison needs no more than
two fits: a difference of ln N at a crossing, with an interval from the two intervals (MOVER, Zou and Donner 2008,
Statistics in Medicine 27, 1693), which takes the two studies for independent. What they share, such as seeds and the
order of the data, makes the true error smaller.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.law.crossings import Crossing, Interval

if TYPE_CHECKING:
    # A fit holds contrasts.
    from analysis.fit.document import Fit


@dataclass(frozen=True)
class Moved:
    """One pair of depths under both parametrisations.

    Attributes:
        shallow, deep: the pair.
        params, interval, status: of the study itself; other_params, other_interval, other_status: of the other.
        shift: ln N of the other's crossing less ours; None where one of them has no crossing.
        shift_interval: an end is None where nothing bounds it.
    """

    shallow: int
    deep: int
    params: float | None
    interval: Interval | None
    status: str
    other_params: float | None
    other_interval: Interval | None
    other_status: str
    shift: float | None
    shift_interval: Interval

    @property
    def significant(self) -> bool:
        """Whether no difference at all lies outside the interval."""
        low, high = self.shift_interval
        return (low is not None and low > 0) or (high is not None and high < 0)


@dataclass(frozen=True)
class Contrast:
    """The crossings of two studies side by side.

    Attributes:
        own, other: names of the parametrisations.
        protocol: of the other study's rows.
        used: rows of the other study.
        pairs: neighbouring depths that both studies have.
        slope, slope_interval: b of the other's law less ours; None where one has no law.
        level: of all intervals.
    """

    own: str
    other: str
    protocol: str
    used: int
    pairs: tuple[Moved, ...]
    slope: float | None
    slope_interval: Interval | None
    level: float


def contrast(own: "Fit", other: "Fit", names: tuple[str, str], *, protocol: str = "") -> Contrast:
    """Compare the crossings of two fits at the same level.

    Args:
        own: the study itself.
        other: rows of another parametrisation.
        names: of the parametrisations, ours first.
        protocol: of the other rows.
    """
    theirs = {(item.shallow, item.deep): item for item in other.crossings}
    pairs = tuple(
        moved(item, theirs[item.shallow, item.deep])
        for item in own.crossings
        if item.adjacent and (item.shallow, item.deep) in theirs
    )
    slope = slope_interval = None
    if own.law.b is not None and other.law.b is not None:
        slope = other.law.b - own.law.b
        slope_interval = difference(
            other.law.b, other.law.b_interval or (None, None), own.law.b, own.law.b_interval or (None, None)
        )
    return Contrast(names[0], names[1], protocol, other.used, pairs, slope, slope_interval, own.level)


def moved(own: Crossing, other: Crossing) -> Moved:
    """One pair of depths under both parametrisations."""
    # `insufficient` knows nothing; an interval that is open on both sides says as much.
    ours, theirs = (_logs(item.params_interval) for item in (own, other))
    x, y = (None if item.params is None else math.log(item.params) for item in (own, other))
    shift = None if x is None or y is None else y - x
    return Moved(
        shallow=own.shallow,
        deep=own.deep,
        params=own.params,
        interval=own.params_interval,
        status=own.status,
        other_params=other.params,
        other_interval=other.params_interval,
        other_status=other.status,
        shift=shift,
        shift_interval=difference(y, theirs, x, ours),
    )


def difference(
    first: float | None, of_first: Interval, second: float | None, of_second: Interval
) -> Interval:
    """Interval of `first` - `second` from those of the two; an end is None where an end it needs is.

    Where a value itself is not known (a crossing beyond the sizes measured), the ends are subtracted, which is wider.
    """
    (low, high), (below, above) = of_first, of_second
    if first is None or second is None:
        return (
            None if low is None or above is None else low - above,
            None if high is None or below is None else high - below,
        )
    gap = first - second
    return (
        None if low is None or above is None else gap - math.hypot(first - low, above - second),
        None if high is None or below is None else gap + math.hypot(high - first, second - below),
    )


def _logs(interval: Interval | None) -> Interval:
    low, high = interval or (None, None)
    return (None if low is None else math.log(low), None if high is None else math.log(high))
