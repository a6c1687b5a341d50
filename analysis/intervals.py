"""Intervals of sizes and regions of laws; conversion between ln N, N and width."""

import math

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


def between(shallow: float, deep: float) -> float:
    """The depth to which a crossing of two depths belongs: their geometric mean.

    At the crossing both depths have the same loss, so the best depth lies between them. If the shallower one counted
    as best, the law would give 0.70 of the best depth for depths that double.
    """
    return math.sqrt(shallow * deep)


def width_of(params: float, depth: float) -> float:
    """The width of a shape by N = 12·L·d²."""
    return math.sqrt(params / (12 * depth))
