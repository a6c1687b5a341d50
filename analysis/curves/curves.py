"""Loss against ln N for each depth: the mean losses of the shapes, and the posterior of the curves behind them.

A point is the mean loss of a shape over its seeds. The model of the points is

    y = H·β + g + w + e.

H·β is a power law E_L + A_L·N^-α for each depth, with one α for all depths, to first order in α. g is a Gaussian
process of ln N for each depth, independent of the other depths, with a Matérn 3/2 covariance of standard deviation τ
and length ℓ: real losses do not lie on any formula exactly, and neighbouring sizes deviate alike, so that more sizes do
not average this error out. The nugget w deviates independently from size to size (widths are whole numbers), in
proportion to the noise at that loss, because both are largest where models are small. e is the seed noise
(`analysis.curves.noise`), whose parts that a seed adds to all its shapes, or to those of one depth, points have in
common.

τ, ℓ and the nugget are not chosen but averaged over. The weight of a combination is its restricted likelihood times a
prior. `Curves` holds the mean and the joint covariance of the losses of all depths on one grid of ln N, with the spread
between the combinations. Gaps, crossings, the law and the search follow from these two arrays.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar
from scipy.stats import chi2

from analysis.curves.noise import Floats, Noise, from_residuals, from_seeds

#: Most seeds of a study that are treated as paired between shapes; with more, every run has its own seed.
MOST_SEEDS = 200
#: Most points of a fit: of larger tables, shapes of one depth that are neighbours in ln N are averaged first.
MOST_POINTS = 400
#: Steps of the grid of ln N over all sizes: most, least, and most of all depths together; and most sizes on it.
MOST_STEPS, LEAST_STEPS, ALL_STEPS, MOST_KNOTS = 60, 30, 1200, 100
#: Places of ln N nearer than this are one.
NEAR = 2e-5
#: Largest exponent α; a steeper curve is nearly a step. Exponents from which the search starts.
MOST_ALPHA = 3.0
_ALPHAS = (0.0, *(float(alpha) for alpha in np.geomspace(0.02, MOST_ALPHA, 14)))
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


@dataclass(frozen=True)
class ShapeMeans:
    """The mean losses of all shapes of a study, ordered by depth, then N.

    Attributes:
        depth, x, mean, count: arrays over the points: layers, ln N, mean loss over seeds, number of seeds.
        incidence: (points, seeds), 1/count where the point has that seed, else 0.
        seeds: the seed of each column; empty if they are not paired between shapes.
    """

    depth: npt.NDArray[np.int64]
    x: Floats
    mean: Floats
    count: npt.NDArray[np.int64]
    incidence: Floats
    seeds: tuple[Any, ...]
    noise: Noise

    @cached_property
    def depths(self) -> list[int]:
        """The depths, ascending."""
        return sorted({int(value) for value in self.depth})

    @cached_property
    def se(self) -> Floats:
        """Standard error of each point's mean from the seeds, nats per token."""
        return np.asarray(self.noise.sd_at(self.mean) / np.sqrt(self.count))

    @cached_property
    def errors(self) -> tuple[Floats, Floats]:
        """Standard deviations of the points' means by independent cause, nats per token; NaN if the noise is not known.

        Returns:
            (points, causes): the errors that each seed adds to all its shapes, and to those of each depth; (points,):
            each point's own.
        """
        noise, each = self.noise, self.noise.sd_at(self.mean)[:, None] * self.incidence
        own = np.hstack([each * (self.depth == value)[:, None] for value in self.depths])
        shared = np.hstack([np.sqrt(noise.correlation) * each, np.sqrt(noise.within) * own])
        return shared, np.sqrt(noise.independent * noise.sd_at(self.mean) ** 2 / self.count)

    def at(self, depth: int) -> npt.NDArray[np.int64]:
        """Indices of the points of one depth, in order of N."""
        return np.flatnonzero(self.depth == depth)

    def range(self, depth: int) -> tuple[float, float]:
        """Smallest and largest ln N of a depth."""
        x = self.x[self.at(depth)]
        return float(x[0]), float(x[-1])


@dataclass(frozen=True)
class Curves(ShapeMeans):
    """The shapes of a study, and the posterior of the loss of each depth on a grid.

    Attributes:
        grid: ln N, ascending, with the sizes of all points, of a large table only the ends of every depth.
        values: (depths, grid), posterior means of the loss, nats per token.
        joint: (depths·grid + causes)², posterior covariance of the losses on the grid, depth after depth, and of the
            causes in `ShapeMeans.errors`, each in units of its own standard deviation; NaN if the noise is not known.
        parameters: number of coefficients of the power laws.
        alpha: their common exponent.
        nugget: (points,), posterior mean of the variance of w.
        tau: posterior mean of τ, nats per token.
        misfit_p: probability of points as far from power laws by seed noise alone; None without replicates.
        relative_variance: squared coefficient of variation, over the combinations, of the variance of the curves.
    """

    grid: Floats
    values: Floats
    joint: Floats
    parameters: int
    alpha: float
    nugget: Floats
    tau: float
    misfit_p: float | None
    relative_variance: float

    @cached_property
    def covariance(self) -> Floats:
        """(depths·grid, depths·grid) of the losses on the grid; NaN if the noise is not known."""
        return self.joint[: self.values.size, : self.values.size]

    @cached_property
    def misfit_sd(self) -> Floats:
        """Standard deviation of each point about a power law beyond the noise, nats per token.

        Noise that is estimated from the scatter about power laws includes it.
        """
        if self.noise.source == "residuals":
            return np.zeros_like(self.mean)
        return np.sqrt(self.nugget + self.tau**2)

    @property
    def misfit_rms(self) -> float:
        """Root mean square of `misfit_sd`."""
        return float(np.sqrt(np.mean(self.misfit_sd**2)))

    @cached_property
    def residual(self) -> Floats:
        """Mean loss less the curve, nats per token."""
        return np.asarray(self.mean - np.concatenate([self.loss(d, self.x[self.at(d)]) for d in self.depths]))

    @property
    def dof(self) -> float:
        """Degrees of freedom of the standard errors, by Welch and Satterthwaite for the parts of noise and nugget.

        The part common to a depth is known from its differences between seeds and depths only. It stays whole in a
        curve, of which the other part leaves the share of parameters over points. Noise from the scatter about the
        curves is less certain where that scatter may be smooth. 2/dof would be the squared coefficient of variation of
        the variance if it were distributed as chi²; it takes a few values only, so half of it counts. One-seed studies
        with smooth misfit covered 91 to 94 % with none of it, 94 to 98 % with half, 96 to 98.5 % with all.
        """
        noise, dof = self.noise, self.noise.dof
        if noise.source == "residuals":
            return float(1 / (1 / dof + self.relative_variance / 4))
        if noise.known and noise.within:
            own = noise.independent * self.parameters / len(self.x)
            share = noise.within / (noise.within + own)
            few = max((noise.seeds - 1) * (len(self.depths) - 1), 1)
            dof = 1 / ((1 - share) ** 2 / dof + share**2 / few)
        spare = len(self.x) - self.parameters
        if noise.known and spare > 0:
            share = float(np.mean(self.nugget / (self.nugget + self.se**2)))
            dof = 1 / ((1 - share) ** 2 / dof + share**2 / spare)
        return float(dof)

    def index(self, depth: int) -> npt.NDArray[np.int64]:
        """Indices of the losses of one depth in `covariance`."""
        return self.depths.index(depth) * len(self.grid) + np.arange(len(self.grid))

    def inside(self, *depths: int) -> npt.NDArray[np.int64]:
        """Indices of the places of the grid inside the sizes of all these depths."""
        ends = np.array([self.range(depth) for depth in depths])
        return np.flatnonzero((self.grid >= ends[:, 0].max() - NEAR) & (self.grid <= ends[:, 1].min() + NEAR))

    def loss(self, depth: int, x: Floats) -> Floats:
        """Nats per token on the curve of `depth` at ln N = x.

        Raises:
            ValueError: x lies outside the points of the depth.
        """
        return np.asarray(self.rows(depth, x) @ self.values.ravel())

    def rows(self, depth: int, x: Floats) -> Floats:
        """(len(x), depths·grid), the weights of the losses on the grid in those at ln N = x, by cubic interpolation.

        Raises:
            ValueError: x lies outside the points of the depth.
        """
        low, high = self.range(depth)
        if len(x) and (x.min() < low - 1e-9 or x.max() > high + 1e-9):
            raise ValueError(f"depth {depth} is measured on [{low:g}, {high:g}] in ln N, not at {x}")
        return self.weights(depth, x)

    def weights(self, depth: int, x: Floats) -> Floats:
        """`rows` at any ln N on the grid, also outside the points of the depth."""
        near = min(4, len(self.grid))
        first = np.clip(np.searchsorted(self.grid, x) - near // 2, 0, len(self.grid) - near)
        place = first[:, None] + np.arange(near)
        knots = self.grid[place]
        result = np.zeros((len(x), self.values.size))
        for i in range(near):
            others = [j for j in range(near) if j != i]
            share = np.prod((x[:, None] - knots[:, others]) / (knots[:, [i]] - knots[:, others]), axis=1)
            result[np.arange(len(x)), self.index(depth)[0] + place[:, i]] = share
        return result

    def summary(self) -> dict[str, Any]:
        """For the fit file: common exponent, number of parameters, misfit."""
        return {
            "exponent": self.alpha,
            "parameters": self.parameters,
            "points": len(self.x),
            "smooth_misfit": self.tau if self.noise.known else None,
            "lack_of_fit": self.misfit_rms,
            "lack_of_fit_p": self.misfit_p,
            "rms_residual": float(np.sqrt(np.mean(self.residual**2))),
        }


class PowerLaw(NamedTuple):
    """A power law: loss = height + slope·(1 - exp(-α·s))/α with s = ln N - centre.

    `solve` (points,) is the derivative of α by the losses; None if α is at an end of its range.
    """

    alpha: float
    height: float
    slope: float
    centre: float
    fitted: Floats
    solve: Floats | None


class _Points(NamedTuple):
    """The points of a fit: rank of the depth, ln N, loss, and the parts of the variance.

    `shared` (points, causes) holds standard deviations by common cause, `own` the variance of each point's own noise,
    `single` that of one seed. If the noise is not known these are up to a factor, which `known` says.
    """

    rank: npt.NDArray[np.int64]
    x: Floats
    loss: Floats
    shared: Floats
    own: Floats
    single: Floats
    known: bool


class _Combination(NamedTuple):
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


def build_curves(rows: pd.DataFrame, *, span: tuple[float, float] | None = None) -> Curves:
    """Fit the curves to the compared rows of a run table (columns depth, params, seed, loss).

    Rows of one depth, N and seed are averaged first. The result does not depend on the order of the rows. The grid
    covers all sizes, and `span` (ln N) if that is larger.
    """
    means = shape_means(rows)
    points, noise, count = _points(means), means.noise, len(means.depths)
    grid = _grid(means, span)
    alpha = _exponent(points)
    places = np.repeat(np.arange(count), len(grid)), np.tile(grid, count)
    design, wide = _designs(points, places, alpha)
    lengths = _lengths(points)
    kernels = [_kernel(points.rank, points.x, points, length) for length in lengths]
    plain = _combine(points, design, None, (0, 0.0, 0.0, 0.0))
    exact = plain.spare < 1 or plain.square <= len(points.x) * 1e-24
    found = [plain] if exact and not points.known else _likely(points, design, kernels, plain)
    weight = np.exp([item.log_weight - found[0].log_weight for item in found])
    weight /= weight.sum()
    across = [_kernel(*places, points, length) for length in lengths]
    along = [_matern(grid[:, None] - grid, length) for length in lengths]
    values, joint, variances = _posterior(points, wide, across, along, found, weight)
    average = float(weight @ variances)
    if not points.known:
        noise = from_residuals(noise, 0.0 if exact else plain.square, plain.spare)
    single = noise.sd_at(means.mean) ** 2
    tested = points.known and plain.spare > 0
    tau = float(weight @ np.sqrt([item.tau2 * item.scale for item in found]))
    return Curves(
        **{item.name: getattr(means, item.name) for item in fields(ShapeMeans) if item.name != "noise"},
        noise=noise,
        grid=grid,
        values=values.reshape(count, len(grid)),
        joint=joint if noise.known else np.full_like(joint, np.nan),
        parameters=len(points.x) - plain.spare,
        alpha=alpha,
        nugget=float(weight @ [item.nugget for item in found]) * single / np.mean(single)
        if points.known
        else np.zeros_like(single),
        tau=tau if noise.known else 0.0,
        misfit_p=float(chi2.sf(plain.square, plain.spare)) if tested else None,
        relative_variance=float(weight @ (variances / average - 1) ** 2) if average > 0 else 0.0,
    )


def fit_power(x: Floats, loss: Floats, weight: Floats) -> PowerLaw:
    """The power law of least squares through the losses at ln N = x; `weight` are inverse variances."""
    rank, own = np.zeros(len(x), dtype=np.int64), 1 / weight
    points = _Points(rank, x, loss, np.zeros((len(x), 0)), own, own, known=False)
    alpha = _exponent(points)
    design, _ = _designs(points, (rank, x), alpha)
    root = np.sqrt(weight)
    height, slope = np.linalg.lstsq(design[:, :2] * root[:, None], loss * root, rcond=1e-10)[0].tolist()
    solve = np.linalg.pinv(design * root[:, None], rcond=1e-10)[2] * root if design.shape[1] > 2 else None
    return PowerLaw(alpha, height, slope, float(x.mean()), design[:, :2] @ [height, slope], solve)


def shape_means(rows: pd.DataFrame) -> ShapeMeans:
    """Average rows of each depth and N (columns depth, params, seed (numbers), loss)."""
    losses, depth, params, seeds = _by_seed(rows)
    paired = len(seeds) > 0
    present = np.isfinite(losses)
    count = present.sum(axis=1)
    mean = np.where(present, losses, 0).sum(axis=1) / np.maximum(count, 1)
    # In C order: the order of a sum decides its last digit.
    noise = from_seeds(np.ascontiguousarray(losses), depth)
    return ShapeMeans(
        depth=depth,
        x=np.log(params),
        mean=mean,
        count=count,
        incidence=present / np.maximum(count, 1)[:, None] if paired else np.zeros((len(count), 1)),
        seeds=seeds,
        noise=noise if paired else replace(noise, correlation=0.0, within=0.0),
    )


def _by_seed(rows: pd.DataFrame) -> tuple[Floats, npt.NDArray[np.int64], Floats, tuple[Any, ...]]:
    """Tabulate losses by shape and seed.

    Returns:
        (shapes, seeds): losses, NaN where absent; layers and N of the shapes, ordered by depth, then N; the seed of
        each column, none with more than `MOST_SEEDS` of them: columns then only count the runs of a shape.
    """
    depth, params = rows["depth"].to_numpy(dtype=np.int64), rows["params"].to_numpy(dtype=float)
    loss = rows["loss"].to_numpy(dtype=float)
    seeds, label = np.unique(rows["seed"].to_numpy(), return_inverse=True)
    # Sorted by loss as well, so that means do not depend on the order of the rows.
    order = np.lexsort((loss, label, params, depth))
    depth, params, label = depth[order], params[order], label[order]
    new_shape = np.r_[True, (np.diff(depth) != 0) | (np.diff(params) != 0)]
    new_cell = new_shape | np.r_[True, np.diff(label) != 0]
    first = np.flatnonzero(new_cell)
    shape = np.cumsum(new_shape)[first] - 1
    shapes = np.flatnonzero(new_shape)
    paired = len(seeds) <= MOST_SEEDS
    cells = np.arange(len(first))
    column = label[first] if paired else cells - cells[np.searchsorted(shape, shape)]
    losses = np.full((len(shapes), int(column.max()) + 1), np.nan)
    losses[shape, column] = _means(loss[order], first)
    # Columns in the order of their losses: sums over seeds then have the same last digit whatever the seeds' names,
    # with which an optimiser would end elsewhere within its tolerance.
    sorted_columns = np.lexsort(np.nan_to_num(losses[::-1], nan=np.inf))
    names = tuple(seeds[sorted_columns].tolist()) if paired else ()
    return losses[:, sorted_columns], depth[shapes], params[shapes], names


def _means(values: Floats, first: npt.NDArray[np.int64]) -> Floats:
    """Means of groups of rows that begin at `first`."""
    if len(first) == len(values):
        return values
    return np.asarray(np.add.reduceat(values, first) / np.diff(first, append=len(values)))


def _points(means: ShapeMeans) -> _Points:
    """The points of a fit; of more than `MOST_POINTS`, neighbours in ln N are averaged."""
    rank = np.searchsorted(means.depths, means.depth)
    known = means.noise.known
    single = means.noise.sd_at(means.mean) ** 2 if known else np.maximum(means.mean**2, np.finfo(float).tiny)
    shared, own = means.errors if known else (np.zeros((len(rank), 0)), np.sqrt(single))
    points = _Points(rank, means.x, means.mean, shared, own**2, single, known)
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
    return _Points(
        ranks, merge @ means.x, merge @ means.mean, merge @ shared, own_merged, merge**2 @ single, known
    )


def _grid(means: ShapeMeans, span: tuple[float, float] | None) -> Floats:
    """All sizes, where the curves are known best, and places between them; with many sizes only the ends of depths."""
    ends = np.concatenate([*(means.range(depth) for depth in means.depths), span or ()])
    knots = _distinct(np.concatenate([ends, means.x]))
    if len(knots) > MOST_KNOTS:
        knots = _distinct(ends)
    steps = int(np.clip(ALL_STEPS // len(means.depths) - len(knots), LEAST_STEPS, MOST_STEPS))
    line, step = np.linspace(knots[0], knots[-1], steps + 1, retstep=True)
    free = np.abs(line[:, None] - knots).min(axis=1) > step / 4
    return np.sort(np.concatenate([line[free], knots]))


def _distinct(places: Floats) -> Floats:
    """Ascending, without those nearer than `NEAR` to the one before."""
    places = np.sort(places)
    return np.asarray(places[np.r_[True, np.diff(places) > NEAR / 2]])


def _decay(shifted: Floats, alpha: float) -> Floats:
    """(1 - exp(-α·s)) / α: a power law in N that becomes the line s at α = 0, so that both are one family."""
    return shifted if alpha == 0 else np.asarray(-np.expm1(-alpha * shifted) / alpha)


def _exponent(points: _Points) -> float:
    """The common exponent of least squares, refined from a coarse grid because there may be two minima."""
    same = (points.rank[:, None] == np.arange(points.rank[-1] + 1)).astype(float)
    count = same.sum(axis=0)
    # With two sizes of each depth any exponent fits exactly, and a line is the simplest.
    if np.sum(np.maximum(count - 2, 0)) < 2:
        return 0.0
    weight, shifted = 1 / points.own, points.x - points.x.mean()
    share = weight / (same @ (same.T @ weight))
    loss = points.loss - same @ (same.T @ (share * points.loss))

    def square(alpha: float) -> float:
        decay = _decay(shifted, alpha)
        decay = np.where(same @ count > 1, decay - same @ (same.T @ (share * decay)), 0.0)
        along = same.T @ (weight * decay**2)
        slope = same.T @ (weight * decay * loss) / np.where(along > 0, along, 1.0)
        return float(weight @ (loss - decay * (same @ slope)) ** 2)

    values = [square(alpha) for alpha in _ALPHAS]
    best = int(np.argmin(values))
    ends = _ALPHAS[max(best - 1, 0)], _ALPHAS[min(best + 1, len(_ALPHAS) - 1)]
    refined = minimize_scalar(square, bounds=ends, method="bounded", options={"xatol": 1e-6})
    return float(refined.x) if refined.fun < values[best] else _ALPHAS[best]


def _designs(
    points: _Points, places: tuple[npt.NDArray[np.int64], Floats], alpha: float
) -> tuple[Floats, Floats]:
    """H at the points and at `places` (rank, ln N): level and slope of each depth, and the derivative by α."""
    centre = float(points.x.mean())
    ranks = np.arange(points.rank[-1] + 1)

    def design(rank: npt.NDArray[np.int64], x: Floats, alpha: float) -> Floats:
        same = (rank[:, None] == ranks).astype(float)
        return np.hstack([same, same * _decay(x - centre, alpha)[:, None]])

    both = [(points.rank, points.x), places]
    tables = [design(*where, alpha) for where in both]
    if not 1e-3 < alpha < MOST_ALPHA - 1e-3:
        return tables[0], tables[1]
    root = 1 / np.sqrt(points.own)
    slopes = np.linalg.lstsq(tables[0] * root[:, None], points.loss * root, rcond=1e-10)[0][len(ranks) :]
    for index, (rank, x) in enumerate(both):
        s = x - centre
        derivative = slopes[rank] * (s * np.exp(-alpha * s) - _decay(s, alpha)) / alpha
        tables[index] = np.column_stack([tables[index], derivative])
    return tables[0], tables[1]


def _lengths(points: _Points) -> list[float]:
    """The lengths ℓ; none if no depth has two sizes."""
    parts = [points.x[points.rank == rank] for rank in range(int(points.rank[-1]) + 1)]
    parts = [part for part in parts if len(part) > 1]
    if not parts:
        return []
    low = float(np.median(np.concatenate([np.diff(part) for part in parts])))
    high = float(np.median([part[-1] - part[0] for part in parts])) / 2
    return [float(length) for length in np.geomspace(low, max(high, low), LENGTHS)]


def _matern(distance: Floats, length: float) -> Floats:
    scaled = math.sqrt(3) / length * np.abs(distance)
    return np.asarray((1 + scaled) * np.exp(-scaled))


def _kernel(rank: npt.NDArray[np.int64], x: Floats, points: _Points, length: float) -> Floats:
    """(places, points): correlation of the process at places and points."""
    return np.asarray((rank[:, None] == points.rank) * _matern(x[:, None] - points.x, length))


def _combine(
    points: _Points, design: Floats, kernel: Floats | None, prior: tuple[int, float, float, float]
) -> _Combination:
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
    spare = len(residual) - int(live.sum())
    free = max(spare, 1)
    likelihood = -(square if points.known else free * math.log(square)) / 2
    likelihood -= float(
        np.log(np.diag(factor[0])).sum() + np.log(values[live]).sum() / 2 + np.log(unit).sum()
    )
    scale = 1.0 if points.known else square / free
    return _Combination(
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


def _likely(
    points: _Points, design: Floats, kernels: list[Floats], plain: _Combination
) -> list[_Combination]:
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
    found: list[_Combination] = []
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
            item = _combine(points, design, kernel, prior)
            top = max(top, item.log_weight)
            if item.log_weight > top + math.log(NEGLIGIBLE):
                found.append(item)
    found.sort(key=lambda item: -item.log_weight)
    return [item for item in found if item.log_weight > top + math.log(NEGLIGIBLE)]


def _posterior(
    points: _Points,
    wide: Floats,
    across: list[Floats],
    along: list[Floats],
    found: list[_Combination],
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
