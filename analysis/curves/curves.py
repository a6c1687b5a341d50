"""Loss against ln N for each depth: the posterior of the curves on one grid of ln N.

`Curves` holds the mean and the joint covariance of the losses of all depths on the grid. The model behind them is in
`analysis.curves.posterior`. Gaps, crossings, best depths, the law and the search follow from these two arrays.
"""

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import chi2

from analysis.curves.noise import Floats, from_residuals
from analysis.curves.posterior import (
    Prior,
    combine,
    common_exponent,
    designs,
    kernel_of,
    lengths_of,
    likely,
    matern,
    points_of,
    posterior,
)
from analysis.curves.shape_means import ShapeMeans, shape_means
from analysis.units import LOSS

#: Steps of the grid of ln N over all sizes: most, least, and most of all depths together; and most sizes on it.
MOST_STEPS, LEAST_STEPS, ALL_STEPS, MOST_KNOTS = 60, 30, 1200, 100
#: Places of ln N nearer than this are one.
NEAR = 2e-5


@dataclass(frozen=True)
class CurvesSummary:
    """What a fit file holds of `Curves`; all but the counts may be missing in a file.

    Attributes:
        exponent, parameters, misfit_p: `alpha`, `parameters` and `misfit_p` of `Curves`.
        points: number of shapes.
        smooth_misfit: `tau` of `Curves`, nats per token; None without a noise estimate.
        misfit: `misfit_rms` of `Curves`, nats per token.
        rms_residual: root of the mean squared residual, nats per token.
    """

    exponent: float | None = None
    parameters: int = 0
    points: int = 0
    smooth_misfit: float | None = field(default=None, metadata=LOSS)
    misfit: float | None = field(default=None, metadata=LOSS)
    misfit_p: float | None = None
    rms_residual: float | None = field(default=None, metadata=LOSS)


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
        """Mean loss less the level of its group and the curve, nats per token."""
        return self._above - self.group_level

    @cached_property
    def group_level(self) -> Floats:
        """(points,) how far the group of each point lies above the curves, nats per token; 0 with one group."""
        if not self.groups.size:
            return np.zeros_like(self.mean)
        return np.asarray(self.groups @ (self.groups.T @ self._above / self.groups.sum(axis=0)))

    @cached_property
    def _above(self) -> Floats:
        """Mean loss less the curve."""
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
        if noise.is_measured and noise.within:
            independent = noise.independent * self.parameters / len(self.x)
            share = noise.within / (noise.within + independent)
            few = max((noise.seeds - 1) * (len(self.depths) - 1), 1)
            dof = 1 / ((1 - share) ** 2 / dof + share**2 / few)
        spare = len(self.x) - self.parameters
        if noise.is_measured and spare > 0:
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

    def summary(self) -> CurvesSummary:
        """For the fit file."""
        return CurvesSummary(
            exponent=self.alpha,
            parameters=self.parameters,
            points=len(self.x),
            smooth_misfit=self.tau if self.noise.is_measured else None,
            misfit=self.misfit_rms,
            misfit_p=self.misfit_p,
            rms_residual=float(np.sqrt(np.mean(self.residual**2))),
        )


def build_curves(rows: pd.DataFrame, *, span: tuple[float, float] | None = None) -> Curves:
    """Fit the curves to the compared rows of a run table (columns depth, params, seed, loss, if any token_group).

    Rows of one depth, N, group and seed are averaged first. The result does not depend on the order of the rows. The
    grid covers all sizes, and `span` (ln N) if that is larger.
    """
    means = shape_means(rows)
    points, noise, depths = points_of(means), means.noise, len(means.depths)
    grid = _grid(means, span)
    places = np.repeat(np.arange(depths), len(grid)), np.tile(grid, depths)
    weight = 1 / points.independent
    alpha = common_exponent(points.rank, points.x, points.loss, weight, points.groups)
    design, wide = designs(points.rank, points.x, points.loss, weight, alpha, places)
    lengths = lengths_of(points)
    kernels = [kernel_of(points.rank, points.x, points, length) for length in lengths]
    plain = combine(points, design, None, Prior())
    exact = plain.spare < 1 or plain.square <= len(points.x) * 1e-24
    combinations = [plain] if exact and not points.is_scaled else likely(points, design, kernels, plain)
    weight = np.exp([item.log_weight - combinations[0].log_weight for item in combinations])
    weight /= weight.sum()
    across = [kernel_of(*places, points, length) for length in lengths]
    along = [matern(grid[:, None] - grid, length) for length in lengths]
    values, joint, variances = posterior(points, wide, across, along, combinations, weight)
    average = float(weight @ variances)
    if not points.is_scaled:
        noise = from_residuals(noise, 0.0 if exact else plain.square, plain.spare)
    single = noise.sd_at(means.mean) ** 2
    tested = points.is_scaled and plain.spare > 0
    tau = float(weight @ np.sqrt([item.prior.tau2 * item.scale for item in combinations]))
    return Curves(
        **{item.name: getattr(means, item.name) for item in fields(ShapeMeans) if item.name != "noise"},
        noise=noise,
        grid=grid,
        values=values.reshape(depths, len(grid)),
        joint=joint if noise.is_measured else np.full_like(joint, np.nan),
        parameters=len(points.x) - plain.spare,
        alpha=alpha,
        nugget=float(weight @ [item.prior.nugget for item in combinations]) * single / np.mean(single)
        if points.is_scaled
        else np.zeros_like(single),
        tau=tau if noise.is_measured else 0.0,
        misfit_p=float(chi2.sf(plain.square, plain.spare)) if tested else None,
        relative_variance=float(weight @ (variances / average - 1) ** 2) if average > 0 else 0.0,
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
