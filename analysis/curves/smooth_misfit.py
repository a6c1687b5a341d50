"""Smooth misfit of the losses of each depth about the curve of its family, and the error that it leaves.

Losses deviate smoothly from any formula: neighbouring sizes deviate alike, so more sizes do not average the error out
(issue 15). The misfit of a depth is a Gaussian process of ln N, independent of the other depths, with a Matérn 3/2
covariance of standard deviation τ and length ℓ, at least the spacing of the sizes. It is written as a sum of cosines
whose coefficients have known prior variances (Solin and Särkkä 2020), so it only adds parameters to the curves.

τ, ℓ and the misfit that is independent from size to size are not chosen but averaged over. The weight of a combination
is its restricted likelihood times a prior; the covariance includes the spread between the combinations.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.curves.noise import Floats
from analysis.curves.smooth import Smooth, parts_of

#: Fewest sizes of a depth with a misfit, and most cosines; there are twice as many as sizes if that is less.
LEAST_SIZES, MOST_WAVES = 3, 24
#: The range of ln N is widened by this share at each end, because the cosines are level at their ends.
MARGIN = 0.25
#: Number of lengths ℓ, from the spacing of the sizes to half their range.
LENGTHS = 3
#: Prior probabilities that there is no smooth misfit, and no misfit that is independent from size to size.
NO_SMOOTH, NO_WHITE = 0.45, 0.5
#: Least variance of a misfit over the noise of a point; each next one is four times as large. The largest is at least
#: `REACH` times the noise and the misfit about the family's curves.
LEAST, REACH = 0.25, 4.0
#: The largest if the noise is estimated from the same residuals.
LARGEST = 256.0
#: Combinations with less than this share of the largest weight are left out.
NEGLIGIBLE = 0.01


@dataclass(frozen=True)
class _Waves:
    """The cosines of one depth: index of the first coefficient, their number, and the widened range of ln N."""

    first: int
    count: int
    low: float
    width: float

    @property
    def frequency(self) -> Floats:
        """In radians per e-fold."""
        return np.asarray(np.pi * np.arange(1, self.count + 1) / self.width)

    def functions(self, x: Floats) -> Floats:
        """(len(x), count)."""
        return np.asarray(np.cos(self.frequency * (x[:, None] - self.low)))

    def variances(self, length: float) -> Floats:
        """Prior variances of the coefficients over τ², by the spectral density.

        The constant function, which the level of a curve already is, has its share of τ² too.
        """
        density = (3 / length**2 + np.r_[0.0, self.frequency] ** 2) ** -2
        return np.asarray(2 * density[1:] / (density.sum() - density[0] / 2))


@dataclass(frozen=True)
class SmoothMisfit:
    """Curves with their misfit. The parameters are those of the family, then the coefficients of the cosines.

    Attributes:
        waves: by depth; none for a depth of fewer than three sizes.
        size: number of parameters.
        offset: (size,), what the misfit adds to the parameters of the family's fit.
        solve: (size, points), derivative of the parameters with respect to the mean losses.
        covariance: (size, size), of their error from each point's own noise and from the misfit.
        white: (points,), variance of the misfit that is independent from size to size, averaged over its distribution.
        tau: root mean square of τ over its distribution, nats per token.
        relative_variance: squared coefficient of variation, over the combinations, of the variance of the curves.
    """

    waves: dict[int, _Waves]
    size: int
    offset: Floats
    solve: Floats
    covariance: Floats
    white: Floats
    tau: float
    relative_variance: float

    def both(self, smooth: Smooth, depth: int, x: Floats) -> tuple[Floats, Floats]:
        """Nats per token at ln N = x, and (len(x), size): the derivative with respect to all parameters."""
        loss, jacobian = _table(smooth, self.waves, self.size, depth, x)
        return loss + jacobian @ self.offset, jacobian


@dataclass(frozen=True)
class _Model:
    """One combination: variances of the points, prior standard deviations of the cosines, and the scale of both."""

    log_weight: float
    variance: Floats
    prior: Floats
    tau: float
    scale: float

    def solve(self, design: Floats) -> tuple[Floats, Floats]:
        """Derivative of the parameters with respect to the losses, and the covariance of their error."""
        family = design.shape[1] - len(self.prior)
        spread = np.r_[np.ones(family), self.prior]
        root = 1 / np.sqrt(self.variance)
        scaled = design * spread * root[:, None]
        precision = scaled.T @ scaled + np.diag(np.r_[np.zeros(family), np.ones(len(self.prior))])
        unit = np.sqrt(np.diag(precision))
        # A parameter that was not fitted (an exponent at an end of its range) has a column of zeros.
        live = unit > 0
        unit[~live] = 1.0
        matrix = precision / np.outer(unit, unit) + np.diag(np.where(live, 1e-11, 1.0))
        inverse = np.linalg.inv(matrix) * np.outer(live * spread / unit, live * spread / unit)
        return inverse @ (design * (root**2)[:, None]).T, self.scale * inverse


def fit_misfit(
    smooth: Smooth,
    depth: npt.NDArray[np.int64],
    x: Floats,
    mean: Floats,
    own: Floats,
    white: Floats | None,
    misfit: float,
) -> SmoothMisfit:
    """Fit the misfit.

    Args:
        smooth: the fit of the family.
        depth: layers of each point; the points are ordered by depth, then size.
        x: ln N.
        mean: mean loss, nats per token.
        own: (points,), variance of each point from its own noise.
        white: (points,), variance of a misfit that is independent from size to size, up to a factor; None if the scale
            of `own` is not known, which then includes this misfit.
        misfit: mean square of the points about the family's curves beyond `own`.
    """
    waves, size = _waves(smooth, depth, x)
    tables = [_table(smooth, waves, size, value, x[part]) for value, part in parts_of(depth)]
    residual = mean - np.concatenate([loss for loss, _ in tables])
    design = np.vstack([table for _, table in tables])
    priors = [
        np.sqrt(np.concatenate([wave.variances(length) for wave in waves.values()]))
        for length in _lengths(x, depth, waves)
    ]
    unit = float(np.mean(own))
    largest = LARGEST if white is None else REACH * max(1.0, misfit / unit)
    steps = math.ceil(math.log(largest / LEAST, 4))
    squares = unit * LEAST * np.power(4.0, np.arange(steps + 1))
    if white is None:
        models = _combine(design, residual, priors, own, squares, known=False)
    else:
        models = _combine(design, residual, priors, own, squares, known=True, chance=NO_WHITE)
        for square in squares:
            variance, chance = own + square * white / np.mean(white), (1 - NO_WHITE) / len(squares)
            models += _combine(design, residual, priors, variance, squares, known=True, chance=chance)
    top = max(model.log_weight for model in models)
    models = [model for model in models if model.log_weight > top + math.log(NEGLIGIBLE)]
    weight = np.exp([model.log_weight - top for model in models])
    weight /= weight.sum()
    solved = [model.solve(design) for model in models]
    moves = np.array([matrix @ residual for matrix, _ in solved])
    offset = weight @ moves
    apart = (moves - offset) * np.sqrt(weight)[:, None]
    variances = np.array([np.mean(np.vecdot(design @ error, design)) for _, error in solved])
    average = float(weight @ variances)
    return SmoothMisfit(
        waves,
        size,
        offset,
        np.tensordot(weight, [matrix for matrix, _ in solved], 1),
        np.tensordot(weight, [error for _, error in solved], 1) + apart.T @ apart,
        np.tensordot(weight, [model.variance - own for model in models], 1),
        math.sqrt(float(weight @ [model.tau**2 * model.scale for model in models])),
        float(weight @ (variances / average - 1) ** 2) if average > 0 else 0.0,
    )


def _combine(
    design: Floats,
    residual: Floats,
    priors: list[Floats],
    variance: Floats,
    squares: Floats,
    *,
    known: bool,
    chance: float = 1.0,
) -> list[_Model]:
    """The combinations without smooth misfit, and of every ℓ and τ², with given variances of the points.

    Args:
        design: (points, parameters), derivatives of the curves.
        residual: (points,), mean losses less the family's curves.
        priors: for each ℓ, standard deviations of the cosines for τ = 1.
        variance: of the points.
        squares: τ².
        known: whether `variance` is known; else it is known up to a factor, and so is τ².
        chance: prior probability of `variance`.
    """
    family = design.shape[1] - (len(priors[0]) if priors else 0)
    root = 1 / np.sqrt(variance)
    table = design[:, :family] * root[:, None]
    size = np.sqrt(np.sum(table**2, axis=0))
    basis, values, _ = np.linalg.svd(table[:, size > 0] / size[size > 0], full_matrices=False)
    basis = basis[:, values > 1e-9 * values[0]]
    values = values[values > 1e-9 * values[0]]
    rest = root * residual
    rest = rest - basis @ (basis.T @ rest)
    free = max(len(rest) - len(values), 1)
    base = math.log(chance) - float(np.sum(np.log(variance)) / 2 + np.sum(np.log(values)))
    base -= float(np.sum(np.log(size[size > 0])))

    def log_weight(square: Floats, spread: Floats | float) -> Floats:
        """Of the restricted likelihood: from the weighted square, and the sum of the logarithms of the variances."""
        square = np.maximum(square, 1e-300)
        return np.asarray(base - (square if known else free * np.log(square)) / 2 - spread / 2)

    whole = float(rest @ rest)
    count = design.shape[1] - family
    alone = float(log_weight(np.array(whole), 0.0)) + (math.log(NO_SMOOTH) if priors else 0.0)
    found = [_Model(alone, variance, np.zeros(count), 0.0, 1.0 if known else whole / free)]
    for prior in priors:
        part = design[:, family:] * prior * root[:, None]
        part = part - basis @ (basis.T @ part)
        # Not an SVD: LAPACK's does not converge for some of these matrices, of which a fifth of the rank is missing.
        # Of the two products the smaller one, so that the time grows with the points alone: 20,000 took over an hour.
        if len(part) > count:
            strengths, axes = np.linalg.eigh(part.T @ part)
            gain = squares[:, None] * np.maximum(strengths, 0)
            explained = squares[:, None] / (1 + gain) * (axes.T @ (part.T @ rest)) ** 2
        else:
            strengths, axes = np.linalg.eigh(part @ part.T)
            gain = squares[:, None] * np.maximum(strengths, 0)
            explained = gain / (1 + gain) * (axes.T @ rest) ** 2
        left = whole - np.sum(explained, axis=1)
        weights = log_weight(left, np.sum(np.log1p(gain), axis=1)) + math.log(
            (1 - NO_SMOOTH) / len(priors) / len(squares)
        )
        for weight, square, remains in zip(weights.tolist(), squares.tolist(), left.tolist(), strict=True):
            tau = math.sqrt(square)
            found.append(_Model(weight, variance, tau * prior, tau, 1.0 if known else remains / free))
    return found


def _table(
    smooth: Smooth, waves: dict[int, _Waves], size: int, depth: int, x: Floats
) -> tuple[Floats, Floats]:
    loss, jacobian = smooth.both(depth, x)
    jacobian = np.hstack([jacobian, np.zeros((len(x), size - jacobian.shape[1]))])
    if depth in waves:
        wave = waves[depth]
        jacobian[:, wave.first : wave.first + wave.count] = wave.functions(x)
    return loss, jacobian


def _waves(smooth: Smooth, depth: npt.NDArray[np.int64], x: Floats) -> tuple[dict[int, _Waves], int]:
    waves, first = {}, smooth.size
    for value, part in parts_of(depth):
        sizes = x[part]
        if len(sizes) < LEAST_SIZES:
            continue
        span = float(sizes[-1] - sizes[0])
        count = min(2 * len(sizes), MOST_WAVES)
        waves[value] = _Waves(first, count, float(sizes[0]) - MARGIN * span, (1 + 2 * MARGIN) * span)
        first += count
    return waves, first


def _lengths(x: Floats, depth: npt.NDArray[np.int64], waves: dict[int, _Waves]) -> list[float]:
    if not waves:
        return []
    sizes = [x[depth == value] for value in waves]
    low = float(np.median(np.concatenate([np.diff(part) for part in sizes])))
    high = float(np.median([part[-1] - part[0] for part in sizes])) / 2
    return [float(length) for length in np.geomspace(low, max(high, low), LENGTHS)]
