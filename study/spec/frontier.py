"""The section `frontier`: which shapes are compared, from budgets of N = 12·L·d² parameters, widths, FLOPs or time."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from analysis.units import BudgetUnit, budget_number
from core.errors import some
from core.numbers import counted, listed, scientific
from study.spec.section import (
    Budget,
    Compute,
    Depth,
    Distinct,
    Minutes,
    Section,
    Size,
    Width,
    shape_named,
)
from trainables.cell import Shape

#: Neighbouring budgets that a search may add are at most this factor apart, about a quarter in width.
SPACING = 1.5
#: Attention heads of every layer, as in Levine et al. 2020.
HEADS = 2
#: Training tokens over N, where a spec gives none (Hoffmann et al. 2022).
TOKENS_PER_PARAMETER = 20
#: FLOPs of the forward and backward pass per parameter and token, without those of attention and vocabulary (Kaplan et
#: al. 2020, section 2.1): they place the sizes of a compute, whose steps follow from the exact FLOPs.
FLOPS_PER_PARAMETER = 6
#: Usual factors of the sizes of a compute, and the usual tolerance of these. The minimum over N of a depth needs no N
#: that other depths have, but sizes on both sides.
SPREAD, SPREAD_TOLERANCE = (0.25, 0.5, 1.0, 2.0, 4.0), 0.25
#: Least ratio of two values of `flops`, so that rows within 1 % of each are two budgets of `analysis.runs.isoflop`.
FLOPS_APART = 1.15
#: Fewest values of `flops` and of `spread` from which the best depth by compute is read (`analysis.runs.isoflop`).
LEAST_FLOPS, LEAST_FACTORS = 2, 3


@dataclass(frozen=True, slots=True)
class FrontierShape:
    """A shape and what it was chosen for."""

    budget: float
    """The N that its width was chosen for."""
    shape: Shape
    compute: float | None = None
    """With `flops` or `minutes`, the training FLOPs or minutes of its cells, which decide their steps."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A depth that has no shape at a budget, and why."""

    budget: float
    depth: int
    nearest_width: int
    deviation: float
    """Relative difference between N of the nearest width and the budget."""
    taken_by: float | None = None
    """The budget that already has this shape, if the width is near enough."""
    compute: float | None = None
    """With `flops`, the training FLOPs at which it is missing."""

    @property
    def reason(self) -> str:
        """Return one sentence for people."""
        at = "" if self.compute is None else f" of {scientific(self.compute)} FLOPs"
        where = f"left out: depth {self.depth} at budget {self.budget:,.0f}{at}"
        if self.taken_by is not None:
            return f"{where}, whose width {self.nearest_width} belongs to budget {self.taken_by:,.0f} already"
        side = "above" if self.deviation > 0 else "below"
        return f"{where}, where the nearest width {self.nearest_width} is {abs(self.deviation):.0%} {side} it"


class BudgetRange(Section):
    """Budgets from `min` to `max` in equal ratios."""

    min: Budget
    """smallest budget"""
    max: Budget
    """largest budget"""
    points: int = Field(ge=2, le=10_000)
    """number of budgets, both ends included"""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"`min` {self.min:g} is not below `max` {self.max:g}; swap them")
        return self

    @property
    def values(self) -> tuple[float, ...]:
        """The budgets in ascending order."""
        steps, ratio = self.points - 1, self.max / self.min
        return (self.min, *(self.min * ratio ** (i / steps) for i in range(1, steps)), self.max)


class ComputeRange(BudgetRange):
    """Training FLOPs from `min` to `max` in equal ratios."""

    min: Compute
    """least training FLOPs"""
    max: Compute
    """most training FLOPs"""


#: Training tokens per second of a shape.
Speed = Annotated[Size, Field(gt=0, le=1e15)]
_list_or_range = Discriminator(lambda value: "table" if isinstance(value, Mapping | BudgetRange) else "list")
Budgets = Annotated[
    Annotated[Distinct[Budget], Tag("list")] | Annotated[BudgetRange, Tag("table")], _list_or_range
]
Computes = Annotated[
    Annotated[Distinct[Compute], Tag("list")] | Annotated[ComputeRange, Tag("table")], _list_or_range
]


class FrontierSection(Section):
    """The shapes that are compared: depths at budgets, hand-written widths of each depth, or sizes at equal FLOPs."""

    budgets: Budgets | None = None
    """targets of N = 12·L·d², as a list or as {min, max, points}"""
    depths: Distinct[Depth] | None = None
    """layers L"""
    widths: dict[Depth, Distinct[Width]] | None = Field(default=None, min_length=1)
    """instead of budgets: the widths of each depth; the budget of a shape is its own N. `depths`, if given, selects
    among them"""
    flops: Computes | None = None
    """instead of budgets: training FLOPs C, as a list or as {min, max, points}. Each depth has one size for each factor
    of `spread`, trained for C over the exact FLOPs per token of its shape, and depths are compared at equal C"""
    spread: Distinct[Annotated[float, Field(gt=0, le=1e6)]] | None = None
    """with flops: the sizes, as factors on N = sqrt(C/(6·r)), which has r = `training.tokens_per_parameter` tokens per
    parameter; by default [0.25, 0.5, 1, 2, 4]"""
    minutes: dict[Minutes, Annotated[dict[str, Speed], Field(min_length=1)]] | None = None
    """instead of budgets: training minutes, each with the shapes that are trained for them and the training tokens per
    second of each, as `0.5: {L1-d16: 310k}`, which `interplay init NAME --minutes` measures. A cell has the tokens of
    its minutes at this speed, and depths are compared at equal minutes; `depths`, if given, selects among them"""
    heads: int | None = Field(default=None, ge=1, le=10_000)
    """attention heads of every layer; by default 2, as in the paper"""
    head_dim: int | None = Field(default=None, ge=1, le=10_000)
    """instead of heads: the width of one head; beside heads (llama, qwen3): attention is heads · head_dim wide in every
    shape"""
    kv_heads: int | None = Field(default=None, ge=1, le=10_000)
    """heads of keys and values of every layer (llama, qwen3); by default as many as heads"""
    d_ff: float | None = Field(default=None, ge=0, le=100)
    """inner width of the feed-forward network over the width, rounded to whole values (llama, qwen3); by default that
    with which a layer has 12·d² weights. 0 (also gpt2) leaves the network and its norm out: a layer then has 4·d²
    weights, and N = 4·L·d²"""
    tolerance: float = Field(default=0.1, gt=0, lt=1)
    """largest relative difference between N of a shape and its budget; by default 0.1, and 0.25 with flops, where the
    best size of each depth is found from its own sizes, which other depths need not have"""
    width_multiple: int = Field(default=1, ge=1, le=10_000)
    """widths are multiples of this, and of the heads; by default 1, for rotary families (llama, qwen3) 2 · heads"""
    max_cells: int = Field(default=10_000, ge=1, le=10_000_000)
    """most cells of a plan, and most pairs of budget and depth; larger plans are refused"""

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        filled = dict(values)
        if isinstance(values.get("minutes"), Mapping):
            _refuse_equal_keys(values["minutes"])
        if values.get("heads") is values.get("head_dim") is None:
            filled["heads"] = HEADS
        if values.get("flops") is not None:
            filled.setdefault("tolerance", SPREAD_TOLERANCE)
            if values.get("spread") is None:
                filled["spread"] = SPREAD
        return filled

    @property
    def budget_values(self) -> tuple[float, ...]:
        """The budgets in ascending order; with `widths` or `minutes`, the N of every shape; with `flops`, none."""
        if self.widths is not None or self.minutes is not None:
            return tuple(sorted({item.budget for item in shapes(self)}))
        if isinstance(self.budgets, BudgetRange):
            return self.budgets.values
        return tuple(sorted(self.budgets or ()))

    @property
    def compute_values(self) -> tuple[float, ...]:
        """The training FLOPs of `flops`, or the minutes of `minutes`, in ascending order; none without these."""
        if self.minutes is not None:
            return tuple(sorted(self.minutes))
        if isinstance(self.flops, BudgetRange):
            return self.flops.values
        return tuple(sorted(self.flops or ()))

    @property
    def compute_unit(self) -> BudgetUnit | None:
        """The unit of `compute_values`; None if depths are compared at equal N."""
        return "minutes" if self.minutes is not None else "FLOPs" if self.flops is not None else None

    @property
    def compute_key(self) -> str:
        """The key that has them, for messages."""
        return f"`frontier.{'minutes' if self.minutes is not None else 'flops'}`"

    @property
    def compute_words(self) -> str:
        """`equal FLOPs: 1e15 to 1e17`, or `equal training time: 15 s to 1.0 min`; empty without them."""
        if (unit := self.compute_unit) is None:
            return ""
        values = self.compute_values
        ends = dict.fromkeys(budget_number(value, unit, 3) for value in (values[0], values[-1]))
        return f"equal {'FLOPs' if unit == 'FLOPs' else 'training time'}: {' to '.join(ends)}"

    @property
    def depth_values(self) -> tuple[int, ...]:
        """The depths in ascending order."""
        if self.depths is not None:
            return tuple(sorted(self.depths))
        timed = (shape_named(name)[0] for speeds in (self.minutes or {}).values() for name in speeds)
        return tuple(sorted({*(self.widths or ()), *timed}))

    def head_width(self, width: int) -> float:
        """Return the width of one head of a shape; a fraction if the heads do not divide the width."""
        return float(self.head_dim) if self.head_dim is not None else width / (self.heads or 1)

    @property
    def step(self) -> int:
        """Step of the widths: a multiple of `width_multiple` and of the heads, or of the width of the key-value heads.

        Heads whose width is given beside their number leave the width of the model free.
        """
        if self.heads is not None:
            return math.lcm(self.width_multiple, 1 if self.head_dim is not None else self.heads)
        return math.lcm(self.width_multiple, (self.head_dim or 1) * (self.kv_heads or 1))

    @property
    def layer_weights(self) -> int:
        """Weights of a layer over d² that N counts."""
        return self.shape(1, self.step).layer_weights

    @property
    def _step_words(self) -> str:
        given = {
            f"{self.heads} heads": self.heads is not None and self.head_dim is None,
            f"heads of {self.head_dim}": self.heads is None,
            f"{self.kv_heads} key-value heads": self.heads is None and self.kv_heads is not None,
            f"`width_multiple` {self.width_multiple}": self.width_multiple > 1,
        }
        words = ", ".join(text for text, counts in given.items() if counts)
        return f"{self.step} ({words})" if words else str(self.step)

    def shape(self, depth: int, width: int) -> Shape:
        """Return the shape of a depth and a width that is a multiple of `step`."""
        return Shape(
            depth=depth,
            width=width,
            heads=self.heads if self.heads is not None else width // (self.head_dim or 1),
            kv_heads=self.kv_heads,
            head_dim=None if self.heads is None else self.head_dim,
            d_ff=max(1, round(self.d_ff * width)) if self.d_ff else None if self.d_ff is None else 0,
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.heads is not None and self.heads % (self.kv_heads or 1):
            raise ValueError(
                f"{self.heads} `heads` cannot share {self.kv_heads} `kv_heads` evenly; take a divisor of {self.heads}"
            )
        names = ("budgets", "widths", "flops", "minutes")
        given = [f"`{name}`" for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{listed(given)} exclude each other; keep one of them")
        if self.spread is not None and self.flops is None:
            raise ValueError(
                "`spread` has the sizes at the FLOPs of `flops`, which is missing; take `spread` out"
            )
        if self.widths is not None:
            self._check_widths(self.widths, "`widths`")
            return self
        if self.minutes is not None:
            self._check_minutes(self.minutes)
            return self
        if not given or self.depths is None:
            missing = [*([] if given else ["`budgets`"]), *([] if self.depths else ["`depths`"])]
            raise ValueError(
                f"{' and '.join(missing)} missing; give `budgets` and `depths`, `flops` and `depths`, or `widths` or "
                "`minutes` alone"
            )
        if self.flops is not None:
            self._check_flops(self.depths)
        else:
            self.check_size(len(self.budget_values) * len(self.depths), "pairs of `budgets` and `depths`")
            self.check_depths()
        return self

    def _check_widths(self, widths: Mapping[int, tuple[int, ...]], key: str) -> None:
        """Raise a `ValueError` if a width cannot be built, or `depths` selects one that `key` does not have."""
        if unknown := sorted(set(self.depths or ()) - set(widths)):
            raise ValueError(
                f"`depths` has [{some(unknown)}], and {key} has the depths [{some(sorted(widths))}]; choose among "
                "these, or give shapes of the others"
            )
        for depth, width in ((depth, width) for depth, values in widths.items() for width in values):
            if width % self.step:
                low = width // self.step * self.step
                raise ValueError(
                    f"width {width} of depth {depth} is not a multiple of {self._step_words}; take "
                    f"{f'{low} or ' if low else ''}{low + self.step}"
                )

    def _check_minutes(self, minutes: Mapping[float, Mapping[str, float]]) -> None:
        widths: dict[int, set[int]] = {}
        for depth, width in (shape_named(name) for speeds in minutes.values() for name in speeds):
            widths.setdefault(depth, set()).add(width)
        self._check_widths({depth: tuple(sorted(values)) for depth, values in widths.items()}, "`minutes`")
        if len(minutes) < LEAST_FLOPS:
            raise ValueError(
                f"`minutes` has {counted(len(minutes), 'value')}, and the best depth by time needs {LEAST_FLOPS} or "
                "more; `interplay init NAME --minutes 5` writes three"
            )
        self._check_apart("minutes")

    def _check_apart(self, key: str) -> None:
        for low, high in itertools.pairwise(self.compute_values):
            if high < FLOPS_APART * low:
                raise ValueError(
                    f"`{key}` has {low:.10g} and {high:.10g}, nearer to each other than {FLOPS_APART - 1:.0%}, which "
                    "are compared as one; take one of them out"
                )

    def _check_flops(self, depths: tuple[int, ...]) -> None:
        computes, spread = self.compute_values, self.spread or ()
        if len(computes) < LEAST_FLOPS or len(spread) < LEAST_FACTORS:
            fixes = []
            if len(computes) < LEAST_FLOPS:
                fixes.append(f"`flops: [{', '.join(f'{factor * computes[0]:g}' for factor in (1, 4, 16))}]`")
            if len(spread) < LEAST_FACTORS:
                fixes.append(f"`spread: {list(SPREAD)}`")
            raise ValueError(
                f"`flops` has {len(computes)} and `spread` {len(spread)}; the best depth by compute needs at least "
                f"{LEAST_FLOPS} values of `flops` and {LEAST_FACTORS} of `spread`; set {' and '.join(fixes)}"
            )
        self._check_apart("flops")
        self.check_size(
            len(computes) * len(spread) * len(depths), "triples of `flops`, `spread` and `depths`"
        )

    def check_depths(self, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> None:
        """Raise a `ValueError` if a depth has no shape.

        Args:
            tokens_per_parameter: those of the size at a factor of 1, with `flops`.
        """
        kept, missed = _resolve(self, tokens_per_parameter)
        for depth in set(self.depth_values) - {item.shape.depth for item in kept}:
            best = min((miss for miss in missed if miss.depth == depth), key=lambda miss: abs(miss.deviation))
            needed = math.ceil(abs(best.deviation) * 100) / 100
            name, least = "budgets", self.layer_weights * depth * self.step**2
            if self.flops is not None:
                name = "flops"
                least = math.ceil(
                    FLOPS_PER_PARAMETER * tokens_per_parameter * (least / max(self.spread or (1.0,))) ** 2
                )
            fix = (
                f"Set `tolerance` to {needed:g} or more, change the {name}"
                if needed < 1
                else f"Raise the {name} to {least} or more"
            )
            raise ValueError(
                f"depth {depth} has no shape at any budget: widths are multiples of {self._step_words}, and the "
                f"nearest, width {best.nearest_width} for budget {best.budget:g}, has N = "
                f"{self.layer_weights * depth * best.nearest_width**2} ({best.deviation:+.0%}, tolerance "
                f"{self.tolerance:.0%}). {fix}, or leave depth {depth} out"
            )

    def check_size(self, count: int, what: str) -> None:
        """Raise a `ValueError` if a plan would have more of something than `max_cells`."""
        if count > self.max_cells:
            raise ValueError(
                f"the plan would have {count:,} {what}, more than the {self.max_cells:,} of `frontier.max_cells`; make "
                f"the lists shorter, or set `frontier.max_cells: {count}`"
            )


def _refuse_equal_keys(minutes: Mapping[Any, Any]) -> None:
    """Raise a `ValueError` if two keys are one number, such as 1 and "1": one of them would replace the other."""
    seen: dict[float, Any] = {}
    for key in minutes:
        try:
            number = float(key)
        except (TypeError, ValueError):
            continue
        if number in seen:
            raise ValueError(f"`minutes` has {seen[number]!r} and {key!r}, which are one time; write it once")
        seen[number] = key


def shapes(
    frontier: FrontierSection, tokens_per_parameter: float = TOKENS_PER_PARAMETER
) -> list[FrontierShape]:
    """Return every shape of the frontier, by compute, budget and depth.

    With `budgets`, each depth has at most one shape per budget: the allowed width whose N = 12·L·d² (Levine et al.
    2020, section 5.1), or 4·L·d² with `d_ff: 0`, is nearest to the budget, if it is within the tolerance. With
    `widths`, each depth has the widths listed, and the budget of a shape is its own N; with `minutes`, each of them has
    its own shapes. With `flops`, the budgets of a compute C are the factors of `spread` times
    sqrt(C / (6·tokens_per_parameter)), and a shape may be there at several C.
    """
    return _resolve(frontier, tokens_per_parameter)[0]


def added_shapes(frontier: FrontierSection) -> list[FrontierShape]:
    """Return the shapes a search may add to the frontier, by budget and depth, by the frontier's own rules.

    The budgets are log-midpoints of those given (with hand-written widths, of those of each depth), halved until
    neighbours are at most a factor of `SPACING` apart. A `ValueError` if they are more than `max_cells`.
    """
    pairs = []
    for depth in frontier.depth_values:
        given = frontier.budget_values
        if frontier.widths is not None:
            widths = sorted(frontier.widths[depth])
            given = tuple(float(frontier.shape(depth, width).budget_params) for width in widths)
        for low, high in itertools.pairwise(given):
            ratio, parts = high / low, 1
            while ratio ** (1 / parts) > SPACING * (1 + 1e-12):
                parts *= 2
            pairs += [(low * ratio ** (part / parts), depth) for part in range(1, parts)]
    frontier.check_size(len(pairs), "pairs of depths and budgets that the search may add")
    taken = {item.shape for item in shapes(frontier)}
    return [
        item
        for item in _fitting(frontier, [(None, *pair) for pair in sorted(pairs)])[0]
        if item.shape not in taken
    ]


def misses(frontier: FrontierSection, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> list[Miss]:
    """Return the pairs of budget and depth that have no shape; see `shapes`."""
    return _resolve(frontier, tokens_per_parameter)[1]


def _resolve(
    frontier: FrontierSection, tokens_per_parameter: float
) -> tuple[list[FrontierShape], list[Miss]]:
    depths = frontier.depth_values
    if frontier.flops is not None:
        return _fitting(
            frontier,
            (
                (compute, factor * math.sqrt(compute / (FLOPS_PER_PARAMETER * tokens_per_parameter)), depth)
                for compute in frontier.compute_values
                for factor in sorted(frontier.spread or SPREAD)
                for depth in depths
            ),
        )
    if frontier.minutes is not None:
        timed = [
            FrontierShape(float(shape.budget_params), shape, minutes)
            for minutes in frontier.compute_values
            for shape in (frontier.shape(*shape_named(name)) for name in frontier.minutes[minutes])
            if shape.depth in depths
        ]
        return sorted(timed, key=lambda item: (item.compute, item.budget, item.shape.depth)), []
    if frontier.widths is None:
        return _fitting(frontier, itertools.product([None], frontier.budget_values, depths))
    pairs = [(depth, width) for depth in depths for width in frontier.widths[depth]]
    listed = [frontier.shape(depth, width) for depth, width in pairs]
    measured = [FrontierShape(float(shape.budget_params), shape) for shape in listed]
    return sorted(measured, key=lambda item: (item.budget, item.shape.depth)), []


def _fitting(
    frontier: FrontierSection, wanted: Iterable[tuple[float | None, float, int]]
) -> tuple[list[FrontierShape], list[Miss]]:
    """Return the shape nearest to each (compute, budget, depth) within the tolerance, and those that have none.

    If budgets of one compute share their nearest shape, the budget nearest to it keeps it, so that no shape is trained
    twice.
    """
    placed, weights = [], frontier.layer_weights
    for compute, budget, depth in wanted:
        layers = weights * depth
        width = _nearest_width(budget, layers, frontier.step)
        placed.append(Miss(budget, depth, width, layers * width**2 / budget - 1, compute=compute))
    owner: dict[tuple[float | None, int, int], float] = {}
    for miss in sorted(placed, key=lambda miss: abs(miss.deviation)):
        owner.setdefault((miss.compute, miss.depth, miss.nearest_width), miss.budget)
    result: list[FrontierShape] = []
    missed: list[Miss] = []
    for miss in placed:
        taken = owner[miss.compute, miss.depth, miss.nearest_width]
        if abs(miss.deviation) > frontier.tolerance * (1 + 1e-12):
            missed.append(miss)
        elif taken != miss.budget:
            missed.append(replace(miss, taken_by=taken))
        else:
            shape = frontier.shape(miss.depth, miss.nearest_width)
            result.append(FrontierShape(miss.budget, shape, miss.compute))
    return result, missed


def _nearest_width(budget: float, layers: int, step: int) -> int:
    """Return the multiple of `step` whose N = `layers`·d² is nearest to the budget; the smaller one on a tie."""
    below = max(1, math.floor(math.sqrt(budget / layers) / step)) * step
    return min((below, below + step), key=lambda width: abs(layers * width**2 - budget))
