"""The threshold law ln d = a + b·L or an alternative, fitted or published, and the best depths that follow from it.

The best depth for N solves 12·L·exp(2(a + b·L)) = N, the width is sqrt(N / (12·L)) (Levine et al. 2020, section 5.2;
this rule reproduces their table of GPT-3 sizes if N is 12·L·d² of the trained model, not its nominal size). The module
uses `math` only, so that a recommendation from a published law loads no numerical library.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from analysis.intervals import LAYER_WEIGHTS, Interval, Region, range_over
from analysis.law.reasons import Because
from analysis.law.shape import Recommendation, Transition, check_size, outside
from analysis.law.words import texts_of
from core.errors import InputError

Form = Literal["log-linear", "power", "root"]
LawStatus = Literal["ok", "open", "not_converged", "insufficient"]
Covariance = tuple[tuple[float, float], tuple[float, float]]

#: Points of an ellipse: its extremes are met to (pi / 720)² / 2, that is 1e-5 of the half-width.
_POINTS = 720


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


def _solve_power(a: float, b: float, params: float) -> float:
    """L with 12·L·exp(2(a + b·ln L)) = N; +inf if the size at the crossing does not rise with the depth."""
    return _exp((math.log(params / 12) - 2 * a) / (1 + 2 * b)) if 1 + 2 * b > 0 else math.inf


def _solve_root(a: float, b: float, params: float) -> float:
    """L with 12·L·exp(2(a + b·sqrt(L))) = N: the root of both sides is the equation of `solve_depth` in sqrt(L)."""
    return solve_depth(a / 2, b / 2, math.sqrt(12 * params)) ** 2


#: L from a, b and N, by form.
SOLVERS: Mapping[Form, Callable[[float, float, float], float]] = {
    "log-linear": solve_depth,
    "root": _solve_root,
    "power": _solve_power,
}


def _is_covariance(value: Covariance) -> Covariance:
    (va, above), (below, vb) = value
    if va < 0 or vb < 0 or not math.isclose(above, below, rel_tol=1e-6):
        raise ValueError("must be a symmetric matrix of 2 × 2 numbers without a negative variance")
    return value


#: A law is rejected if its own test has a smaller p-value.
REJECTED = 0.05


@dataclass(frozen=True)
class ThresholdLaw:
    """A law through the crossings of adjacent depths.

    Attributes:
        form: `log-linear` is ln d = a + b·L, `root` is ln d = a + b·sqrt(L), `power` is ln d = a + b·ln L.
        status: `ok`; `open`: the data bound a or b on one side only (its interval then has an end None), or there are
            two crossings, which give no interval;
            `not_converged`: the optimiser failed, with its message among the `reasons`; `insufficient`: nothing to fit.
        covariance: of (a, b), from the crossings' covariance and the scatter, to first order; intervals are better.
        a_interval, b_interval: by inverting the test, at `level`, as `region`.
        reasons: why the status is not `ok`.
        notes: caveats, such as that two points cannot test the form.
        depths, widths, residuals: the crossings with an estimate: depth between the two, its width, residual in ln d.
        pairs: number of pairs used, including those with a bound only.
        params_range: smallest and largest N among the points.
        scatter, scatter_dof: standard deviation of ln d beyond the crossings' own errors, and the degrees of freedom of
            Student's t with which it enters the intervals: 1 where it is assumed, None where it is zero.
        chi2, dof, p_value: squared residuals over the crossings' covariance without scatter, and their F test, as the
            noise is estimated; None with two points.
        region: the boundary of {(a, b): 2·(max loglik - loglik(a, b)) <= chi²₁(level)}. The profile-likelihood
            interval of any scalar g(a, b) is the range of g over that set; for a g that is monotone in a and in
            b the boundary holds both ends. `open` marks a point where the search was cut off: the set extends beyond
            it, so a range that ends there is open. Empty: the ellipse of the covariance is used.
        source: where the law comes from, in words.
        covariance_dof: degrees of freedom of the covariance; None is a known covariance, 4 that of a line through six
            crossings.
        layer_weights: N over L·d². A law is fitted with 12; `counted` changes it.
    """

    JSON_PROPERTIES: ClassVar = ("reason", "note")

    form: Form
    status: LawStatus
    level: Annotated[float, Field(gt=0, lt=1)]
    a: float | None = None
    b: float | None = None
    covariance: Annotated[Covariance, AfterValidator(_is_covariance)] | None = None
    a_interval: Interval | None = None
    b_interval: Interval | None = None
    reasons: tuple[Because, ...] = ()
    notes: tuple[Because, ...] = ()
    depths: tuple[float, ...] = ()
    widths: tuple[float, ...] = ()
    pairs: int = 0
    params_range: tuple[float, float] | None = None
    residuals: tuple[float, ...] = ()
    scatter: float | None = None
    scatter_dof: int | None = None
    chi2: float | None = None
    dof: int | None = None
    p_value: float | None = None
    region: Region = ()
    source: str = "this study"
    covariance_dof: Literal[4] | None = None
    layer_weights: float = LAYER_WEIGHTS

    def __post_init__(self) -> None:
        """Refuse a law of a file without the coefficients that its status promises."""
        if self.status in ("ok", "open"):
            needed = ("a", "b", "covariance") if self.form == "log-linear" else ("a", "b")
            missing = [name for name in needed if getattr(self, name) is None]
            if missing:
                raise ValueError(f"{' and '.join(missing)} missing from a law of status {self.status}")

    @property
    def reason(self) -> str | None:
        """The words of `reasons`."""
        return texts_of(self.reasons)

    @property
    def note(self) -> str | None:
        """The words of `notes`."""
        return texts_of(self.notes)

    @property
    def usable(self) -> bool:
        """Whether the law has coefficients with an uncertainty."""
        return self.status in ("ok", "open") and None not in (self.a, self.b, self.covariance)

    @property
    def rejected(self) -> bool:
        """Whether the test of the crossings rejects the form of the law."""
        return self.p_value is not None and self.p_value < REJECTED

    def best_depth(self, params: float) -> float | None:
        """The L with 12·L·d(L)² = N; None if the law has none that is positive and finite."""
        if self.a is None or self.b is None or self.b <= 0:
            return None
        depth = self._solve(self.a, self.b, params)
        return depth if 0 < depth < math.inf else None

    def interval(self, params: float, level: float = 0.95) -> Interval:
        """The interval of the profile likelihood at fixed N; `level` is that of a covariance only."""
        return self._range(lambda a, b: self._solve(a, b, params), level)

    def _solve(self, a: float, b: float, params: float) -> float:
        return SOLVERS[self.form](a, b, params * LAYER_WEIGHTS / self.layer_weights)

    def counted(self, layer_weights: float) -> "ThresholdLaw":
        """The same law in N with the widths of N = `layer_weights`·L·d²: all widths change by one factor."""
        if layer_weights == self.layer_weights:
            return self
        move = math.log(self.layer_weights / layer_weights) / 2
        low, high = self.a_interval or (None, None)
        ends = None if low is None else low + move, None if high is None else high + move
        return replace(
            self,
            a=None if self.a is None else self.a + move,
            a_interval=None if self.a_interval is None else ends,
            widths=tuple(width * math.exp(move) for width in self.widths),
            region=tuple((a + move, b, is_open) for a, b, is_open in self.region),
            layer_weights=layer_weights,
        )

    def width_interval(self, depth: float) -> Interval:
        """Smallest and largest `width` over the region; an end is None without a limit."""
        return self._range(lambda a, b: _exp(a + b * depth), self.level)

    def width(self, depth: float) -> float:
        """The width at which a model of this depth is overtaken by the log-linear law, exp(a + b·L)."""
        return _exp((self.a or 0.0) + (self.b or 0.0) * depth)

    def transition(self, depth: float) -> Transition:
        """N_transition(L) = 12·L·exp(2a)·exp(2bL) (Levine et al. 2020, eq. 11).

        Raises:
            InputError: a depth that is not positive, or so deep that N is beyond the numbers of a computer.
        """
        if not depth > 0:
            raise InputError(f"The depth is {depth:g}; it must be positive.")
        width = self.width(depth)
        params = self.layer_weights * depth * width**2 if width < 1e150 else math.inf
        if not math.isfinite(params):
            raise InputError(
                f"The law of {self.source} gives no finite size at which {depth:g} layers are overtaken (it was fitted "
                f"on depths {self.depth_range[0]:g} to {self.depth_range[1]:g})."
            )
        interval = self._range(
            lambda a, b: self.layer_weights * depth * _exp(2 * (a + b * depth)), self.level
        )
        return Transition(depth, params, width, interval)

    def shape(self, params: float, level: float = 0.95) -> Recommendation:
        """The best shape for N.

        Raises:
            InputError: N is no size, the level is no level, or the law has no finite depth there.
        """
        check_size(params)
        exact = self.best_depth(params)
        if exact is None:
            raise InputError(f"The law of {self.source} gives no finite depth for N = {params:g}.")
        best = Recommendation(params, exact, self.interval(params, level), level, "published", self.source)
        transition = self.transition(best.depth or 1)
        return replace(best, transition=transition, extrapolated=self.extrapolates(exact))

    @property
    def depth_range(self) -> tuple[float, float]:
        """Smallest and largest depth of its crossings; NaN if not known."""
        return min(self.depths, default=math.nan), max(self.depths, default=math.nan)

    def extrapolates(self, depth: float) -> bool:
        """Whether this depth lies outside the fitted ones by more than half a layer, or these are not known."""
        return outside(self.depth_range, depth)

    def boundary(self, level: float = 0.95) -> Region:
        """`region`, or if that is empty the ellipse of the covariance, by Student's t or normal."""
        if self.region or not self.usable:
            return self.region
        if not 0 < level < 1:
            raise InputError(f"The level is {level:g}; it must lie between 0 and 1, as 0.95.")
        assert self.a is not None
        assert self.b is not None
        assert self.covariance is not None
        (va, cab), (_, vb) = self.covariance
        z = _student4(level) if self.covariance_dof else NormalDist().inv_cdf((1 + level) / 2)
        # The Cholesky factor of the covariance turns a circle into the ellipse.
        sa = math.sqrt(va)
        along = cab / sa if sa else 0.0
        across = math.sqrt(max(vb - along**2, 0.0))
        angles = (2 * math.pi * index / _POINTS for index in range(_POINTS))
        circle = ((z * math.cos(angle), z * math.sin(angle)) for angle in angles)
        return tuple((self.a + sa * x, self.b + along * x + across * y, False) for x, y in circle)

    def _range(self, of: Callable[[float, float], float], level: float) -> Interval:
        """The range of a monotone function of (a, b) over the boundary; an infinite end and an open one are None."""
        points = self.boundary(level)
        if not points or self.a is None or self.b is None:
            return None, None
        return range_over(points, (self.a, self.b), of)


def _student4(level: float) -> float:
    """The quantile of Student's t with four degrees of freedom at (1 + level) / 2, in closed form (Shaw 2006)."""
    alpha = math.sqrt(1 - level**2)
    return 2 * math.sqrt(math.cos(math.acos(alpha) / 3) / alpha - 1)


def _exp(x: float) -> float:
    """exp(x), +inf if that overflows."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


#: Variance of b in `LEVINE2020`.
SLOPE_VARIANCE = 1.7e-6
#: a and b as quoted by BloombergGPT and BigScience; covariance as recalled from the paper's third version and
#: checked against the errors of N it quotes. Fitted on depths 6-48 of English text, vocabulary 2000: another
#: regime than a small study's. It is a line through six crossings.
LEVINE2020 = ThresholdLaw(
    "log-linear",
    "ok",
    0.95,
    a=5.039,
    b=5.55e-2,
    covariance=((9.4e-4, -3.74e-5), (-3.74e-5, SLOPE_VARIANCE)),
    depths=(6, 12, 18, 24, 30, 36),
    # The sizes at which 6 and 36 layers are overtaken.
    params_range=(3.337e6, 5.594e8),
    source="Levine et al. 2020 (arXiv 2006.12467)",
    covariance_dof=4,
)
