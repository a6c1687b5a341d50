"""Budgets -> shapes: the depth, width and heads that spend a budget of N = 12·L·d² parameters."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainables.cell import Shape

if TYPE_CHECKING:
    from study.spec import FrontierSection


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


def shapes(frontier: "FrontierSection") -> list[FrontierShape]:
    """Return every shape of the frontier, by budget and depth.

    With `budgets`, each depth has at most one shape a budget: the allowed width whose N = 12·L·d² (Levine et
    al. 2020, section 5.1) is nearest to the budget, if it is within the tolerance. With `widths`, each depth
    has the widths listed, and the budget of a shape is its own N.
    """
    return _resolve(frontier)[0]


def misses(frontier: "FrontierSection") -> list[Miss]:
    """Return the pairs of budget and depth that `shapes` has no shape of their own for."""
    return _resolve(frontier)[1]


def width_step(frontier: "FrontierSection") -> int:
    """Widths are multiples of this: of `width_multiple`, and of the heads (or of the size of a head)."""
    return math.lcm(frontier.width_multiple, frontier.heads or frontier.head_dim or 1)


def heads_of(frontier: "FrontierSection", width: int) -> int:
    """Attention heads of a width: fixed, or as many as heads of `head_dim` fit."""
    return frontier.heads if frontier.heads is not None else width // (frontier.head_dim or 1)


def bottlenecked(shape: Shape, vocabulary: int) -> bool:
    """Say whether the width is above the vocabulary.

    The embedding then has rank at most V < d, and extra width adds less than its parameters promise: depth
    is favoured for a reason that is not the depth-to-width interplay (Wies, Levine, Jannai and Shashua 2021,
    arXiv 2105.03928).
    """
    return shape.width > vocabulary


def _resolve(frontier: "FrontierSection") -> tuple[list[FrontierShape], list[Miss]]:
    if frontier.widths is not None:
        found = [
            Shape(depth=depth, width=width, heads=heads_of(frontier, width))
            for depth in frontier.depth_values
            for width in sorted(frontier.widths[depth])
        ]
        own = [FrontierShape(float(shape.budget_params), shape) for shape in found]
        return sorted(own, key=lambda f: (f.budget, f.shape.depth)), []

    # The best budget of each (depth, width): two close budgets must not train one shape twice.
    step = width_step(frontier)
    nearest: dict[tuple[float, int], int] = {}
    owner: dict[tuple[int, int], float] = {}
    for budget in frontier.budget_values:
        for depth in frontier.depth_values:
            width = _nearest_width(budget, depth, step)
            nearest[budget, depth] = width
            taken = owner.get((depth, width))
            params = 12 * depth * width**2
            if taken is None or abs(params / budget - 1) < abs(params / taken - 1):
                owner[depth, width] = budget

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


def _nearest_width(budget: float, depth: int, step: int) -> int:
    """The multiple of `step` whose 12·L·d² is nearest to the budget; the smaller one on a tie."""
    below = max(1, math.floor(math.sqrt(budget / (12 * depth)) / step)) * step
    return min((below, below + step), key=lambda width: abs(12 * depth * width**2 - budget))
