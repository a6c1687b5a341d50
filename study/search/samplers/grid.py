"""The sampler `grid`: every depth at every budget with every learning rate."""

from typing import Literal

from study.plan.cells import Outcome, PlannedCell
from study.plan.plan import Plan
from study.search.source import Keys, Known, Search, seed_by_seed
from study.spec.search import Sampler, register
from study.spec.study import StudySpec


class GridSearch(Search):
    """The cells of a plan that have no outcome."""

    def __init__(self, plan: Plan, known: Known) -> None:
        """Begin with all of them."""
        self.total = len(plan.cells)
        self._waiting = [planned for planned in seed_by_seed(plan) if planned.cell.key not in known]

    @property
    def done(self) -> bool:
        """Whether every cell has ended or is running."""
        return not self._waiting

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None if there is none."""
        return self._waiting.pop(0) if self._waiting else None

    def tell(self, key: str, outcome: Outcome) -> None:
        """Do nothing: a grid does not depend on outcomes."""


@register
class Grid(Sampler):
    """Train every cell."""

    is_grid = True

    sampler: Literal["grid"] = "grid"

    def make_search(self, plan: Plan, spec: StudySpec, known: Known, begun: Keys, workers: int) -> Search:
        """Return all cells of the plan."""
        return GridSearch(plan, known)
