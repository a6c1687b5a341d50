"""The section `frontier`: which shapes are compared, from budgets of N = 12·L·d² parameters or from widths."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from study.spec.section import Budget, Depth, Distinct, Section, Width
from trainables.cell import Shape
from trainables.errors import some

#: Neighbouring budgets that a search may add are at most this factor apart, about a quarter in width.
SPACING = 1.5


@dataclass(frozen=True, slots=True)
class FrontierShape:
    """A shape and the budget it spends."""

    budget: float
    shape: Shape


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

    @property
    def reason(self) -> str:
        """Return one sentence for people."""
        where = f"left out: depth {self.depth} at budget {self.budget:,.0f}"
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


Budgets = Annotated[
    Annotated[Distinct[Budget], Tag("list")] | Annotated[BudgetRange, Tag("table")],
    Discriminator(lambda value: "table" if isinstance(value, Mapping | BudgetRange) else "list"),
]


class FrontierSection(Section):
    """The shapes that are compared: depths at budgets, or hand-written widths of each depth."""

    budgets: Budgets | None = None
    """targets of N = 12·L·d², as a list or as {min, max, points}"""
    depths: Distinct[Depth] | None = None
    """layers L"""
    widths: dict[Depth, Distinct[Width]] | None = Field(default=None, min_length=1)
    """instead of budgets: the widths of each depth; the budget of a shape is its own N. `depths`, if given, selects
    among them"""
    heads: int | None = Field(default=None, ge=1, le=10_000)
    """attention heads of every layer; by default 2, as in the paper"""
    head_dim: int | None = Field(default=None, ge=1, le=10_000)
    """instead of heads: the width of one head"""
    tolerance: float = Field(default=0.1, gt=0, lt=1)
    """largest relative difference between N of a shape and its budget"""
    width_multiple: int = Field(default=1, ge=1, le=10_000)
    """widths are multiples of this, and of the heads"""
    max_cells: int = Field(default=10_000, ge=1, le=10_000_000)
    """most cells of a plan, and most pairs of budget and depth; larger plans are refused"""

    @model_validator(mode="before")
    @classmethod
    def _two_heads(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("heads") is values.get("head_dim") is None:
            return {**values, "heads": 2}
        return values

    @property
    def budget_values(self) -> tuple[float, ...]:
        """The budgets in ascending order; with `widths`, the N of every shape."""
        if self.widths is not None:
            return tuple(sorted({found.budget for found in shapes(self)}))
        if isinstance(self.budgets, BudgetRange):
            return self.budgets.values
        return tuple(sorted(self.budgets or ()))

    @property
    def depth_values(self) -> tuple[int, ...]:
        """The depths in ascending order."""
        return tuple(sorted(self.depths if self.depths is not None else self.widths or ()))

    def head_width(self, width: int) -> float:
        """Return the width of one head of a shape; a fraction if the heads do not divide the width."""
        return float(self.head_dim) if self.head_dim is not None else width / (self.heads or 1)

    @property
    def step(self) -> int:
        """Step of the widths: a multiple of `width_multiple` and of the heads, or of the width of a head."""
        return math.lcm(self.width_multiple, self.heads or self.head_dim or 1)

    @property
    def _step_words(self) -> str:
        head = f"{self.heads} heads" if self.heads is not None else f"heads of {self.head_dim}"
        multiple = "" if self.width_multiple == 1 else f", `width_multiple` {self.width_multiple}"
        return f"{self.step} ({head}{multiple})"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.heads is not None and self.head_dim is not None:
            raise ValueError("give one of `heads` and `head_dim`, not both")
        if self.widths is not None:
            self._check_widths(self.widths)
        else:
            self._check_budgets()
        return self

    def _check_widths(self, widths: Mapping[int, tuple[int, ...]]) -> None:
        if self.budgets is not None:
            raise ValueError("`widths` and `budgets` exclude each other; take one of them out")
        if unknown := sorted(set(self.depths or ()) - set(widths)):
            raise ValueError(
                f"`depths` has [{some(unknown)}], and `widths` has the depths [{some(sorted(widths))}]; choose among "
                "these, or give widths for the others"
            )
        for depth, width in ((depth, width) for depth, values in widths.items() for width in values):
            if width % self.step:
                low = width // self.step * self.step
                raise ValueError(
                    f"width {width} of depth {depth} is not a multiple of {self._step_words}; take "
                    f"{f'{low} or ' if low else ''}{low + self.step}"
                )

    def _check_budgets(self) -> None:
        if self.budgets is None or self.depths is None:
            missing = [f"`{name}`" for name in ("budgets", "depths") if getattr(self, name) is None]
            raise ValueError(
                f"{' and '.join(missing)} missing; give `budgets` and `depths`, or `widths` alone"
            )
        self.check_size(len(self.budget_values) * len(self.depths), "pairs of `budgets` and `depths`")
        found, missed = _resolve(self)
        for depth in set(self.depths) - {one.shape.depth for one in found}:
            best = min((miss for miss in missed if miss.depth == depth), key=lambda miss: abs(miss.deviation))
            needed = math.ceil(abs(best.deviation) * 100) / 100
            fix = (
                f"Set `tolerance` to {needed:g} or more, change the budgets"
                if needed < 1
                else f"Raise the budgets to {12 * depth * self.step**2} or more"
            )
            raise ValueError(
                f"depth {depth} has no shape at any budget: widths are multiples of {self._step_words}, and the "
                f"nearest, width {best.nearest_width} for budget {best.budget:g}, has N = "
                f"{12 * depth * best.nearest_width**2} ({best.deviation:+.0%}, tolerance {self.tolerance:.0%}). {fix}, "
                f"or leave depth {depth} out"
            )

    def check_size(self, count: int, what: str) -> None:
        """Raise a `ValueError` if a plan would have more of something than `max_cells`."""
        if count > self.max_cells:
            raise ValueError(
                f"the plan would have {count:,} {what}, more than the {self.max_cells:,} of `frontier.max_cells`; make "
                f"the lists shorter, or set `frontier.max_cells: {count}`"
            )


def shapes(frontier: FrontierSection) -> list[FrontierShape]:
    """Return every shape of the frontier, by budget and depth.

    With `budgets`, each depth has at most one shape per budget: the allowed width whose N = 12·L·d² (Levine et al.
    2020, section 5.1) is nearest to the budget, if it is within the tolerance. With `widths`, each depth has the widths
    listed, and the budget of a shape is its own N.
    """
    return _resolve(frontier)[0]


def added_shapes(frontier: FrontierSection) -> list[FrontierShape]:
    """Return the shapes a search may add to the frontier, by budget and depth, by the frontier's own rules.

    The budgets are log-midpoints of those given (with hand-written widths, of those of each depth), halved until
    neighbours are at most a factor of `SPACING` apart. A `ValueError` if they are more than `max_cells`.
    """
    pairs = []
    for depth in frontier.depth_values:
        given = frontier.budget_values
        if frontier.widths is not None:
            given = tuple(12.0 * depth * width**2 for width in sorted(frontier.widths[depth]))
        for low, high in itertools.pairwise(given):
            ratio, parts = high / low, 1
            while ratio ** (1 / parts) > SPACING * (1 + 1e-12):
                parts *= 2
            pairs += [(low * ratio ** (part / parts), depth) for part in range(1, parts)]
    frontier.check_size(len(pairs), "pairs of depths and budgets that the search may add")
    taken = {one.shape for one in shapes(frontier)}
    return [one for one in _fitting(frontier, sorted(pairs))[0] if one.shape not in taken]


def misses(frontier: FrontierSection) -> list[Miss]:
    """Return the pairs of budget and depth that have no shape."""
    return _resolve(frontier)[1]


def heads_of(frontier: FrontierSection, width: int) -> int:
    """Return the attention heads of a width: fixed, or as many heads of `head_dim` as fit."""
    return frontier.heads if frontier.heads is not None else width // (frontier.head_dim or 1)


def _resolve(frontier: FrontierSection) -> tuple[list[FrontierShape], list[Miss]]:
    if frontier.widths is None:
        return _fitting(frontier, itertools.product(frontier.budget_values, frontier.depth_values))
    pairs = [(depth, width) for depth in frontier.depth_values for width in frontier.widths[depth]]
    own = [_shape_at(frontier, 12.0 * depth * width**2, depth, width) for depth, width in pairs]
    return sorted(own, key=lambda one: (one.budget, one.shape.depth)), []


def _fitting(
    frontier: FrontierSection, pairs: Iterable[tuple[float, int]]
) -> tuple[list[FrontierShape], list[Miss]]:
    """Return the shape nearest to each (budget, depth) within the tolerance, and the pairs that have none.

    If budgets share their nearest shape, the budget nearest to it keeps it, so that no shape is trained twice.
    """
    placed = []
    for budget, depth in pairs:
        width = _nearest_width(budget, depth, frontier.step)
        placed.append(Miss(budget, depth, width, 12 * depth * width**2 / budget - 1))
    owner: dict[tuple[int, int], float] = {}
    for miss in sorted(placed, key=lambda miss: abs(miss.deviation)):
        owner.setdefault((miss.depth, miss.nearest_width), miss.budget)
    result: list[FrontierShape] = []
    missed: list[Miss] = []
    for miss in placed:
        taken = owner[miss.depth, miss.nearest_width]
        if abs(miss.deviation) > frontier.tolerance * (1 + 1e-12):
            missed.append(miss)
        elif taken != miss.budget:
            missed.append(replace(miss, taken_by=taken))
        else:
            result.append(_shape_at(frontier, miss.budget, miss.depth, miss.nearest_width))
    return result, missed


def _shape_at(frontier: FrontierSection, budget: float, depth: int, width: int) -> FrontierShape:
    return FrontierShape(budget, Shape(depth=depth, width=width, heads=heads_of(frontier, width)))


def _nearest_width(budget: float, depth: int, step: int) -> int:
    """Return the multiple of `step` whose 12·L·d² is nearest to the budget; the smaller one on a tie."""
    below = max(1, math.floor(math.sqrt(budget / (12 * depth)) / step)) * step
    return min((below, below + step), key=lambda width: abs(12 * depth * width**2 - budget))
