"""Intervals of sizes and regions of laws; conversion between ln N, N and width."""

import math
from collections.abc import Callable, Sequence

#: Weights of a layer over d² that N counts: 12, and 4 without a feed-forward network. Published laws hold for 12 alone.
LAYER_WEIGHTS, ATTENTION_WEIGHTS = 12.0, 4.0
#: Two ends, low and high; None where an end is open.
Interval = tuple[float | None, float | None]
#: Points (a, b, open) around all laws that are not rejected in a test of one scalar; `open`: the search was cut off.
Region = tuple[tuple[float, float, bool], ...]


def params_of(x: float) -> float | None:
    """N at ln N = x; None if x is infinite."""
    return math.exp(x) if math.isfinite(x) else None


def params_interval(interval: tuple[float, float] | None) -> Interval | None:
    """Interval of N from one of ln N, whose open ends are infinite."""
    return None if interval is None else (params_of(interval[0]), params_of(interval[1]))


def ends_of(interval: Interval | None) -> tuple[float, float]:
    """Both ends as numbers: an open one is infinite, as both are without an interval."""
    low, high = interval or (None, None)
    return -math.inf if low is None else low, math.inf if high is None else high


def interval_of(low: float, high: float) -> Interval:
    """The inverse of `ends_of`: an infinite end is None."""
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None


def difference_ends(
    first: float, ends: tuple[float, float], other: float, other_ends: tuple[float, float]
) -> tuple[float, float]:
    """Ends of the interval of `other` - `first` from an interval of each, of independent estimates (MOVER).

    Zou and Donner 2008, Statistics in Medicine 27, 1693. Infinite ends stay infinite.
    """
    (below, above), (low, high), change = ends, other_ends, other - first
    return (
        change - math.hypot(other - low, above - first),
        change + math.hypot(high - other, first - below),
    )


def hull(intervals: Sequence[Interval]) -> Interval:
    """The smallest interval that holds all; an end is None if that of one of them is, or there are none."""
    lows, highs = zip(*map(ends_of, intervals), strict=True) if intervals else ((-math.inf,), (math.inf,))
    return interval_of(min(lows), max(highs))


def range_over(region: Region, best: tuple[float, float], of: Callable[[float, float], float]) -> Interval:
    """The range of a function of (a, b) over the points of a region and the best law; an end is None without a limit.

    An end has no limit if it is infinite or that of an open point.
    """
    values = [(of(a, b), is_open) for a, b, is_open in region] + [(of(*best), False)]
    # Of two points with the same value the open one counts.
    low, low_open = min(values, key=lambda item: (item[0], not item[1]))
    high, high_open = max(values)
    return interval_of(-math.inf if low_open else low, math.inf if high_open else high)


def between(shallow: float, deep: float) -> float:
    """The depth to which a crossing of two depths belongs: their geometric mean.

    At the crossing both depths have the same loss, so the best depth lies between them. If the shallower one counted
    as best, the law would give 0.70 of the best depth for depths that double.
    """
    return math.sqrt(shallow * deep)


def width_of(params: float, depth: float, layer_weights: float = LAYER_WEIGHTS) -> float:
    """The width of a shape by N = `layer_weights`·L·d²."""
    return math.sqrt(params / (layer_weights * depth))
