"""Figures 5 and 6 of Kaplan et al. 2020 (arXiv 2001.08361) for a study's own runs.

- Shape: loss over the best shape at equal N, in percent, against the aspect ratio d/L. Kaplan et al. found a few
  percent over a factor of 40.
- Size: the power law L(N) = (N_c/N)^α for the best shapes and for each depth. They found α = 0.076 and N_c = 8.8e13 in
  non-embedding parameters. With an entropy E of the data the law is E + (N_c/N)^α; an unknown E is fitted.
- Count: with embeddings counted, depths no longer fall on one line.

Losses at equal N, best shapes, noise and the exponents of the curves come from the fit. Only the power laws without an
offset, or with a known one, are fitted here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.interpolate import PchipInterpolator
from scipy.stats import t as student

from analysis.curves.best_shapes import BestShape
from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.curves.smooth import fit_family, solution
from analysis.intervals import Interval

#: Parameters counted: N as in the fit, or all.
Counted = Literal["own", "total"]
#: (N_c/N)^α; E + (N_c/N)^α with the E of the data; the same with a fitted E.
Form = Literal["power", "entropy", "offset"]
#: Points of the law: the best shape of each budget, one depth, or all depths with one exponent.
Scope = Literal["best", "depth", "all"]

#: α_N and N_c of Kaplan et al. 2020, equation 1.1: English web text, 768 to 1.5e9 non-embedding parameters.
PUBLISHED_ALPHA, PUBLISHED_SCALE = 0.076, 8.8e13
#: Percent above the best shape within which Kaplan et al. 2020 (figure 5) found aspect ratios over a factor of 40.
NEAR = 3.0
#: Least number of points for a law of two and of three parameters.
LEAST_POINTS, LEAST_FOR_OFFSET = 3, 4
#: Reason of a law without a range of sizes.
ONE_SIZE = "its points are of one size"
#: Sizes closer than this in ln N count as equal.
SAME = 1e-9


@dataclass(frozen=True)
class Aspect:
    """One depth at one budget.

    Attributes:
        budget: the planned N; params: the N at which its depths are compared.
        depth, width, aspect: L, d and d/L.
        increase: loss over that of the best depth, percent of the best loss; 0 for the best depth.
        interval: of the increase, from the paired difference; None for the best depth and without a noise estimate.
    """

    budget: float
    params: float
    depth: int
    width: float
    aspect: float
    increase: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class AspectRange:
    """The aspect ratios of one budget whose loss is within `NEAR` percent of the best.

    Attributes:
        budget, params: as in `Aspect`.
        low, high: smallest and largest d/L within `NEAR` percent.
        least, most: smallest and largest d/L measured.
    """

    budget: float
    params: float
    low: float
    high: float
    least: float
    most: float


@dataclass(frozen=True)
class Exponent:
    """One power law of the loss.

    Attributes:
        counted, form, scope: see the types.
        depth: for the scope `depth`, else None.
        points: number of points fitted; for the curves' own exponents those of the curves.
        alpha, interval: the exponent. The interval follows from the noise of the points, or without a noise estimate
            from their residuals.
        scale: N_c.
        offset: E, nats per token; None without one.
        rms: root mean square residual, nats per token; None for the curves' own exponents.
        reason: why there is no exponent.
    """

    counted: Counted
    form: Form
    scope: Scope
    depth: int | None
    points: int
    alpha: float | None = None
    interval: Interval | None = None
    scale: float | None = None
    offset: float | None = None
    rms: float | None = None
    reason: str | None = None

    def loss(self, params: npt.ArrayLike) -> Floats:
        """Nats per token at N.

        Raises:
            ValueError: there is no exponent, or no scale.
        """
        if self.alpha is None or self.scale is None:
            raise ValueError(f"there is no such power law: {self.reason}")
        power = self.alpha * (math.log(self.scale) - np.log(np.asarray(params, dtype=float)))
        return np.asarray((self.offset or 0.0) + np.exp(power))


@dataclass(frozen=True)
class Spread:
    """Difference between the depths at equal size: (highest - lowest) / lowest loss, percent, mean over the budgets.

    Attributes:
        own, total: at equal N, and at equal total parameters, over the same depths.
        budgets: number of budgets.
    """

    own: float
    total: float
    budgets: int


@dataclass(frozen=True)
class Kaplan:
    """Shape, size and count of one study.

    Attributes:
        entropy: of the data in nats per token, if known.
        aspects: by budget, then aspect ratio.
        ranges: by budget.
        exponents: of the best shapes, then of all depths, then of each depth.
        spread: None without total counts, or without two depths comparable at equal counts of both kinds.
        level: of the intervals.
    """

    JSON_PROPERTIES: ClassVar = ("published",)

    entropy: float | None
    aspects: tuple[Aspect, ...]
    ranges: tuple[AspectRange, ...]
    exponents: tuple[Exponent, ...]
    spread: Spread | None
    level: float

    @property
    def published(self) -> dict[str, float]:
        """The law of Kaplan et al. 2020."""
        return {"alpha": PUBLISHED_ALPHA, "scale": PUBLISHED_SCALE}

    def exponent(
        self, counted: Counted, form: Form, scope: Scope = "best", depth: int | None = None
    ) -> Exponent | None:
        """The exponent of this kind, or None."""
        wanted = (counted, form, scope, depth)
        return next(
            (item for item in self.exponents if (item.counted, item.form, item.scope, item.depth) == wanted),
            None,
        )


@dataclass(frozen=True)
class Totals:
    """Total parameters of each shape.

    Attributes:
        log: ln of the total parameters of each point of the curves.
        own: depth -> ln N as a function of ln total; for depths with two or more sizes.
    """

    log: Floats
    own: Mapping[int, Callable[[Floats], Floats]]


@dataclass(frozen=True)
class _Losses:
    """Points of a power law: ln of the count, nats per token, and their covariance (NaN if unknown)."""

    size: Floats
    loss: Floats
    covariance: Floats


def kaplan(
    rows: pd.DataFrame,
    curves: Curves,
    best: tuple[BestShape, ...],
    *,
    entropy: float | None = None,
    level: float = 0.95,
) -> Kaplan | None:
    """Shape, size and count of a study; None with only one depth.

    Args:
        rows: the rows compared (columns depth, params, width, total_params).
        curves: through their losses.
        best: the best shape of each budget.
        entropy: of the data in nats per token, if known.
        level: of the intervals.
    """
    if len(curves.depths) < 2:
        return None
    totals = totals_of(rows, curves)
    quantile = _quantile(level, curves.dof) if curves.noise.known else math.nan
    aspects = _aspects(rows, curves, best, quantile)
    groups: list[tuple[Counted, Scope, int | None, _Losses]] = [
        ("own", "best", None, _at_best(curves, best)),
    ]
    spread = None
    if totals is not None:
        through, spread = _at_totals(curves, best, totals)
        groups.append(("total", "best", None, through))
    for depth in curves.depths:
        groups.append(("own", "depth", depth, _of_depth(curves, depth, curves.x)))
        if totals is not None:
            groups.append(("total", "depth", depth, _of_depth(curves, depth, totals.log)))
    exponents = []
    for counted, scope, where, losses in groups:
        start = Exponent(counted, "power", scope, where, len(losses.size))
        exponents.append(_straight(start, losses, 0.0, curves, level))
        if entropy:
            # With entropy 0 (tasks) it would be the power law again.
            start = Exponent(counted, "entropy", scope, where, len(losses.size))
            exponents.append(_straight(start, losses, entropy, curves, level))
        if scope == "best":
            start = Exponent(counted, "offset", scope, where, len(losses.size))
            exponents.append(_with_offset(start, losses, curves, level))
    exponents.extend(_of_curves(curves, quantile))
    order = {"best": 0, "all": 1, "depth": 2}
    exponents.sort(key=lambda item: (order[item.scope], item.depth or 0))
    return Kaplan(entropy, aspects, _ranges(aspects), tuple(exponents), spread, level)


def totals_of(rows: pd.DataFrame, curves: Curves) -> Totals | None:
    """Total parameters of the points; None if a shape has none, or if they do not grow with N in some depth.

    Args:
        rows: the rows of the curves.
        curves: through their losses.
    """
    if "total_params" not in rows:
        return None
    counts = rows["total_params"].to_numpy(dtype=float)
    if not (np.isfinite(counts) & (counts > 0)).all():
        return None
    log = np.log(rows.groupby(["depth", "params"], sort=True)["total_params"].mean().to_numpy(dtype=float))
    own: dict[int, Callable[[Floats], Floats]] = {}
    for depth in curves.depths:
        index = curves.at(depth)
        if (np.diff(log[index]) <= 0).any():
            return None
        if len(index) > 1:
            own[depth] = PchipInterpolator(log[index], curves.x[index])
    return Totals(log, own)


def _aspects(
    rows: pd.DataFrame, curves: Curves, best: tuple[BestShape, ...], quantile: float
) -> tuple[Aspect, ...]:
    # From the measured widths, not sqrt(N / 12L): N may be counted differently.
    widths = np.log(rows.groupby(["depth", "params"], sort=True)["width"].first().to_numpy(dtype=float))
    found = []
    for item in best:
        for shape in item.shapes:
            index = curves.at(shape.depth)
            width = math.exp(float(np.interp(math.log(item.params), curves.x[index], widths[index])))
            increase, interval = 100 * shape.excess / item.loss, None
            if shape.z and shape.depth != item.depth:
                reach = 100 * quantile * shape.excess / shape.z / item.loss
                interval = (increase - reach, increase + reach)
            found.append(
                Aspect(item.budget, item.params, shape.depth, width, width / shape.depth, increase, interval)
            )
    return tuple(sorted(found, key=lambda item: (item.budget, item.aspect)))


def _ranges(aspects: tuple[Aspect, ...]) -> tuple[AspectRange, ...]:
    found = []
    for budget in sorted({item.budget for item in aspects}):
        here = [item for item in aspects if item.budget == budget]
        near = [item.aspect for item in here if item.increase <= NEAR]
        every = [item.aspect for item in here]
        found.append(AspectRange(budget, here[0].params, min(near), max(near), min(every), max(every)))
    return tuple(found)


def _of_depth(curves: Curves, depth: int, sizes: Floats) -> _Losses:
    index = curves.at(depth)
    shared, own = curves.errors
    covariance = shared[index] @ shared[index].T + np.diag(own[index] ** 2)
    return _Losses(sizes[index], curves.mean[index], covariance)


def _on_curves(curves: Curves, sizes: list[float], depths: list[int], places: list[float]) -> _Losses:
    """Losses on the curves of `depths` at ln N = `places`, for the counts `sizes`."""
    both = [curves.both(depth, np.array([x])) for depth, x in zip(depths, places, strict=True)]
    loss = np.array([float(values[0]) for values, _ in both])
    jacobian = np.vstack([slopes for _, slopes in both]) if both else np.empty((0, curves.smooth.size))
    return _Losses(np.array(sizes), loss, jacobian @ curves.covariance @ jacobian.T)


def _at_best(curves: Curves, best: tuple[BestShape, ...]) -> _Losses:
    places = [math.log(item.params) for item in best]
    return _on_curves(curves, places, [item.depth for item in best], places)


def _at_totals(curves: Curves, best: tuple[BestShape, ...], totals: Totals) -> tuple[_Losses, Spread | None]:
    """The lowest losses at equal total counts, at those of the best shapes; and the spread of the depths there."""
    sizes: list[float] = []
    depths: list[int] = []
    places: list[float] = []
    apart: list[tuple[float, float]] = []
    log_of = {depth: (totals.log[curves.at(depth)], curves.x[curves.at(depth)]) for depth in totals.own}
    for item in best:
        if item.depth not in totals.own:
            continue
        log, x = log_of[item.depth]
        size = float(PchipInterpolator(x, log)(math.log(item.params)))
        there = {
            depth: float(totals.own[depth](np.array([size]))[0])
            for depth, (known, _) in log_of.items()
            if known[0] - 1e-9 <= size <= known[-1] + 1e-9
        }
        if len(there) < 2:
            continue
        losses = {depth: _loss(curves, depth, place) for depth, place in there.items()}
        lowest = min(losses, key=lambda depth: losses[depth])
        sizes.append(size)
        depths.append(lowest)
        places.append(_inside(curves, lowest, there[lowest]))
        common = [shape for shape in item.shapes if shape.depth in losses]
        if len(common) > 1:
            at_own = [shape.loss for shape in common]
            at_total = [losses[shape.depth] for shape in common]
            apart.append((max(at_own) / min(at_own) - 1, max(at_total) / min(at_total) - 1))
    spread = None
    if apart:
        own, total = np.mean(apart, axis=0)
        spread = Spread(100 * float(own), 100 * float(total), len(apart))
    return _on_curves(curves, sizes, depths, places), spread


def _loss(curves: Curves, depth: int, x: float) -> float:
    return float(curves.loss(depth, np.array([_inside(curves, depth, x)]))[0])


def _inside(curves: Curves, depth: int, x: float) -> float:
    """`x`, clipped to the range of the curve (rounding may have put it beyond)."""
    low, high = curves.range(depth)
    return min(max(x, low), high)


def _straight(start: Exponent, losses: _Losses, entropy: float, curves: Curves, level: float) -> Exponent:
    """α and N_c of (N_c/N)^α through losses above an entropy: a weighted line through the logarithms."""
    above = losses.loss - entropy
    kept = above > 0
    count = int(kept.sum())
    if count < LEAST_POINTS:
        low = len(above) - count
        why = f"{count} point{'s' * (count != 1)} of {LEAST_POINTS} needed"
        return replace(start, reason=why + (f"; {low} at or below the entropy of the data" if low else ""))
    size, y = losses.size[kept], np.log(above[kept])
    if np.ptp(size) < SAME:
        return replace(start, reason=ONE_SIZE)
    slope = 1 / above[kept]
    covariance = losses.covariance[np.ix_(kept, kept)] * np.outer(slope, slope)
    weight = _weights(covariance, curves.noise.known)
    centre = float(np.average(size, weights=weight))
    # At the centre of the sizes the two coefficients are nearly uncorrelated.
    design = np.column_stack([np.ones(count), centre - size])
    solve = np.linalg.solve((design.T * weight) @ design, design.T * weight)
    level_at, alpha = (float(value) for value in solve @ y)
    residual = y - design @ np.array([level_at, alpha])
    reach = _reach(solve[1], covariance, residual, count - 2, curves, level)
    rms = float(np.sqrt(np.mean((above[kept] - np.exp(y - residual)) ** 2)))
    return _found(start, alpha, reach, level_at + alpha * centre, entropy or None, rms, count)


def _with_offset(start: Exponent, losses: _Losses, curves: Curves, level: float) -> Exponent:
    """α, N_c and E of E + (N_c/N)^α, with the family of curves that has these three parameters."""
    count = len(losses.size)
    if count < LEAST_FOR_OFFSET:
        return replace(start, reason=f"{count} point{'s' * (count != 1)} of {LEAST_FOR_OFFSET} needed")
    if np.ptp(losses.size) < SAME:
        return replace(start, reason=ONE_SIZE)
    weight = _weights(losses.covariance, curves.noise.known)
    order = np.argsort(losses.size, kind="stable")
    size, loss, weight = losses.size[order], losses.loss[order], weight[order]
    one = np.zeros(count, dtype=np.int64)
    smooth = fit_family("power", one, size, loss, weight)
    curve = smooth.curves[0]
    if curve.alpha is None or curve.alpha_at is None:
        steep = (curve.alpha or 0.0) > 1
        return replace(start, reason="the loss falls like a step" if steep else "the loss falls like ln N")
    solve, _ = solution(smooth, one, size, weight)
    residual = loss - smooth.loss(0, size)
    covariance = losses.covariance[np.ix_(order, order)]
    reach = _reach(solve[curve.alpha_at], covariance, residual, count - 3, curves, level)
    scale, offset = _constants(curve.coefficients, curve.alpha, curve.centre)
    if scale is None:
        return replace(start, reason="the loss does not fall with N")
    rms = float(np.sqrt(np.mean(residual**2)))
    return _found(start, curve.alpha, reach, curve.alpha * scale, offset, rms, count)


def _of_curves(curves: Curves, quantile: float) -> list[Exponent]:
    """The exponents of the curves, if these are power laws with an offset."""
    found = []
    own = curves.smooth.family == "power-own"
    for depth, curve in curves.smooth.curves.items():
        if curve.alpha is None or curve.alpha_at is None:
            continue
        # NaN without a noise estimate, like the quantile.
        reach = quantile * math.sqrt(max(float(curves.covariance[curve.alpha_at, curve.alpha_at]), 0.0))
        if not own:
            # One exponent for all depths, but a level and a slope for each: no single scale or offset.
            start = Exponent("own", "offset", "all", None, len(curves.x))
            return [_found(start, curve.alpha, reach, None, None, None, len(curves.x))]
        start = Exponent("own", "offset", "depth", depth, len(curves.at(depth)))
        scale, offset = _constants(curve.coefficients, curve.alpha, curve.centre)
        height = None if scale is None else curve.alpha * scale
        found.append(_found(start, curve.alpha, reach, height, offset, None, start.points))
    return found


def _constants(coefficients: tuple[float, ...], alpha: float, centre: float) -> tuple[float | None, float]:
    """Ln N_c and E of level + slope·(1 - exp(-α·s))/α with s = ln N - centre; no N_c if the loss rises with N."""
    level, slope = coefficients[0], coefficients[1]
    return (centre + math.log(-slope / alpha) / alpha if slope < 0 else None), level + slope / alpha


def _weights(covariance: Floats, known: bool) -> Floats:
    """Inverse variances; equal weights if the noise is unknown or zero."""
    variance = np.diag(covariance)
    if not known or not (variance > 0).all():
        return np.ones(len(variance))
    return np.asarray(1 / variance)


def _reach(
    row: Floats, covariance: Floats, residual: Floats, spare: int, curves: Curves, level: float
) -> float:
    """Half of the interval of the coefficient `row` @ losses: from the noise, else from the residuals."""
    if curves.noise.known:
        error = math.sqrt(max(float(row @ covariance @ row), 0.0))
        return error * _quantile(level, curves.dof)
    return math.sqrt(float(residual @ residual) / spare * float(row @ row)) * _quantile(level, spare)


@cache
def _quantile(level: float, dof: float) -> float:
    return float(student.ppf((1 + level) / 2, dof))


def _found(
    start: Exponent,
    alpha: float,
    reach: float,
    height: float | None,
    offset: float | None,
    rms: float | None,
    points: int,
) -> Exponent:
    """The exponent with its interval; `height` is α·ln N_c."""
    log_scale = None if height is None or alpha <= 0 else height / alpha
    return replace(
        start,
        points=points,
        alpha=alpha,
        interval=(alpha - reach, alpha + reach) if math.isfinite(reach) else None,
        # The scale of a nearly flat law exceeds the largest float.
        scale=math.exp(log_scale) if log_scale is not None and abs(log_scale) < 700 else None,
        offset=offset,
        rms=rms,
    )
