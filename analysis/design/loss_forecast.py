"""The final loss of a run foretold from its losses so far, by the finished curves of others under the same schedule.

Under one schedule the curves of a study fall alike. What a run still has to fall after a step is regressed, over the
runs that finished, on ln N, ln L and the loss at that step; runs of one shape share an error of their own, so that a
finished seed says most about the next. The interval is that of leaving one out: runs and whole shapes are left out in
turn, and the errors of their forecasts set its scale.

A run may be stopped by its loss at the step: the regression is of what comes after on what was seen there, which such a
choice does not bend (missing at random, Rubin 1976). Where runs are chosen at several steps, those that finished were
also chosen by what came after the first, so their curves must not be regressed on it: the forecast then goes from each
step to the next, over all runs that came so far, and on from there (`Line.then`).
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

#: Finished runs beyond the parameters of the regression, without which nothing is foretold.
LEAST_SPARE = 6
#: Finished runs that are used, the latest: beyond it the error of the regression is a tenth of that of one run.
MOST_RUNS = 100
#: Variance of what the runs of a shape share, over that of one run: the values that are tried.
SHARED = (0.0, 0.3, 1.0, 4.0, 16.0, 64.0)
#: Prior standard deviation of the exponent of N in the variance; noise that falls as 1/sqrt(N) has -1.
TREND = 1.0
#: Variance of ln chi² with one degree of freedom.
_LOG_CHI2 = math.pi**2 / 2
#: Confidence of the upper bound that is taken for the variance of a forecast. A run ends as soon as the variance seems
#: small enough, and is looked at after every evaluation with the fits of that hour: with the estimate itself, and
#: twelve finished runs, what ended a run was as a rule an estimate that was low by chance, and its forecast erred by
#: twice what it said.
CAUTION = 0.9


@dataclass(frozen=True)
class Line:
    """The forecast of one run from its loss at one step, straight in that loss.

    Attributes:
        step: at which the loss is seen.
        centre: a loss at that step, nats a token.
        loss: forecast of the final loss where the loss at the step is `centre`.
        slope: of the forecast.
        variance: of the forecast, as a polynomial in the loss less `centre`; an upper bound, see `CAUTION`.
        runs: finished runs behind it.
    """

    step: int
    centre: float
    loss: float
    slope: float
    variance: tuple[float, float, float]
    runs: int

    def at(self, loss: float) -> tuple[float, float]:
        """Forecast and its standard error, nats a token, for a run with this loss at the step."""
        away = loss - self.centre
        constant, linear, square = self.variance
        variance = constant + linear * away + square * away**2
        return self.loss + self.slope * away, math.sqrt(max(variance, 0.0))

    def then(self, later: "Line") -> "Line":
        """The forecast by way of the loss at a later step, which is what this line foretells."""
        start = self.loss - later.centre
        constant, linear, square = later.variance
        passed = (
            constant + linear * start + square * start**2,
            (linear + 2 * square * start) * self.slope,
            square * self.slope**2,
        )
        ours, theirs, both = (
            own * later.slope**2 + on for own, on in zip(self.variance, passed, strict=True)
        )
        return Line(
            step=self.step,
            centre=self.centre,
            loss=later.loss + later.slope * start,
            slope=self.slope * later.slope,
            variance=(ours, theirs, both),
            runs=min(self.runs, later.runs),
        )


@dataclass(frozen=True)
class StepFit:
    """The regression at one step; `line` makes of it the forecast of a run.

    Attributes:
        step: at which losses are seen.
        runs: finished runs it was fitted to.
        scale, new_scale: variance of a run of the middle size, nats², upper bounds: for a shape with a run among them,
            by leaving out runs, and for one that has none, by leaving out shapes as well.
        shared: variance of what the runs of a shape share, over that of one run.
        trend: of ln variance in ln N.
        middle: mean ln N, ln L and loss at the step.
        named: whether ln N and ln L are in the regression; not where all runs have the same.
        coefficients, covariance: of the regression; the covariance is to be multiplied by the scale.
        shapes: by (depth, N): number of runs, sums of their errors and of their regressors over their spread.
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

    def line(self, depth: int, params: float) -> Line:
        """The forecast of a run of a shape, which need not be among the finished ones."""
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
        return Line(
            step=self.step,
            centre=centre,
            loss=centre + fall,
            slope=1 + float(self.coefficients[-1]),
            variance=(variance[0] * scale, variance[1] * scale, variance[2] * scale),
            runs=self.runs,
        )


def fit_forecasts(finished: pd.DataFrame, steps: Sequence[int], last: int) -> tuple[StepFit, ...]:
    """The regressions at those of `steps` that enough finished runs have a loss at.

    Args:
        finished: the curves of runs under one schedule, a line an evaluation, the runs in the order in which they
            ended: run (any name), depth, params, step, loss in nats a token; not used without one at `last`.
        steps: at which runs may be stopped.
        last: the step whose loss is foretold, as a rule the last.
    """
    depth, params, losses = _curves(finished, [*steps, last])
    ended = np.flatnonzero(~np.isnan(losses[:, -1]))[-MOST_RUNS:]
    fits = []
    for place, step in enumerate(steps):
        seen = ended[~np.isnan(losses[ended, place])]
        if len(seen) and step < last:
            found = _fit(step, depth[seen], params[seen], losses[seen, place], losses[seen, -1])
            fits += [] if found is None else [found]
    # What is left to fall gets less, and so does its variance: an estimate below that of a later step is low by chance.
    scales = np.array([(fit.scale, fit.new_scale) for fit in fits]).reshape(-1, 2)
    worst = np.maximum.accumulate(scales[::-1])[::-1].tolist()
    return tuple(replace(fit, scale=a, new_scale=b) for fit, (a, b) in zip(fits, worst, strict=True))


def _curves(finished: pd.DataFrame, steps: Sequence[int]) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Depth and N of every run in the order of the lines, and its losses at these steps, NaN where it has none."""
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
        # Several losses of one run and step are averaged.
        count = np.bincount(run[here], minlength=len(first))
        total = np.bincount(run[here], weights=loss[here], minlength=len(first))
        losses[count > 0, place] = (total / np.maximum(count, 1))[count > 0]
    return depth[first], params[first], losses


def _fit(
    step: int, depth: npt.NDArray[np.int64], params: Floats, loss: Floats, final: Floats
) -> StepFit | None:
    """The regression of the fall to the final loss; None with too few runs."""
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
    """The upper bound of a variance over its estimate with so many degrees of freedom."""
    return spare / float(chdtri(spare, CAUTION))


def _trend(design: Floats, fall: Floats, x: Floats) -> float:
    """Slope of the ln variance in ln N, from the errors of leaving one out; drawn to 0 where they say little."""
    solve = np.linalg.pinv(design)
    leverage = np.einsum("pk,kp->p", design, solve)
    error = (fall - design @ (solve @ fall)) / np.maximum(1 - leverage, 1e-6)
    size = np.abs(error)
    # Errors at the level of rounding have no logarithm worth a slope.
    level = np.log(np.maximum(size, 1e-3 * max(float(size.max()), np.finfo(float).tiny)) ** 2)
    information = float(x @ x) / _LOG_CHI2
    return float(x @ (level - level.mean())) / _LOG_CHI2 / (information + 1 / TREND**2)


@dataclass(frozen=True)
class _Solved:
    """Generalised least squares where the runs of a shape share an error of `ratio` times the variance of one run.

    Attributes:
        ratio: `StepFit.shared`.
        coefficients, covariance: of the regression, for a variance of 1.
        likelihood: restricted, the scale profiled out (Patterson and Thompson 1971).
        shares: (runs, runs), what is taken off the unit matrix in the inverse of the runs' covariance.
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
        """Mean squares of the errors of leaving out one run, and all runs of a shape, over their variances.

        The errors of a set that is left out are Q_set^-1 (Q y)_set, with the covariance Q_set^-1.
        """
        project = np.eye(len(shape)) - self.shares - self.weighted @ self.covariance @ self.weighted.T
        one = float(np.mean(self.projected**2 / np.maximum(np.diag(project), 1e-9)))
        order = np.argsort(shape, kind="stable")
        count = np.bincount(shape)
        start = np.cumsum(count) - count
        squares = np.zeros(len(count))
        # All shapes with as many runs in one go.
        for runs in np.unique(count[count > 0]):
            those = np.flatnonzero(count == runs)
            mine = order[start[those][:, None] + np.arange(runs)]
            inverse = np.linalg.pinv(project[mine[:, :, None], mine[:, None, :]], hermitian=True)
            error = self.projected[mine]
            squares[those] = np.einsum("ki,kij,kj->k", error, inverse, error)
        return one, float(squares.sum()) / len(shape)
