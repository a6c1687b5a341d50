"""The depth that each law recommends, and the sizes at which two laws disagree."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import numpy.typing as npt

from analysis.curves.noise import Floats
from analysis.intervals import Interval
from analysis.law.loss_surfaces import SurfaceFit
from analysis.law.projection import Law, range_over, solve_depth
from analysis.law.threshold import Form, ThresholdFit

Direction = Literal["shallower", "deeper"]

#: Laws disagree if the largest depth exceeds the smallest by more than this share.
APART = 0.25


@dataclass(frozen=True)
class Advice:
    """The depth that a law recommends for N; call it with N.

    Attributes:
        depth: N -> best depth, or None if the law has none.
        reason: N -> why there is no depth, if known.
        interval: N -> interval of the best depth, None for a law without one.
        loss: (N, L) -> predicted nats per token, elementwise; None for a law that predicts no loss.
    """

    depth: Callable[[float], float | None]
    reason: Callable[[float], str | None] = lambda params: None
    interval: Callable[[float], Interval | None] = lambda params: None
    loss: Callable[[npt.ArrayLike, npt.ArrayLike], Floats] | None = None

    def __call__(self, params: float) -> float | None:
        """The best depth at N = `params`; None if it is no positive finite number."""
        depth = self.depth(params)
        return depth if depth is not None and math.isfinite(depth) and depth > 0 else None


def surface_advice(fit: SurfaceFit, level: float = 0.95) -> Advice:
    """The advice of a loss surface; `level` is that of its interval."""
    return Advice(
        fit.best_depth,
        fit.best_depth_reason,
        lambda params: fit.best_depth_interval(params, level),
        fit.loss,
    )


def threshold_advice(fit: ThresholdFit) -> Advice:
    """The advice of a law through crossings: the L with 12·L·d(L)² = N."""
    a, b = fit.a, fit.b
    if a is None or b is None:
        return Advice(lambda params: None, lambda params: fit.reason)
    solve = SOLVERS[fit.form]
    law = law_of(fit)

    def interval(params: float) -> Interval | None:
        return None if law is None else range_over(law, lambda a, b: solve(a, b, params))

    if b <= 0:
        why = "the width at the crossing does not rise with the depth"
        return Advice(lambda params: None, lambda params: why, interval)
    return Advice(lambda params: solve(a, b, params), interval=interval)


def _solve_power(a: float, b: float, params: float) -> float:
    """L with 12·L·exp(2(a + b·ln L)) = N; +inf if the size at the crossing does not rise with the depth."""
    exponent = (math.log(params / 12) - 2 * a) / (1 + 2 * b) if 1 + 2 * b > 0 else math.inf
    return math.exp(exponent) if exponent < 700 else math.inf


def _solve_root(a: float, b: float, params: float) -> float:
    """L with 12·L·exp(2(a + b·sqrt(L))) = N: the root of both sides is the equation of `solve_depth` in sqrt(L)."""
    return solve_depth(a / 2, b / 2, math.sqrt(12 * params)) ** 2


#: L from a, b and N, by form.
SOLVERS: Mapping[Form, Callable[[float, float, float], float]] = {
    "log-linear": solve_depth,
    "root": _solve_root,
    "power": _solve_power,
}


def law_of(fit: ThresholdFit) -> Law | None:
    """The law of either form with its region; None if the fit has none that is bounded."""
    if fit.status not in ("ok", "open") or fit.a is None or fit.b is None or fit.covariance is None:
        return None
    return Law(
        a=fit.a,
        b=fit.b,
        covariance=fit.covariance,
        source="this study",
        depth_range=(min(fit.depths), max(fit.depths)) if fit.depths else (math.nan, math.nan),
        level=fit.level,
        region=fit.region,
    )


def advices(
    laws: Sequence[ThresholdFit], surfaces: Sequence[SurfaceFit], level: float = 0.95
) -> dict[str, Advice]:
    """Form -> advice, of every law and surface that was fitted; `level` is that of the intervals of the surfaces."""
    lines: dict[str, Advice] = {item.form: threshold_advice(item) for item in laws if item.a is not None}
    return lines | {item.form: surface_advice(item, level) for item in surfaces if item.usable}


def apart(depths: Iterable[float | None]) -> bool:
    """Whether depths disagree, see `APART`; None is no depth."""
    known = [depth for depth in depths if depth is not None]
    return len(known) > 1 and max(known) > (1 + APART) * min(known)


@dataclass(frozen=True)
class DisagreementSpan:
    """Sizes at which the depths of a law and of the reference disagree, and to which side."""

    low: float
    high: float
    direction: Direction


@dataclass(frozen=True)
class Disagreement:
    """The advice of one law over a range of sizes, against a reference law.

    Attributes:
        params, depths: a log grid of N, and the depth it names at each, or None.
        spans: where it differs from the reference, ascending. Two laws may differ in several spans: a law may be
            shallower for small models and deeper for large ones.
        reason: why it names no depth at the smallest N where it names none.
    """

    law: str
    params: tuple[float, ...]
    depths: tuple[float | None, ...]
    spans: tuple[DisagreementSpan, ...]
    reason: str | None


def disagreements(
    laws: Mapping[str, Advice], low: float, high: float = 1e13, *, reference: str, per_decade: float = 8
) -> tuple[Disagreement, ...]:
    """The depth every law names on a log grid of sizes, and the sizes at which each differs from the reference.

    Args:
        laws: name -> advice.
        low: smallest N, as the smallest size measured.
        high: largest N, at least ten times `low`.
        reference: one of `laws`.
        per_decade: grid points; the ends of spans are found between them by bisection.
    """
    high = max(high, 10 * low)
    count = max(2, 1 + math.ceil(per_decade * math.log10(high / low)))
    grid = [float(value) for value in np.geomspace(low, high, count)]
    return tuple(_disagreement(name, advice, laws[reference], grid) for name, advice in laws.items())


def _disagreement(law: str, advice: Advice, reference: Advice, grid: Sequence[float]) -> Disagreement:
    def side(params: float) -> Direction | None:
        depth, other = advice(params), reference(params)
        if depth is None or other is None or not apart((depth, other)):
            return None
        return "deeper" if depth > other else "shallower"

    def edge(inner: int, outer: int) -> float:
        """The size next to `grid[outer]` that is still on the side of `grid[inner]`; an end of the grid is an edge."""
        if not 0 <= outer < len(grid):
            return grid[inner]
        kept, within, beyond = side(grid[inner]), grid[inner], grid[outer]
        # 50 halvings of ln N between two points of the grid are far below any difference that matters.
        for _ in range(50):
            middle = math.sqrt(within * beyond)
            within, beyond = (middle, beyond) if side(middle) == kept else (within, middle)
        return within

    depths = tuple(advice(params) for params in grid)
    silent = next((params for params, depth in zip(grid, depths, strict=True) if depth is None), None)
    spans = []
    sides = [side(params) for params in grid]
    for direction, group in groupby(range(len(grid)), key=sides.__getitem__):
        places = list(group)
        if direction is not None:
            low, high = edge(places[0], places[0] - 1), edge(places[-1], places[-1] + 1)
            spans.append(DisagreementSpan(low, high, direction))
    reason = None if silent is None else advice.reason(silent)
    return Disagreement(law, tuple(grid), depths, tuple(spans), reason)
