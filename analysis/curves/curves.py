"""Loss against ln N for each depth: points, noise, and the smooth curves through them with their covariance.

A point is the mean loss of a shape over its seeds. Its variance has two parts: the seed noise (`analysis.curves.noise`)
and the misfit. Real losses do not lie on any formula exactly, because widths are whole numbers and learning rates
follow a rule. Misfit that is independent from size to size is taken in proportion to the noise at that loss, because
both are largest where models are small and losses fall steeply. Smooth misfit is part of the curves
(`analysis.curves.smooth_misfit`).
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import brentq
from scipy.stats import chi2

from analysis.curves.noise import Floats, Noise, from_residuals, from_seeds
from analysis.curves.smooth import Smooth, fit_smooth
from analysis.curves.smooth_misfit import SmoothMisfit, fit_misfit

#: Most seeds of a study that are treated as paired between shapes; with more, every run has its own seed.
MOST_SEEDS = 200


@dataclass(frozen=True)
class ShapeMeans:
    """The mean losses of all shapes of a study, ordered by depth, then N.

    Attributes:
        depth, x, mean, count: arrays over the points: layers, ln N, mean loss over seeds, number of seeds.
        incidence: (points, seeds), 1/count where the point has that seed, else 0.
    """

    depth: npt.NDArray[np.int64]
    x: Floats
    mean: Floats
    count: npt.NDArray[np.int64]
    incidence: Floats
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
    def misfit_sd(self) -> Floats:
        """Standard deviation of each point about smooth curves beyond the seed noise, nats per token."""
        return np.zeros_like(self.mean)

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
    """The shapes of a study and the curves through them.

    Attributes:
        smooth: the curves of the family.
        misfit: the smooth misfit, which is part of the curves; None if the noise is not known.
        misfit_sd_ratio: standard deviation of the points about the curves beyond the seed noise, over the noise of one
            seed; 0 where the noise explains all, and if the only estimate of the noise is the scatter itself.
        misfit_p: probability of scatter as large as this from seed noise alone; None without replicates.
    """

    smooth: Smooth
    misfit: SmoothMisfit | None
    misfit_sd_ratio: float
    misfit_p: float | None

    @cached_property
    def misfit_sd(self) -> Floats:
        """See `ShapeMeans.misfit_sd`."""
        if not self.misfit_sd_ratio:
            return np.zeros_like(self.mean)
        return np.asarray(self.misfit_sd_ratio * self.noise.sd_at(self.mean))

    @property
    def misfit_rms(self) -> float:
        """Root mean square of `misfit_sd`."""
        return float(np.sqrt(np.mean(self.misfit_sd**2)))

    @cached_property
    def residual(self) -> Floats:
        """Mean loss less the curve with its smooth misfit, nats per token."""
        curves = np.concatenate([self.both(depth, self.x[self.at(depth)])[0] for depth in self.depths])
        return np.asarray(self.mean - curves)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.smooth.size if self.misfit is None else self.misfit.size

    @property
    def dof(self) -> float:
        """Degrees of freedom of the standard errors, by Welch and Satterthwaite for the parts of the noise and misfit.

        The part common to a depth is known from its differences between seeds and depths only. It stays whole in a
        curve, of which the other part leaves the share of parameters over points. Noise from the scatter about the
        curves is less certain where that scatter may be smooth. 2/dof would be the squared coefficient of variation of
        the variance if it were distributed as chi²; it takes a few values only, so half of it counts. One-seed studies
        with smooth misfit covered 91 to 94 % with none of it, 94 to 98 % with half, 96 to 98.5 % with all (issue 15).
        """
        noise, dof = self.noise, self.noise.dof
        if noise.known and noise.within:
            own = noise.independent * self.smooth.parameters / len(self.x)
            share = noise.within / (noise.within + own)
            few = max((noise.seeds - 1) * (len(self.depths) - 1), 1)
            dof = 1 / ((1 - share) ** 2 / dof + share**2 / few)
        if noise.known and self.misfit_sd_ratio:
            spare = max(len(self.x) - self.smooth.parameters, 1)
            share = float(np.mean(self.misfit_sd**2 / (self.misfit_sd**2 + self.se**2)))
            dof = 1 / ((1 - share) ** 2 / dof + share**2 / spare)
        if noise.source == "residuals" and self.misfit is not None:
            dof = 1 / (1 / dof + self.misfit.relative_variance / 4)
        return float(dof)

    @cached_property
    def covariance(self) -> Floats:
        """(parameters, parameters) of the curves; NaN if the noise is not known."""
        if self.misfit is None:
            return np.full((self.size, self.size), np.nan)
        root = self.misfit.solve @ self.errors[0]
        return np.asarray(self.misfit.covariance + root @ root.T)

    def loss(self, depth: int, x: Floats) -> Floats:
        """Nats per token on the curve of `depth` at ln N = x.

        Raises:
            ValueError: x lies outside the points of the depth.
        """
        return self.both(depth, x)[0]

    def both(self, depth: int, x: Floats) -> tuple[Floats, Floats]:
        """`loss`, and (len(x), parameters): its derivative; with `covariance` it gives the error of any loss or gap."""
        self._inside(depth, x)
        return self.smooth.both(depth, x) if self.misfit is None else self.misfit.both(self.smooth, depth, x)

    def _inside(self, depth: int, x: Floats) -> None:
        low, high = self.range(depth)
        if len(x) and (x.min() < low - 1e-9 or x.max() > high + 1e-9):
            raise ValueError(f"depth {depth} is measured on [{low:g}, {high:g}] in ln N, not at {x}")

    def summary(self) -> dict[str, Any]:
        """For the fit file: family, exponents, misfit."""
        alphas = {str(depth): curve.alpha for depth, curve in self.smooth.curves.items()}
        return {
            "family": self.smooth.family,
            "tried": dict(self.smooth.press),
            "exponents": {depth: alpha for depth, alpha in alphas.items() if alpha is not None},
            "parameters": self.smooth.parameters,
            "points": len(self.x),
            "smooth_misfit": None if self.misfit is None else self.misfit.tau,
            "lack_of_fit": self.misfit_rms,
            "lack_of_fit_p": self.misfit_p,
            "rms_residual": float(np.sqrt(np.mean(self.residual**2))),
        }


def build_curves(rows: pd.DataFrame) -> Curves:
    """Fit curves to the compared rows of a run table (columns depth, params, seed, loss).

    Rows of one depth, N and seed are averaged first. The result does not depend on the order of the rows.
    """
    means = shape_means(rows)
    depth, x, mean, count, noise = means.depth, means.x, means.mean, means.count, means.noise
    square = noise.sd_at(mean) ** 2
    own = noise.independent * square / np.maximum(count, 1)
    ratio, misfit_p = 0.0, None
    if noise.known:
        # With equal numbers of seeds, as in most studies, one round is enough: weights then change by a common factor
        # only.
        for _ in range(3 if len(set(count.tolist())) > 1 else 1):
            smooth = fit_smooth(depth, x, mean, 1 / (own + ratio**2 * square))
            before = ratio
            ratio, misfit_p = _misfit(smooth, depth, x, mean, own, square)
            if ratio == before:
                # The same weights again would give the same curves.
                break
        weight = 1 / (own + ratio**2 * square)
    else:
        size = np.maximum(np.abs(mean), np.finfo(float).tiny) ** 2
        weight = 1 / size
        smooth = fit_smooth(depth, x, mean, weight)
        square = (mean - smooth.fitted(depth, x)) ** 2
        # A choice among families fits the noise a little as well; it is counted as one parameter more, with which
        # the intervals of simulated one-seed studies covered as they should.
        spare = len(x) - smooth.parameters - (len(smooth.press) > 1)
        total = float(np.sum(square / size))
        # Residuals at the level of rounding are those of a table without noise, not a small noise.
        noise = from_residuals(noise, total if total > len(x) * 1e-24 else 0.0, spare)
    misfit = None
    if noise.known:
        whole = noise.source == "seeds"
        misfit = fit_misfit(
            smooth,
            depth,
            x,
            mean,
            own if whole else 1 / weight,
            square if whole else None,
            ratio**2 * float(np.mean(square)),
        )
    known: dict[str, Any] = {item.name: getattr(means, item.name) for item in fields(means)}
    known["noise"] = noise
    return Curves(**known, smooth=smooth, misfit=misfit, misfit_sd_ratio=ratio, misfit_p=misfit_p)


def shape_means(rows: pd.DataFrame) -> ShapeMeans:
    """Average rows of each depth and N (columns depth, params, seed (numbers), loss)."""
    losses, depth, params, paired = _by_seed(rows)
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
        noise=noise if paired else replace(noise, correlation=0.0, within=0.0),
    )


def _by_seed(rows: pd.DataFrame) -> tuple[Floats, npt.NDArray[np.int64], Floats, bool]:
    """Tabulate losses by shape and seed.

    Returns:
        (shapes, seeds): losses, NaN where absent; layers and N of the shapes, ordered by depth, then N; whether columns
        are seeds: with more than `MOST_SEEDS` of them they only count the runs of a shape.
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
    return losses[:, sorted_columns], depth[shapes], params[shapes], paired


def _means(values: Floats, first: npt.NDArray[np.int64]) -> Floats:
    """Means of groups of rows that begin at `first`."""
    if len(first) == len(values):
        return values
    return np.asarray(np.add.reduceat(values, first) / np.diff(first, append=len(values)))


def _misfit(
    smooth: Smooth, depth: npt.NDArray[np.int64], x: Floats, mean: Floats, own: Floats, square: Floats
) -> tuple[float, float | None]:
    """`Curves.misfit_sd_ratio` and `Curves.misfit_p`.

    At the ratio the weighted squared residuals equal their degrees of freedom; the p value tests a ratio of 0. `own` is
    the variance of each point from its seeds, `square` that of one seed there.
    """
    spare = len(x) - smooth.parameters
    if spare < 1:
        return 0.0, None
    residual = (mean - smooth.fitted(depth, x)) ** 2

    def excess(ratio: float) -> float:
        return float(np.sum(residual / (own + ratio * square))) - spare

    p = float(chi2.sf(excess(0.0) + spare, spare))
    if excess(0.0) <= 0:
        return 0.0, p
    high = float(np.sum(residual / square)) / spare
    return math.sqrt(brentq(excess, 0.0, high)), p
