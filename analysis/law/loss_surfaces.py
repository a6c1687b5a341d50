"""Alternatives to the threshold law: two surfaces that give the loss as a function of size N and depth L.

- `additive` (Liu et al. 2026, arXiv 2602.05970): loss = E + c_m·d^-α_m + c_l·L^-α_l, with d = sqrt(N/(12·L)).
- `response`: a quadratic in ln N and ln L, without theory; the reference for what the points themselves support.

Liu et al. add a term in the training tokens D. Losses are compared here at equal tokens, where B·D^-β is a constant
that cannot be separated from E. The E below is their sum, not the entropy of the data.

The errors of the points are those of the curves: seed noise, with what the shapes of one seed or of one depth share,
and the misfit of each point. Both surfaces are fitted by generalised least squares.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.ndimage import minimum_filter
from scipy.optimize import minimize, nnls
from scipy.stats import f as fisher
from scipy.stats import norm
from scipy.stats import t as student

from analysis.curves import posterior
from analysis.curves.noise import Floats
from analysis.curves.shape_means import ShapeMeans
from analysis.intervals import Interval
from analysis.law.shape import check_size

SurfaceForm = Literal["additive", "response"]
SurfaceStatus = Literal["ok", "bound_hit", "not_converged", "insufficient"]

#: Range of α_m and α_l. Below it a power is nearly a logarithm, above it nearly a step.
EXPONENT = (0.01, 10.0)
#: Most local minima of the grid of exponents that are refined.
STARTS = 4
#: Tolerance of the refinement in ln α, and in the norm of the residuals over its lowest on the grid; most of its steps.
TOLERANCE, MOST_STEPS = 1e-9, 1000
#: Smallest ratio of the singular values of centred (ln N, ln L): below it depth and size move together.
COLLINEAR = 1e-4
#: Smallest ratio of the singular values of a scaled Jacobian whose inverse has correct digits.
SINGULAR = 1e-8
#: A surface whose AIC exceeds the lowest by more has essentially no support (Burnham and Anderson 2002, section 2.6).
SUPPORT = 10.0

_PARAMETERS: dict[SurfaceForm, int] = {"additive": 5, "response": 6}
_RESPONSE = ("b", "b_N", "b_L", "b_NN", "b_NL", "b_LL")


@dataclass(frozen=True)
class SurfaceFit:
    """One surface through the points of a study.

    Attributes:
        form: see the module.
        status: `ok`; `bound_hit`: the best parameters lie on a bound (`reason` names it); `not_converged`: the
            optimiser failed; `insufficient`: the points do not determine the surface.
        reason: of any status but `ok`.
        parameters: name -> value. `additive`: E, c_m, alpha_m, c_l, alpha_l. `response`: b, b_N, b_L, b_NN, b_NL, b_LL
            of u = ln N - log_params and v = ln L - log_depth, and these two centres.
        rmse: root mean square of the residuals, nats per token.
        points, dof: number of points, and of points less parameters.
        aicc: Akaike's criterion corrected for few points, with an estimated variance; comparable between surfaces of
            the same points only; None with too few points.
        covariance: of the six coefficients of `response`; of (ln c_m, alpha_m, ln c_l, alpha_l) of `additive`, None if
            the points do not determine them.
        scaled: the covariance is scaled by the residuals (Student's t), because the noise is not known or the residuals
            exceed it; else it follows from the noise alone (normal).
        params_range: smallest and largest N of the points.
        p_value: of the residuals against the noise (F test); None if that is not known.
    """

    form: SurfaceForm
    status: SurfaceStatus
    reason: str | None = None
    parameters: dict[str, float] = field(default_factory=dict)
    rmse: float | None = None
    points: int = 0
    dof: int = 0
    aicc: float | None = None
    covariance: tuple[tuple[float, ...], ...] | None = None
    scaled: bool = False
    params_range: tuple[float, float] | None = None
    p_value: float | None = None

    @property
    def usable(self) -> bool:
        """Whether the status is `ok` or `bound_hit`."""
        return self.status in ("ok", "bound_hit")

    def loss(self, params: npt.ArrayLike, depth: npt.ArrayLike) -> Floats:
        """Predicted loss, nats per token, elementwise over N and L (broadcast); NaN unless usable."""
        p = self.parameters
        n, layers = np.broadcast_arrays(np.asarray(params, dtype=float), np.asarray(depth, dtype=float))
        if not self.usable:
            return np.full(n.shape, np.nan)
        if self.form == "additive":
            width = np.sqrt(n / (12 * layers))
            return np.asarray(p["E"] + p["c_m"] * width ** -p["alpha_m"] + p["c_l"] * layers ** -p["alpha_l"])
        u, v = np.log(n) - p["log_params"], np.log(layers) - p["log_depth"]
        return np.asarray(_quadratic(u, v) @ np.array([p[name] for name in _RESPONSE]))

    def best_depth(self, params: float) -> float | None:
        """The depth of lowest loss at fixed N; None where there is no finite one, see `why_not`."""
        return self._best(params)[0]

    def why_not(self, params: float) -> str | None:
        """Why `best_depth` is None at this N; None where it is a number."""
        return self._best(params)[1]

    def interval(self, params: float, level: float = 0.95) -> Interval:
        """Interval of the best depth at fixed N by Fieller's method (1954); open without a covariance.

        It holds the depths at which the slope of the loss in ln L does not differ from zero at `level`; for `additive`
        the slope is ln of what a layer costs in width over what it saves in depth. Both are straight in ln L. The
        interval of `response` is exact for normal errors however weak the curvature, where a standard error of the
        ratio would be far too short; that of `additive` is first-order in its four parameters. An end is None where the
        data do not exclude that the loss keeps falling that way.
        """
        centre = self.best_depth(params)
        if self.covariance is None or centre is None:
            return None, None
        p = self.parameters
        if self.form == "response":
            origin = p["log_depth"]
            u = math.log(params) - p["log_params"]
            # The slope in v = ln L - origin is value[0] + v·value[1].
            gradients = np.array([[0, 0, 1, 0, u, 0], [0, 0, 0, 0, 0, 2.0]])
            value = gradients @ np.array([p[name] for name in _RESPONSE])
        else:
            origin = 0.0
            half, size = p["alpha_m"] / 2, math.log(params / 12)
            gradients = np.array([[1, 1 / p["alpha_m"] - size / 2, -1, -1 / p["alpha_l"]], [0, 0.5, 0, 1.0]])
            slope = half + p["alpha_l"]
            value = np.array([-slope * math.log(centre), slope])
        quantile = student.ppf((1 + level) / 2, self.dof) if self.scaled else norm.ppf((1 + level) / 2)
        ends = _fieller(
            value,
            gradients @ np.array(self.covariance) @ gradients.T,
            float(quantile),
            math.log(centre) - origin,
        )
        low, high = (None if end is None else _depth(end, origin) for end in ends)
        return low, high

    def _best(self, params: float) -> tuple[float | None, str | None]:
        check_size(params)
        if not self.usable:
            return None, self.reason
        p = self.parameters
        if self.form == "response":
            if p["b_LL"] <= 0:
                text = f"the surface is not convex in ln L (b_LL = {p['b_LL']:.3g}), so it has no minimum in depth"
                return None, text
            slope = p["b_L"] + p["b_NL"] * (math.log(params) - p["log_params"])
            best = _depth(-slope / (2 * p["b_LL"]), p["log_depth"])
            return (best, None) if best else (None, "the minimum lies beyond any finite depth")
        if p["c_m"] <= 0 or p["c_l"] <= 0:
            term, better = ("width term (c_m)", "deeper") if p["c_m"] <= 0 else ("depth term (c_l)", "wider")
            text = f"the fitted {term} is 0: {better} is always better, so there is no finite best depth"
            return None, text
        # d(loss)/dL = 0 at d = sqrt(N/(12·L)): L^(α_m/2 + α_l) = ratio.
        half, alpha = p["alpha_m"] / 2, p["alpha_l"]
        ratio = (
            math.log(p["c_l"] * alpha) - math.log(p["c_m"] * half) + half * (math.log(params) - math.log(12))
        )
        best = _depth(ratio / (half + alpha), 0.0)
        return (best, None) if best else (None, "the minimum lies beyond any finite depth")


def supported(surfaces: Sequence[SurfaceFit]) -> tuple[SurfaceFit, ...]:
    """The usable surfaces that the points do not rule out, lowest AICc first; those without an AICc come last.

    A surface is ruled out by its misfit: its AIC exceeds the lowest by `SUPPORT`. AICc would rule out the form with one
    parameter more wherever there are few points.
    """
    usable = sorted(
        (item for item in surfaces if item.usable), key=lambda item: (item.aicc is None, item.aicc or 0.0)
    )
    limit = min((value for item in usable if (value := _aic(item)) is not None), default=math.inf) + SUPPORT
    return tuple(item for item in usable if (value := _aic(item)) is None or value <= limit)


def _aic(item: SurfaceFit) -> float | None:
    """AICc without its correction for few points; None where there is no AICc."""
    if item.aicc is None:
        return None
    k = item.points - item.dof + 1
    return item.aicc - 2 * k * (k + 1) / (item.points - k - 1)


@dataclass(frozen=True)
class SurfacePoints:
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

    @cached_property
    def whitener(self) -> Floats:
        """(points, points), which makes the errors independent and of unit size; the identity without a covariance."""
        identity = np.eye(len(self.loss))
        if self.covariance is None:
            return identity
        root = np.linalg.cholesky(self.covariance)
        return np.asarray(solve_triangular(root, identity, lower=True, check_finite=False))

    def lacking(self, form: SurfaceForm) -> str | None:
        """Why the points cannot determine the surface."""
        count, needed = len(self.loss), _PARAMETERS[form] + 1
        if count < needed:
            return f"{needed} shapes are needed for {_PARAMETERS[form]} parameters; there are {count}"
        depths, sizes = (len(np.unique(np.round(v, 6))) for v in (np.log(self.depth), self.x))
        if depths < 3 or sizes < 3:
            return f"three depths and three sizes are needed; there are {depths} and {sizes}"
        centred = np.column_stack([self.x - self.x.mean(), np.log(self.depth) - np.log(self.depth).mean()])
        singular = np.linalg.svd(centred / np.linalg.norm(centred, axis=0), compute_uv=False)
        if singular[1] < COLLINEAR * singular[0]:
            return "depth and size move together, so their effects cannot be separated"
        return None

    def summary(self, form: SurfaceForm, whitened: Floats, residual: Floats) -> dict[str, Any]:
        """The attributes of `SurfaceFit` that follow from the residuals: whitened, and in nats per token."""
        count, k = len(self.loss), _PARAMETERS[form] + 1
        rss, dof, known = float(whitened @ whitened), count - _PARAMETERS[form], self.covariance is not None
        # The logarithm of a perfect fit would be minus infinity, so the mean square is at least that of rounding.
        rounding = (1e-15 * float(np.abs(self.loss).max())) ** 2
        mean = max(
            rss / count, rounding if self.covariance is None else rounding / np.diag(self.covariance).mean()
        )
        spare = count - k - 1
        return {
            "rmse": float(np.sqrt(np.mean(residual**2))),
            "points": count,
            "dof": dof,
            "aicc": count * math.log(mean) + 2 * k + 2 * k * (k + 1) / spare
            if spare > 0 and mean > 0
            else None,
            # With known noise a misfit beyond it must not make an interval too short; a smaller one is chance.
            "scaled": not known or rss > dof,
            "params_range": (float(np.exp(self.x.min())), float(np.exp(self.x.max()))),
            "p_value": float(fisher.sf(rss / dof, dof, min(self.noise_dof, 1e9))) if known else None,
        }


def points_of(means: ShapeMeans, misfit_sd: float | Floats = 0.0) -> SurfacePoints:
    """The shapes of a study; of very many, neighbours in ln N are averaged as for the curves.

    Args:
        means: of the study.
        misfit_sd: scatter of the shapes beyond the seed noise, nats per token; it is part of the covariance.
    """
    points = posterior.points_of(means, np.asarray(misfit_sd) ** 2)
    covariance = points.shared @ points.shared.T + np.diag(points.own) if points.known else None
    depth = np.array(means.depths, dtype=float)[points.rank]
    return SurfacePoints(
        depth, points.x, points.loss, covariance, means.noise.dof if points.known else math.inf
    )


def fit_surfaces(points: SurfacePoints, *, equal_tokens: bool = True) -> tuple[SurfaceFit, ...]:
    """Both surfaces through the same points: additive, response."""
    forms: tuple[SurfaceForm, ...] = ("additive", "response")
    return tuple(fit_surface(form, points, equal_tokens=equal_tokens) for form in forms)


def fit_surface(form: SurfaceForm, points: SurfacePoints, *, equal_tokens: bool = True) -> SurfaceFit:
    """Fit one surface by generalised least squares.

    The additive law holds at equal training tokens. Where they differ, its two terms would absorb that of the tokens,
    so it is not fitted; the quadratic absorbs it, if tokens follow N.
    """
    reason = points.lacking(form)
    if form == "additive" and not equal_tokens:
        reason = "shapes differ in training tokens, and the additive law holds at equal tokens"
    if reason is not None:
        return SurfaceFit(form, "insufficient", reason, points=len(points.loss))
    return _fit_additive(points) if form == "additive" else _fit_response(points)


def _fit_additive(points: SurfacePoints) -> SurfaceFit:
    """Loss = E + c_m·d^-α_m + c_l·L^-α_l with E, c >= 0 and α > 0, by variable projection (Golub and Pereyra 1973).

    For given exponents the coefficients solve a linear problem with non-negative unknowns, so only the exponents are
    searched, from the minima of a grid. A search in all five parameters is badly conditioned and stops early.
    """
    logs = np.column_stack([(points.x - np.log(12 * points.depth)) / 2, np.log(points.depth)])
    # Relative to the smallest width and depth every column lies in [0, 1], whatever the exponent.
    reference = logs.min(axis=0)
    root = points.whitener
    one, target = root.sum(axis=1), root @ points.loss

    def solve(exponents: Floats) -> tuple[Floats, float]:
        """Coefficients and the norm of the residuals."""
        design = np.column_stack([one, root @ np.exp(-exponents * (logs - reference))])
        lengths = np.linalg.norm(design, axis=0)
        coefficients, rest = nnls(design / lengths, target)
        return coefficients / lengths, float(rest)

    axis = np.geomspace(EXPONENT[0] * 2, EXPONENT[1] / 2, 20)
    cost = np.array([[solve(np.array([m, d]))[1] for d in axis] for m in axis])
    lowest = np.argwhere(cost == minimum_filter(cost, size=3, mode="nearest")).tolist()
    starts = sorted(lowest, key=lambda index: float(cost[tuple(index)]))[:STARTS]
    results = [
        minimize(
            lambda log: solve(np.exp(log))[1],
            np.log(axis[start]),
            method="Nelder-Mead",
            bounds=[tuple(np.log(EXPONENT))] * 2,
            options={"xatol": TOLERANCE, "fatol": TOLERANCE * cost.min(), "maxiter": MOST_STEPS},
        )
        for start in starts
    ]
    best = min(results, key=lambda found: float(found.fun))
    exponents = np.exp(best.x)
    coefficients, _ = solve(exponents)
    scale = np.exp(exponents * reference)
    (alpha_m, alpha_l), (c_m, c_l) = exponents.tolist(), (coefficients[1:] * scale).tolist()
    values = {"E": float(coefficients[0]), "c_m": c_m, "alpha_m": alpha_m, "c_l": c_l, "alpha_l": alpha_l}
    hits = [f"{name} = 0" for name in ("E", "c_m", "c_l") if values[name] == 0]
    for name in ("alpha_m", "alpha_l"):
        hits += [f"{name} = {end:g}" for end in EXPONENT if abs(values[name] - end) <= 1e-6 * max(end, 1e-2)]
    status: SurfaceStatus = "ok"
    reason = None
    if not best.success:
        status, reason = "not_converged", f"the optimiser stopped early: {best.message}"
    elif hits:
        status, reason = "bound_hit", f"the best fit lies on a bound: {', '.join(hits)}"
    by_width, by_depth = coefficients[1:, None] * np.exp(-exponents * (logs - reference)).T
    residual = points.loss - coefficients[0] - by_width - by_depth
    summary = points.summary("additive", root @ residual, residual)
    width, depth = logs.T
    # Derivatives of the loss by ln c_m, α_m, ln c_l, α_l and E.
    columns = np.column_stack([by_width, -width * by_width, by_depth, -depth * by_depth, np.ones_like(depth)])
    covariance = _covariance(root @ columns, root @ residual, summary)
    return SurfaceFit("additive", status, reason, values, covariance=_rows(covariance, 4), **summary)


def _covariance(jacobian: Floats, residual: Floats, summary: dict[str, Any]) -> Floats | None:
    """Covariance of the parameters by the whitened Jacobian at the minimum; None if it is singular."""
    norms = np.linalg.norm(jacobian, axis=0)
    if not np.all(norms > 0):
        return None
    r = np.linalg.qr(jacobian / norms, mode="r")
    singular = np.linalg.svd(r, compute_uv=False)
    if singular[-1] < SINGULAR * singular[0]:
        return None
    inverse = np.linalg.inv(r) / norms[:, None]
    spread = float(residual @ residual) / summary["dof"] if summary["scaled"] else 1.0
    return np.asarray(inverse @ inverse.T * spread)


def _rows(covariance: Floats | None, count: int) -> tuple[tuple[float, ...], ...] | None:
    return None if covariance is None else tuple(map(tuple, covariance[:count, :count].tolist()))


def _fit_response(points: SurfacePoints) -> SurfaceFit:
    """Loss quadratic in ln N and ln L, by linear least squares.

    L*(N) = exp(-(b_L + b_NL·ln N)/(2·b_LL)) where b_LL > 0: a power law of N.
    """
    centre_x, centre_v = float(points.x.mean()), float(np.log(points.depth).mean())
    design = _quadratic(points.x - centre_x, np.log(points.depth) - centre_v)
    whitened, target = points.whitener @ design, points.whitener @ points.loss
    norms = np.linalg.norm(whitened, axis=0)
    singular = np.linalg.svd(whitened / norms, compute_uv=False)
    if singular[-1] < COLLINEAR * singular[0]:
        reason = "the shapes do not determine all six coefficients of a quadratic"
        return SurfaceFit("response", "insufficient", reason, points=len(points.loss))
    beta = np.linalg.lstsq(whitened / norms, target, rcond=None)[0] / norms
    residual = target - whitened @ beta
    summary = points.summary("response", residual, points.loss - design @ beta)
    values = dict(zip(_RESPONSE, beta.tolist(), strict=True))
    values |= {"log_params": centre_x, "log_depth": centre_v}
    covariance = _rows(_covariance(whitened, residual, summary), 6)
    return SurfaceFit("response", "ok", None, values, covariance=covariance, **summary)


def _quadratic(u: Floats, v: Floats) -> Floats:
    """(..., 6): 1, u, v, u², uv, v²."""
    return np.stack([np.ones_like(u), u, v, u**2, u * v, v**2], axis=-1)


def _fieller(
    value: Floats, covariance: Floats, quantile: float, best: float
) -> tuple[float | None, float | None]:
    """The v at which value[0] + v·value[1] does not differ from zero, `best` among them; None for an open end."""
    form = np.outer(value, value) - quantile**2 * covariance
    a, half_b, c = float(form[1, 1]), float(form[0, 1]), float(form[0, 0])
    root = half_b**2 - a * c
    if root <= 0:
        return None, None
    # The root that is not lost to cancellation, and the other one from the product of both.
    q = -(half_b + math.copysign(math.sqrt(root), half_b))
    low, high = sorted((q / a if a else math.inf, c / q))
    if a > 0:
        return low, high
    # Two half-lines. Between them the slope has one sure sign, so of a curve with a minimum only the half with the
    # estimate can hold it.
    return (high, None) if best >= high else (None, low)


def _depth(v: float, centre: float) -> float | None:
    """exp(v + centre), None where it is no positive finite number."""
    return math.exp(v + centre) if abs(v + centre) < 700 else None
