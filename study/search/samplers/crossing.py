"""The sampler `crossing`: single cells, chosen for their information about the crossings."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from study.errors import SpecError
from study.plan.cells import PlannedCell
from study.plan.plan import Plan
from study.plan.planner import Planner
from study.plan.table import short
from study.search.source import Keys, Known, Search
from study.spec.frontier import FrontierShape, added_shapes
from study.spec.search import ObjectiveName, Sampler, register
from study.spec.section import Budget, Section
from study.spec.study import StudySpec
from study.spec.training import TableRate

#: Seeds per shape that a search may train, unless `search.max_seeds` sets another number.
MOST_SEEDS = 8
#: The key of `stop_when` for each objective.
HALFWIDTHS: dict[ObjectiveName, str] = {
    "depth": "projected_depth_halfwidth",
    "b": "b_halfwidth",
    "crossings": "crossing_halfwidth",
}
#: Fewest depths whose crossings give an interval of the slope and of a projected depth: two crossings do not.
LEAST_DEPTHS = 4
_ESTIMATED = {"depth": "the projected depth", "b": "the slope b", "crossings": "every crossing"}


class StopWhenSection(Section):
    """The precision at which a search ends: half-width of a 95 % interval relative to the estimate."""

    projected_depth_halfwidth: float | None = Field(
        default=None, gt=0, le=10, description="of the best depth projected at `target_params`"
    )
    b_halfwidth: float | None = Field(default=None, gt=0, le=10, description="of the law's slope b")
    crossing_halfwidth: float | None = Field(
        default=None, gt=0, le=10, description="of every crossing, in ln N: 0.1 is about 10 % of N"
    )

    @property
    def objective(self) -> ObjectiveName:
        """The estimated quantity."""
        return next(objective for objective, key in HALFWIDTHS.items() if getattr(self, key) is not None)

    @property
    def halfwidth(self) -> float:
        """The half-width to reach."""
        value: float = getattr(self, HALFWIDTHS[self.objective])
        return value

    @property
    def words(self) -> str:
        """The rule as part of a sentence."""
        return f"{_ESTIMATED[self.objective]} is known to ±{100 * self.halfwidth:g} %"

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [key for key in HALFWIDTHS.values() if getattr(self, key) is not None]
        if len(given) != 1:
            found = f"it has {', '.join(given)}" if given else "it has none"
            raise ValueError(
                f"`stop_when` takes exactly one of {', '.join(HALFWIDTHS.values())}, and {found}; write for example "
                "`stop_when: {projected_depth_halfwidth: 0.1}`, or leave `stop_when` out"
            )
        return self


@register
class Crossing(Sampler):
    """Choose one cell after the other, until a limit is reached."""

    chooses_cells = True
    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {
        f"stop_when.{key}": (
            *(f"search.stop_when.{other}" for other in HALFWIDTHS.values() if other != key),
            "search.objective",
            *(() if objective == "depth" else ("search.target_params",)),
        )
        for objective, key in HALFWIDTHS.items()
    }

    sampler: Literal["crossing"] = "crossing"
    objective: ObjectiveName | None = Field(
        default=None,
        description="what is estimated: the best depth projected at `target_params`, the law's slope b, or all "
        "crossings alike; by default that of `stop_when`, else depth",
    )
    target_params: Budget | None = Field(
        default=None,
        description="for the objective depth: the N projected at; by default ten times the largest budget",
    )
    stop_when: StopWhenSection | None = Field(
        default=None, description="the precision at which the search ends"
    )
    max_flops: float | None = Field(
        default=None, gt=0, description="training FLOPs of all its cells, sensitivity runs not counted"
    )
    max_cells: int | None = Field(default=None, ge=1, description="how many cells at most")
    max_seeds: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="seeds per shape at most, those of `training.seeds` first; by default 8, or as many as these are",
    )
    new_budgets: Literal["none", "between"] | None = Field(
        default=None, description="shapes at budgets between those given (the default), or none"
    )

    @property
    def objective_name(self) -> ObjectiveName:
        """The quantity that the search estimates: `objective`, else that of `stop_when`, else the projected depth."""
        return self.objective or (self.stop_when.objective if self.stop_when else "depth")

    @property
    def wanted_halfwidth(self) -> float | None:
        """Relative half-width of the interval at which the search ends; None if it does not end by one."""
        return self.stop_when.halfwidth if self.stop_when else None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.lr_factors) > 1:
            raise ValueError(
                f"the sampler `crossing` trains at one learning rate, and `lr_factors` has {len(self.lr_factors)}; "
                "keep one, or set `sampler: grid`; the section `sensitivity` shows whether the rate moves a crossing"
            )
        stop_when = self.stop_when
        if stop_when is None and self.max_flops is None and self.max_cells is None:
            raise ValueError(
                "the sampler `crossing` needs an end, at least one of `stop_when`, `max_flops` and `max_cells`, such "
                "as `stop_when: {projected_depth_halfwidth: 0.1}`"
            )
        if stop_when is not None and self.objective not in (None, stop_when.objective):
            raise ValueError(
                f"`objective` is {self.objective}, but `stop_when` asks for {HALFWIDTHS[stop_when.objective]}; set "
                f"`objective: {stop_when.objective}`, or `stop_when: {{{HALFWIDTHS[self.objective_name]}: "
                f"{stop_when.halfwidth:g}}}`"
            )
        if self.target_params is not None and self.objective_name != "depth":
            raise ValueError(
                f"`target_params` is for the objective depth, and the objective is {self.objective_name}; take it out"
            )
        return self

    def check(self, spec: StudySpec) -> None:
        """Raise a `ValueError` if the depths, budgets, seeds or rates of the study do not allow the search."""
        depths, seeds = spec.frontier.depth_values, spec.training.seed_values
        least = 2 if self.objective_name == "crossings" else 3
        if len(depths) < least:
            raise ValueError(
                f"`search.objective` is {self.objective_name}, which needs {least} depths or more, and "
                f"`frontier.depths` has {len(depths)}; add depths"
                + (", or set `search.objective: crossings`" if len(depths) == 2 else "")
            )
        if self.max_seeds is not None and self.max_seeds < len(seeds):
            raise ValueError(
                f"`search.max_seeds` is {self.max_seeds}, fewer than the {len(seeds)} of `training.seeds`; raise the "
                "one or lower the other"
            )
        if isinstance(spec.training.lr, TableRate) and self.new_budgets != "none":
            raise ValueError(
                "`training.lr` is a table of the frontier's shapes, which has no rate for shapes the search may add; "
                "set `search.new_budgets: none`, or use `rule: width`"
            )

    def shapes_and_seeds(self, spec: StudySpec) -> tuple[int, int]:
        """Return the numbers of shapes and of seeds with those that the search may add."""
        listed, seeds = super().shapes_and_seeds(spec)
        added = 0 if self.new_budgets == "none" else len(added_shapes(spec.frontier))
        return listed + added, max(seeds, self._most_seeds)

    @property
    def _most_seeds(self) -> int:
        return MOST_SEEDS if self.max_seeds is None else self.max_seeds

    def more_cells(
        self, planner: Planner, listed: Sequence[FrontierShape]
    ) -> tuple[list[PlannedCell], list[str]]:
        """Return more seeds of the listed shapes and shapes at new budgets, and why some of these are left out."""
        given = planner.spec.training.seed_values
        most = max(len(given), self._most_seeds)
        taken = set(given)
        others = [seed for seed in range(most) if seed not in taken][: most - len(given)]
        cells = [planned for found in listed for planned in planner.cells(found, others)]
        if self.new_budgets == "none":
            return cells, []
        refused = []
        for found in added_shapes(planner.spec.frontier):
            try:
                cells += planner.cells(found, (*given, *others))
            except SpecError as error:
                refused.append(f"the search adds no L{found.shape.depth} d{found.shape.width}: {error}")
        return cells, refused

    def check_cells(self, cells: Collection[PlannedCell]) -> None:
        """Raise a `SpecError` if `max_flops` is less than any cell takes."""
        cheapest = min((planned.flops for planned in cells), default=0.0)
        if self.max_flops is not None and self.max_flops < cheapest:
            raise SpecError(
                f"`search.max_flops` is {self.max_flops:g}, and the cheapest cell takes {cheapest:.3g} training FLOPs, "
                "so that the search could train none; raise it, or train with fewer `training.steps`."
            )

    def plan_json(self) -> dict[str, Any]:
        """The limits of the search, as keys of the plan's JSON."""
        return {
            **super().plan_json(),
            "stop_when": self.stop_when.words if self.stop_when else None,
            "max_flops": self.max_flops,
            "max_cells": self.max_cells,
        }

    def trained_shares(self, plan: Plan) -> dict[float, float]:
        """Return the largest share of the work that the limits allow, for every budget: totals are upper bounds."""
        costs = sorted((p.flops for p in plan.main), reverse=True)
        most = math.fsum(costs[: self.max_cells])
        share = min(most, self.max_flops or most) / math.fsum(costs)
        return dict.fromkeys((p.budget for p in plan.main), share)

    def cell_count(self, plan: Plan) -> int:
        """Return how many cells the limits allow, all of the cheapest."""
        spent = accumulate(sorted(p.flops for p in plan.main)[: self.max_cells])
        return sum(cost <= (self.max_flops or math.inf) for cost in spent)

    def plan_notes(self, plan: Plan) -> list[str]:
        """Return the number of cells to choose from, and the limits of the search."""
        listed = {planned.cell.shape for planned in plan.cells}
        added = {planned.cell.shape for planned in plan.more} - listed
        seeds = len({planned.cell.seed for planned in plan.pool})
        sizes = f" and {len(added)} at other budgets" if added else ""
        first = "" if self.stop_when is None else f" when {self.stop_when.words}, at the latest"
        limits = [
            *([f"{short(self.max_flops)} FLOPs"] if self.max_flops else []),
            *([f"{self.max_cells:,} cells"] if self.max_cells else []),
        ]
        last = f" at {' or '.join(limits)}" if limits else " with all of them trained"
        depths = len({shape.depth for shape in listed})
        never = [
            f"`search.stop_when.{HALFWIDTHS[self.objective_name]}` is never reached: {depths} depths have too few "
            "crossings for an interval of it; give four depths or more, or use `crossing_halfwidth`"
        ]
        return [
            f"the search (crossing) chooses from {len(plan.pool):,} cells: these {len(listed)} shapes{sizes} with up "
            f"to {seeds} seeds each; it ends{first}{last}; totals are upper bounds",
            *(
                never
                if self.stop_when and self.objective_name != "crossings" and depths < LEAST_DEPTHS
                else []
            ),
        ]

    def power_notes(self) -> list[str]:
        """Return how a simulated study of all listed cells differs from this search."""
        return [
            "The search (crossing) chooses its own cells and ends at its limits; the simulation trains the grid of the "
            "shapes and seeds listed."
        ]

    def make_search(self, plan: Plan, spec: StudySpec, known: Known, begun: Keys, workers: int) -> Search:
        """Return the search that proposes single cells."""
        from study.search.crossing_search import CrossingSearch

        return CrossingSearch(plan, spec, known, begun, workers, self.max_cells, self.max_flops)
