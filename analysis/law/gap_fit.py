"""Fit the laws of the gap between depths, see `analysis.law.decision`.

The curve of N that all depths share is a polynomial in ln N, projected out. The parameters that are not linear are laid
out on a grid, which is refined where the squares are small; the others follow by least squares at each node. So there
is no optimiser that can fail. A law is rejected by the F test of its residuals against the noise. The others are
weighted by AIC.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.stats import chi2, norm, qmc
from scipy.stats import f as fisher

from analysis.curves import posterior
from analysis.curves.noise import Floats
from analysis.curves.shape_means import ShapeMeans
from analysis.law.decision import (
    FORM_ERROR,
    FORMS,
    Frame,
    GapForm,
    GapLaw,
    GapLaws,
    bend_of,
    frame_of,
    valley,
)
from analysis.law.reasons import Because, Reason
from analysis.law.threshold_law import REJECTED

#: Draws of all laws together.
DRAWS = 480
#: Nodes of the axes of a grid: two of the law, one of γ or s, one of the bend. The grid is refined around the
#: nodes whose squares exceed the least by less than `MASS` times the noise, until no axis gets shorter than `SHRUNK` of
#: its length, at most `REFINED` times.
NODES = (12, 12, 4, 3)
REFINED, MASS, SHRUNK = 6, 20.0, 0.7
#: Highest degree of the curve of N that all depths share.
DEGREE = 5
#: Range of α_m and α_l.
EXPONENTS = (0.03, 4.0)
#: How far ln L* at the largest size may lie outside the measured depths.
OUTSIDE = math.log(8.0)
#: Largest γ, and its scale in an exponential prior. Where γ may be negative as well, regret is ten times as large in
#: worlds whose valleys flatten; `analysis.law.crossing_laws` serve those that steepen.
DECAY, DECAY_SCALE = 0.3, 0.1
#: Largest s, as a share of the least depth and in layers, and its scale in an exponential prior.
SHIFT, MOST_SHIFT, SHIFT_SCALE = 0.7, 2.0, 0.3
#: Largest bend of h, and its standard deviation in a normal prior.
BEND, BEND_SD = 0.6, 0.3
#: The standard deviation of the points about the laws beyond the noise, as a share of that.
INSIDE = 0.5
#: Fewest depths and sizes. Three depths have two crossings, through which every form of a law goes.
LEAST_DEPTHS, LEAST_SIZES = 4, 3
#: Smallest ratio of the singular values of centred (ln N, ln L): below it depth and size move together.
COLLINEAR = 1e-4


@dataclass(frozen=True)
class GapPoints:
    """The shapes of a study for the fits here, in any order.

    Attributes:
        depth, x, loss: layers, ln N, nats per token.
        covariance: (points, points) of the losses; None if the noise is not known.
        noise_dof: degrees of freedom of the noise.
    """

    depth: Floats
    x: Floats
    loss: Floats
    covariance: Floats | None = None
    noise_dof: float = math.inf

    def ordered(self) -> "GapPoints":
        """The same points by size, depth and loss, so that no result depends on the order of the rows."""
        order = np.lexsort((self.loss, self.depth, self.x))
        covariance = None if self.covariance is None else self.covariance[np.ix_(order, order)]
        return GapPoints(self.depth[order], self.x[order], self.loss[order], covariance, self.noise_dof)

    @cached_property
    def whitener(self) -> Floats:
        """(points, points), which makes the errors independent and of unit size; the identity without a covariance."""
        identity = np.eye(len(self.loss))
        if self.covariance is None:
            return identity
        root = np.linalg.cholesky(self.covariance)
        return np.asarray(solve_triangular(root, identity, lower=True, check_finite=False))

    def lacking(self) -> Because | None:
        """Why the points cannot determine a law of the gap."""
        depths, sizes = (len(np.unique(np.round(v, 6))) for v in (np.log(self.depth), self.x))
        for least, count, reason in (
            (LEAST_DEPTHS, depths, Reason.FEW_DEPTHS),
            (LEAST_SIZES, sizes, Reason.FEW_SIZES),
        ):
            if count < least:
                return Because(reason, (least, count))
        centred = np.column_stack([self.x - self.x.mean(), np.log(self.depth) - np.log(self.depth).mean()])
        singular = np.linalg.svd(centred / np.linalg.norm(centred, axis=0), compute_uv=False)
        if singular[1] < COLLINEAR * singular[0]:
            return Because(Reason.COLLINEAR)
        return None


def points_of(means: ShapeMeans, misfit_sd: float | Floats = 0.0) -> GapPoints:
    """The shapes of a study; of very many, neighbours in ln N are averaged as for the curves.

    Args:
        means: of the study.
        misfit_sd: scatter of the shapes beyond the seed noise, nats per token; it is part of the covariance.
    """
    points = posterior.points_of(means, np.asarray(misfit_sd) ** 2)
    covariance = points.shared @ points.shared.T + np.diag(points.independent) if points.is_scaled else None
    depth = np.array(means.depths, dtype=float)[points.rank]
    return GapPoints(
        depth, points.x, points.loss, covariance, means.noise.dof if points.is_scaled else math.inf
    )


def fit_gap_laws(points: GapPoints) -> GapLaws:
    """Fit every law of the gap to the points of a study; the result does not depend on their order."""
    depths = tuple(int(depth) for depth in np.unique(points.depth))
    ends = float(points.x.min()), float(points.x.max())
    if reason := points.lacking():
        lacking = tuple(GapLaw(form, "insufficient", (reason,)) for form in FORMS)
        return GapLaws(lacking, (math.exp(ends[0]), math.exp(ends[1])), depths, None, (reason,))
    points = points.ordered()
    problem = _Problem.of(points, frame_of(np.array(ends), depths))
    fits = [_fit(form, problem) for form in FORMS]
    scores = np.array([score if law.status == "ok" else -math.inf for law, score, _ in fits])
    reasons: tuple[Because, ...] = ()
    if np.all(np.isinf(scores)):
        reasons = tuple(
            dict.fromkeys(
                because for law, _, _ in fits if law.status != "rejected" for because in law.reasons
            )
        )
        if tested := [law.p_value for law, _, _ in fits if law.p_value is not None]:
            reasons = (Because(Reason.ALL_REJECTED, (max(tested),)),)
        weights = np.zeros(len(scores))
    else:
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
    laws = []
    for (law, _, grid), weight in zip(fits, weights, strict=True):
        count = round(DRAWS * weight)
        draws = _draw(law.form, problem, grid, count) if grid and count else ()
        laws.append(replace(law, weight=float(weight), draws=draws))
    level = float(points.loss[points.x > ends[1] - 0.5].mean())
    return GapLaws(tuple(laws), (math.exp(ends[0]), math.exp(ends[1])), depths, level, reasons)


class _Problem(NamedTuple):
    """The points, whitened, without what a common curve of N explains.

    Attributes:
        points: ordered.
        project: (points, points), from losses to whitened residuals about the common curve.
        target: (points,), the residuals of the losses.
        spare: points less the parameters of the common curve.
        frame: of the laws.
    """

    points: GapPoints
    project: Floats
    target: Floats
    spare: int
    frame: Frame

    @staticmethod
    def of(points: GapPoints, frame: Frame) -> "_Problem":
        if points.covariance is not None:
            covariance = points.covariance + np.eye(len(points.x)) * (INSIDE * FORM_ERROR) ** 2
            points = replace(points, covariance=covariance)
        centred = (2 * points.x - frame.low - frame.high) / (frame.high - frame.low)
        common = np.polynomial.legendre.legvander(centred, min(DEGREE, _count_sizes(points.x) - 1))
        basis = np.linalg.qr(points.whitener @ common)[0]
        project = points.whitener - basis @ (basis.T @ points.whitener)
        return _Problem(points, project, project @ points.loss, len(points.x) - common.shape[1], frame)


class _Nodes(NamedTuple):
    """Values of the parameters that are not linear, and the linear ones at each of them.

    Attributes:
        values: (nodes, 4): ln α_m, ln α_l, s, 0; or ln L* at the largest size, its growth per unit of ln N, γ, bend.
        free: (nodes, terms), by least squares; `inverse` (nodes, terms, terms) of the normal equations.
        positive: (nodes, terms), by least squares among those that are not negative.
        rss_free, rss: (nodes,), whitened squares of both.
    """

    values: Floats
    free: Floats
    inverse: Floats
    positive: Floats
    rss_free: Floats
    rss: Floats


class _Grid(NamedTuple):
    """The last grid of a law: its nodes and its box, the variance over the noise, and its degrees of freedom."""

    nodes: _Nodes
    box: Floats
    spread: float
    free: float


def _fit(form: GapForm, problem: _Problem) -> tuple[GapLaw, float, _Grid | None]:
    """The law without its draws, the logarithm of its weight, and its grid."""
    points = problem.points
    box = _box(form, points)
    terms = 2 if form == "additive" else 1
    parameters = terms + int(np.sum(box[:, 1] > box[:, 0]))
    dof = problem.spare - parameters
    if dof < 1:
        few = Because(Reason.FEW_GAPS, (problem.spare, parameters))
        return GapLaw(form, "insufficient", (few,)), -math.inf, None
    has_noise = points.covariance is not None
    rounding = (1e-12 * float(np.abs(points.loss).max())) ** 2
    least = 1.0 if has_noise else rounding
    nodes = _solve(form, _cells(box), problem)
    for _ in range(REFINED):
        low = float(nodes.rss.min())
        smaller = _around(nodes.values[nodes.rss - low < MASS * max(low / dof, least)], box)
        shrunk = np.any(np.ptp(smaller, axis=1) < SHRUNK * np.ptp(box, axis=1))
        box, nodes = smaller, _solve(form, _cells(smaller), problem)
        if not shrunk:
            break
    best = int(nodes.rss.argmin())
    rss = float(nodes.rss[best])
    values = _physical(form, nodes.values[[best]], nodes.positive[[best]], problem)[0].tolist()
    p_value = float(fisher.sf(rss / dof, dof, min(points.noise_dof, 1e9))) if has_noise else None
    noise_dof = min(points.noise_dof, 1e6) if has_noise else 0.0
    # Of the best node: the likelihood if the size of the noise is an estimate with `noise_dof`, and the prior; less one
    # per linear parameter. The others are as many in all laws.
    likelihood = -(noise_dof + problem.spare) / 2 * np.log(noise_dof + np.maximum(nodes.rss, rounding))
    score = float(np.max(likelihood + _log_prior(form, nodes.values))) - terms
    grid = _Grid(nodes, box, max(rss / dof, least), noise_dof if has_noise and rss <= dof else float(dof))
    law = GapLaw(form, "ok", (), dict(zip(_names(form), values, strict=True)), p_value)
    if p_value is not None and p_value < REJECTED:
        law = replace(law, status="rejected", reasons=(Because(Reason.RESIDUALS, (p_value,)),))
    return law, score, grid


def _draw(form: GapForm, problem: _Problem, grid: _Grid, count: int) -> tuple[tuple[float, ...], ...]:
    """`count` draws of the parameters: nodes by their posterior, a place within the cell, linear ones given these."""
    nodes, box, spread, free = grid
    z = nodes.free / np.sqrt(np.einsum("gii->gi", nodes.inverse) * spread)
    # Student's t, integrated over the linear parameters, which have a flat prior above zero.
    log_weight = -(free + 1) / 2 * np.log1p((nodes.rss_free - nodes.rss_free.min()) / (spread * free))
    log_weight += norm.logcdf(z).sum(axis=1) + np.linalg.slogdet(nodes.inverse)[1] / 2
    log_weight += _log_prior(form, nodes.values)
    share = np.cumsum(np.exp(log_weight - log_weight.max()))
    chosen = np.searchsorted(share / share[-1], (np.arange(count) + 0.5) / count)
    # A fixed sequence, so that the same points give the same draws.
    uniform = qmc.Halton(7, scramble=False).random(count + 1)[1:]
    values = nodes.values[chosen] + (uniform[:, :4] - 0.5) * _cell(box)
    drawn = _solve(form, values, problem)
    root = (
        np.linalg.cholesky(drawn.inverse)
        * np.sqrt(spread * free / chi2.ppf(uniform[:, 4], free))[:, None, None]
    )
    linear, offset = np.empty_like(drawn.free), np.zeros_like(drawn.free)
    for term in range(linear.shape[1]):
        mean = drawn.free[:, term] + np.sum(root[:, term, :term] * offset[:, :term], axis=1)
        sd = root[:, term, term]
        below = norm.cdf(-mean / sd)
        quantile = np.clip(below + uniform[:, 5 + term] * (1 - below), 1e-12, 1 - 1e-12)
        linear[:, term] = np.maximum(mean + sd * norm.ppf(quantile), 0.0)
        offset[:, term] = (linear[:, term] - mean) / sd
    rows = _physical(form, values, linear, problem).tolist()
    return tuple(tuple(float(f"{value:.8g}") for value in row) for row in rows)


def _solve(form: GapForm, values: Floats, problem: _Problem) -> _Nodes:
    """The linear parameters at each node."""
    projected = _columns(form, values, problem) @ problem.project.T
    normal = np.einsum("gin,gjn->gij", projected, projected)
    right, total = projected @ problem.target, float(problem.target @ problem.target)
    # Far below rounding of the losses: terms that coincide must not divide by zero.
    normal += np.eye(normal.shape[1]) * (1e-12 * np.trace(normal, axis1=1, axis2=2)[:, None, None] + 1e-300)
    inverse = np.linalg.inv(normal)
    free = np.einsum("gij,gj->gi", inverse, right)
    rss_free = np.maximum(total - np.sum(free * right, axis=1), 0.0)
    # Of one or two terms the best that are not negative are the free ones, or one of them alone.
    single = np.maximum(right / np.einsum("gii->gi", normal), 0.0)
    gain = single * right
    alone = np.where(gain == gain.max(axis=1, keepdims=True), single, 0.0)
    inside = np.all(free >= 0, axis=1)
    rss = np.where(inside, rss_free, np.maximum(total - gain.max(axis=1), 0.0))
    return _Nodes(values, free, inverse, np.where(inside[:, None], free, alone), rss_free, rss)


def _columns(form: GapForm, values: Floats, problem: _Problem) -> Floats:
    """(nodes, terms, points): the gap for linear parameters of one."""
    points, frame = problem.points, problem.frame
    log_depth = np.log(points.depth)
    if form == "additive":
        alpha, shift = np.exp(values[:, :2, None]), values[:, 2, None]
        width = (points.x - math.log(12) - log_depth) / 2 - _mean_width(problem)
        depth = np.log((points.depth - shift) / (math.exp(frame.centre) - shift))
        # A slope of -1 at the centre, so that the linear parameters have one scale for all exponents.
        terms = [np.exp(-alpha[:, 0] * width) / alpha[:, 0], np.exp(-alpha[:, 1] * depth) / alpha[:, 1]]
        return np.stack(terms, axis=1)
    # Many nodes differ in γ and bend only.
    pairs, where = np.unique(values[:, :2], axis=0, return_inverse=True)
    low, high = (end[:, None] for end in _ends(pairs, frame))
    best = valley(form, low, high, points.x, frame)[where.ravel()]
    bend = values[:, 3, None]
    bent = bend_of(log_depth - frame.centre, bend)
    # The common curve of N takes up the square of the bent best depth.
    column = bent * (bent - 2 * bend_of(best - frame.centre, bend))
    return np.asarray(np.exp(-values[:, 2, None] * (points.x - frame.low)) * column)[:, None]


def _ends(values: Floats, frame: Frame) -> tuple[Floats, Floats]:
    """Both ends of the best depth: ln L* at the smallest and at the largest size."""
    return values[:, 0] - values[:, 1] * (frame.high - frame.low), values[:, 0]


def _box(form: GapForm, points: GapPoints) -> Floats:
    """(4, 2): both ends of each axis of the first grid."""
    if form == "additive":
        low, high = np.log(EXPONENTS)
        return np.array([[low, high], [low, high], [0, min(MOST_SHIFT, SHIFT * points.depth.min())], [0, 0]])
    shallow, deep = math.log(points.depth.min()), math.log(points.depth.max())
    # As N grows, neither depth nor width shrinks.
    return np.array([[shallow - OUTSIDE, deep + OUTSIDE], [1e-4, 1 - 1e-4], [0, DECAY], [-BEND, BEND]])


def _log_prior(form: GapForm, values: Floats) -> Floats:
    if form == "additive":
        return -values[:, 2] / SHIFT_SCALE
    return -values[:, 2] / DECAY_SCALE - (values[:, 3] / BEND_SD) ** 2 / 2


def _cells(box: Floats) -> Floats:
    """(nodes, 4): the centres of equal cells."""
    counts = np.where(box[:, 1] > box[:, 0], NODES, 1)
    axes = [low + (high - low) * (np.arange(n) + 0.5) / n for (low, high), n in zip(box, counts, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(box))


def _cell(box: Floats) -> Floats:
    return np.asarray((box[:, 1] - box[:, 0]) / np.array(NODES))


def _around(values: Floats, box: Floats) -> Floats:
    """The box about these nodes, with one cell more on each side."""
    low, high = values.min(axis=0) - 1.5 * _cell(box), values.max(axis=0) + 1.5 * _cell(box)
    return np.stack([np.maximum(low, box[:, 0]), np.minimum(high, box[:, 1])], axis=1)


def _names(form: GapForm) -> tuple[str, ...]:
    if form == "additive":
        return "c_m", "alpha_m", "c_l", "alpha_l", "shift"
    return "depth_smallest", "depth_largest", "k", "gamma", "bend"


def _physical(form: GapForm, values: Floats, linear: Floats, problem: _Problem) -> Floats:
    """(nodes, 5): the parameters in the order of `_names`."""
    if form == "additive":
        shift, alpha = values[:, 2], np.exp(values[:, :2])
        depth = np.log(math.exp(problem.frame.centre) - shift)
        centre = np.column_stack([np.full(len(values), _mean_width(problem)), depth])
        c = linear / alpha * np.exp(alpha * centre)
        return np.column_stack([c[:, 0], alpha[:, 0], c[:, 1], alpha[:, 1], shift])
    low, high = _ends(values, problem.frame)
    return np.column_stack([np.exp(low), np.exp(high), linear[:, 0], values[:, 2], values[:, 3]])


def _count_sizes(x: Floats) -> int:
    """Sizes that differ by more than the rounding of widths: groups of ln N no longer than 1/8 of the whole range."""
    count, start = 0, -math.inf
    for value in np.sort(x):
        if value > start + np.ptp(x) / 8:
            count, start = count + 1, float(value)
    return count


def _mean_width(problem: _Problem) -> float:
    """Mean ln d of the points."""
    return float((problem.points.x - math.log(12) - np.log(problem.points.depth)).mean() / 2)
