"""Forecast of a cell's final loss from its losses so far and the finished curves of others under the same schedule.

Under one schedule the curves of a study have similar shapes. The remaining fall of the loss after a step is regressed,
over the finished cells, on ln N, ln L and the loss at that step. Cells of one shape share an error, so that a finished
seed informs most about the next. The interval comes from leaving out single cells and whole shapes in turn: the errors
of their forecasts set its scale.

Stopping a cell by its loss at the step does not bias the regression, which is conditional on that loss (missing at
random, Rubin 1976).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import chdtri

from analysis.curves.noise import Floats
from analysis.groups import numbered

#: Least finished cells beyond the parameters of the regression for a forecast.
LEAST_SPARE = 6
#: Most finished cells used, the latest: with them the error of the regression is a tenth of that of one cell.
MOST_RUNS = 100
#: Values tried for the variance of the error shared by the cells of a shape, over that of one cell.
SHARED = (0.0, 0.3, 1.0, 4.0, 16.0, 64.0)
#: Prior standard deviation of the exponent of N in the variance; noise proportional to 1/sqrt(N) has -1.
TREND = 1.0
#: Variance of ln chi² with one degree of freedom.
_LOG_CHI2 = math.pi**2 / 2
#: Confidence of the upper bound used as the variance of a forecast. A cell ends as soon as the variance is small
#: enough, and is checked after every evaluation. With the plain estimate and twelve finished cells cells mostly ended
#: on an estimate that was low by chance, and the errors of their forecasts were twice the stated ones.
CAUTION = 0.9


@dataclass(frozen=True)
class LossForecast:
    """Forecast of one cell's final loss, linear in its loss at one step.

    Attributes:
        step: the step.
        centre: a loss at that step, nats per token.
        loss: forecast of the final loss where the loss at the step is `centre`.
        slope: slope of the forecast.
        variance: of the forecast, as a polynomial in the loss minus `centre`; an upper bound, see `CAUTION`.
        runs: number of finished cells it was fitted to.
    """

    step: int
    centre: float
    loss: float
    slope: float
    variance: tuple[float, float, float]
    runs: int

    def at(self, loss: float) -> tuple[float, float]:
        """Return the forecast and its standard error, nats per token, for a cell with this loss at the step."""
        away = loss - self.centre
        constant, linear, square = self.variance
        variance = constant + linear * away + square * away**2
        return self.loss + self.slope * away, math.sqrt(max(variance, 0.0))


@dataclass(frozen=True)
class StepFit:
    """Regression at one step; `line` gives the forecast for a shape.

    Attributes:
        step: the step.
        runs: number of finished cells it was fitted to.
        scale, new_scale: upper bounds of the variance of a cell of the middle size, nats²: for a shape with a finished
            cell, by leaving out cells; for another one, by leaving out shapes as well.
        shared: variance of the error shared by the cells of a shape, over that of one cell.
        trend: slope of ln variance in ln N.
        middle: mean ln N, ln L and loss at the step.
        named: whether ln N and ln L are in the regression; a constant one is not.
        coefficients, covariance: of the regression; the covariance is to be multiplied by the scale.
        shapes: by (depth, N): number of cells, sums of their errors and of their regressors over their spread.
    """

    step: int
    runs: int
    scale: float
    new_scale: float
    shared: float
    trend: float
    middle: tuple[float, float, float]
    named: tuple[bool, bool]
    coefficients: Floats
    covariance: Floats
    shapes: dict[tuple[int, float], tuple[int, float, Floats]]

    def line(self, depth: int, params: float) -> LossForecast:
        """Return the forecast for a cell of a shape, which need not be among the finished ones."""
        x, layers, centre = self.middle
        sizes = [math.log(params) - x, math.log(depth) - layers]
        regressors = np.array(
            [1.0, *(value for value, is_in in zip(sizes, self.named, strict=True) if is_in), 0.0]
        )
        spread = math.exp(self.trend * sizes[0] / 2)
        count, errors, sums = self.shapes.get((depth, params), (0, 0.0, np.zeros(len(regressors))))
        weight = self.shared / (1 + self.shared * count)
        scale = self.scale if count else self.new_scale
        fall = float(regressors @ self.coefficients) + spread * weight * errors
        regressors = regressors - spread * weight * sums
        in_loss = self.covariance[-1]
        own = spread**2 * (1 + weight) + float(regressors @ self.covariance @ regressors)
        variance = (own, 2 * float(in_loss @ regressors), float(in_loss[-1]))
        return LossForecast(
            step=self.step,
            centre=centre,
            loss=centre + fall,
            slope=1 + float(self.coefficients[-1]),
            variance=(variance[0] * scale, variance[1] * scale, variance[2] * scale),
            runs=self.runs,
        )


def fit_forecasts(finished: pd.DataFrame, steps: Sequence[int], last: int) -> tuple[StepFit, ...]:
    """Fit the regressions at those of `steps` where enough finished cells have a loss.

    Args:
        finished: curves of cells under one schedule, one row per evaluation, cells in the order in which they ended:
            run (any name), depth, params, step, loss in nats per token. Cells without a loss at `last` are not used.
        steps: steps at which cells may be stopped.
        last: the step whose loss is forecast, usually the last.
    """
    depth, params, losses = _curves(finished, [*steps, last])
    ended = np.flatnonzero(~np.isnan(losses[:, -1]))[-MOST_RUNS:]
    fits = []
    for place, step in enumerate(steps):
        seen = ended[~np.isnan(losses[ended, place])]
        if len(seen) and step < last:
            found = _fit(step, depth[seen], params[seen], losses[seen, place], losses[seen, -1])
            fits += [] if found is None else [found]
    # The remaining fall shrinks, and so does its variance: an estimate below that of a later step is low by chance.
    scales = np.array([(fit.scale, fit.new_scale) for fit in fits]).reshape(-1, 2)
    worst = np.maximum.accumulate(scales[::-1])[::-1].tolist()
    return tuple(replace(fit, scale=a, new_scale=b) for fit, (a, b) in zip(fits, worst, strict=True))


def _curves(finished: pd.DataFrame, steps: Sequence[int]) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Return depth and N of every cell in the order of the rows, and its losses at these steps, NaN where missing."""
    finished = finished[finished["loss"].notna()]
    depth, params = finished["depth"].to_numpy(dtype=np.int64), finished["params"].to_numpy(dtype=float)
    number = numbered(pd.factorize(finished["run"])[0], depth, params)
    first, run = np.unique(number, return_index=True, return_inverse=True)[1:]
    order = np.argsort(first)
    run, first = np.argsort(order)[run], first[order]
    at, loss = finished["step"].to_numpy(), finished["loss"].to_numpy(dtype=float)
    losses = np.full((len(first), len(steps)), np.nan)
    for place, step in enumerate(steps):
        here = at == step
        # Several losses of one cell and step are averaged.
        count = np.bincount(run[here], minlength=len(first))
        total = np.bincount(run[here], weights=loss[here], minlength=len(first))
        losses[count > 0, place] = (total / np.maximum(count, 1))[count > 0]
    return depth[first], params[first], losses


def _fit(
    step: int, depth: npt.NDArray[np.int64], params: Floats, loss: Floats, final: Floats
) -> StepFit | None:
    """Regress the fall to the final loss; None with too few cells."""
    runs = len(loss)
    if runs < LEAST_SPARE + 2:
        return None
    x, layers = np.log(params), np.log(depth)
    sizes = [values for values in (x, layers) if np.ptp(values) > 0]
    design = np.column_stack(
        [np.ones(runs), *(values - values.mean() for values in sizes), loss - loss.mean()]
    )
    spare = runs - design.shape[1]
    if spare < LEAST_SPARE or np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    fall = final - loss
    names = list(zip(depth.tolist(), params.tolist(), strict=True))
    shape = np.unique(np.column_stack([depth, params]), axis=0, return_inverse=True)[1].reshape(-1)
    trend = _trend(design, fall, x - x.mean())
    spread = np.exp(trend * (x - x.mean()) / 2)
    scaled, target = design / spread[:, None], fall / spread
    same = (shape[:, None] == shape).astype(float)
    several = len(np.unique(shape)) < runs
    tried = [_Solved.of(scaled, target, same, ratio) for ratio in (SHARED if several else SHARED[:1])]
    best = max(tried, key=lambda solved: solved.likelihood)
    errors = target - scaled @ best.coefficients
    one_out, shape_out = best.leave_out(shape)
    shapes = {}
    for index in np.unique(shape):
        mine = shape == index
        name = names[int(np.flatnonzero(mine)[0])]
        shapes[name] = (int(mine.sum()), float(errors[mine].sum()), scaled[mine].sum(axis=0))
    return StepFit(
        step=step,
        runs=runs,
        scale=one_out * _caution(spare),
        new_scale=max(
            one_out * _caution(spare),
            shape_out * _caution(max(len(shapes) - design.shape[1], 1)),
        ),
        shared=best.ratio,
        trend=trend,
        middle=(float(x.mean()), float(layers.mean()), float(loss.mean())),
        named=(bool(np.ptp(x) > 0), bool(np.ptp(layers) > 0)),
        coefficients=best.coefficients,
        covariance=best.covariance,
        shapes=shapes,
    )


def _caution(spare: int) -> float:
    """Return the ratio of the upper bound of a variance to its estimate with these degrees of freedom."""
    return spare / float(chdtri(spare, CAUTION))


def _trend(design: Floats, fall: Floats, x: Floats) -> float:
    """Estimate the slope of ln variance in ln N from leave-one-out errors, shrunk towards 0."""
    solve = np.linalg.pinv(design)
    leverage = np.einsum("pk,kp->p", design, solve)
    error = (fall - design @ (solve @ fall)) / np.maximum(1 - leverage, 1e-6)
    size = np.abs(error)
    # Errors at the level of rounding have no meaningful logarithm.
    level = np.log(np.maximum(size, 1e-3 * max(float(size.max()), np.finfo(float).tiny)) ** 2)
    information = float(x @ x) / _LOG_CHI2
    return float(x @ (level - level.mean())) / _LOG_CHI2 / (information + 1 / TREND**2)


@dataclass(frozen=True)
class _Solved:
    """Generalised least squares where the cells of a shape share an error of `ratio` times the variance of one cell.

    Attributes:
        ratio: `StepFit.shared`.
        coefficients, covariance: of the regression, for a variance of 1.
        likelihood: restricted, the scale profiled out (Patterson and Thompson 1971).
        shares: (runs, runs), the identity minus the inverse of the covariance of the cells.
        weighted: (runs, parameters), that inverse times the design.
        projected: Q y, see `leave_out`.
    """

    ratio: float
    coefficients: Floats
    covariance: Floats
    likelihood: float
    shares: Floats
    weighted: Floats
    projected: Floats

    @classmethod
    def of(cls, design: Floats, target: Floats, same: Floats, ratio: float) -> "_Solved":
        runs, parameters = design.shape
        count = same.sum(axis=1)
        # The inverse of 1 + ratio·same, block by block; a block of m runs has the determinant 1 + ratio·m.
        shares = ratio * same / (1 + ratio * count[:, None])
        weighted, target_weighted = design - shares @ design, target - shares @ target
        covariance = np.linalg.inv(design.T @ weighted)
        coefficients = covariance @ (weighted.T @ target)
        projected = target_weighted - weighted @ coefficients
        square = max(float(target @ projected), np.finfo(float).tiny)
        determinants = float(np.sum(np.log1p(ratio * count) / count)) - np.linalg.slogdet(covariance)[1]
        likelihood = -0.5 * (determinants + (runs - parameters) * math.log(square))
        return cls(ratio, coefficients, covariance, likelihood, shares, weighted, projected)

    def leave_out(self, shape: npt.NDArray[np.int64]) -> tuple[float, float]:
        """Compute mean squares of the errors of leaving out one cell, and all cells of a shape, over their variances.

        The errors of a set that is left out are Q_set^-1 (Q y)_set, with the covariance Q_set^-1.
        """
        project = np.eye(len(shape)) - self.shares - self.weighted @ self.covariance @ self.weighted.T
        one = float(np.mean(self.projected**2 / np.maximum(np.diag(project), 1e-9)))
        order = np.argsort(shape, kind="stable")
        count = np.bincount(shape)
        start = np.cumsum(count) - count
        squares = np.zeros(len(count))
        # All shapes with the same number of cells at once.
        for runs in np.unique(count[count > 0]):
            those = np.flatnonzero(count == runs)
            mine = order[start[those][:, None] + np.arange(runs)]
            inverse = np.linalg.pinv(project[mine[:, :, None], mine[:, None, :]], hermitian=True)
            error = self.projected[mine]
            squares[those] = np.einsum("ki,kij,kj->k", error, inverse, error)
        return one, float(squares.sum()) / len(shape)
