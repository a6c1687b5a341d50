"""Published laws that can be named instead of fitted (`--law NAME`): that of Levine et al. 2020 and of Liu et al. 2026.

The first is a threshold law, which names depths and no losses. The second is a law of the loss, so it also gives what
a shape loses. The module uses `math` only, so that an answer from a published law loads no numerical library.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from analysis.errors import InputError
from analysis.intervals import width_of
from analysis.law.projection import LEVINE2020, Law, Transition, n_transition, outside_depths, shape_document
from analysis.law.projection import recommend as project

Row = tuple[float, float, float, float]


@dataclass(frozen=True)
class AdditiveLaw:
    """Loss = c_m·d^-alpha_m + c_l·(100·(L - skipped))^-alpha_l + terms that do not depend on the shape.

    At fixed N the width is d = sqrt(N/(12·L)) and the training tokens are equal, so the other terms cancel.

    Attributes:
        skipped: layers that do not count.
        covariance: of (ln c_m, alpha_m, ln c_l, alpha_l).
        source: where it comes from, in words.
        depth_range: smallest and largest depth it was fitted on.
        level: confidence of the intervals, which are first-order: ln of the value ± z standard errors.
    """

    c_m: float
    alpha_m: float
    c_l: float
    alpha_l: float
    skipped: float
    covariance: tuple[Row, Row, Row, Row]
    source: str
    depth_range: tuple[float, float]
    level: float = 0.95

    def loss(self, params: float, depth: float) -> float:
        """The part of the loss that depends on the shape, nats per token; infinite if no layer counts."""
        if depth <= self.skipped:
            return math.inf
        return self.c_m * math.pow(width_of(params, depth), -self.alpha_m) + self._depth_term(depth)

    def best_depth(self, params: float) -> float:
        """The depth of lowest loss at fixed N, by bisection of ln(L - skipped).

        Raises:
            InputError: N is not finite or below one parameter.
        """
        if not 1 <= params < math.inf:
            raise InputError(f"A budget is {params:g}; it must be a positive number of parameters, as 7e9.")
        low, high = -20.0, math.log(params) + 1
        for _ in range(100):
            middle = (low + high) / 2
            if self._slope(params, self.skipped + math.exp(middle)) > 0:
                high = middle
            else:
                low = middle
        return self.skipped + math.exp(low)

    def extrapolates(self, depth: float) -> bool:
        """Whether this depth lies outside the fitted ones by more than half a layer."""
        return outside_depths(self.depth_range, depth)

    def transition(self, depth: float) -> Transition:
        """The size N at which this depth is the best: above it deeper models win, below it shallower ones.

        Raises:
            InputError: no size has this depth as its best.
        """
        if not depth > self.skipped:
            raise InputError(
                f"The law of {self.source} counts depths above {self.skipped:g} layers only; the depth is {depth:g}."
            )
        # The slope falls with ln N by alpha_m/2 everywhere.
        log = math.log(12) + 2 * self._slope(12.0, depth) / self.alpha_m
        if log > 700:
            raise InputError(
                f"The law of {self.source} gives no finite size at which {depth:g} layers are the best."
            )
        params = math.exp(log)
        error = self._slope_error(params, depth) * 2 / self.alpha_m
        return Transition(depth, params, width_of(params, depth), error, self._interval(params, error))

    def shape(self, params: float) -> dict[str, Any]:
        """The best shape for N, as of `analysis.law.projection.recommend`."""
        exact = self.best_depth(params)
        whole = max(1, round(exact))
        if whole <= self.skipped:
            least = self.transition(self.skipped + 1).params
            raise InputError(
                f"The law of {self.source} counts depths above {self.skipped:g} layers only, and its best depth at "
                f"N = {params:g} is {exact:.1f}. Ask for a size of {least:,.0f} or more, or use --law levine2020."
            )
        rise = (self.alpha_m / 2 - 1) + (self.alpha_l + 1) * exact / (exact - self.skipped)
        error = self._slope_error(params, exact) / rise
        # ln(L - skipped) is normal, because a depth that is not counted cannot be the best.
        counted = exact - self.skipped
        low, high = self._interval(counted, error * exact / counted)
        interval = self.skipped + low, self.skipped + high
        return shape_document(self, params, exact, interval, error, self.transition(whole))

    def _depth_term(self, depth: float) -> float:
        return self.c_l * math.pow(100 * (depth - self.skipped), -self.alpha_l)

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

    def _slope_error(self, params: float, depth: float) -> float:
        """One standard error of `_slope`."""
        gradient = (
            1.0,
            1 / self.alpha_m - math.log(width_of(params, depth)),
            -1.0,
            math.log(100 * (depth - self.skipped)) - 1 / self.alpha_l,
        )
        rows = (sum(g * value for g, value in zip(gradient, row, strict=True)) for row in self.covariance)
        return math.sqrt(max(0.0, sum(g * value for g, value in zip(gradient, rows, strict=True))))

    def _interval(self, value: float, error: float) -> tuple[float, float]:
        z = NormalDist().inv_cdf((1 + self.level) / 2)
        return value * math.exp(-z * error), value * math.exp(z * error)


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
)

PublishedLaw = Law | AdditiveLaw
PUBLISHED: dict[str, PublishedLaw] = {"levine2020": LEVINE2020, "liu2026": LIU2026}


def published_law(name: str) -> PublishedLaw:
    """Return a published law; InputError if there is none of this name."""
    if name not in PUBLISHED:
        raise InputError(f"There is no published law {name!r}; there is: {', '.join(PUBLISHED)}.")
    return PUBLISHED[name]


def best_shapes_by(law: PublishedLaw, params: Sequence[float]) -> list[dict[str, Any]]:
    """The best shape for each N, as of `analysis.law.projection.recommend`, from either kind of law."""
    return project(law, params) if isinstance(law, Law) else [law.shape(float(value)) for value in params]


def transition_of(law: PublishedLaw, depth: float) -> Transition:
    """The size at which a depth is overtaken by deeper models, from either kind of law."""
    return n_transition(law, depth) if isinstance(law, Law) else law.transition(depth)


def losses_of(law: PublishedLaw) -> AdditiveLaw:
    """The law that gives the nats lost by a shape: itself, or for a law without losses that of Liu et al. 2026."""
    return law if isinstance(law, AdditiveLaw) else LIU2026
