"""The section `frontier`: which shapes are compared, from budgets of N = 12·L·d² parameters or from widths."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from study.spec.section import Budget, Depth, Section, Width, refuse_repeats
from trainables.cell import Shape

#: Neighbouring budgets a search may try are at most this factor apart: a quarter in width, about the steps that small
#: widths come in.
SPACING = 1.5


@dataclass(frozen=True, slots=True)
class FrontierShape:
    """A shape and the budget it spends."""

    budget: float
    shape: Shape

    @property
    def deviation(self) -> float:
        """How far N = 12·L·d² of the shape is from the budget, as a share of the budget."""
        return self.shape.budget_params / self.budget - 1


@dataclass(frozen=True, slots=True)
class Miss:
    """A depth that has no shape at a budget, and why."""

    budget: float
    depth: int
    nearest_width: int
    deviation: float
    """How far 12·L·d² of the nearest width is from the budget, as a share of the budget."""
    taken_by: float | None = None
    """The budget that has this shape already, where the width itself would be near enough."""

    @property
    def reason(self) -> str:
        """One sentence for people."""
        if self.taken_by is not None:
            return (
                f"depth {self.depth} at budget {self.budget:g}: its width {self.nearest_width} belongs "
                f"to budget "
                f"{self.taken_by:g} already"
            )
        return (
            f"depth {self.depth} at budget {self.budget:g}: the nearest width {self.nearest_width} is "
            f"{self.deviation:+.0%} off"
        )


class BudgetRange(Section):
    """Budgets from `min` to `max`, each the same factor above the one before."""

    min: Budget = Field(description="smallest budget")
    max: Budget = Field(description="largest budget")
    points: int = Field(ge=2, le=10_000, description="how many budgets, both ends counted")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"`min` {self.min:g} is not below `max` {self.max:g}; swap them")
        return self


def _list_or_table(value: Any) -> str:
    return "table" if isinstance(value, Mapping | BudgetRange) else "list"


class FrontierSection(Section):
    """Which shapes are compared: budgets x depths, or the widths of each depth by hand."""

    budgets: (
        Annotated[
            Annotated[tuple[Budget, ...], Tag("list")] | Annotated[BudgetRange, Tag("table")],
            Discriminator(_list_or_table),
        ]
        | None
    ) = Field(default=None, description="targets of N = 12·L·d², as a list or as {min, max, points}")
    depths: tuple[Depth, ...] | None = Field(default=None, description="layers L")
    widths: dict[Depth, tuple[Width, ...]] | None = Field(
        default=None,
        description="instead of budgets: the widths of each depth; the budget of a shape is its own N. "
        "`depths`, if given, says which of them are used",
    )
    heads: int | None = Field(
        default=None, ge=1, le=10_000, description="attention heads of every layer (the paper: 2)"
    )
    head_dim: int | None = Field(
        default=None, ge=1, le=10_000, description="instead of heads: the width of one head"
    )
    tolerance: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="how far N of a shape may be from its budget, as a share of the budget",
    )
    width_multiple: int = Field(
        default=1, ge=1, le=10_000, description="widths are multiples of this, and of the heads"
    )

    @property
    def budget_values(self) -> tuple[float, ...]:
        """The budgets in ascending order; with `widths`, the N of every shape."""
        if self.widths is not None:
            return tuple(sorted({found.budget for found in shapes(self)}))
        if isinstance(self.budgets, BudgetRange):
            low, high, points = self.budgets.min, self.budgets.max, self.budgets.points
            ratio = high / low
            return (low, *(low * ratio ** (i / (points - 1)) for i in range(1, points - 1)), high)
        return tuple(sorted(self.budgets or ()))

    @property
    def depth_values(self) -> tuple[int, ...]:
        """The depths in ascending order."""
        return tuple(
            sorted(self.widths if self.depths is None and self.widths is not None else self.depths or ())
        )

    def head_width(self, width: int) -> float:
        """Width of one head of a shape of this width; a fraction where the heads do not divide it."""
        return float(self.head_dim) if self.head_dim is not None else width / (self.heads or 1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.heads is None) == (self.head_dim is None):
            given = "neither is" if self.heads is None else "both are"
            raise ValueError(f"give exactly one of `heads` and `head_dim`; {given} given")
        if self.widths is not None:
            self._check_widths(self.widths)
        else:
            self._check_budgets()
        return self

    def _check_widths(self, widths: Mapping[int, tuple[int, ...]]) -> None:
        if self.budgets is not None:
            raise ValueError("`widths` and `budgets` exclude each other; take one of them out")
        if not widths:
            raise ValueError("`widths` is empty; write `widths: {6: [128, 256], 12: [96, 192]}`")
        if self.depths is not None:
            refuse_repeats("depths", self.depths)
            unknown = sorted(set(self.depths) - set(widths))
            if unknown or not self.depths:
                raise ValueError(
                    f"`depths` has {unknown or 'nothing'}, and `widths` has the depths {sorted(widths)}; "
                    f"choose among these, "
                    "or give widths for the others"
                )
        step = width_step(self)
        for depth, values in widths.items():
            if not values:
                raise ValueError(f"`widths` of depth {depth} is empty; give at least one width")
            refuse_repeats(f"widths.{depth}", values)
            for width in values:
                if width % step:
                    low, high = width // step * step, (width // step + 1) * step
                    raise ValueError(
                        f"width {width} of depth {depth} is not a multiple of {step} "
                        f"({self._step_reason()}); "
                        f"take {f'{low} or ' if low else ''}{high}"
                    )

    def _check_budgets(self) -> None:
        if self.budgets is None or self.depths is None:
            missing = [f"`{name}`" for name in ("budgets", "depths") if getattr(self, name) is None]
            raise ValueError(
                f"{' and '.join(missing)} missing; give `budgets` and `depths`, or `widths` alone"
            )
        for name, values in (("budgets", self.budget_values), ("depths", self.depths)):
            if not values:
                raise ValueError(f"`{name}` is empty; give at least one value")
            refuse_repeats(name, values)
        found, missed = shapes(self), misses(self)
        for depth in self.depth_values:
            if any(one.shape.depth == depth for one in found):
                continue
            best = min((miss for miss in missed if miss.depth == depth), key=lambda miss: abs(miss.deviation))
            if (
                best.taken_by is not None
            ):  # pragma: no cover - the budget that took it would be among the found
                continue
            raise ValueError(
                f"depth {depth} has no shape at any budget: widths are multiples of {width_step(self)} "
                f"({self._step_reason()}), and the nearest, width {best.nearest_width} for budget "
                f"{best.budget:g}, has "
                f"N = {12 * depth * best.nearest_width**2} ({best.deviation:+.0%}, tolerance "
                f"{self.tolerance:.0%}). "
                f"{self._way_out(best.deviation, depth)}"
            )

    def _way_out(self, deviation: float, depth: int) -> str:
        needed = math.ceil(abs(deviation) * 100) / 100
        if needed < 1:
            return f"Set `tolerance` to {needed:g} or more, change the budgets, or leave depth {depth} out"
        smallest = 12 * depth * width_step(self) ** 2
        return f"Raise the budgets to {smallest} or more, or leave depth {depth} out"

    def _step_reason(self) -> str:
        head = f"{self.heads} heads" if self.heads is not None else f"heads of {self.head_dim}"
        return head if self.width_multiple == 1 else f"{head}, `width_multiple` {self.width_multiple}"


def shapes(frontier: FrontierSection) -> list[FrontierShape]:
    """Return every shape of the frontier, by budget and depth.

    With `budgets`, each depth has at most one shape a budget: the allowed width whose N = 12·L·d² (Levine et
    al. 2020, section 5.1) is nearest to the budget, if it is within the tolerance. With `widths`, each depth
    has the widths listed, and the budget of a shape is its own N.
    """
    return _resolve(frontier)[0]


def added_shapes(
    frontier: FrontierSection, *, beyond: bool = False, low: float | None = None, high: float | None = None
) -> list[FrontierShape]:
    """Return the shapes a search may add to the frontier, by budget and depth, by the frontier's own rules.

    The budgets are log-midpoints of those given, halved until neighbours are at most a factor of `SPACING` apart.

    Args:
        frontier: what is given; a depth and width it has already are not returned again.
        beyond: whether also budgets below the smallest and above the largest given, in steps of at most `SPACING`.
        low: smallest added budget; None for the smallest given.
        high: largest added budget; None for the largest given.
    """
    pairs = [
        (budget, depth)
        for depth in frontier.depth_values
        for budget in _budgets_to_try(_budgets_of(frontier, depth), beyond=beyond, low=low, high=high)
    ]
    taken = {(found.shape.depth, found.shape.width) for found in shapes(frontier)}
    nearest, owner = _nearest_widths(sorted(pairs), width_step(frontier))
    return [
        FrontierShape(budget, Shape(depth=depth, width=width, heads=heads_of(frontier, width)))
        for (budget, depth), width in nearest.items()
        if (depth, width) not in taken
        and owner[depth, width] == budget
        and abs(12 * depth * width**2 / budget - 1) <= frontier.tolerance * (1 + 1e-12)
    ]


def _budgets_of(frontier: FrontierSection, depth: int) -> Sequence[float]:
    """The budgets of a depth in ascending order; of widths written by hand those of this depth alone."""
    if frontier.widths is None:
        return frontier.budget_values
    return sorted(12.0 * depth * width**2 for width in frontier.widths[depth])


def _budgets_to_try(
    given: Sequence[float], *, beyond: bool, low: float | None, high: float | None
) -> list[float]:
    ends = [low] if beyond and low is not None and low < given[0] else []
    ends += [high] if beyond and high is not None and high > given[-1] else []
    between = [value for pair in pairwise(sorted({*given, *ends})) for value in _between(*pair)]
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    return [value for value in (*ends, *between) if least <= value <= most]


def _between(low: float, high: float) -> list[float]:
    """Log-midpoints of two budgets, and of these, until neighbours are at most a factor of `SPACING` apart."""
    ratio = high / low
    parts = 1
    while ratio ** (1 / parts) > SPACING * (1 + 1e-12):
        parts *= 2
    return [low * ratio ** (part / parts) for part in range(1, parts)]


def misses(frontier: FrontierSection) -> list[Miss]:
    """Return the pairs of budget and depth that `shapes` has no shape of their own for."""
    return _resolve(frontier)[1]


def width_step(frontier: FrontierSection) -> int:
    """Widths are multiples of this: of `width_multiple`, and of the heads (or of the size of a head)."""
    return math.lcm(frontier.width_multiple, frontier.heads or frontier.head_dim or 1)


def heads_of(frontier: FrontierSection, width: int) -> int:
    """Attention heads of a width: fixed, or as many as heads of `head_dim` fit."""
    return frontier.heads if frontier.heads is not None else width // (frontier.head_dim or 1)


def bottlenecked(shape: Shape, vocabulary: int) -> bool:
    """Say whether the width is above the vocabulary.

    The embedding then has rank at most V < d, and extra width adds less than its parameters promise: depth
    is favoured for a reason that is not the depth-to-width interplay (Wies, Levine, Jannai and Shashua 2021,
    arXiv 2105.03928).
    """
    return shape.width > vocabulary


def _resolve(frontier: FrontierSection) -> tuple[list[FrontierShape], list[Miss]]:
    if frontier.widths is not None:
        found = [
            Shape(depth=depth, width=width, heads=heads_of(frontier, width))
            for depth in frontier.depth_values
            for width in sorted(frontier.widths[depth])
        ]
        own = [FrontierShape(float(shape.budget_params), shape) for shape in found]
        return sorted(own, key=lambda f: (f.budget, f.shape.depth)), []

    pairs = [(budget, depth) for budget in frontier.budget_values for depth in frontier.depth_values]
    nearest, owner = _nearest_widths(pairs, width_step(frontier))
    result: list[FrontierShape] = []
    missed: list[Miss] = []
    for (budget, depth), width in nearest.items():
        deviation = 12 * depth * width**2 / budget - 1
        if abs(deviation) > frontier.tolerance * (1 + 1e-12):
            missed.append(Miss(budget, depth, width, deviation))
        elif owner[depth, width] != budget:
            missed.append(Miss(budget, depth, width, deviation, taken_by=owner[depth, width]))
        else:
            shape = Shape(depth=depth, width=width, heads=heads_of(frontier, width))
            result.append(FrontierShape(budget, shape))
    return result, missed


def _nearest_widths(
    pairs: Sequence[tuple[float, int]], step: int
) -> tuple[dict[tuple[float, int], int], dict[tuple[int, int], float]]:
    """The width nearest to each (budget, depth), and the budget that each (depth, width) is nearest to.

    The latter because two close budgets must not train one shape twice.
    """
    nearest: dict[tuple[float, int], int] = {}
    owner: dict[tuple[int, int], float] = {}
    for budget, depth in pairs:
        width = _nearest_width(budget, depth, step)
        nearest[budget, depth] = width
        taken = owner.get((depth, width))
        params = 12 * depth * width**2
        if taken is None or abs(params / budget - 1) < abs(params / taken - 1):
            owner[depth, width] = budget
    return nearest, owner


def _nearest_width(budget: float, depth: int, step: int) -> int:
    """The multiple of `step` whose 12·L·d² is nearest to the budget; the smaller one on a tie."""
    below = max(1, math.floor(math.sqrt(budget / (12 * depth)) / step)) * step
    return min((below, below + step), key=lambda width: abs(12 * depth * width**2 - budget))
