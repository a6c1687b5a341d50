"""Published laws that can be named instead of fitted (`--law NAME`): that of Levine et al. 2020 and of Liu et al. 2026.

The first is a threshold law, which names depths and no losses. The second is a law of the loss, so it also gives what
a shape loses, and, as it has a term of the training tokens, the shape and the tokens that a compute is best spent on.
The module uses `math` only, so that an answer from a published law loads no numerical library.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist

from analysis.intervals import Interval, width_of
from analysis.law.reasons import Because, Reason
from analysis.law.shape import REACH, ComputeShape, Recommendation, Transition, check_size, outside
from analysis.law.threshold_law import LEVINE2020, ThresholdLaw, solve_depth
from core.command_line import call, option
from core.errors import InputError

Row = tuple[float, float, float, float]
#: Training FLOPs per parameter and token.
FLOPS_PER_TOKEN = 6
#: Step of the numerical derivatives in ln c and α.
STEP = 1e-5


@dataclass(frozen=True)
class AdditiveLaw:
    """Loss = c_m·d^-alpha_m + c_l·(100·(L - skipped))^-alpha_l + c_t·(tokens/10^6)^-alpha_t + a constant.

    At fixed N the width is d = sqrt(N/(12·L)) and the training tokens are equal, so the other terms cancel.

    Attributes:
        skipped: layers that do not count.
        tokens_term: (c_t, alpha_t) of the training tokens.
        covariance: of (ln c_m, alpha_m, ln c_l, alpha_l); intervals are first-order in these four.
        source: where it comes from, in words.
        depth_range, params_range: smallest and largest depth and number of parameters it was fitted on.
    """

    c_m: float
    alpha_m: float
    c_l: float
    alpha_l: float
    skipped: float
    covariance: tuple[Row, Row, Row, Row]
    source: str
    depth_range: tuple[float, float]
    params_range: tuple[float, float]
    tokens_term: tuple[float, float]

    def loss(self, params: float, depth: float) -> float:
        """The part of the loss that depends on the shape, nats per token; infinite if no layer counts."""
        if depth <= self.skipped:
            return math.inf
        by_width = self.c_m * math.pow(width_of(params, depth), -self.alpha_m)
        return by_width + self.c_l * math.pow(100 * (depth - self.skipped), -self.alpha_l)

    def best_depth(self, params: float) -> float:
        """The depth of lowest loss at fixed N, by bisection of ln(L - skipped).

        Raises:
            InputError: N is not finite or below one parameter.
        """
        check_size(params)
        low, high = -20.0, math.log(params) + 1
        for _ in range(100):
            middle = (low + high) / 2
            if self._slope(params, self.skipped + math.exp(middle)) > 0:
                high = middle
            else:
                low = middle
        return self.skipped + math.exp(low)

    def interval(self, params: float, level: float = 0.95) -> Interval:
        """The interval of the best depth, with normal errors of ln(L - skipped): no other depth can be the best."""
        low, high = self._interval(lambda law: math.log(law.best_depth(params) - law.skipped), level)
        return self.skipped + low, self.skipped + high

    def extrapolates(self, depth: float) -> bool:
        """Whether this depth lies outside the fitted ones by more than half a layer."""
        return outside(self.depth_range, depth)

    def transition(self, depth: float, level: float = 0.95) -> Transition:
        """The size N at which this depth is the best: above it deeper models win, below it shallower ones.

        Raises:
            InputError: no size has this depth as its best.
        """
        if not depth > self.skipped:
            raise InputError(
                f"The law of {self.source} counts depths above {self.skipped:g} layers only; the depth is {depth:g}."
            )
        log = self._log_size(depth)
        if log > 700:
            raise InputError(
                f"The law of {self.source} gives no finite size at which {depth:g} layers are the best."
            )
        params = math.exp(log)
        interval = self._interval(lambda law: law._log_size(depth), level)
        return Transition(depth, params, width_of(params, depth), interval)

    def shape(self, params: float, level: float = 0.95) -> Recommendation:
        """The best shape for N; InputError if N is no size, or too small for the depths that count."""
        exact = self.best_depth(params)
        whole = max(1, round(exact))
        if whole <= self.skipped:
            least = self.transition(self.skipped + 1).params
            raise InputError(
                f"The law of {self.source} counts depths above {self.skipped:g} layers only, and its best depth at "
                f"N = {params:g} is {exact:.1f}. Ask for a size of {least:,.0f} or more, or use "
                f"{option('law', 'levine2020')}."
            )
        return Recommendation(
            params,
            exact,
            self.interval(params, level),
            level,
            "published",
            self.source,
            extrapolated=self.extrapolates(exact),
            transition=self.transition(whole, level),
        )

    def _slope(self, params: float, depth: float) -> float:
        """Logarithm of what a layer costs in width over what it saves in depth; zero at the best depth."""
        counted = depth - self.skipped
        cost = (
            math.log(self.c_m * self.alpha_m / 2)
            - self.alpha_m * math.log(width_of(params, depth))
            - math.log(depth)
        )
        saved = math.log(self.c_l * self.alpha_l) - self.alpha_l * math.log(100 * counted) - math.log(counted)
        return cost - saved

    def _log_size(self, depth: float) -> float:
        """Ln N at which this depth is the best: the slope falls with ln N by alpha_m/2 everywhere."""
        return math.log(12) + 2 * self._slope(12.0, depth) / self.alpha_m

    def _interval(self, log_of: Callable[["AdditiveLaw"], float], level: float) -> tuple[float, float]:
        """exp(value ± z standard errors) of a function of the law, to first order in its four parameters."""

        def moved(index: int, by: float) -> "AdditiveLaw":
            name = ("c_m", "alpha_m", "c_l", "alpha_l")[index]
            value = getattr(self, name)
            return replace(self, **{name: value + by if index % 2 else value * math.exp(by)})

        slopes = [(log_of(moved(i, STEP)) - log_of(moved(i, -STEP))) / (2 * STEP) for i in range(4)]
        pairs = ((i, j) for i in range(4) for j in range(4))
        variance = sum(slopes[i] * self.covariance[i][j] * slopes[j] for i, j in pairs)
        reach = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(max(variance, 0.0))
        value = log_of(self)
        return math.exp(value - reach), math.exp(value + reach)


#: The authors' fit to 203 runs of Hoffmann et al. 2022 (1.2e8 to 1.6e10 parameters), with the first and the last layer
#: not counted: Scaling/fit-8.ipynb of github.com/liuyz0/DepthScaling. It reproduces the best depths that are quoted for
#: the law: 125 layers for GPT-3, 162 for 4.05e11 parameters. Their fit with all layers counted (fit-5, the exponents
#: .98 and 1.2 of the paper) gives 124 and 158. The covariance is that of the notebook, which prints its diagonal:
#: residual variance times the inverse of J'J over all seven parameters at these values.
LIU2026 = AdditiveLaw(
    c_m=300.988021816479,
    alpha_m=0.9599189162254333,
    c_l=413.69695850058315,
    alpha_l=1.0660876035690308,
    skipped=2,
    covariance=(
        (0.250676581, 0.0408063582, -0.666283741, -0.101942334),
        (0.0408063582, 0.00665555747, -0.108518941, -0.0166324145),
        (-0.666283741, -0.108518941, 2.53236255, 0.385318618),
        (-0.101942334, -0.0166324145, 0.385318618, 0.0587159169),
    ),
    source="Liu et al. 2026 (arXiv 2602.05970)",
    depth_range=(12, 47),
    params_range=(1.2e8, 1.6e10),
    tokens_term=(8.485901100690645, 0.2988601326942444),
)

PublishedLaw = ThresholdLaw | AdditiveLaw
PUBLISHED: dict[str, PublishedLaw] = {"levine2020": LEVINE2020, "liu2026": LIU2026}


#: The law of `least_shape`, in words.
LEAST_DEPTH = "least depth by theory: L = log3(d)"


def published_shape(law: PublishedLaw, params: float, level: float = 0.95) -> Recommendation:
    """The best shape for N by a published law, with the source `none` beyond `REACH` times its largest size.

    Raises:
        InputError: N is no size, or too small for the depths that count.
    """
    check_size(params)
    assert law.params_range is not None
    largest = law.params_range[1]
    if params <= REACH * largest * (1 + 1e-9):
        return law.shape(params, level)
    reasons = (Because(Reason.ABOVE_FITTED, (REACH, largest)),)
    return Recommendation(params, None, (None, None), None, "none", law.source, reasons=reasons)


def shape_at_compute(law: PublishedLaw, flops: float) -> ComputeShape:
    """The shape and tokens of least loss by a published law, over all N and depths with 6·N·tokens = flops.

    Args:
        law: one with a term of the training tokens.
        flops: training FLOPs, 6·N·tokens.

    Raises:
        InputError: the law has no term of the tokens, or no number of FLOPs, or too few for the depths that count.
    """
    if not (math.isfinite(flops) and flops > 0):
        raise InputError(f"The compute is {flops:g} FLOPs; give a positive number, as 1e21.")
    if not isinstance(law, AdditiveLaw):
        names = ", ".join(name for name, item in PUBLISHED.items() if isinstance(item, AdditiveLaw))
        raise InputError(
            f"The law of {law.source} has no term of the training tokens, so it gives no shape at a compute; a law "
            f"with one is {names}: {call('recommend', law=names, flops=flops)}"
        )
    scale, exponent = law.tokens_term

    def at(log_size: float, depth: float) -> float:
        millions = flops / (FLOPS_PER_TOKEN * math.exp(log_size) * 1e6)
        return law.loss(math.exp(log_size), depth) + scale * math.pow(millions, -exponent)

    def best(log_size: float) -> float:
        return at(log_size, law.best_depth(math.exp(log_size)))

    def size_of(depth: float) -> float:
        return _minimum(lambda log_size: at(log_size, depth), *ends)

    # N between one parameter and one token.
    ends = 0.0, max(math.log(flops / FLOPS_PER_TOKEN), 1.0)
    params = math.exp(_minimum(best, *ends))
    exact = law.best_depth(params)
    least = math.floor(law.skipped) + 1
    if exact < least - 0.5:
        raise InputError(
            f"The law of {law.source} counts depths above {law.skipped:g} layers only, and its best depth at "
            f"{flops:g} FLOPs is {exact:.1f}. Give more FLOPs."
        )
    whole = sorted({max(math.floor(exact), least), max(math.ceil(exact), least)})
    sizes = {item: size_of(item) for item in whole}
    depth = min(whole, key=lambda item: at(sizes[item], item))
    largest = law.params_range[1]
    if params > REACH * largest:
        reasons = (Because(Reason.BEST_ABOVE_FITTED, (params, REACH, largest)),)
        return ComputeShape(flops, None, None, None, (None, None), "none", law.source, reasons, True)
    size = math.exp(sizes[depth])
    extrapolated = law.extrapolates(depth) or not law.params_range[0] <= size <= largest
    tokens = flops / (FLOPS_PER_TOKEN * size)
    interval = law.interval(size)
    return ComputeShape(
        flops, depth, size, tokens, interval, "published", law.source, extrapolated=extrapolated
    )


def _minimum(value: Callable[[float], float], low: float, high: float) -> float:
    """The place of the minimum of a function with one minimum, by ternary search."""
    while high - low > 1e-9:
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if value(left) <= value(right) else (left, high)
    return (low + high) / 2


def least_shape(params: float) -> Recommendation:
    """The least depth for N by theory: the smallest whole L with L >= log3(d) at the width that fills N.

    Below log3(d) a layer triples the exponent of the separation rank, so a budget of 12·L·d² should not fall below the
    depth that solves L = log3(d), N = 12·L·9^L. That is the rule of thumb of the authors for arXiv 2006.12467 v1. It
    has no interval and no limit of size, and it is no best depth.

    Raises:
        InputError: N is no size.
    """
    check_size(params)
    return Recommendation(
        params, solve_depth(0.0, math.log(3), params), (None, None), None, "theory", LEAST_DEPTH
    )


def published_law(name: str) -> PublishedLaw:
    """Return a published law; InputError if there is none of this name."""
    if name not in PUBLISHED:
        raise InputError(
            f"There is no published law {name!r}; there is: {', '.join(PUBLISHED)}, and for `recommend` log3."
        )
    return PUBLISHED[name]


def losses_of(law: PublishedLaw) -> AdditiveLaw:
    """The law that gives the nats lost by a shape: itself, or for a law without losses that of Liu et al. 2026."""
    return law if isinstance(law, AdditiveLaw) else LIU2026
