"""The questions of Kaplan et al. 2020 (arXiv 2001.08361, figures 5 and 6), asked of a study's own runs.

- How much does the shape matter at equal N? The loss above that of the best shape measured, in percent, against the
  aspect ratio d/L. Theirs: a few percent over a factor of 40.
- How does the loss fall with N? L(N) = (N_c/N)^α for the best shapes and for each depth. Theirs: α_N = 0.076 and
  N_c = 8.8e13 in non-embedding parameters. Data of known entropy E have (N_c/N)^α above it; where E is not known it is
  fitted with the best shapes.
- Which count of parameters? With the embedding counted in, depths that fell on one line no longer do.

Nothing is fitted a second time: losses at equal N, best shapes, noise and the exponents of the depths' own curves are
those of the fit; only the power laws without an offset, or with a known one, are new.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from analysis.law.crossings import Interval

#: Which parameters are counted: as the fit counts N, or all of them.
Counted = Literal["own", "total"]
#: (N_c/N)^α; E + (N_c/N)^α with the E of the data; the same with an E that is fitted.
Form = Literal["power", "entropy", "offset"]
#: What the law goes through: the best shape of each budget, one depth, or all depths with one exponent.
Scope = Literal["best", "depth", "all"]

#: α_N and N_c of Kaplan et al. 2020, equation 1.1: English web text, 768 to 1.5e9 non-embedding parameters.
PUBLISHED_ALPHA, PUBLISHED_SCALE = 0.076, 8.8e13
#: Percent above the best shape within which Kaplan et al. 2020 (figure 5) saw aspect ratios differ by a factor of 40.
NEAR = 3.0
#: Points that a law of two parameters needs, and one of three.
LEAST_POINTS, LEAST_FOR_OFFSET = 3, 4
#: Sizes that differ by less in ln N are one.
SAME = 1e-9


@dataclass(frozen=True)
class Aspect:
    """One depth at one budget.

    Attributes:
        budget: as planned; params: the N at which its depths are compared.
        depth, width, aspect: L, d and d/L.
        increase: of the loss over the best depth there, percent of the best loss; 0 for that depth itself.
        interval: of the increase, from the paired difference; None for the best depth, and without a noise estimate.
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
    """The aspect ratios of one budget that cost little.

    Attributes:
        budget, params: as in `Aspect`.
        low, high: smallest and largest d/L of the shapes within `NEAR` percent of the best.
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
        depth: of the scope `depth`, else None.
        points: it goes through; for a scope of curves those of the curves.
        alpha, interval: the exponent; None where there is none, `reason` says why. The interval follows from the noise
            of the points; without a noise estimate from their scatter about the law.
        scale: N_c.
        offset: E, nats a token; None without one.
        rms: root mean square of loss less law, nats a token; None for a scope of curves.
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
        """Nats a token at N.

        Raises:
            ValueError: there is no exponent, or no scale.
        """
        if self.alpha is None or self.scale is None:
            raise ValueError(f"there is no such power law: {self.reason}")
        power = self.alpha * (math.log(self.scale) - np.log(np.asarray(params, dtype=float)))
        return np.asarray((self.offset or 0.0) + np.exp(power))


@dataclass(frozen=True)
class Spread:
    """How far apart depths lie at one count: (highest - lowest) / lowest loss, percent, mean over the budgets.

    Attributes:
        own, total: at equal N, and at equal total parameters, over the same depths.
        budgets: so many.
    """

    own: float
    total: float
    budgets: int


@dataclass(frozen=True)
class Kaplan:
    """All of it for one study.

    Attributes:
        entropy: entropy of the data in nats a token, where known.
        aspects: by budget, then aspect ratio.
        ranges: by budget.
        exponents: the best shapes first, then all depths, then each.
        spread: None without a total count, or without two depths that are compared at equal counts of both kinds.
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
        """The exponent asked for, or None."""
        for item in self.exponents:
            if (item.counted, item.form, item.scope, item.depth) == (counted, form, scope, depth):
                return item
        return None


@dataclass(frozen=True)
class Totals:
    """All parameters of each shape, beside its N.

    Attributes:
        log: ln of the total parameters of each point of the curves.
        own: depth -> ln N on its curve as a function of ln total; for depths of two or more sizes.
    """

    log: Floats
    own: Mapping[int, Callable[[Floats], Floats]]


@dataclass(frozen=True)
class _Losses:
    """Losses of a power law to be: ln of the count, nats a token, and their covariance (NaN if not known)."""

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
    """Shape, size and count of a study; None where it has one depth only.

    Args:
        rows: those that are compared (columns depth, params, width, total_params).
        curves: through their losses.
        best: the best shape of each budget.
        entropy: entropy of the data in nats a token, where known.
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
            # Above an entropy of 0, that of a task, it would be the same law again.
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
    """Total parameters of the points; None where a shape has none, or they do not grow with N in some depth.

    Args:
        rows: those the curves were built from.
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
    # By the measured widths, not by sqrt(N / 12L): N may be counted in another way.
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
    """The lowest losses at equal total counts, those of the best shapes; and how far the depths lie apart there."""
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
    """`x`, on the end of the curve's range where rounding has put it beyond."""
    low, high = curves.range(depth)
    return min(max(x, low), high)


def _straight(start: Exponent, losses: _Losses, entropy: float, curves: Curves, level: float) -> Exponent:
    """α and N_c of (N_c/N)^α through losses above a floor: a weighted line through the logarithms."""
    above = losses.loss - entropy
    kept = above > 0
    count = int(kept.sum())
    if count < LEAST_POINTS:
        low = len(above) - count
        why = f"{count} point{'s' * (count != 1)} of {LEAST_POINTS} needed"
        return _without(start, why + (f"; {low} at or below the entropy of the data" if low else ""))
    size, y = losses.size[kept], np.log(above[kept])
    if np.ptp(size) < SAME:
        return _without(start, "its points are of one size")
    slope = 1 / above[kept]
    covariance = losses.covariance[np.ix_(kept, kept)] * np.outer(slope, slope)
    weight = _weights(covariance, curves.noise.known)
    centre = float(np.average(size, weights=weight))
    # Both coefficients at the centre of the sizes, where they hardly depend on each other.
    design = np.column_stack([np.ones(count), centre - size])
    solve = np.linalg.solve((design.T * weight) @ design, design.T * weight)
    level_at, alpha = (float(value) for value in solve @ y)
    residual = y - design @ np.array([level_at, alpha])
    reach = _reach(solve[1], covariance, residual, count - 2, curves, level)
    rms = float(np.sqrt(np.mean((above[kept] - np.exp(y - residual)) ** 2)))
    return _found(start, alpha, reach, level_at + alpha * centre, entropy or None, rms, count)


def _with_offset(start: Exponent, losses: _Losses, curves: Curves, level: float) -> Exponent:
    """α, N_c and E of E + (N_c/N)^α, by the family of curves that has these three parameters."""
    count = len(losses.size)
    if count < LEAST_FOR_OFFSET:
        return _without(start, f"{count} point{'s' * (count != 1)} of {LEAST_FOR_OFFSET} needed")
    if np.ptp(losses.size) < SAME:
        return _without(start, "its points are of one size")
    weight = _weights(losses.covariance, curves.noise.known)
    order = np.argsort(losses.size, kind="stable")
    size, loss, weight = losses.size[order], losses.loss[order], weight[order]
    one = np.zeros(count, dtype=np.int64)
    smooth = fit_family("power", one, size, loss, weight)
    curve = smooth.curves[0]
    if curve.alpha is None or curve.alpha_at is None:
        steep = (curve.alpha or 0.0) > 1
        return _without(start, "the loss falls like a step" if steep else "the loss falls like ln N")
    solve, _ = solution(smooth, one, size, weight)
    residual = loss - smooth.loss(0, size)
    covariance = losses.covariance[np.ix_(order, order)]
    reach = _reach(solve[curve.alpha_at], covariance, residual, count - 3, curves, level)
    scale, offset = _constants(curve.coefficients, curve.alpha, curve.centre)
    if scale is None:
        return _without(start, "the loss does not fall with N")
    rms = float(np.sqrt(np.mean(residual**2)))
    return _found(start, curve.alpha, reach, curve.alpha * scale, offset, rms, count)


def _of_curves(curves: Curves, quantile: float) -> list[Exponent]:
    """The exponents of the curves themselves, where these are power laws with an offset."""
    found = []
    own = curves.smooth.family == "power-own"
    for depth, curve in curves.smooth.curves.items():
        if curve.alpha is None or curve.alpha_at is None:
            continue
        # NaN, as the quantile, where the noise is not known.
        reach = quantile * math.sqrt(max(float(curves.covariance[curve.alpha_at, curve.alpha_at]), 0.0))
        if not own:
            # One exponent, and a level and a slope for each depth: no single scale or offset.
            start = Exponent("own", "offset", "all", None, len(curves.x))
            return [_found(start, curve.alpha, reach, None, None, None, len(curves.x))]
        start = Exponent("own", "offset", "depth", depth, len(curves.at(depth)))
        scale, offset = _constants(curve.coefficients, curve.alpha, curve.centre)
        height = None if scale is None else curve.alpha * scale
        found.append(_found(start, curve.alpha, reach, height, offset, None, start.points))
    return found


def _constants(coefficients: tuple[float, ...], alpha: float, centre: float) -> tuple[float | None, float]:
    """Ln N_c and E of level + slope·(1 - exp(-α·s))/α with s = ln N - centre; no N_c where the loss rises with N."""
    level, slope = coefficients[0], coefficients[1]
    return (centre + math.log(-slope / alpha) / alpha if slope < 0 else None), level + slope / alpha


def _weights(covariance: Floats, known: bool) -> Floats:
    """Inverse variances, and equal ones where the noise is not known or nothing at all."""
    variance = np.diag(covariance)
    if not known or not (variance > 0).all():
        return np.ones(len(variance))
    return np.asarray(1 / variance)


def _reach(
    row: Floats, covariance: Floats, residual: Floats, spare: int, curves: Curves, level: float
) -> float:
    """Half of the interval of a coefficient that is `row` times the losses: by the noise, else by the residuals."""
    if curves.noise.known:
        return _error(row, covariance) * _quantile(level, curves.dof)
    return math.sqrt(float(residual @ residual) / spare * float(row @ row)) * _quantile(level, spare)


@cache
def _quantile(level: float, dof: float) -> float:
    return float(student.ppf((1 + level) / 2, dof))


def _error(row: Floats, covariance: Floats) -> float:
    return math.sqrt(max(float(row @ covariance @ row), 0.0))


def _found(
    start: Exponent,
    alpha: float,
    reach: float,
    height: float | None,
    offset: float | None,
    rms: float | None,
    points: int,
) -> Exponent:
    """An exponent with its interval; `height` is α·ln N_c."""
    log_scale = None if height is None or alpha <= 0 else height / alpha
    return Exponent(
        start.counted,
        start.form,
        start.scope,
        start.depth,
        points,
        alpha,
        (alpha - reach, alpha + reach) if math.isfinite(reach) else None,
        # Beyond the largest float it says nothing; a nearly flat law has such a scale.
        math.exp(log_scale) if log_scale is not None and abs(log_scale) < 700 else None,
        offset,
        rms,
    )


def _without(start: Exponent, reason: str) -> Exponent:
    return Exponent(start.counted, start.form, start.scope, start.depth, start.points, reason=reason)
