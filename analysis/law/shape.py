"""The best shape for a number of parameters, and what a law must give to name one.

`math` only, so that an answer from a published law loads no numerical library.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from analysis.errors import InputError
from analysis.intervals import Interval, width_of
from analysis.numbers import layers, short, span

#: No law states a depth beyond this factor times the largest size that it was fitted on.
REACH = 10.0
#: Sizes from here on are far beyond any model, but usual as FLOPs of a training.
FLOPS = 1e15

#: What a shape rests on: the laws of a study, its lowest measured loss, only the interval of its laws, nothing at this
#: size, a published law, the least depth by theory.
Source = Literal["law", "measured", "band", "none", "published", "theory"]


class Law(Protocol):
    """Predicts the best depth for N parameters."""

    def best_depth(self, params: float) -> float | None:
        """The best depth at fixed N, positive and finite; None where there is none."""

    def why_not(self, params: float) -> str | None:
        """Why there is no best depth at this N; None if it is not known, or there is one."""


@dataclass(frozen=True)
class NearOptimal:
    """The depths that lose next to nothing at one N, and what one depth loses.

    Attributes:
        within: nats per token up to which a depth counts as near-optimal.
        depths: the shallowest and the deepest of them.
        lost: nats per token by which the depth in question exceeds the best whole depth; None if not known.
        losses: the source of the losses, in words.
    """

    within: float
    depths: tuple[int, int]
    lost: float | None
    losses: str

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


@dataclass(frozen=True)
class Measured:
    """The best measured depth of the size nearest to N.

    Attributes:
        params: that size.
        near: depths that the seeds cannot distinguish from the best; None without a noise estimate.
        compared: number of depths measured there.
    """

    params: float
    depth: int
    near: tuple[int, ...] | None
    compared: int


@dataclass(frozen=True, repr=False)
class Shape:
    """The best shape for N = `params`.

    Attributes:
        depth_exact: the best depth L*, before rounding; None if none is stated, and `reason` is why.
        depth_interval: of L*; an end is None without a limit. A measured depth has whole depths, and no level.
        level: of the interval.
        source, law: what the shape rests on, and that in words.
        laws: forms that are not excluded, in the order of preference.
        agree_to: largest N up to which these agree, if they do not at this N; 0 if they disagree among the crossings
            already; else None.
        extrapolated: L* lies outside the depths of the law, or N outside the sizes of the surface.
        band: interval of the laws of the study, beside a measured depth.
        transition: of `depth`, by a published law.
        width_step: what the widths of the study are multiples of, if a study gave the shape and it is known.
        learning_rate: whether the study checked its learning rate, as one sentence.
    """

    JSON_PROPERTIES: ClassVar = ("depth", "width", "width_exact", "width_interval", "unbounded")

    params: float
    depth_exact: float | None
    depth_interval: Interval
    level: float | None
    source: Source
    law: str = ""
    laws: tuple[str, ...] = ()
    reason: str | None = None
    agree_to: float | None = None
    extrapolated: bool = False
    band: Interval | None = None
    measured: Measured | None = None
    near_optimal: NearOptimal | None = None
    transition: Transition | None = None
    learning_rate: str | None = None
    width_step: int | None = None

    def __repr__(self) -> str:
        shape = "no depth" if self.depth is None else f"{layers(self.depth)} × {self.width} wide"
        return f"<Shape of {short(self.params)} parameters: {shape}, interval {span(self.depth_interval)}>"

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
        if self.depth is None:
            return None
        # A least depth holds up to a width of 3^L.
        most = 3**self.depth if self.source == "theory" else math.inf
        return buildable_width(width_of(self.params, self.depth), self.width_step, most)

    @property
    def width_exact(self) -> float | None:
        """The width that fills N at L*, or at a least depth in whole layers."""
        depth = self.depth if self.source == "theory" else self.depth_exact
        return None if depth is None else width_of(self.params, depth)

    @property
    def width_interval(self) -> Interval:
        """At fixed N the deepest shape is the narrowest."""
        low, high = self.depth_interval
        return width_of(self.params, high) if high else None, width_of(self.params, low) if low else None

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
        return self.depth_exact is not None and self.depth_exact > width_of(self.params, self.depth_exact)


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


def flops_hint(params: float) -> str:
    """A sentence for a size that looks like a number of FLOPs; else empty."""
    if params < FLOPS:
        return ""
    return f"{params:g} looks like a number of FLOPs; a size N is a number of non-embedding parameters, such as 7e9."


def check_size(params: float) -> None:
    """InputError if N is no size."""
    if not 1 <= params < math.inf:
        raise InputError(f"The size is {params:g}; it must be a positive number of parameters, as 7e9.")


def outside(fitted: tuple[float, float], depth: float) -> bool:
    """Whether a depth lies outside a range by more than half a layer, or the range is not known (NaN)."""
    # No comparison with NaN is true.
    return not fitted[0] - 0.5 <= depth <= fitted[1] + 0.5
