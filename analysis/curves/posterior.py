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

docs/answer.md has the equations; its symbols here, with p the posterior weight of a combination:

    H    design (at the points), wide (at the places)      o, S   Points.independent, Points.shared
    β̂    Combination.coefficients                          τ², ν  Prior.tau2, Prior.nugget
    C    Combination.covariance, for V of scale 1          K, K*  kernel_of, at the points and at the places
    B    Combination.coefficient_map                       K**    matern between the places of one depth
    P    Combination.projection                            P·y    Combination.projected
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar

from analysis.curves.noise import Floats
from analysis.curves.shape_means import LEVEL_SD_OVER_NOISE, ShapeMeans

Ranks = npt.NDArray[np.int64]

# The effects below were measured on 750 crossings of ten worlds of `tests/coverage`, of which 97.5 % are held with
# these values. A length is the median length of the intervals of crossings in a world.
#: Most points of a fit: of larger tables, shapes of one depth that are neighbours in ln N are averaged first. A fit of
#: 400 points takes 0.3 s, of 1,600 points 5 s, of 2,500 points 52 s. In three tables of 480 to 890 points the averages
#: made intervals 9 % shorter to 25 % longer.
MOST_POINTS = 400
#: Number of lengths ℓ, from the spacing of the sizes to half their range. With 6 the lengths change by -3 to +1 %, with
#: 2 by -1 to +3 %, with 1 by up to +36 %.
LENGTHS = 3
#: Prior probabilities that there is no process, and no nugget. With 0.22 and 0.9 for the process 98.1 and 95.5 % are
#: held (84 % with one seed and a smooth misfit), with 0.25 and 0.75 for the nugget 97.7 and 97.3 %.
NO_PROCESS, NO_NUGGET = 0.45, 0.5
#: Least variance of process or nugget over the noise of a point; each next one is four times as large. The largest is
#: at least `REACH` times the noise and what the points deviate from power laws. With half and twice the least 97.7 and
#: 97.6 % are held, and the lengths change by -3 to +8 %; with half and twice the reach, by at most 2 %;
#: with steps of two, in four of the worlds, by -2 to +4 %.
LEAST, REACH = 0.25, 4.0
#: The largest if the noise is estimated from the same residuals. With 64 and 1,024 the lengths of worlds with one seed
#: change by -5 to +1 % and by -1 to +7 %.
LARGEST = 256.0
#: Combinations with less than this share of the largest weight are left out. Without a limit the lengths change by 0 to
#: +3 %; with 0.1 they are 1 to 12 % shorter and 96.1 % are held.
NEGLIGIBLE = 0.01
#: Exponents α from which the search starts; a curve with the last one is nearly a step. With 1.5 or 6
#: as the last one, 90 % of the lengths are the same to 0.1 %.
_ALPHAS = (0.0, *(float(alpha) for alpha in np.geomspace(0.02, 3.0, 14)))


class Points(NamedTuple):
    """The points of a fit: rank of the depth, ln N, loss, and the parts of the variance.

    `shared` (points, causes) holds standard deviations by common cause, `independent` the variance of the noise that a
    point has alone, `single` that of one seed. If the noise is not measured (`is_scaled` is False) these are up to a
    factor. `groups` (points, groups) is 1 where a point is of the group, of merged points the share.
    """

    rank: Ranks
    x: Floats
    loss: Floats
    shared: Floats
    independent: Floats
    single: Floats
    is_scaled: bool
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


@dataclass(frozen=True)
class Prior:
    """A process and a nugget, and how probable the two are before the losses are seen."""

    length: int = 0
    """Index of ℓ."""
    tau2: float = 0.0
    """τ², the variance of the process; 0 for none."""
    nugget: float = 0.0
    """ν, the mean variance of w; 0 for none."""
    log_probability: float = 0.0


@dataclass(frozen=True)
class Combination:
    """The points solved for one process and nugget.

    Attributes:
        prior: the process and the nugget.
        log_weight: restricted log-likelihood plus log-prior.
        coefficients: β̂ of the power laws.
        covariance: C, of β̂ for V of scale 1.
        solved: V⁻¹·H.
        factor: V by its Cholesky factor, for `scipy.linalg.cho_solve`.
        projected: P·y, V⁻¹ times the residuals.
        square: y'·P·y, the weighted square of the residuals.
        spare: its degrees of freedom.
        scale: of V; 1 if the noise is measured.
    """

    prior: Prior
    log_weight: float
    coefficients: Floats
    covariance: Floats
    solved: Floats
    factor: Any
    projected: Floats
    square: float
    spare: int
    scale: float

    @property
    def coefficient_map(self) -> Floats:
        """B = C·H'·V⁻¹, which takes losses to coefficients."""
        return np.asarray(self.covariance @ self.solved.T)

    def projection(self) -> Floats:
        """P = V⁻¹ - V⁻¹·H·C·H'·V⁻¹."""
        inverse = cho_solve(self.factor, np.eye(len(self.solved)), check_finite=False)
        return np.asarray(inverse - self.solved @ self.covariance @ self.solved.T)


def points_of(means: ShapeMeans, extra: float | Floats = 0.0) -> Points:
    """The points of a fit; of more than `MOST_POINTS`, neighbours in ln N are averaged.

    `extra` is added to the variance of each point's own noise, if that is known.
    """
    rank = np.searchsorted(means.depths, means.depth)
    measured = means.noise.is_measured
    single = (
        means.noise.sd_at(means.mean) ** 2 if measured else np.maximum(means.mean**2, np.finfo(float).tiny)
    )
    levels = LEVEL_SD_OVER_NOISE * float(means.mean.mean()) * means.groups
    shared, independent = means.errors if measured else (levels, np.sqrt(single))
    independent = independent**2 + (extra if measured else 0.0)
    points = Points(rank, means.x, means.compared, shared, independent, single, measured, means.groups)
    if len(rank) <= MOST_POINTS:
        return points
    parts: list[npt.NDArray[np.int64]] = []
    for depth in means.depths:
        part = means.at(depth)
        parts += np.array_split(part, min(len(part), max(2, MOST_POINTS * len(part) // len(rank))))
    merge = np.zeros((len(parts), len(rank)))
    for row, part in zip(merge, parts, strict=True):
        row[part] = 1 / len(part)
    return Points(
        rank=np.array([rank[part[0]] for part in parts]),
        x=merge @ means.x,
        loss=merge @ points.loss,
        shared=merge @ shared,
        independent=merge**2 @ points.independent,
        single=merge**2 @ single,
        is_scaled=measured,
        groups=merge @ points.groups,
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
    if not 1e-3 < alpha < _ALPHAS[-1] - 1e-3:
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


def combine(points: Points, design: Floats, kernel: Floats | None, prior: Prior) -> Combination:
    """Solve the points for one process and nugget; `kernel` is K, of the points, and None without a process."""
    covariance = points.shared @ points.shared.T
    covariance[np.diag_indices_from(covariance)] += (
        points.independent + prior.nugget * points.single / points.single.mean()
    )
    if kernel is not None:
        covariance += prior.tau2 * kernel
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
    residual, projected = points.loss - design @ coefficients, weighted - solved @ coefficients
    square = max(float(residual @ projected), 1e-300)
    # Every level of a group takes a degree of freedom that the coefficients do not take already.
    spare = len(residual) - int(live.sum()) - points.levels
    free = max(spare, 1)
    likelihood = -(square if points.is_scaled else free * math.log(square)) / 2
    likelihood -= float(
        np.log(np.diag(factor[0])).sum() + np.log(values[live]).sum() / 2 + np.log(unit).sum()
    )
    return Combination(
        prior=prior,
        log_weight=likelihood + prior.log_probability,
        coefficients=coefficients,
        covariance=inverse,
        solved=solved,
        factor=factor,
        projected=projected,
        square=square,
        spare=spare,
        scale=1.0 if points.is_scaled else square / free,
    )


def priors(points: Points, plain: Combination, lengths: int) -> list[Prior]:
    """The processes and nuggets to combine, for so many lengths ℓ; `plain` has neither."""
    unit = float(np.mean(points.independent))
    rough = max(1.0, plain.square / max(plain.spare, 1))
    largest = REACH * rough if points.is_scaled else LARGEST
    squares = [
        float(square)
        for square in unit * LEAST * 4.0 ** np.arange(math.ceil(math.log(largest / LEAST, 4)) + 1)
    ]
    processes = [Prior(log_probability=math.log(NO_PROCESS if lengths else 1.0))]
    each = math.log((1 - NO_PROCESS) / (len(squares) * max(lengths, 1)))
    processes += [Prior(length, square, 0.0, each) for length in range(lengths) for square in squares]
    nuggets = [(0.0, 0.0)]
    if points.is_scaled:
        nuggets = [(0.0, math.log(NO_NUGGET))]
        nuggets += [(square, math.log((1 - NO_NUGGET) / len(squares))) for square in squares]
    return [
        replace(process, nugget=nugget, log_probability=chance + process.log_probability)
        for nugget, chance in nuggets
        for process in processes
    ]


def likely(
    points: Points, design: Floats, kernels: Sequence[Floats], plain: Combination
) -> list[Combination]:
    """The combinations of process and nugget, the likeliest first, without negligible ones."""
    kept: list[Combination] = []
    top, least = -math.inf, math.log(NEGLIGIBLE)
    for prior in priors(points, plain, len(kernels)):
        item = combine(points, design, kernels[prior.length] if prior.tau2 else None, prior)
        top = max(top, item.log_weight)
        if item.log_weight > top + least:
            kept.append(item)
    kept.sort(key=lambda item: -item.log_weight)
    return [item for item in kept if item.log_weight > top + least]


def curve_means(wide: Floats, across: Sequence[Floats], combinations: Sequence[Combination]) -> Floats:
    """(combinations, places): m = H*·β̂ + τ²·K*·P·y of each combination.

    `wide` is H at the places; `across` has for each ℓ the correlation K* of the process at places and points.
    """
    means = [wide @ item.coefficients for item in combinations]
    for mean, item in zip(means, combinations, strict=True):
        if item.prior.tau2:
            mean += item.prior.tau2 * across[item.prior.length] @ item.projected
    return np.array(means)


@dataclass(frozen=True)
class Averages:
    """Sums over the combinations, with their weights p and scales s, of which the covariances are made.

    Those by length have one entry per ℓ. They are summed before the products with the places, of which there are up to
    a hundred times as many as points.
    """

    covariance: Floats
    """Σ p·s·C."""
    coefficient_map: Floats
    """Σ p·B."""
    explained: Floats
    """Σ p·S'·P·S, what the points tell of the shared causes."""
    process: Floats
    """By length, Σ p·s·τ²."""
    process_map: Floats
    """By length, Σ p·s·τ²·B."""
    process_projection: Floats
    """By length, Σ p·τ²·P."""
    process_square: Floats
    """By length, Σ p·s·τ⁴·P."""
    variances: Floats
    """Of each combination the mean variance of the curves at the points; 0 if the noise is measured."""


def averages(points: Points, lengths: int, combinations: Sequence[Combination], weight: Floats) -> Averages:
    """Sum over the combinations, with P made once for each."""
    count, causes, columns = len(points.x), points.shared.shape[1], combinations[0].solved.shape[1]
    sums = Averages(
        covariance=np.zeros((columns, columns)),
        coefficient_map=np.zeros((columns, count)),
        explained=np.zeros((causes, causes)),
        process=np.zeros(lengths),
        process_map=np.zeros((lengths, columns, count)),
        process_projection=np.zeros((lengths, count, count)),
        process_square=np.zeros((lengths, count, count)),
        variances=np.zeros(len(combinations)),
    )
    for index, (item, share) in enumerate(zip(combinations, weight, strict=True)):
        projection, scaled, tau2, at = (
            item.projection(),
            share * item.scale,
            item.prior.tau2,
            item.prior.length,
        )
        sums.covariance[:] += scaled * item.covariance
        sums.coefficient_map[:] += share * item.coefficient_map
        sums.explained[:] += share * points.shared.T @ projection @ points.shared
        if not points.is_scaled:
            noise = points.independent
            sums.variances[index] = item.scale * float(np.mean(noise - noise**2 * np.diag(projection)))
        if tau2:
            sums.process[at] += scaled * tau2
            sums.process_map[at] += scaled * tau2 * item.coefficient_map
            sums.process_projection[at] += share * tau2 * projection
            sums.process_square[at] += scaled * tau2**2 * projection
    return sums


def curve_covariance(
    sums: Averages, wide: Floats, across: Sequence[Floats], along: Sequence[Floats]
) -> Floats:
    """(places, places): Σ p·s·Q, with Q = H*·C·H*' + τ²·K** - τ²·(H*·B·K*' + K*·B'·H*') - τ⁴·K*·P·K*'.

    `along` has for each ℓ the correlation of the process between the places of one depth, K** of it.
    """
    losses = wide @ sums.covariance @ wide.T
    for at in range(len(across)):
        if not sums.process[at]:
            continue
        turned = wide @ sums.process_map[at] @ across[at].T
        losses -= turned + turned.T + across[at] @ sums.process_square[at] @ across[at].T
        for first in range(0, len(wide), len(along[at])):
            block = slice(first, first + len(along[at]))
            losses[block, block] += sums.process[at] * along[at]
    return np.asarray(losses)


def cause_covariance(points: Points, sums: Averages, wide: Floats, across: Sequence[Floats]) -> Floats:
    """(places, causes): covariance of the curves with the shared causes, -Σ p·(H*·B + τ²·K*·P)·S."""
    both = -(wide @ (sums.coefficient_map @ points.shared))
    for at in range(len(across)):
        both -= across[at] @ (sums.process_projection[at] @ points.shared)
    return np.asarray(both)


def posterior(
    points: Points,
    wide: Floats,
    across: Sequence[Floats],
    along: Sequence[Floats],
    combinations: Sequence[Combination],
    weight: Floats,
) -> tuple[Floats, Floats, Floats]:
    """The posterior on the grid, averaged over combinations; the arguments are those of the functions above.

    Returns:
        (places,) means; (places + causes)², covariance, see `Curves.joint`; and for each combination the mean variance
        of the curves at the points, 0 if the noise is measured.
    """
    means = curve_means(wide, across, combinations)
    average = weight @ means
    spread = (means - average) * np.sqrt(weight)[:, None]
    sums = averages(points, len(across), combinations, weight)
    both = cause_covariance(points, sums, wide, across)
    joint = np.block(
        [
            [curve_covariance(sums, wide, across, along) + spread.T @ spread, both],
            [both.T, np.eye(points.shared.shape[1]) - sums.explained],
        ]
    )
    return average, joint, sums.variances
