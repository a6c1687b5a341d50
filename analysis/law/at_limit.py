"""What is known at a limit of cost, such as 5 ms per token; `analysis.law.cost_limit` finds it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from analysis.intervals import Interval
from analysis.law.shape import buildable_width
from analysis.units import LOSS
from core.numbers import layers

#: Relative standard deviation of a measured cost, of each shape on its own. In two runs on a machine with two cores
#: (2026-11-29) the ratios of two shapes agreed within 5 %; all times of one run were 9 to 15 % longer, which moves the
#: limit of all depths alike.
COST_ERROR = 0.035


class CostKind(StrEnum):
    """What is limited."""

    LATENCY = "latency"
    """Seconds per token of decoding."""
    TRAIN_TIME = "train_time"
    """Seconds of training."""
    CACHE = "kv"
    """Bytes of the key-value cache per token of one sequence."""


@dataclass(frozen=True)
class Limit:
    """A limit of cost: its kind, its value in seconds or bytes, and of a latency the sequences decoded at once."""

    kind: CostKind
    value: float
    batch: int = 1


@dataclass(frozen=True)
class DepthAtLimit:
    """One depth at the limit.

    Attributes:
        depth: number of layers.
        params, width: of the largest shape within the limit, exact.
        params_interval: N at the limit of plus and minus one standard deviation of the costs.
        loss: on the curve of the depth at this N, nats per token.
        excess: `loss` less that of the best depth.
        excess_se: standard error of `excess`, with that of the costs; None without a noise estimate, 0 for the best.
    """

    depth: int
    params: float
    width: float
    params_interval: tuple[float, float]
    loss: float = field(metadata=LOSS)
    excess: float = field(metadata=LOSS)
    excess_se: float | None = field(metadata=LOSS)


@dataclass(frozen=True, repr=False)
class AtLimit:
    """What is known at one limit of cost.

    Attributes:
        limit: of the cost.
        shapes: every depth with a size at the limit, ascending.
        near: the depths that are not excluded, the best included; None if the noise is not known.
        too_small: depths that may be the best with a size below those measured, because the limit is below their costs.
        too_large: the same with a size above those measured.
        excluded: depths without a size at the limit that are significantly worse even at their smallest size.
        width_step: what all widths of the study are multiples of.
        unsteady: depths with costs whose repetitions did not agree, so that the error of these costs is larger.
    """

    JSON_PROPERTIES: ClassVar = ("depth", "width", "params", "depth_interval")

    limit: Limit
    shapes: tuple[DepthAtLimit, ...]
    near: tuple[int, ...] | None
    too_small: tuple[int, ...] = ()
    too_large: tuple[int, ...] = ()
    excluded: tuple[int, ...] = ()
    width_step: int | None = None
    unsteady: tuple[int, ...] = ()

    def __repr__(self) -> str:
        shape = "no depth" if self.depth is None else f"{layers(self.depth)} × {self.width} wide"
        return f"{shape} at a {self.limit.kind} of {self.limit.value:g}"

    @property
    def depth(self) -> int | None:
        """The best depth; None without one."""
        return self.best.depth if self.best else None

    @property
    def width(self) -> int | None:
        """The width of the best depth that can be built."""
        return buildable_width(self.best.width, self.width_step) if self.best else None

    @property
    def params(self) -> float | None:
        """N of the best depth."""
        return self.best.params if self.best else None

    @property
    def best(self) -> DepthAtLimit | None:
        """The depth of least loss; None if fewer than two depths have a size at the limit."""
        if len(self.shapes) < 2:
            return None
        return min(self.shapes, key=lambda shape: (shape.loss, shape.depth))

    @property
    def missing(self) -> tuple[int, ...]:
        """The depths without a size at the limit that may be the best, ascending."""
        return tuple(sorted({*self.too_small, *self.too_large}))

    @property
    def depth_interval(self) -> Interval:
        """The whole depths between the next shallower and the next deeper excluded one; an end is None without it."""
        if self.near is None or self.best is None:
            return None, None
        may = {*self.near, *self.missing}
        out = ({shape.depth for shape in self.shapes} | {*self.excluded}) - may
        shallower = [depth for depth in out if depth < min(may)]
        deeper = [depth for depth in out if depth > max(may)]
        return (max(shallower) + 1 if shallower else None), (min(deeper) - 1 if deeper else None)
