"""Fit the threshold law ln d = a + b·L through the crossings, or an alternative with sqrt(L) or ln L instead of L.

A crossing of two neighbouring depths belongs to the depth between them, L = sqrt(L1·L2): there both have the same
loss, so the best depth lies between. d is the width of that depth at the crossing. (Levine et al. 2020, eq. 10, use
the shallower depth; their law keeps their meaning.)

The likelihood is that of the gaps. A law (a, b) predicts the place of each crossing, where the gap is zero. The gaps g
at those places, with the covariance S that pairs sharing a curve have, give

    T(a, b) = min over s of (g - s)' S^-1 (g - s),

with s = 0 for a crossing inside the sizes measured, and any s of the right sign for one outside: a law with the
crossing above the largest size is contradicted only if the deep model is better there. So every pair is used, whether
its crossing is an interval, a bound or ambiguous, and none is selected by its significance. This is Fieller's method
for a line (inverting the test of g = 0); for one pair it gives that pair's interval. The region {T - min T <= t²} gives
the interval of every scalar that follows from the law: a, b, a projected depth.

`scatter` is the standard deviation of ln d about the line beyond the crossings' own errors. With three or more
crossings it is the estimate of largest likelihood. It has as many degrees of freedom as there are crossings less two,
so if it is positive, Student's t has those degrees of freedom. Two or three crossings cannot show it: the larger
of their estimate and `PRIOR_SCATTER` is assumed, with Student's t of one degree of freedom, and two crossings give no
interval of the slope. `ThresholdLaw.scatter` and `scatter_dof` are those of the intervals.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.stats import f as fisher
from scipy.stats import t as student

from analysis.curves.noise import Floats
from analysis.intervals import Region, range_over
from analysis.law.crossings import Crossing, Crossings, Gap
from analysis.law.reasons import Because, Reason
from analysis.law.threshold_law import LEVINE2020, SLOPE_VARIANCE, Form, ThresholdLaw

#: What ln d is linear in, by form. The root covers what lies between the other two: where ln d rises with sqrt(L), 13 %
#: of the studies rejected all but one of those two, and its projection was false every time.
REGRESSORS: Mapping[Form, Callable[[Floats], Floats]] = {
    "log-linear": np.asarray,
    "power": np.log,
    "root": np.sqrt,
}

#: Directions in which the edge of the region is searched, and distances in units of the edge of a normal likelihood. A
#: region that reaches twelve times as far counts as open. Extremes of a region are met to (π/240)²/2, or 0.01 %.
RAYS = 240
REACH = np.concatenate([np.linspace(0.15, 2.4, 16), np.geomspace(2.8, 12, 8)])
HALVINGS = 12
#: Sweeps of coordinate descent over the crossings outside the sizes measured.
SWEEPS = 20
#: Fewest crossings whose own scatter is used alone.
OWN_SCATTER = 4
#: Standard deviation of ln d about the published line: the error of its slope is this over the root of the squared
#: distances of the depths. It includes the errors of those crossings. It is the scatter of one study, so it counts as
#: one degree of freedom: 95 % lie within 12.7 times it, and a scatter of 0.2 in another study is covered too.
PRIOR_SCATTER = math.sqrt(SLOPE_VARIANCE * len(LEVINE2020.depths)) * float(np.std(LEVINE2020.depths))


@dataclass(frozen=True)
class _Points:
    """Crossings with an estimate: the regressor of the form, ln d, and its covariance to first order."""

    regressor: Floats
    log_width: Floats
    covariance: Floats

    def line(self, scatter: float) -> tuple[Floats, Floats]:
        """Generalised least squares: (a, b) and their covariance."""
        design = np.column_stack([np.ones_like(self.regressor), self.regressor])
        total = self.covariance + scatter**2 * np.eye(len(self.log_width))
        weighted = np.linalg.solve(total, design).T
        law_covariance = np.linalg.inv(weighted @ design)
        return np.asarray(law_covariance @ weighted @ self.log_width), law_covariance

    def residual(self, law: Floats) -> Floats:
        """Ln d of each crossing less that of the law (a, b)."""
        return np.asarray(self.log_width - (law[0] + law[1] * self.regressor))


class _Likelihood:
    """T(a, b) of a study for many laws at once."""

    def __init__(self, gaps: Sequence[Gap], depth: Floats, regressor: Floats, covariance: Floats) -> None:
        """Prepare gaps with the `covariance` of all their values; `depth` are the depths L."""
        self.gaps, self.offset, self.regressor = gaps, np.log(12 * depth), regressor
        self.first = np.cumsum([0] + [len(gap.x) for gap in gaps[:-1]])
        self.value = np.concatenate([gap.value for gap in gaps])
        self.slope = np.concatenate([np.gradient(gap.value, gap.x) for gap in gaps])
        self.covariance = covariance

    def __call__(self, laws: Floats, scatter: float = 0.0) -> Floats:
        """(laws,): T of each law (rows of a, b)."""
        x = self.offset + 2 * (laws[:, :1] + laws[:, 1:] * self.regressor)
        left, weight, side = np.empty(x.shape, dtype=np.int64), np.empty_like(x), np.empty_like(x)
        for pair, (gap, first) in enumerate(zip(self.gaps, self.first, strict=True)):
            inside = np.clip(x[:, pair], gap.x[0], gap.x[-1])
            # Outside the sizes the deep model must be ahead at the small end, or behind at the large end.
            side[:, pair] = np.sign(inside - x[:, pair])
            place = np.clip(np.searchsorted(gap.x, inside, side="right") - 1, 0, len(gap.x) - 2)
            left[:, pair] = first + place
            weight[:, pair] = (inside - gap.x[place]) / (gap.x[place + 1] - gap.x[place])

        def between(values: Floats) -> Floats:
            return np.asarray(values[left] * (1 - weight) + values[left + 1] * weight)

        # Along straight lines between the places, first in the rows and then in the columns of the covariance.
        row, rest = left[:, :, None], (1 - weight)[:, :, None]
        column, share = left[:, None, :], weight[:, :, None]
        near = self.covariance[row, column] * rest + self.covariance[row + 1, column] * share
        far = self.covariance[row, column + 1] * rest + self.covariance[row + 1, column + 1] * share
        matrix = near * rest.swapaxes(1, 2) + far * share.swapaxes(1, 2)
        diagonal = np.einsum("lii->li", matrix)
        diagonal[:] = (diagonal + (2 * scatter * between(self.slope)) ** 2) * (1 + 1e-9) + 1e-24
        return _least_square(between(self.value), matrix, side)


def _least_square(gap: Floats, covariance: Floats, side: Floats) -> Floats:
    """Smallest over s of (g - s)' S^-1 (g - s), s = 0 where side is 0, else of that sign; for many g at once.

    By coordinate descent, which converges because the square is convex; the gaps of neighbouring pairs have
    correlations of about -0.5, so each sweep removes more than half of what is left.
    """
    precision = np.linalg.inv(covariance)
    rest = np.where(side * gap > 0, 0.0, gap)
    sided = np.flatnonzero(side.any(axis=1))
    for _ in range(SWEEPS if len(sided) else 0):
        for pair in np.flatnonzero(side.any(axis=0)):
            rows = sided[side[sided, pair] != 0]
            weights = precision[rows, pair]
            # The value of this rest at which the square is least, given the others; g - s has a bound at g.
            best = rest[rows, pair] - np.vecdot(weights, rest[rows]) / weights[:, pair]
            bound = gap[rows, pair]
            rest[rows, pair] = np.where(
                side[rows, pair] > 0, np.minimum(best, bound), np.maximum(best, bound)
            )
    return np.asarray(np.einsum("li,lij,lj->l", rest, precision, rest))


def fit_laws(crossings: Crossings) -> tuple[ThresholdLaw, ...]:
    """The law of every form, the log-linear one first."""
    return tuple(fit_threshold(crossings, form) for form in REGRESSORS)


def fit_threshold(crossings: Crossings, form: Form) -> ThresholdLaw:
    """Fit the law of the given form through the pairs of adjacent depths."""
    level = crossings.level
    both = [(item, gap) for item, gap in zip(crossings.items, crossings.gaps, strict=True) if gap is not None]
    pairs = [(item, gap) for item, gap in both if not item.contradicted]
    points = [item for item, _ in pairs if item.params is not None]
    if len(points) < 2 or not math.isfinite(crossings.quantile):
        few = Because(Reason.FEW_CROSSINGS, (len(points), len(crossings.items)))
        reasons = (few if len(points) < 2 else Because(Reason.NO_ERRORS),)
        return ThresholdLaw(form, "insufficient", level, reasons=reasons, pairs=len(pairs))
    depth = np.array([item.middle for item, _ in pairs])
    regressor = REGRESSORS[form](depth)
    kept = np.concatenate([np.full(len(gap.x), not item.contradicted) for item, gap in both])
    covariance = crossings.covariance[np.ix_(kept, kept)]
    likelihood = _Likelihood([gap for _, gap in pairs], depth, regressor, covariance)
    line = _points(pairs, covariance, regressor)
    free = len(points) - 2
    assumed = len(points) < OWN_SCATTER
    scatter = max(_scatter(line), PRIOR_SCATTER if assumed else 0.0)
    scatter_dof = None if not scatter else 1 if assumed else free
    quantile, scaled = crossings.quantile, scatter
    if scatter_dof:
        of_scatter = float(student.ppf((1 + level) / 2, scatter_dof))
        # An assumed scatter has a t of its own. An estimated one widens all, because it includes the crossings' errors.
        if assumed:
            scaled = scatter * of_scatter / quantile
        else:
            quantile = max(quantile, of_scatter)
    start, errors = line.line(scaled)
    law, why, region = _profile(lambda laws: likelihood(laws, scaled), start, errors, quantile)
    a_interval, b_interval = (
        range_over(region, law, lambda a, b: a),
        range_over(region, law, lambda a, b: b),
    )
    closed = None not in (*a_interval, *b_interval)
    if not free:
        a_interval = b_interval = (None, None)
    raw = line.residual(line.line(0.0)[0])
    square = float(raw @ np.linalg.solve(line.covariance, raw))
    notes = [] if free else [Because(Reason.TWO_POINTS)]
    if assumed:
        notes.append(Because(Reason.ASSUMED_SCATTER, (PRIOR_SCATTER,)))
    lost = [f"{item.shallow} → {item.deep}" for item in crossings.items if item.contradicted]
    if lost:
        notes.append(Because(Reason.WITHOUT_DIVERGED, tuple(lost)))
    if not closed:
        notes.append(Because(Reason.ONE_SIDED))
    params = [item.params for item in points if item.params is not None]
    (va, cab), (cba, vb) = errors.tolist()
    return ThresholdLaw(
        form=form,
        status="not_converged" if why else "ok" if closed and free else "open",
        level=level,
        a=law[0],
        b=law[1],
        covariance=((va, cab), (cba, vb)),
        a_interval=a_interval,
        b_interval=b_interval,
        reasons=(Because(Reason.NOT_CONVERGED, (why,)),) if why else (),
        notes=tuple(notes),
        depths=tuple(item.middle for item in points),
        widths=tuple(np.exp(line.log_width).tolist()),
        pairs=len(pairs),
        params_range=(min(params), max(params)),
        residuals=tuple((line.log_width - law[0] - law[1] * line.regressor).tolist()),
        scatter=scatter,
        scatter_dof=scatter_dof,
        chi2=square if free else None,
        dof=free if free else None,
        p_value=float(fisher.sf(square / free, free, min(crossings.dof, 1e9))) if free else None,
        region=region,
    )


def _points(pairs: list[tuple[Crossing, Gap]], covariance: Floats, regressor: Floats) -> _Points:
    places, log_width, index, slopes = [], [], [], []
    first = 0
    for place, (item, gap) in zip(regressor, pairs, strict=True):
        if item.params is not None:
            x = math.log(item.params)
            places.append(place)
            log_width.append((x - math.log(12 * item.middle)) / 2)
            index.append(first + int(np.argmin(np.abs(gap.x - x))))
            slopes.append(abs(float(np.interp(x, gap.x, np.gradient(gap.value, gap.x)))))
        first += len(gap.x)
    # d ln N = -d gap / slope, and ln d is half of ln N; a flat gap at its own zero leaves the point open.
    scale = 1 / (2 * np.maximum(slopes, 1e-9))
    total = covariance[np.ix_(index, index)] * np.outer(scale, scale)
    diagonal = np.diag_indices_from(total)
    total[diagonal] = total[diagonal] * (1 + 1e-9) + 1e-16
    return _Points(np.array(places), np.array(log_width), total)


def _scatter(points: _Points) -> float:
    """Standard deviation of ln d about the line beyond the crossings' errors; 0 where those explain all.

    The estimate of largest likelihood for errors of one size: the weighted squares then sum to the number of crossings.
    With the degrees of freedom instead (Paule and Mandel 1982), a scatter is found twice as often where there is none.
    """
    count = len(points.log_width)

    def excess(variance: float) -> float:
        residual = points.residual(points.line(math.sqrt(variance))[0])
        return (
            float(residual @ np.linalg.solve(points.covariance + variance * np.eye(count), residual)) - count
        )

    if count < 3 or excess(0.0) <= 0:
        return 0.0
    high = float(np.var(points.log_width)) * count + 1e-12
    return 0.0 if excess(high) > 0 else math.sqrt(brentq(excess, 0.0, high))


def _profile(
    square: Callable[[Floats], Floats], start: Floats, covariance: Floats, quantile: float
) -> tuple[tuple[float, float], str | None, Region]:
    """The law of the smallest T, why it was not found, and points around {T - min T <= quantile²}.

    `square` is T of many laws (rows of a, b). The edge of the region is found by bisection along rays that are scaled
    with the covariance.
    """
    root = np.linalg.cholesky(covariance + 1e-15 * np.eye(2))
    least = minimize(
        lambda move: float(square((start + root @ move)[None])[0]),
        np.zeros(2),
        method="Nelder-Mead",
        options={
            "xatol": 1e-5,
            "fatol": 1e-8,
            "maxfev": 2000,
            "initial_simplex": [[0, 0], [0.5, 0], [0, 0.5]],
        },
    )
    best = start + root @ least.x
    angle = np.linspace(0, 2 * np.pi, RAYS, endpoint=False)
    direction = np.column_stack([np.cos(angle), np.sin(angle)]) @ (root * quantile).T
    limit = float(square(best[None])[0]) + quantile**2
    laws = best + REACH[:, None, None] * direction
    inside = square(laws.reshape(-1, 2)).reshape(len(REACH), RAYS) <= limit
    # The farthest accepted law of each ray: where the region has two parts it is drawn around both.
    last = np.where(inside.any(axis=0), len(REACH) - 1 - np.argmax(inside[::-1], axis=0), -1)
    is_open = last == len(REACH) - 1
    low = np.where(last >= 0, REACH[np.maximum(last, 0)], 0.0)
    high = np.where(is_open, low, REACH[np.minimum(last + 1, len(REACH) - 1)])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        accepted = square(best + middle[:, None] * direction) <= limit
        low, high = np.where(accepted, middle, low), np.where(accepted, high, middle)
    a, b = (best + low[:, None] * direction).T.tolist()
    region = tuple(zip(a, b, is_open.tolist(), strict=True))
    return (float(best[0]), float(best[1])), None if least.success else str(least.message), region
