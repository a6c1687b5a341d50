"""Rivals of the threshold law: two surfaces that give the loss as a function of size N and depth L.

- `additive` (Liu et al. 2026, arXiv 2602.05970): loss = E + c_m·d^-α_m + c_l·L^-α_l, with d = sqrt(N/(12·L)).
- `response`: a quadratic in ln N and ln L, without theory; the reference for what the points themselves support.

Liu et al. add a term in the training tokens D. Losses are compared here at equal tokens, where B·D^-β is a constant
that cannot be separated from E. The E below is their sum, not the entropy of the data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.ndimage import minimum_filter
from scipy.optimize import least_squares, nnls
from scipy.stats import f as fisher
from scipy.stats import norm
from scipy.stats import t as student

from analysis.curves.noise import Floats
from analysis.curves.shape_means import ShapeMeans
from analysis.intervals import Interval
from analysis.law.shape import check_size

SurfaceForm = Literal["additive", "response"]
SurfaceStatus = Literal["ok", "bound_hit", "not_converged", "insufficient"]

#: Range of α_m and α_l. Below it a power is nearly a logarithm, above it nearly a step.
EXPONENT = (0.01, 10.0)
#: Most local minima of the grid that are refined.
STARTS = 6
#: Relative tolerance of the optimiser for the sum of squares, the exponents and the gradient.
TOLERANCE = 1e-12
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
        rmse: weighted root mean square of the residuals, nats per token.
        points, dof: number of points, and of points less parameters.
        aicc: Akaike's criterion corrected for few points, with an estimated variance; comparable between surfaces of
            the same points only; None with too few points.
        message: of the optimiser, how many starts reached the same minimum, and the size of the grid.
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
    message: str | None = None
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


def points_of(means: ShapeMeans, misfit_sd: npt.ArrayLike = 0.0) -> pd.DataFrame:
    """One row per shape, for the fits here: depth, params, loss, and if the noise is known weight and noise_dof.

    Args:
        means: of the study.
        misfit_sd: scatter of the shapes beyond the seed noise, nats per token; it is part of the weights.
    """
    frame = pd.DataFrame({"depth": means.depth, "params": np.exp(means.x), "loss": means.mean})
    if not means.noise.known:
        return frame
    return frame.assign(weight=1 / (means.se**2 + np.square(misfit_sd)), noise_dof=means.noise.dof)


def fit_surfaces(points: pd.DataFrame, *, equal_tokens: bool = True) -> tuple[SurfaceFit, ...]:
    """Both surfaces through the same points: additive, response."""
    forms: tuple[SurfaceForm, ...] = ("additive", "response")
    return tuple(fit_surface(form, points, equal_tokens=equal_tokens) for form in forms)


def fit_surface(form: SurfaceForm, points: pd.DataFrame, *, equal_tokens: bool = True) -> SurfaceFit:
    """Fit one surface by weighted least squares to points as of `points_of`, in any order.

    The additive law holds at equal training tokens. Where they differ, its two terms would absorb that of the tokens,
    so it is not fitted; the quadratic absorbs it, if tokens follow N.
    """
    data = _Points.read(points)
    reason = data.lacking(form)
    if form == "additive" and not equal_tokens:
        reason = "shapes differ in training tokens, and the additive law holds at equal tokens"
    if reason is not None:
        return SurfaceFit(form, "insufficient", reason, points=len(data.loss))
    return _fit_additive(data) if form == "additive" else _fit_response(data)


def _fit_additive(data: "_Points") -> SurfaceFit:
    """Loss = E + c_m·d^-α_m + c_l·L^-α_l with E, c >= 0 and α > 0, by variable projection (Golub and Pereyra 1973).

    For given exponents the coefficients solve a linear problem with non-negative unknowns, so only the exponents are
    searched, from the minima of a grid. A search in all five parameters is badly conditioned and stops early.
    """
    logs = np.column_stack([(data.x - np.log(12 * data.depth)) / 2, np.log(data.depth)])
    # Relative to the smallest width and depth every column lies in [0, 1], whatever the exponent.
    reference = logs.min(axis=0)
    logs = logs - reference
    root = np.sqrt(data.weight)
    target = root * data.loss
    # Sums of squares in units of the spread of the losses: the optimiser's gradient test is absolute.
    centred = data.loss - np.average(data.loss, weights=data.weight)
    unit = math.sqrt(float(np.mean(data.weight)) * max(float(np.mean(centred**2)), 1e-30))

    def columns(theta: Floats) -> Floats:
        return np.asarray(root[:, None] * np.column_stack([np.ones(len(logs)), np.exp(-theta * logs)]))

    def solve(theta: Floats) -> tuple[Floats, Floats, Floats]:
        design = columns(theta)
        norms = np.linalg.norm(design, axis=0)
        q, r = np.linalg.qr(design / norms)
        coefficients = nnls(r, q.T @ target)[0]
        return design, coefficients / norms, (design @ (coefficients / norms) - target) / unit

    def jacobian(theta: Floats) -> Floats:
        # Kaufman 1975: exact gradient, and for small residuals the full step; held coefficients have no column.
        design, coefficients, _ = solve(theta)
        q = np.linalg.qr(design[:, coefficients > 0])[0]
        slope = root[:, None] * np.asarray(-logs * np.exp(-theta * logs) * coefficients[1:]) / unit
        return np.asarray(slope - q @ (q.T @ slope))

    axis = np.geomspace(EXPONENT[0] * 2, EXPONENT[1] / 2, 24)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    cost = np.empty(grid.shape[:-1])
    for index in np.ndindex(cost.shape):
        design = columns(grid[index])
        q, r = np.linalg.qr(design / np.linalg.norm(design, axis=0))
        along = q.T @ target
        cost[index] = nnls(r, along)[1] ** 2 - along @ along
    lowest = np.argwhere(cost == minimum_filter(cost, size=3, mode="nearest")).tolist()
    starts = sorted(lowest, key=lambda index: float(cost[tuple(index)]))[:STARTS]
    results = [
        least_squares(
            lambda theta: solve(theta)[2],
            grid[tuple(start)],
            jac=jacobian,
            bounds=EXPONENT,
            x_scale=np.maximum(np.abs(grid[tuple(start)]), 1e-3),
            ftol=TOLERANCE,
            xtol=TOLERANCE,
            gtol=TOLERANCE,
            max_nfev=400,
        )
        for start in starts
    ]
    least = min(found.cost for found in results)
    same = [found for found in results if found.cost <= least * (1 + 1e-6) + 1e-18]
    # Prefer a start that also converged among those that reached the same minimum.
    best = min(same, key=lambda found: (found.status <= 0, found.cost))
    _, coefficients, misfit = solve(best.x)
    scale = np.exp(best.x * reference)
    values = {
        "E": float(coefficients[0]),
        "c_m": float(coefficients[1] * scale[0]),
        "alpha_m": float(best.x[0]),
        "c_l": float(coefficients[2] * scale[1]),
        "alpha_l": float(best.x[1]),
    }
    hits = [f"{name} = 0" for name in ("E", "c_m", "c_l") if values[name] == 0]
    for name in ("alpha_m", "alpha_l"):
        hits += [f"{name} = {end:g}" for end in EXPONENT if abs(values[name] - end) <= 1e-6 * max(end, 1e-2)]
    message = (
        f"{best.message} {len(same)} of {len(results)} starts, the local minima of a grid of {cost.size}, reached this "
        "minimum."
    )
    status: SurfaceStatus = "ok"
    reason = None
    if best.status <= 0:
        status, reason = "not_converged", f"the optimiser stopped early: {message}"
    elif hits:
        status, reason = "bound_hit", f"the best fit lies on a bound: {', '.join(hits)}"
    rss = float(misfit @ misfit) * unit**2
    scaled = data.scaled(rss, "additive")
    spread = rss / (len(logs) - _PARAMETERS["additive"]) if scaled else 1.0
    covariance = _additive_covariance(data, values, spread)
    summary = data.summary("additive", rss)
    return SurfaceFit(
        "additive", status, reason, values, message=message, covariance=covariance, scaled=scaled, **summary
    )


def _additive_covariance(
    data: "_Points", values: dict[str, float], spread: float
) -> tuple[tuple[float, ...], ...] | None:
    """Of (ln c_m, alpha_m, ln c_l, alpha_l), by the Jacobian at the minimum; None if it is singular."""
    width, depth = (data.x - np.log(12 * data.depth)) / 2, np.log(data.depth)
    by_width = values["c_m"] * np.exp(-values["alpha_m"] * width)
    by_depth = values["c_l"] * np.exp(-values["alpha_l"] * depth)
    columns = (by_width, -width * by_width, by_depth, -depth * by_depth, np.ones_like(depth))
    jacobian = np.sqrt(data.weight)[:, None] * np.column_stack(columns)
    norms = np.linalg.norm(jacobian, axis=0)
    if not np.all(norms > 0):
        return None
    r = np.linalg.qr(jacobian / norms, mode="r")
    singular = np.linalg.svd(r, compute_uv=False)
    if singular[-1] < SINGULAR * singular[0]:
        return None
    inverse = np.linalg.inv(r) / norms[:, None]
    return tuple(tuple(float(value) for value in row[:4]) for row in (inverse @ inverse.T * spread)[:4])


def _fit_response(data: "_Points") -> SurfaceFit:
    """Loss quadratic in ln N and ln L, by linear least squares.

    L*(N) = exp(-(b_L + b_NL·ln N)/(2·b_LL)) where b_LL > 0: a power law of N.
    """
    centre_x, centre_v = float(data.x.mean()), float(np.log(data.depth).mean())
    design = _quadratic(data.x - centre_x, np.log(data.depth) - centre_v)
    root = np.sqrt(data.weight)
    q, r = np.linalg.qr(design * root[:, None])
    singular = np.linalg.svd(r / np.linalg.norm(r, axis=0), compute_uv=False)
    if singular[-1] < COLLINEAR * singular[0]:
        reason = "the shapes do not determine all six coefficients of a quadratic"
        return SurfaceFit("response", "insufficient", reason, points=len(data.loss))
    beta = np.linalg.solve(r, q.T @ (root * data.loss))
    residual = root * (data.loss - design @ beta)
    rss, dof = float(residual @ residual), len(data.loss) - 6
    inverse = np.linalg.inv(r)
    scaled = data.scaled(rss, "response")
    covariance = inverse @ inverse.T * (rss / dof if scaled else 1.0)
    values = dict(zip(_RESPONSE, (float(value) for value in beta), strict=True))
    values |= {"log_params": centre_x, "log_depth": centre_v}
    return SurfaceFit(
        form="response",
        status="ok",
        parameters=values,
        message="linear least squares",
        covariance=tuple(tuple(float(value) for value in row) for row in covariance),
        scaled=scaled,
        **data.summary("response", rss),
    )


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


@dataclass(frozen=True)
class _Points:
    """Points as arrays, ordered, so that a fit does not depend on the order of the rows."""

    depth: Floats
    x: Floats
    loss: Floats
    weight: Floats
    known: bool
    noise_dof: float

    @classmethod
    def read(cls, points: pd.DataFrame) -> "_Points":
        depth, params, loss = (points[name].to_numpy(dtype=float) for name in ("depth", "params", "loss"))
        weight = points["weight"].to_numpy(dtype=float) if "weight" in points else np.ones(len(points))
        order = np.lexsort((weight, loss, depth, params))
        known = bool(np.any(weight != 1))
        noise_dof = float(points["noise_dof"].iloc[0]) if "noise_dof" in points else math.inf
        return cls(depth[order], np.log(params[order]), loss[order], weight[order], known, noise_dof)

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

    def scaled(self, rss: float, form: SurfaceForm) -> bool:
        """Whether errors are scaled by the residuals.

        With known noise a misfit beyond it must not make an interval too short; a smaller one is chance.
        """
        return not self.known or rss > len(self.loss) - _PARAMETERS[form]

    def summary(self, form: SurfaceForm, rss: float) -> dict[str, Any]:
        """The attributes of `SurfaceFit` that follow from the sum of squares."""
        count, k = len(self.loss), _PARAMETERS[form] + 1
        # The logarithm of a perfect fit would be minus infinity, so the mean square is at least that of rounding.
        mean = max(rss / count, float(np.mean(self.weight)) * (1e-15 * float(np.abs(self.loss).max())) ** 2)
        spare = count - k - 1
        return {
            "rmse": math.sqrt(rss / float(self.weight.sum())),
            "points": count,
            "dof": count - _PARAMETERS[form],
            "aicc": count * math.log(mean) + 2 * k + 2 * k * (k + 1) / spare
            if spare > 0 and mean > 0
            else None,
            "params_range": (float(np.exp(self.x.min())), float(np.exp(self.x.max()))),
            "p_value": float(fisher.sf(rss / (count - k + 1), count - k + 1, min(self.noise_dof, 1e9)))
            if self.known
            else None,
        }
