"""Posterior of the losses of all depths, given the points of a study.

A point is the mean loss of a shape over its seeds. The model of the points is

    y = H·β + g + w + e.

H·β is a power law E_L + A_L·N^-α for each depth, with one α for all depths, to first order in α. g is a Gaussian
process of ln N for each depth, independent of the other depths, with a Matérn 3/2 covariance of standard deviation τ
and length ℓ: real losses do not lie on any formula exactly, and neighbouring sizes deviate alike, so that more sizes do
not average this error out. The nugget w deviates independently from size to size (widths are whole numbers), in
proportion to the noise at that loss, because both are largest where models are small. e is the seed noise
(`analysis.curves.noise`), whose parts that a seed adds to all its shapes, or to those of one depth, points have in
common. So have the points of one group of equal N and equal tokens the level of the group, if there are several; its
standard deviation is so large that only differences inside groups count.

τ, ℓ and the nugget are not chosen but averaged over. The weight of a combination is its restricted likelihood times a
prior, and the covariance includes the spread between the combinations.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar

from analysis.curves.noise import Floats
from analysis.curves.shape_means import LEVEL_SD_OVER_NOISE, ShapeMeans

Ranks = npt.NDArray[np.int64]

#: Most points of a fit: of larger tables, shapes of one depth that are neighbours in ln N are averaged first.
MOST_POINTS = 400
#: Number of lengths ℓ, from the spacing of the sizes to half their range.
LENGTHS = 3
#: Prior probabilities that there is no process, and no nugget.
NO_PROCESS, NO_NUGGET = 0.45, 0.5
#: Least variance of process or nugget over the noise of a point; each next one is four times as large. The largest is
#: at least `REACH` times the noise and what the points deviate from power laws.
LEAST, REACH = 0.25, 4.0
#: The largest if the noise is estimated from the same residuals.
LARGEST = 256.0
#: Combinations with less than this share of the largest weight are left out.
NEGLIGIBLE = 0.01
#: Largest exponent α; a steeper curve is nearly a step. Exponents from which the search starts.
MOST_ALPHA = 3.0
_ALPHAS = (0.0, *(float(alpha) for alpha in np.geomspace(0.02, MOST_ALPHA, 14)))


class Points(NamedTuple):
    """The points of a fit: rank of the depth, ln N, loss, and the parts of the variance.

    `shared` (points, causes) holds standard deviations by common cause, `own` the variance of each point's own noise,
    `single` that of one seed. If the noise is not known these are up to a factor, which `known` says. `groups` (points,
    groups) is 1 where a point is of the group, of merged points the share.
    """

    rank: Ranks
    x: Floats
    loss: Floats
    shared: Floats
    own: Floats
    single: Floats
    known: bool
    groups: Floats

    @property
    def levels(self) -> int:
        """Number of independent levels of groups beside the level and slope of each depth."""
        if not self.groups.size:
            return 0
        same = (self.rank[:, None] == np.arange(self.rank.max() + 1)).astype(float)
        design = np.hstack([same, same * (self.x - self.x.mean())[:, None]])
        both = np.hstack([design, self.groups])
        return int(np.linalg.matrix_rank(both) - np.linalg.matrix_rank(design))


class Combination(NamedTuple):
    """One combination of process and nugget.

    Attributes:
        log_weight: restricted log-likelihood and log-prior.
        length, tau2, nugget: index of ℓ, τ², and the mean variance of w.
        coefficients, covariance: of the power laws; the covariance for noise of unit `scale`.
        solved, precision: V^-1·H with V the covariance of the points, and V^-1 as its Cholesky factor.
        square, spare: weighted square of the residuals, and its degrees of freedom.
        scale: of V; 1 if the noise is known.
    """

    log_weight: float
    length: int
    tau2: float
    nugget: float
    coefficients: Floats
    covariance: Floats
    solved: Floats
    precision: Any
    square: float
    spare: int
    scale: float

    def projection(self) -> Floats:
        """P = V^-1 - V^-1·H·(H'·V^-1·H)^-1·H'·V^-1; P·y is V^-1 times the residuals."""
        inverse = cho_solve(self.precision, np.eye(len(self.solved)), check_finite=False)
        return np.asarray(inverse - self.solved @ self.covariance @ self.solved.T)


def points_of(means: ShapeMeans, extra: float | Floats = 0.0) -> Points:
    """The points of a fit; of more than `MOST_POINTS`, neighbours in ln N are averaged.

    `extra` is added to the variance of each point's own noise, if that is known.
    """
    rank = np.searchsorted(means.depths, means.depth)
    known = means.noise.known
    single = means.noise.sd_at(means.mean) ** 2 if known else np.maximum(means.mean**2, np.finfo(float).tiny)
    levels = LEVEL_SD_OVER_NOISE * float(means.mean.mean()) * means.groups
    shared, own = means.errors if known else (levels, np.sqrt(single))
    own = own**2 + (extra if known else 0.0)
    points = Points(rank, means.x, means.compared, shared, own, single, known, means.groups)
    if len(rank) <= MOST_POINTS:
        return points
    groups = []
    for depth in means.depths:
        part = means.at(depth)
        groups += np.array_split(part, min(len(part), max(2, MOST_POINTS * len(part) // len(rank))))
    merge = np.zeros((len(groups), len(rank)))
    for row, part in zip(merge, groups, strict=True):
        row[part] = 1 / len(part)
    ranks = np.array([rank[part[0]] for part in groups])
    own_merged = merge**2 @ points.own
    return Points(
        ranks,
        merge @ means.x,
        merge @ points.loss,
        merge @ shared,
        own_merged,
        merge**2 @ single,
        known,
        merge @ points.groups,
    )


def common_exponent(rank: Ranks, x: Floats, loss: Floats, weight: Floats, groups: Floats) -> float:
    """The common exponent α of least squares, refined from a coarse grid because there may be two minima.

    Args:
        rank: of the depth of each point, from 0 on.
        x: ln N.
        loss: nats per token.
        weight: inverse variances.
        groups: see `Points`; the exponent is then that of the differences inside groups.
    """
    same = (rank[:, None] == np.arange(rank.max() + 1)).astype(float)
    count = same.sum(axis=0)
    # With two sizes of each depth any exponent fits exactly, and a line is the simplest.
    if np.sum(np.maximum(count - 2, 0)) < 2:
        return 0.0
    shifted = x - x.mean()
    root = np.sqrt(weight)[:, None]
    levels = np.hstack([same, groups]) * root

    def inside_groups(alpha: float) -> float:
        design = np.hstack([levels, same * _decay(shifted, alpha)[:, None] * root])
        fitted = design @ np.linalg.lstsq(design, loss * root[:, 0], rcond=1e-10)[0]
        return float(np.sum((loss * root[:, 0] - fitted) ** 2))

    share = weight / (same @ (same.T @ weight))
    relative = loss - same @ (same.T @ (share * loss))

    def square(alpha: float) -> float:
        decay = _decay(shifted, alpha)
        decay = np.where(same @ count > 1, decay - same @ (same.T @ (share * decay)), 0.0)
        along = same.T @ (weight * decay**2)
        slope = same.T @ (weight * decay * relative) / np.where(along > 0, along, 1.0)
        return float(weight @ (relative - decay * (same @ slope)) ** 2)

    squared = inside_groups if groups.size else square
    values = [squared(alpha) for alpha in _ALPHAS]
    best = int(np.argmin(values))
    ends = _ALPHAS[max(best - 1, 0)], _ALPHAS[min(best + 1, len(_ALPHAS) - 1)]
    refined = minimize_scalar(squared, bounds=ends, method="bounded", options={"xatol": 1e-6})
    return float(refined.x) if refined.fun < values[best] else _ALPHAS[best]


def designs(
    rank: Ranks, x: Floats, loss: Floats, weight: Floats, alpha: float, places: tuple[Ranks, Floats]
) -> tuple[Floats, Floats]:
    """The matrix H of the coefficients at the points and at `places` (rank, ln N).

    Its columns are the level and the slope of each depth, and, unless α is at an end of its range, the derivative by α.
    The other arguments are those of `common_exponent`, and α.
    """
    centre = float(x.mean())
    ranks = np.arange(rank.max() + 1)

    def design(rank: Ranks, x: Floats, alpha: float) -> Floats:
        same = (rank[:, None] == ranks).astype(float)
        return np.hstack([same, same * _decay(x - centre, alpha)[:, None]])

    both = [(rank, x), places]
    tables = [design(*where, alpha) for where in both]
    if not 1e-3 < alpha < MOST_ALPHA - 1e-3:
        return tables[0], tables[1]
    root = np.sqrt(weight)
    slopes = np.linalg.lstsq(tables[0] * root[:, None], loss * root, rcond=1e-10)[0][len(ranks) :]
    for index, (depth, place) in enumerate(both):
        s = place - centre
        derivative = slopes[depth] * (s * np.exp(-alpha * s) - _decay(s, alpha)) / alpha
        tables[index] = np.column_stack([tables[index], derivative])
    return tables[0], tables[1]


def _decay(shifted: Floats, alpha: float) -> Floats:
    """(1 - exp(-α·s)) / α: a power law in N that becomes the line s at α = 0, so that both are one family."""
    return shifted if alpha == 0 else np.asarray(-np.expm1(-alpha * shifted) / alpha)


def lengths_of(points: Points) -> list[float]:
    """The lengths ℓ; none if no depth has two sizes."""
    parts = [points.x[points.rank == rank] for rank in range(int(points.rank[-1]) + 1)]
    # Of a size in several groups there are several points.
    parts = [part for part in map(np.unique, parts) if len(part) > 1]
    if not parts:
        return []
    low = float(np.median(np.concatenate([np.diff(part) for part in parts])))
    high = float(np.median([part[-1] - part[0] for part in parts])) / 2
    return [float(length) for length in np.geomspace(low, max(high, low), LENGTHS)]


def matern(distance: Floats, length: float) -> Floats:
    """The Matérn 3/2 correlation."""
    scaled = math.sqrt(3) / length * np.abs(distance)
    return np.asarray((1 + scaled) * np.exp(-scaled))


def kernel_of(rank: Ranks, x: Floats, points: Points, length: float) -> Floats:
    """(places, points): correlation of the process at places and points."""
    return np.asarray((rank[:, None] == points.rank) * matern(x[:, None] - points.x, length))


def combine(
    points: Points, design: Floats, kernel: Floats | None, prior: tuple[int, float, float, float]
) -> Combination:
    """Solve one combination; `prior` has the index of ℓ, τ², the nugget, and the logarithm of their probability."""
    length, tau2, nugget, log_prior = prior
    covariance = points.shared @ points.shared.T
    covariance[np.diag_indices_from(covariance)] += points.own + nugget * points.single / points.single.mean()
    if kernel is not None:
        covariance += tau2 * kernel
    factor = cho_factor(covariance, lower=True, overwrite_a=True, check_finite=False)
    both = cho_solve(factor, np.column_stack([design, points.loss]), check_finite=False)
    solved, weighted = both[:, :-1], both[:, -1]
    information = design.T @ solved
    unit = np.sqrt(np.diag(information))
    unit[unit == 0] = 1.0
    # Singular where a depth has one size, or few sizes and a common exponent.
    values, vectors = np.linalg.eigh(information / np.outer(unit, unit))
    live = values > 1e-10 * values[-1]
    vectors = vectors[:, live] / unit[:, None]
    inverse = (vectors / values[live]) @ vectors.T
    coefficients = inverse @ (design.T @ weighted)
    residual = points.loss - design @ coefficients
    square = max(float(residual @ (weighted - solved @ coefficients)), 1e-300)
    # Every level of a group takes a degree of freedom that the coefficients do not take already.
    spare = len(residual) - int(live.sum()) - points.levels
    free = max(spare, 1)
    likelihood = -(square if points.known else free * math.log(square)) / 2
    likelihood -= float(
        np.log(np.diag(factor[0])).sum() + np.log(values[live]).sum() / 2 + np.log(unit).sum()
    )
    scale = 1.0 if points.known else square / free
    return Combination(
        likelihood + log_prior,
        length,
        tau2,
        nugget,
        coefficients,
        inverse,
        solved,
        factor,
        square,
        spare,
        scale,
    )


def likely(points: Points, design: Floats, kernels: list[Floats], plain: Combination) -> list[Combination]:
    """The combinations of process and nugget, the likeliest first, without negligible ones."""
    unit = float(np.mean(points.own))
    rough = max(1.0, plain.square / max(plain.spare, 1))
    largest = REACH * rough if points.known else LARGEST
    squares = unit * LEAST * 4.0 ** np.arange(math.ceil(math.log(largest / LEAST, 4)) + 1)
    no_process = NO_PROCESS if kernels else 1.0
    each = math.log((1 - NO_PROCESS) / (len(squares) * max(len(kernels), 1)))
    nuggets = [(0.0, 0.0)]
    if points.known:
        nuggets = [(0.0, math.log(NO_NUGGET))]
        nuggets += [(float(square), math.log((1 - NO_NUGGET) / len(squares))) for square in squares]
    found: list[Combination] = []
    top = -math.inf
    for nugget, chance in nuggets:
        tried: list[tuple[Floats | None, tuple[int, float, float, float]]] = [
            (None, (0, 0.0, nugget, chance + math.log(no_process)))
        ]
        tried += [
            (kernel, (index, float(square), nugget, chance + each))
            for index, kernel in enumerate(kernels)
            for square in squares
        ]
        for kernel, prior in tried:
            item = combine(points, design, kernel, prior)
            top = max(top, item.log_weight)
            if item.log_weight > top + math.log(NEGLIGIBLE):
                found.append(item)
    found.sort(key=lambda item: -item.log_weight)
    return [item for item in found if item.log_weight > top + math.log(NEGLIGIBLE)]


def posterior(
    points: Points,
    wide: Floats,
    across: list[Floats],
    along: list[Floats],
    found: list[Combination],
    weight: Floats,
) -> tuple[Floats, Floats, Floats]:
    """The posterior on the grid, averaged over combinations.

    Args:
        points: of the fit.
        wide: H at all places.
        across: for each ℓ, (places, points), correlation of the process.
        along: for each ℓ, (grid, grid), the same between the places of one depth.
        found: the combinations.
        weight: of each of them.

    Returns:
        (places,) means; (places + causes)², covariance, see `Curves.joint`; and for each combination the mean variance
        of the curves at the points, 0 if the noise is known.
    """
    count, causes, size = len(points.x), points.shared.shape[1], len(wide)
    means, variances = np.empty((len(found), size)), np.zeros(len(found))
    joint = np.zeros((size + causes, size + causes))
    losses, both, seeds = joint[:size, :size], joint[:size, size:], joint[size:, size:]
    inner = np.zeros((wide.shape[1], wide.shape[1]))
    seeds += np.eye(causes)
    towards, mixed = np.zeros((wide.shape[1], count)), np.zeros((len(across), count, count))
    crossed, curved = np.zeros((len(across), wide.shape[1], count)), np.zeros((len(across), count, count))
    taus = np.zeros(len(across))
    for index, (item, share) in enumerate(zip(found, weight, strict=True)):
        projection = item.projection()
        means[index] = wide @ item.coefficients
        scaled, to_points = share * item.scale, item.covariance @ item.solved.T
        inner += scaled * item.covariance
        towards += share * to_points
        seeds -= share * points.shared.T @ projection @ points.shared
        if not points.known:
            variances[index] = item.scale * float(np.mean(points.own - points.own**2 * np.diag(projection)))
        if item.tau2:
            at = item.length
            means[index] += item.tau2 * across[at] @ (projection @ points.loss)
            mixed[at] += share * item.tau2 * projection
            crossed[at] += scaled * item.tau2 * to_points
            curved[at] += scaled * item.tau2**2 * projection
            taus[at] += scaled * item.tau2
    average = weight @ means
    spread = (means - average) * np.sqrt(weight)[:, None]
    losses += wide @ inner @ wide.T + spread.T @ spread
    both -= wide @ (towards @ points.shared)
    for at, kernel in enumerate(across):
        if taus[at]:
            turned = wide @ crossed[at] @ kernel.T
            losses -= turned + turned.T + kernel @ curved[at] @ kernel.T
            both -= kernel @ (mixed[at] @ points.shared)
            for first in range(0, size, len(along[at])):
                here = slice(first, first + len(along[at]))
                losses[here, here] += taus[at] * along[at]
    joint[size:, :size] = both.T
    return average, joint, variances
