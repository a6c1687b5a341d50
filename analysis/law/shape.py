"""What a law says about a number of parameters, and the best shape that follows.

`math` only, so that an answer from a published law loads no numerical library.
"""

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from analysis.intervals import LAYER_WEIGHTS, Interval, width_of
from analysis.law.reasons import Because
from analysis.law.words import texts_of
from analysis.units import LOSS, BudgetUnit, LossUnit, UnitName, budget_text, times
from core.command_line import call
from core.errors import InputError
from core.numbers import layers, short, span

if TYPE_CHECKING:
    from analysis.law.reading import AtSize

#: No law states a depth beyond this factor times the largest size that it was fitted on.
REACH = 10.0
#: Sizes from here on are far beyond any model, but usual as FLOPs of a training.
FLOPS = 1e15

#: What a shape rests on: the laws of a study, its lowest measured loss, only the interval of its laws, nothing at this
#: size, a published law, the least depth by theory.
ShapeSource = Literal["law", "measured", "band", "none", "published", "theory"]


@dataclass(frozen=True)
class NearOptimal:
    """The depths that lose next to nothing at one N, and what one depth loses.

    Attributes:
        within: nats per token up to which a depth counts as near-optimal.
        depths: the shallowest and the deepest of them.
        lost: nats per token by which the depth in question exceeds the best whole depth; None if not known.
        losses: the source of the losses, in words.
        most: the bound of what is lost at the level of the answer; None if not known.
    """

    within: float = field(metadata=LOSS)
    depths: tuple[int, int]
    lost: float | None = field(metadata=LOSS)
    losses: str
    most: float | None = field(default=None, metadata=LOSS)

    @property
    def depths_text(self) -> str:
        """`36–67`, for a table."""
        low, high = self.depths
        return f"{low}–{high}" if high > low else str(low)

    @property
    def lost_text(self) -> str | None:
        """`0.0077`, to a tenth of a millinat."""
        return None if self.lost is None else f"{self.lost:.4f}"


@dataclass(frozen=True)
class Transition:
    """The size N at which a depth is overtaken by deeper models, and the width there.

    A model of that depth with a larger N is too shallow, one with a smaller N too deep.
    """

    depth: float
    params: float
    width: float
    params_interval: Interval


@dataclass(frozen=True, repr=False)
class Projection:
    """What a law says about N = `params`.

    Attributes:
        depth_exact: the best depth L*, before rounding; None if none is stated, and `reasons` are why.
        depth_interval: of L*; an end is None without a limit. A measured depth has whole depths, and no level.
        level: of the interval.
        source, law: what the depth rests on, and that in words.
        laws: forms that are not rejected, the one of most support first.
        extrapolated: L* lies outside the depths of a published law, or N outside the sizes of the study.
        near_optimal: the depths that lose next to nothing, and what this one loses; None without a law of the loss.
    """

    params: float
    depth_exact: float | None
    depth_interval: Interval
    level: float | None
    source: ShapeSource
    law: str = ""
    laws: tuple[str, ...] = ()
    reasons: tuple[Because, ...] = ()
    extrapolated: bool = False
    near_optimal: NearOptimal | None = None
    layer_weights: float = LAYER_WEIGHTS

    def __repr__(self) -> str:
        shape = "no depth" if self.depth is None else f"{layers(self.depth)} × {self.width} wide"
        name, interval = type(self).__name__, span(self.depth_interval)
        return f"<{name} for {short(self.params)} parameters: {shape}, interval {interval}>"

    @property
    def reason(self) -> str | None:
        """The words of `reasons`."""
        return texts_of(self.reasons)

    @property
    def depth(self) -> int | None:
        """L* in whole layers, at least 1 (the rule of Levine et al. 2020, section 5.2); a least depth is rounded up."""
        if self.depth_exact is None:
            return None
        # The root of an equation may miss a whole number by its rounding.
        whole = (
            math.ceil(self.depth_exact * (1 - 1e-12)) if self.source == "theory" else round(self.depth_exact)
        )
        return max(1, whole)

    @property
    def width(self) -> int | None:
        """The width nearest to that which fills N at `depth` that a model can have, see `buildable_width`."""
        return self._width(None)

    @property
    def width_exact(self) -> float | None:
        """The width that fills N at L*, or at a least depth in whole layers."""
        depth = self.depth if self.source == "theory" else self.depth_exact
        return None if depth is None else width_of(self.params, depth, self.layer_weights)

    @property
    def width_interval(self) -> Interval:
        """At fixed N the deepest shape is the narrowest."""
        low, high = (
            width_of(self.params, end, self.layer_weights) if end else None for end in self.depth_interval
        )
        return high, low

    @property
    def unbounded(self) -> bool:
        """Whether an end of the interval is open."""
        return None in self.depth_interval

    @property
    def halfwidth(self) -> float:
        """Half the interval over L*; infinite if no depth is stated or the interval is open."""
        low, high = self.depth_interval
        if low is None or high is None or self.depth_exact is None:
            return math.inf
        return (high - low) / (2 * self.depth_exact)

    @property
    def deeper_than_wide(self) -> bool:
        """Whether L* exceeds the width that fills N, which no shape should have."""
        if self.depth_exact is None:
            return False
        return self.depth_exact > width_of(self.params, self.depth_exact, self.layer_weights)

    def _width(self, step: int | None) -> int | None:
        if self.depth is None:
            return None
        # A least depth holds up to a width of 3^L.
        most = 3**self.depth if self.source == "theory" else math.inf
        return buildable_width(width_of(self.params, self.depth, self.layer_weights), step, most)


@dataclass(frozen=True, repr=False)
class Recommendation(Projection):
    """The best shape for N = `params`, from a law or from measured losses, with its evidence.

    Attributes:
        measured: what is known at the measured size that the shape rests on.
        transition: of `depth`, by a published law.
        learning_rate: whether the study checked its learning rate, as one sentence.
        width_step: what the widths of the study are multiples of, if a study gave the shape and it is known.
        unit: of its losses.
    """

    JSON_PROPERTIES: ClassVar = ("depth", "width", "width_exact", "width_interval", "unbounded", "reason")

    measured: "AtSize | None" = None
    transition: Transition | None = None
    learning_rate: str | None = None
    width_step: int | None = None
    unit: UnitName = "nats per token"

    @classmethod
    def of(cls, projection: Projection) -> "Recommendation":
        """The recommendation of what a law says, without other evidence."""
        return cls(**{item.name: getattr(projection, item.name) for item in fields(projection)})

    @property
    def width(self) -> int | None:
        """The width nearest to that which fills N at `depth` that a model of the study can have."""
        return self._width(self.width_step)


@dataclass(frozen=True)
class DepthAtCompute:
    """A depth at its best size for one budget of training.

    Attributes:
        params, width, tokens: N of least loss, the width nearest to it that can be built, and the training tokens left.
        excess: nats per token above the best depth.
    """

    depth: int
    width: int
    params: float
    tokens: float
    excess: float = field(metadata=LOSS)


@dataclass(frozen=True, repr=False)
class ComputeShape:
    """The shape and the training tokens of least loss for one budget of training.

    Attributes:
        flops: the budget in training FLOPs; None of a budget of time.
        depth: whole layers; None if none is stated, and `reasons` are why.
        params, tokens: N of least loss at this depth, and training tokens; None without a depth.
        depth_interval: of a measured depth as in `Recommendation`; by a published law that at fixed N = `params`.
        source, law: what the shape rests on, and that in words.
        extrapolated: N or the depth lies outside those of a published law, or the budget outside those of a study.
        loss: nats per token, of a measured shape.
        near: measured depths that are not excluded, the best included; None if the noise is not known.
        others: the other depths measured at this budget, that of least loss first.
        width_step, layer_weights, unit: as in `Recommendation`.
        minutes: the budget in minutes of training, at the measured speed of each shape; None of FLOPs.
    """

    JSON_PROPERTIES: ClassVar = ("width", "reason")

    flops: float | None
    depth: int | None
    params: float | None
    tokens: float | None
    depth_interval: Interval
    source: ShapeSource
    law: str
    reasons: tuple[Because, ...] = ()
    extrapolated: bool = False
    loss: float | None = field(default=None, metadata=LOSS)
    near: tuple[int, ...] | None = None
    others: tuple[DepthAtCompute, ...] = ()
    width_step: int | None = None
    layer_weights: float = LAYER_WEIGHTS
    unit: UnitName = "nats per token"
    minutes: float | None = None

    def __repr__(self) -> str:
        shape = "no depth"
        if self.depth is not None and self.params is not None and self.tokens is not None:
            size = f"{short(self.params)} parameters, {short(self.tokens)} tokens"
            shape = f"{layers(self.depth)} × {self.width} wide, {size}"
        return f"<{type(self).__name__} for {self.budget_text}: {shape}>"

    @property
    def reason(self) -> str | None:
        """The words of `reasons`."""
        return texts_of(self.reasons)

    @property
    def width(self) -> int | None:
        """The width nearest to that which fills N that a model can have, see `buildable_width`."""
        if self.depth is None or self.params is None:
            return None
        return buildable_width(width_of(self.params, self.depth, self.layer_weights), self.width_step)

    @property
    def budget(self) -> float:
        """The FLOPs or the minutes."""
        return (self.minutes if self.flops is None else self.flops) or 0.0

    @property
    def budget_unit(self) -> BudgetUnit:
        """The unit of `budget`."""
        return "minutes" if self.flops is None else "FLOPs"

    @property
    def budget_text(self) -> str:
        """`1e18 FLOPs`, or `5.0 min`."""
        return budget_text(self.budget, self.budget_unit)


AnyShape = TypeVar("AnyShape", Recommendation, ComputeShape)


def in_unit(shape: AnyShape, unit: LossUnit) -> AnyShape:
    """Return a shape whose losses are in nats per token with all of them in another unit."""
    return replace(times(shape, unit.per_nat), unit=unit.name)


def buildable_width(width: float, step: int | None = None, most: float = math.inf) -> int:
    """The nearest width that a model can have: a multiple of `step`, and at least one step.

    Without `step` it is a multiple of 64, and of 8 below a width of 256, which heads of common sizes fill. Below 4 it
    is the nearest whole number: no multiple of 8 is near. No width exceeds `most`, unless one step does.

    Raises:
        InputError: the width is not finite or not positive, or the step is below 1.
    """
    if not 0 < width < math.inf:
        raise InputError(f"The width is {width:g}; it must be a positive number.")
    if step is None:
        step = 64 if width >= 256 else 8 if width >= 4 else 1
    if step < 1:
        raise InputError(f"The step of the width is {step}; it must be 1 or more.")
    # Halves go up: round() would send every other one down.
    steps = math.floor(width / step + 0.5)
    return max(1, steps - (steps * step > most)) * step


def looks_like_flops(params: float) -> bool:
    """Whether a size looks like a number of FLOPs."""
    return params >= FLOPS


def flops_hint(params: float) -> str:
    """A sentence for a size that looks like a number of FLOPs; else empty."""
    if not looks_like_flops(params):
        return ""
    return (
        f"{params:g} looks like a number of FLOPs; a size N is a number of non-embedding parameters, such as 7e9. For "
        f"FLOPs: `{call('recommend', flops=params)}`."
    )


def check_size(params: float) -> None:
    """InputError if N is no size."""
    if not 1 <= params < math.inf:
        raise InputError(f"The size is {params:g}; it must be a positive number of parameters, as 7e9.")


def outside(fitted: tuple[float, float], depth: float) -> bool:
    """Whether a depth lies outside a range by more than half a layer, or the range is not known (NaN)."""
    # No comparison with NaN is true.
    return not fitted[0] - 0.5 <= depth <= fitted[1] + 0.5
