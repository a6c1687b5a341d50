"""Fit smooth curves of the loss in ln N to all depths of a study, and choose their family.

All depths of a study have the same family, so that a comparison of depths is not one of families:

- `power`: E_L + A_L·N^-α with one α for all depths. α may be 0, which is a straight line in ln N;
- `power-own`: the same with an α for each depth;
- `quadratic` in ln N;
- `spline`: monotone (falling), quadratic I-splines with non-negative coefficients (Ramsay 1988).

A fit is weighted least squares. `Smooth` gives values and their derivatives with respect to the parameters, exact where
the family is linear and of first order in α elsewhere.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar, nnls

from analysis.curves.noise import Floats

Family = Literal["power", "power-own", "quadratic", "spline"]
FAMILIES: tuple[Family, ...] = ("power", "power-own", "quadratic", "spline")

#: Largest exponent α; a steeper curve is nearly a step.
MOST_ALPHA = 3.0
#: Least number of sizes of a depth for a family: one more than its parameters, so that a misfit is visible.
LEAST_SIZES: Mapping[Family, int] = {"power": 2, "power-own": 4, "quadratic": 4, "spline": 8}
#: Inner knots of a spline, at most; one for every four sizes.
MOST_KNOTS = 8
#: A family must predict left-out sizes better than the one before it by this factor in squared error.
BETTER = 0.7
#: Exponents from which the search starts.
_GRID = (0.0, *(float(alpha) for alpha in np.geomspace(0.02, MOST_ALPHA, 14)))


@dataclass(frozen=True)
class Curve:
    """One depth: loss = level + sum of slopes times functions of ln N.

    Attributes:
        first: index of its first parameter in the study's vector; the level comes first.
        coefficients: level, then the factor of each function.
        centre: of ln N.
        alpha, knots: of a power law, and of a spline.
        alpha_at: index of α in the study's vector; None if it was not fitted (a family without one, or α at an end of
            its range).
        free: for each coefficient, whether it was fitted (a spline's coefficient at zero is fixed).
    """

    first: int
    coefficients: tuple[float, ...]
    centre: float
    alpha: float | None
    knots: tuple[float, ...]
    alpha_at: int | None
    free: tuple[bool, ...]

    def functions(self, x: Floats) -> Floats:
        """(len(x), coefficients) at ln N = x."""
        return _functions(x, self.centre, self.alpha, self.knots, len(self.coefficients))


@dataclass(frozen=True)
class Smooth:
    """The curves of all depths.

    Attributes:
        family: of all curves.
        curves: by depth.
        size: number of parameters of all curves together.
        press: mean squared error of predicting left-out sizes, over their variances, for each family tried.
    """

    family: Family
    curves: Mapping[int, Curve]
    size: int
    press: Mapping[Family, float]

    @cached_property
    def parameters(self) -> int:
        """Number of fitted parameters, at most `size`."""
        alphas = {curve.alpha_at for curve in self.curves.values() if curve.alpha_at is not None}
        return sum(sum(curve.free) for curve in self.curves.values()) + len(alphas)

    def loss(self, depth: int, x: Floats) -> Floats:
        """Nats per token of a depth at ln N = x."""
        curve = self.curves[depth]
        return np.asarray(curve.functions(x) @ np.array(curve.coefficients))

    def fitted(self, depth: npt.NDArray[np.int64], x: Floats) -> Floats:
        """Nats per token of points that are ordered by depth."""
        return np.concatenate([self.loss(value, x[part]) for value, part in parts_of(depth)])

    def jacobian(self, depth: int, x: Floats) -> Floats:
        """(len(x), size): derivative of `loss` with respect to all parameters of the study."""
        return self.both(depth, x)[1]

    def both(self, depth: int, x: Floats) -> tuple[Floats, Floats]:
        """`loss` and `jacobian`, which need the same functions."""
        curve = self.curves[depth]
        functions = curve.functions(x)
        coefficients = np.array(curve.coefficients)
        result = np.zeros((len(x), self.size))
        last = curve.first + len(coefficients)
        result[:, curve.first : last] = functions if all(curve.free) else functions * np.array(curve.free)
        if curve.alpha_at is not None and curve.alpha is not None:
            result[:, curve.alpha_at] = coefficients[1] * _alpha_derivative(x - curve.centre, curve.alpha)
        return np.asarray(functions @ coefficients), result


def fit_smooth(depth: npt.NDArray[np.int64], x: Floats, loss: Floats, weight: Floats) -> Smooth:
    """Fit the family that predicts left-out sizes best.

    Families are tried from the simplest on; a later one is chosen only if its squared error is lower by more than 30 %.
    A family for which some depth has too few sizes is not tried; `power` needs two sizes of every depth.

    Args:
        depth: layers of each point; the points are ordered by depth, then size.
        x: ln N.
        loss: nats per token.
        weight: inverse variances.
    """
    points = _Points(depth, x, loss, weight)
    several = [part.stop - part.start for part in points.many]
    tried: dict[Family, Smooth] = {}
    for family in FAMILIES:
        if family == "power" or (several and min(several) >= LEAST_SIZES[family]):
            tried[family] = _fit(family, points)
    press = {family: _press(smooth, points) for family, smooth in tried.items()}
    chosen: Family = "power"
    for family, score in press.items():
        if math.isfinite(score) and score < BETTER * press[chosen]:
            chosen = family
    return replace(tried[chosen], press=press)


def fit_family(
    family: Family, depth: npt.NDArray[np.int64], x: Floats, loss: Floats, weight: Floats
) -> Smooth:
    """Fit one family to all points; arguments as `fit_smooth`."""
    return _fit(family, _Points(depth, x, loss, weight))


def solution(
    smooth: Smooth, depth: npt.NDArray[np.int64], x: Floats, weight: Floats
) -> tuple[Floats, Floats]:
    """(size, points): derivative of the parameters by the losses; and (points,): leverage of each point."""
    return _solution(np.vstack([smooth.jacobian(value, x[part]) for value, part in parts_of(depth)]), weight)


def _solution(design: Floats, weight: Floats) -> tuple[Floats, Floats]:
    root = np.sqrt(weight)
    solve = np.linalg.pinv(design * root[:, None], rcond=1e-10) * root
    return np.asarray(solve), np.vecdot(design, solve.T)


def parts_of(depth: npt.NDArray[np.int64]) -> list[tuple[int, slice]]:
    """Each depth and its points, which are ordered by depth."""
    values, first = np.unique(depth, return_index=True)
    ends = itertools.pairwise([*first.tolist(), len(depth)])
    return [(value, slice(*end)) for value, end in zip(values.tolist(), ends, strict=True)]


class _Points:
    """The points of a fit, and those of the depths with several sizes as a table with one row per depth."""

    def __init__(self, depth: npt.NDArray[np.int64], x: Floats, loss: Floats, weight: Floats) -> None:
        """Points are ordered by depth; rows are padded with points of zero weight and hold losses less their mean."""
        self.x, self.loss, self.weight = x, loss, weight
        self.parts = parts_of(depth)
        self.many = [part for _, part in self.parts if part.stop - part.start > 1]
        self.centre = float(np.mean(x))
        most = max((part.stop - part.start for part in self.many), default=0)
        self.shifted, self.losses, self.weights = np.zeros((3, len(self.many), most))
        for row, part in enumerate(self.many):
            count = part.stop - part.start
            self.shifted[row, :count] = x[part] - self.centre
            self.losses[row, :count] = loss[part] - np.average(loss[part], weights=weight[part])
            self.weights[row, :count] = weight[part]

    @cached_property
    def grid(self) -> Floats:
        """(exponents, depths): squares at the exponents of a coarse grid."""
        decay = np.stack([_decay(self.shifted, alpha) for alpha in _GRID])
        return _squares(decay, self.losses, self.weights)

    def best_alpha(self, rows: slice) -> float:
        """The exponent of least squares of some depths, refined from a coarse grid because there may be two minima."""
        parts = []
        for part in self.many[rows]:
            root = np.sqrt(self.weight[part])
            design = np.ones((len(root), 2)) * root[:, None]
            parts.append((self.x[part] - self.centre, self.loss[part] * root, root, design))

        def square(alpha: float) -> float:
            total = 0.0
            for shifted, loss, root, design in parts:
                design[:, 1] = _decay(shifted, alpha) * root
                fitted = design @ np.linalg.lstsq(design, loss, rcond=None)[0]
                total += float(np.sum((loss - fitted) ** 2))
            return total

        values = self.grid[:, rows].sum(axis=1)
        best = int(np.argmin(values))
        low, high = _GRID[max(best - 1, 0)], _GRID[min(best + 1, len(_GRID) - 1)]
        refined = minimize_scalar(square, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
        return float(refined.x) if refined.fun < values[best] else _GRID[best]


def _squares(decay: Floats, loss: Floats, weight: Floats) -> Floats:
    """(…, depths): weighted squares of lines in `decay` (…, depths, points); `loss` has mean zero in each depth."""
    centred = decay - (np.vecdot(weight, decay) / weight.sum(axis=-1))[..., None]
    across = weight * centred
    own = np.vecdot(across, centred)
    slope = np.vecdot(across, loss) / np.where(own > 0, own, np.inf)
    residual = loss - slope[..., None] * centred
    return np.asarray(np.vecdot(weight, residual**2))


def _press(smooth: Smooth, points: _Points) -> float:
    """Mean weighted squared error of each point predicted from all others; NaN if none can be."""
    loss, weight = points.loss, points.weight
    tables = [smooth.both(value, points.x[part]) for value, part in points.parts]
    fitted = np.concatenate([values for values, _ in tables])
    _, leverage = _solution(np.vstack([design for _, design in tables]), weight)
    # The curve of a depth with two sizes passes through both, so it predicts nothing.
    able = leverage < 0.98
    if not able.any():
        return float("nan")
    error = (loss - fitted)[able] / (1 - leverage[able])
    return float(np.mean(weight[able] * error**2))


def _fit(family: Family, points: _Points) -> Smooth:
    centre = points.centre
    # With two sizes per depth any α fits exactly, and a line is the simplest.
    free = family == "power" and sum(part.stop - part.start - 2 for part in points.many) > 1
    shared = points.best_alpha(slice(None)) if free else 0.0
    curves: dict[int, Curve] = {}
    first = several = 0
    for value, index in points.parts:
        part = (points.x[index], points.loss[index], points.weight[index])
        alpha: float | None = None
        knots: tuple[float, ...] = ()
        count = 3 if family == "quadratic" else 2
        if len(part[0]) == 1:
            count = 1
        elif family == "power":
            alpha = shared
        elif family == "power-own":
            alpha = points.best_alpha(slice(several, several + 1))
        elif family == "spline":
            knots = _knots(part[0])
            count = len(knots) - 1
        moves = alpha is not None and 1e-3 < alpha < MOST_ALPHA - 1e-3
        coefficients, free_ones = _coefficients(part, centre, alpha, knots, count)
        place = (several if family == "power-own" else 0) if moves else None
        curves[value] = Curve(first, coefficients, centre, alpha, knots, place, free_ones)
        first += count
        several += len(part[0]) > 1
    # The exponents come after all coefficients, whose number is known only now.
    placed = {
        value: curve if curve.alpha_at is None else replace(curve, alpha_at=first + curve.alpha_at)
        for value, curve in curves.items()
    }
    return Smooth(family, placed, first + (several if family == "power-own" else 1), {})


def _functions(x: Floats, centre: float, alpha: float | None, knots: tuple[float, ...], count: int) -> Floats:
    if knots:
        return np.column_stack([np.ones(len(x)), _falling(x, knots)])
    shifted = x - centre
    result = np.vander(shifted, count, increasing=True)
    if alpha is not None:
        result[:, 1] = _decay(shifted, alpha)
    return np.asarray(result)


def _decay(shifted: Floats, alpha: float) -> Floats:
    """(1 - exp(-α·s)) / α: a power law in N that becomes the line s at α = 0, so that both are one family."""
    return shifted if alpha == 0 else np.asarray(-np.expm1(-alpha * shifted) / alpha)


def _alpha_derivative(shifted: Floats, alpha: float) -> Floats:
    return np.asarray((shifted * np.exp(-alpha * shifted) - _decay(shifted, alpha)) / alpha)


def _coefficients(
    part: tuple[Floats, Floats, Floats],
    centre: float,
    alpha: float | None,
    knots: tuple[float, ...],
    count: int,
) -> tuple[tuple[float, ...], tuple[bool, ...]]:
    x, loss, weight = part
    root = np.sqrt(weight)
    design = _functions(x, centre, alpha, knots, count) * root[:, None]
    if not knots:
        return tuple(np.linalg.lstsq(design, loss * root, rcond=None)[0].tolist()), (True,) * count
    found = nnls(design, loss * root)[0].tolist()
    return tuple(found), (True, *(value > 0 for value in found[1:]))


def _knots(x: Floats) -> tuple[float, ...]:
    """Knots of quadratic I-splines with their ends doubled: inner ones at quantiles of the sizes."""
    inner = min(MOST_KNOTS, len(x) // 4)
    places = np.quantile(x, np.linspace(0, 1, inner + 2))
    return tuple(float(value) for value in (places[0], *places, places[-1]))


def _falling(x: Floats, knots: tuple[float, ...]) -> Floats:
    """Integrated linear B-splines from x to the right end: each falls from its area to 0, so sums of them fall."""
    grid = np.array(knots)
    inside = np.clip(x, grid[0], grid[-1])[:, None]
    left, middle, right = grid[:-2], grid[1:-1], grid[2:]
    # The area of each B-spline to the right of x, on its rising side and on its falling one; either may be empty.
    with np.errstate(invalid="ignore", divide="ignore"):
        rising = (right - left) / 2 - (np.maximum(inside, left) - left) ** 2 / (2 * (middle - left))
        falling = (right - np.minimum(inside, right)) ** 2 / (2 * (right - middle))
    return np.asarray(np.where(inside < middle, rising, np.where(inside < right, falling, 0.0)))
