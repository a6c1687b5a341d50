"""From a threshold law to shapes: N -> depth and width with a band; and the published law.

The best depth for N solves 12·L·exp(2(a + b·L)) = N, the width is sqrt(N / (12·L)) (Levine et al. 2020,
section 5.2; this rule reproduces their table of GPT-3 sizes when N is 12·L·d² of the trained model, not its
nominal size).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import wrightomega

from analysis.curves import Floats
from analysis.errors import InputError
from analysis.threshold import ThresholdFit


@dataclass(frozen=True)
class Law:
    """ln d = a + b·L with the covariance of (a, b).

    Attributes:
        source: where it comes from, in words.
        depth_range: smallest and largest depth (of the shallower net) it was fitted on; beyond, it
            extrapolates.
        params_range: smallest and largest N of the fitted crossings, where known.
    """

    a: float
    b: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    source: str
    depth_range: tuple[float, float]
    params_range: tuple[float, float] | None = None

    def width(self, depth: float) -> float:
        """The width at which a net of this depth is overtaken, exp(a + b·L)."""
        return math.exp(self.a + self.b * depth)


#: a and b as quoted by BloombergGPT and BigScience; covariance as recalled from the paper's third version and
#: checked against the errors of N it quotes. Fitted on depths 6-48 of English text, vocabulary 2000: another
#: regime than a small study's.
LEVINE2020 = Law(
    a=5.039,
    b=5.55e-2,
    covariance=((9.4e-4, -3.74e-5), (-3.74e-5, 1.7e-6)),
    source="Levine et al. 2020 (arXiv 2006.12467)",
    depth_range=(6, 36),
    params_range=(3.34e6, 5.59e8),
)


@dataclass(frozen=True)
class Transition:
    """The size at which a depth is overtaken by deeper nets.

    Attributes:
        depth: L.
        params: N = 12·L·exp(2(a + b·L)).
        width: exp(a + b·L).
        relative_error: one standard error of N over N, from the full covariance.
    """

    depth: float
    params: float
    width: float
    relative_error: float


def law_of(fit: ThresholdFit, source: str = "this study") -> Law | None:
    """The law to project with, or None when the fit has none."""
    if (
        fit.status != "ok"
        or fit.form != "log-linear"
        or fit.a is None
        or fit.b is None
        or fit.covariance is None
    ):
        return None
    return Law(fit.a, fit.b, fit.covariance, source, (min(fit.depths), max(fit.depths)), fit.params_range)


def n_transition(law: Law, depth: float) -> Transition:
    """N_transition(L) = 12·L·exp(2a)·exp(2bL) (eq. 11) with its error 2·sqrt(var a + L²·var b + 2·L·cov)."""
    if not depth > 0:
        raise InputError(f"The depth is {depth:g}; it must be positive.")
    (va, cab), (_, vb) = law.covariance
    error = 2 * math.sqrt(max(va + depth**2 * vb + 2 * depth * cab, 0.0))
    width = law.width(depth)
    return Transition(depth, 12 * depth * width**2, width, error)


def solve_depth(a: Floats, b: Floats, params: float) -> Floats:
    """L with 12·L·exp(2(a + b·L)) = N, elementwise.

    With w = 2bL the equation reads w + ln w = ln(N·2b/12) - 2a, which is the Wright omega function: no
    bracket, no overflow. Where b <= 0 the threshold never rises with depth and no finite depth is ever deep
    enough: +inf.
    """
    a, b = np.broadcast_arrays(np.asarray(a, dtype=float), np.asarray(b, dtype=float))
    rising = b > 0
    slope = np.where(rising, b, 1.0)
    depth = wrightomega(math.log(params / 12) - 2 * a + np.log(2 * slope)) / (2 * slope)
    return np.asarray(np.where(rising, depth, np.inf), dtype=float)


def recommend(
    law: Law, params: Sequence[float], level: float = 0.95, draws: int = 20_000, seed: int = 0
) -> list[dict[str, Any]]:
    """The best shape for each N with a band.

    Args:
        law: fitted or published.
        params: budgets N = 12·L·d² (non-embedding parameters).
        level: of the band.
        draws: of (a, b) from a normal distribution with the law's covariance.
        seed: of the draws.

    Returns:
        One dict a budget: `params`, `depth` (whole, at least 1), `width` (whole, sqrt(N/(12·depth))),
        `depth_exact` and `width_exact` (the real solution), `depth_interval` and `width_interval` (real; an
        end is None where the draws have no finite one), `extrapolated` (the depth lies outside the law's
        data), `unbounded_share` (share of draws with b <= 0, in which depth has no limit; they count as
        infinite depth), `level` and `law`.

    Raises:
        InputError: a budget that is not positive and finite, or a law with b <= 0.
    """
    if not law.b > 0:
        raise InputError(
            f"The law of {law.source} has the slope b = {law.b:.3g}; a slope that is not "
            "positive gives no best depth. Use the measured best shapes, or another law (--law levine2020)."
        )
    drawn = np.random.default_rng(seed).multivariate_normal(
        [law.a, law.b], np.array(law.covariance), size=draws, method="eigh"
    )
    return [_recommend_one(law, float(budget), level, drawn) for budget in params]


def _recommend_one(law: Law, params: float, level: float, drawn: Floats) -> dict[str, Any]:
    if not (math.isfinite(params) and params > 0):
        raise InputError(f"A budget is {params:g}; it must be a positive number of parameters, as 7e9.")
    exact = float(solve_depth(np.array(law.a), np.array(law.b), params))
    depths = solve_depth(drawn[:, 0], drawn[:, 1], params)
    low, high = (
        float(value)
        for value in np.quantile(depths, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    )
    depth = max(1, round(exact))
    return {
        "params": params,
        "depth": depth,
        "width": max(1, round(_width(params, depth))),
        "depth_interval": [low, high if math.isfinite(high) else None],
        # The budget is fixed, so the deepest shape of the band is the narrowest.
        "width_interval": [_width(params, high) if math.isfinite(high) else None, _width(params, low)],
        # Half a layer of grace: the whole depth that is recommended is then one that was fitted.
        "extrapolated": not law.depth_range[0] - 0.5 <= exact <= law.depth_range[1] + 0.5,
        "depth_exact": exact,
        "width_exact": _width(params, exact),
        "unbounded_share": float(np.mean(~np.isfinite(depths))),
        "level": level,
        "law": law.source,
    }


def _width(params: float, depth: float) -> float:
    return math.sqrt(params / (12 * depth))
