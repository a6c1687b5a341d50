"""Figures 5 and 6 of Kaplan et al. 2020 (arXiv 2001.08361) for a study's own runs.

- Shape: loss over the best shape at equal N, in percent, against the aspect ratio d/L. Kaplan et al. found a few
  percent over a factor of 40.
- Size: the power law L(N) = (N_c/N)^α through the best shapes. They found α = 0.076 and N_c = 8.8e13 in non-embedding
  parameters. With an entropy E of the data the law is E + (N_c/N)^α; an unknown E is fitted.
- Count: the same laws in all parameters, embeddings included.

Losses at equal N, best shapes and noise come from the fit of the crossings; only the power laws are fitted here.
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
from analysis.curves.power_law import fit_power
from analysis.intervals import Interval

#: Parameters counted: N as in the fit, or all.
Counted = Literal["own", "total"]
#: (N_c/N)^α; E + (N_c/N)^α with the E of the data; the same with a fitted E.
Form = Literal["power", "entropy", "offset"]

#: α_N and N_c of Kaplan et al. 2020, equation 1.1: English web text, 768 to 1.5e9 non-embedding parameters.
PUBLISHED_ALPHA, PUBLISHED_SCALE = 0.076, 8.8e13
#: Percent above the best shape within which Kaplan et al. 2020 (figure 5) found aspect ratios over a factor of 40.
NEAR = 3.0


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
    """The aspect ratios of one budget: smallest and largest within `NEAR` percent (low, high), and measured."""

    budget: float
    params: float
    low: float
    high: float
    least: float
    most: float


@dataclass(frozen=True)
class Exponent:
    """A power law through the best shapes.

    Attributes:
        points: number of points fitted.
        alpha, interval: the exponent. The interval follows from the noise of the points, or without a noise estimate
            from their residuals.
        scale: N_c.
        offset: E, nats per token; None without one.
        rms: root mean square residual, nats per token.
        reason: why there is no exponent.
    """

    counted: Counted
    form: Form
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
class Kaplan:
    """Shape, size and count of one study.

    Attributes:
        entropy: of the data in nats per token, if known.
        aspects: by budget, then aspect ratio; ranges: by budget.
        exponents: in N, then in all parameters if these are known.
        level: of the intervals.
    """

    JSON_PROPERTIES: ClassVar = ("published",)

    entropy: float | None
    aspects: tuple[Aspect, ...]
    ranges: tuple[AspectRange, ...]
    exponents: tuple[Exponent, ...]
    level: float

    @property
    def published(self) -> dict[str, float]:
        """The law of Kaplan et al. 2020."""
        return {"alpha": PUBLISHED_ALPHA, "scale": PUBLISHED_SCALE}

    def exponent(self, counted: Counted, form: Form) -> Exponent | None:
        """The exponent of this kind, or None."""
        return next((item for item in self.exponents if (item.counted, item.form) == (counted, form)), None)


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
    places = [math.log(item.params) for item in best]
    groups: dict[Counted, _Losses] = {
        "own": _on_curves(curves, places, [item.depth for item in best], places)
    }
    totals = totals_of(rows, curves)
    if totals is not None:
        groups["total"] = _at_totals(curves, best, totals)
    exponents = []
    for counted, losses in groups.items():
        exponents.append(_straight(Exponent(counted, "power", len(losses.size)), losses, 0.0, curves, level))
        if entropy:
            # With entropy 0 (tasks) it would be the power law again.
            start = Exponent(counted, "entropy", len(losses.size))
            exponents.append(_straight(start, losses, entropy, curves, level))
        exponents.append(_with_offset(Exponent(counted, "offset", len(losses.size)), losses, curves, level))
    aspects = _aspects(rows, curves, best, level)
    return Kaplan(entropy, aspects, _ranges(aspects), tuple(exponents), level)


def totals_of(rows: pd.DataFrame, curves: Curves) -> Totals | None:
    """Total parameters of the points; None if a shape has none, or if they do not grow with N in some depth."""
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
    rows: pd.DataFrame, curves: Curves, best: tuple[BestShape, ...], level: float
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
                reach = 100 * _quantile(level, curves.dof) * shape.excess / shape.z / item.loss
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


def _on_curves(curves: Curves, sizes: list[float], depths: list[int], places: list[float]) -> _Losses:
    """Losses on the curves of `depths` at ln N = `places`, for the counts `sizes`."""
    rows = [curves.rows(depth, np.array([x])) for depth, x in zip(depths, places, strict=True)]
    weights = np.vstack([np.empty((0, curves.values.size)), *rows])
    loss = weights @ curves.values.ravel()
    return _Losses(np.array(sizes), loss, weights @ curves.covariance @ weights.T)


def _at_totals(curves: Curves, best: tuple[BestShape, ...], totals: Totals) -> _Losses:
    """The lowest losses at the total counts of the best shapes, where two depths have that count."""
    sizes, depths, places = [], [], []
    for item in best:
        if item.depth not in totals.own:
            continue
        index = curves.at(item.depth)
        size = float(PchipInterpolator(curves.x[index], totals.log[index])(math.log(item.params)))
        there = {}
        for depth, own in totals.own.items():
            low, high = totals.log[curves.at(depth)][[0, -1]]
            if low - 1e-9 <= size <= high + 1e-9:
                # Only rounding can put a place outside the range of its curve.
                there[depth] = float(np.clip(own(np.array([size]))[0], *curves.range(depth)))
        if len(there) < 2:
            continue
        losses = {depth: curves.loss(depth, np.array([x]))[0] for depth, x in there.items()}
        lowest = min(losses, key=lambda depth: losses[depth])
        sizes.append(size)
        depths.append(lowest)
        places.append(there[lowest])
    return _on_curves(curves, sizes, depths, places)


def _lacking(count: int, needed: int, size: Floats) -> str | None:
    """Why points do not determine a law, or None."""
    if count < needed:
        return f"{count} point{'s' * (count != 1)} of {needed} needed"
    return "its points are of one size" if np.ptp(size) < 1e-9 else None


def _straight(start: Exponent, losses: _Losses, entropy: float, curves: Curves, level: float) -> Exponent:
    """α and N_c of (N_c/N)^α through losses above an entropy: a weighted line through the logarithms."""
    above = losses.loss - entropy
    kept = above > 0
    count, size = int(kept.sum()), losses.size[kept]
    if reason := _lacking(count, 3, size):
        low = len(above) - count
        return replace(start, reason=reason + (f"; {low} at or below the entropy of the data" if low else ""))
    y, slope = np.log(above[kept]), 1 / above[kept]
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
    start = replace(start, points=count, offset=entropy or None, rms=rms)
    return _found(start, alpha, reach, level_at + alpha * centre)


def _with_offset(start: Exponent, losses: _Losses, curves: Curves, level: float) -> Exponent:
    """α, N_c and E of E + (N_c/N)^α, a power law with an offset."""
    count = len(losses.size)
    if reason := _lacking(count, 4, losses.size):
        return replace(start, reason=reason)
    order = np.argsort(losses.size, kind="stable")
    size, loss, covariance = losses.size[order], losses.loss[order], losses.covariance[np.ix_(order, order)]
    weight = _weights(covariance, curves.noise.known)
    curve = fit_power(size, loss, weight)
    if curve.solve is None:
        steep = curve.alpha > 1
        return replace(start, reason="the loss falls like a step" if steep else "the loss falls like ln N")
    if curve.slope >= 0:
        return replace(start, reason="the loss does not fall with N")
    residual = loss - curve.fitted
    reach = _reach(curve.solve, covariance, residual, count - 3, curves, level)
    offset = curve.height + curve.slope / curve.alpha
    start = replace(start, offset=offset, rms=float(np.sqrt(np.mean(residual**2))))
    log_scale = curve.centre + math.log(-curve.slope / curve.alpha) / curve.alpha
    return _found(start, curve.alpha, reach, curve.alpha * log_scale)


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


def _found(start: Exponent, alpha: float, reach: float, height: float) -> Exponent:
    """`start` with its exponent, interval and scale; `height` is α·ln N_c."""
    log_scale = height / alpha if alpha > 0 else math.inf
    return replace(
        start,
        alpha=alpha,
        interval=(alpha - reach, alpha + reach) if math.isfinite(reach) else None,
        # The scale of a nearly flat law exceeds the largest float.
        scale=math.exp(log_scale) if abs(log_scale) < 700 else None,
    )
