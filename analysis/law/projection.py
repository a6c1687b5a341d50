"""Project a threshold law to shapes: N -> depth and width with intervals; and the published law.

The best depth for N solves 12·L·exp(2(a + b·L)) = N, the width is sqrt(N / (12·L)) (Levine et al. 2020,
section 5.2; this rule reproduces their table of GPT-3 sizes if N is 12·L·d² of the trained model, not its
nominal size). The module uses `math` only, so that a recommendation from a published law loads no numerical library.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

from analysis.errors import InputError
from analysis.intervals import Interval, Region, width_of

#: Points of an ellipse: its extremes are met to (pi / 720)² / 2, that is 1e-5 of the half-width.
_POINTS = 720


@dataclass(frozen=True)
class Law:
    """ln d = a + b·L with the uncertainty of (a, b).

    Attributes:
        covariance: of (a, b).
        source: where it comes from, in words.
        depth_range: smallest and largest depth of its crossings, (nan, nan) if not known.
        level: confidence of `region`, and so of every interval from it.
        region: the boundary of {(a, b): 2·(max loglik - loglik(a, b)) <= chi²₁(level)}. The profile-likelihood
            interval of any scalar g(a, b) is the range of g over that set; for a g that is monotone in a and in
            b the boundary holds both ends. `open` marks a point where the search was cut off: the set extends beyond
            it, so a range that ends there is open. Empty: the ellipse of the covariance is used.
        dof: degrees of freedom of the covariance; None is a known covariance, 4 that of a line through six crossings.
    """

    a: float
    b: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    source: str
    depth_range: tuple[float, float]
    level: float = 0.95
    region: Region = ()
    dof: Literal[4] | None = None

    def width(self, depth: float) -> float:
        """The width at which a model of this depth is overtaken, exp(a + b·L)."""
        return _exp(self.a + self.b * depth)

    def boundary(self) -> Region:
        """`region`, or if that is empty the ellipse of the covariance: by Student's t of `dof`, or normal."""
        if self.region:
            return self.region
        if not 0 < self.level < 1:
            raise InputError(f"The level is {self.level:g}; it must lie between 0 and 1, as 0.95.")
        (va, cab), (_, vb) = self.covariance
        z = _student4(self.level) if self.dof else NormalDist().inv_cdf((1 + self.level) / 2)
        # The Cholesky factor of the covariance turns a circle into the ellipse.
        sa = math.sqrt(va)
        along = cab / sa if sa else 0.0
        across = math.sqrt(max(vb - along**2, 0.0))
        points = []
        for index in range(_POINTS):
            angle = 2 * math.pi * index / _POINTS
            x, y = z * math.cos(angle), z * math.sin(angle)
            points.append((self.a + sa * x, self.b + along * x + across * y, False))
        return tuple(points)

    def extrapolates(self, depth: float) -> bool:
        """Whether this depth lies outside the fitted ones by more than half a layer, or these are not known."""
        return outside_depths(self.depth_range, depth)


def _student4(level: float) -> float:
    """The quantile of Student's t with four degrees of freedom at (1 + level) / 2, in closed form (Shaw 2006)."""
    alpha = math.sqrt(1 - level**2)
    return 2 * math.sqrt(math.cos(math.acos(alpha) / 3) / alpha - 1)


def outside_depths(fitted: tuple[float, float], depth: float) -> bool:
    """Whether a depth lies outside a range by more than half a layer, or the range is not known (NaN)."""
    # No comparison with NaN is true.
    return not fitted[0] - 0.5 <= depth <= fitted[1] + 0.5


#: a and b as quoted by BloombergGPT and BigScience; covariance as recalled from the paper's third version and
#: checked against the errors of N it quotes. Fitted on depths 6-48 of English text, vocabulary 2000: another
#: regime than a small study's. It is a line through six crossings.
LEVINE2020 = Law(
    a=5.039,
    b=5.55e-2,
    covariance=((9.4e-4, -3.74e-5), (-3.74e-5, 1.7e-6)),
    source="Levine et al. 2020 (arXiv 2006.12467)",
    depth_range=(6, 36),
    dof=4,
)


@dataclass(frozen=True)
class Transition:
    """The size N at which a depth is overtaken by deeper models, and the width there.

    `relative_error` is one standard error of N over N, from the full covariance; `params_interval` is at the law's
    level, with an end of None if the law sets no limit.
    """

    depth: float
    params: float
    width: float
    relative_error: float
    params_interval: Interval


def n_transition(law: Law, depth: float) -> Transition:
    """N_transition(L) = 12·L·exp(2a)·exp(2bL) (eq. 11) with its error 2·sqrt(var a + L²·var b + 2·L·cov).

    A model of depth L with N above it is too shallow, below it too deep.

    Raises:
        InputError: a depth that is not positive, or so deep that N is beyond the numbers of a computer.
    """
    if not depth > 0:
        raise InputError(f"The depth is {depth:g}; it must be positive.")
    width = law.width(depth)
    params = 12 * depth * width**2 if width < 1e150 else math.inf
    if not math.isfinite(params):
        low, high = law.depth_range
        fitted = "depths the file does not name" if math.isnan(low) else f"depths {low:g} to {high:g}"
        raise InputError(
            f"The law of {law.source} gives no finite size at which {depth:g} layers are overtaken (the law was fitted "
            f"on {fitted})."
        )
    interval = range_over(law, lambda a, b: 12 * depth * _exp(2 * (a + b * depth)))
    return Transition(depth, params, width, _relative_error(law, depth), interval)


def solve_depth(a: float, b: float, params: float) -> float:
    """L with 12·L·exp(2(a + b·L)) = N.

    With w = 2bL the equation reads w + ln w = ln(N·2b/12) - 2a, whose solution is the Wright omega function. Solving
    for ln w avoids overflow and keeps all digits of small depths. The result is +inf if b <= 0, because the threshold
    then does not rise with depth.
    """
    if not b > 0:
        return math.inf
    slope = math.log(2 * b)
    c = math.log(params / 12) - 2 * a + slope
    # u + exp(u) = c by Newton's method. The function is convex and increasing and the start lies right of the root, so
    # the steps go left until rounding ends them.
    nearer = math.log(c) if c > 1 else c
    u = math.inf
    while nearer < u:
        u, w = nearer, math.exp(nearer)
        nearer = u - (u + w - c) / (1 + w)
    return _exp(u - slope)


def recommend(law: Law, params: Sequence[float], level: float | None = None) -> list[dict[str, Any]]:
    """The best shape for each N with intervals. Deterministic.

    Args:
        law: fitted or published.
        params: budgets N = 12·L·d² (non-embedding parameters).
        level: by default the law's, the only one possible for a law with a region.

    Returns:
        One dict per budget: `depth` is round(L*), the paper's rule, and at least 1; `width` is sqrt(N/(12·depth));
        `depth_exact` and `width_exact` are the real solution. The intervals are those of the profile likelihood at
        fixed N, with an end of None (and then `unbounded`) where the law sets no limit; `depth_error` and `width_error`
        are one standard error at fixed N over the value. `n_transition` of `depth` has its own, much larger error.

    Raises:
        InputError: a budget that is not finite or below one parameter, a law with b <= 0, or another level than a law's
            region has.
    """
    if not law.b > 0:
        raise InputError(
            f"The law of {law.source} has the slope b = {law.b:.3g}; a slope that is not "
            "positive gives no best depth. Use the measured best shapes, or another law (--law levine2020)."
        )
    if level is not None and level != law.level:
        if law.region:
            raise InputError(
                f"The law of {law.source} has intervals at the level {law.level:g} and not at "
                f"{level:g}; fit the runs again with `interplay fit RUNS --level {level:g}`."
            )
        law = replace(law, level=level)
    return [_recommend_one(law, float(budget)) for budget in params]


def _recommend_one(law: Law, params: float) -> dict[str, Any]:
    if not 1 <= params < math.inf:
        raise InputError(f"A budget is {params:g}; it must be a positive number of parameters, as 7e9.")
    exact = solve_depth(law.a, law.b, params)
    if not math.isfinite(exact):
        raise InputError(
            f"The law of {law.source} (a = {law.a:.3g}, b = {law.b:.3g}) gives no finite depth for N = {params:g}. "
            "Use the measured best shapes, or another law (--law levine2020)."
        )
    interval = range_over(law, lambda a, b: solve_depth(a, b, params))
    # dL/L = -(relative error of N at fixed L) / (1 + 2bL).
    depth_error = _relative_error(law, exact) / (1 + 2 * law.b * exact)
    return shape_document(law, params, exact, interval, depth_error, n_transition(law, max(1, round(exact))))


def shape_document(
    law: Any, params: float, exact: float, interval: Interval, depth_error: float, transition: Transition
) -> dict[str, Any]:
    """The best shape for N as `recommend` returns it, from the best depth with its interval and relative error.

    `law` has `source`, `level` and `extrapolates` as `Law` has.
    """
    low, high = interval
    depth = max(1, round(exact))
    # d goes as 1/sqrt(L) where N is fixed.
    return {
        "params": params,
        "depth": depth,
        "width": max(1, round(width_of(params, depth))),
        "depth_interval": [low, high],
        # The budget is fixed, so the deepest shape of the interval is the narrowest.
        "width_interval": [width_of(params, end) if end else None for end in (high, low)],
        "extrapolated": law.extrapolates(exact),
        "depth_exact": exact,
        "width_exact": width_of(params, exact),
        "depth_error": depth_error,
        "width_error": depth_error / 2,
        "unbounded": low is None or high is None,
        "n_transition": asdict(transition),
        "level": law.level,
        "law": law.source,
        "error_quoted": f"{100 * law.level:.3g} % intervals at fixed N; n_transition has its own error",
    }


def _relative_error(law: Law, depth: float) -> float:
    """One standard error of N_transition(depth) over its value."""
    (va, cab), (_, vb) = law.covariance
    # A float, because the square of a large whole number may be too large to become one.
    depth = float(depth)
    return 2 * math.sqrt(max(va + depth * depth * vb + 2 * depth * cab, 0.0))


def range_over(law: Law, of: Callable[[float, float], float]) -> Interval:
    """The range of a monotone function of (a, b) over the law's region; an infinite end and an open one are None."""
    found = [(of(a, b), is_open) for a, b, is_open in law.boundary()]
    found.append((of(law.a, law.b), False))
    # Of two points with the same value the open one counts.
    low, low_open = min(found, key=lambda item: (item[0], not item[1]))
    high, high_open = max(found)
    return (
        None if low_open or not math.isfinite(low) else low,
        None if high_open or not math.isfinite(high) else high,
    )


def _exp(x: float) -> float:
    """exp(x), +inf if that overflows."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
