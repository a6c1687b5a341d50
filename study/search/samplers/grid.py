"""The sampler `grid`: every depth at every budget with every learning rate."""

from typing import Literal

from study.plan.plan import Plan
from study.search.source import Keys, Known, Search
from study.spec.search import Sampler, register
from study.spec.study import StudySpec


@register
class Grid(Sampler):
    """Train every cell."""

    is_grid = True

    sampler: Literal["grid"] = "grid"

    def make_search(self, plan: Plan, spec: StudySpec, known: Known, begun: Keys, workers: int) -> Search:
        """Return the candidates of the plan, all of them."""
        from study.search.optuna_search import FrontierSearch

        return FrontierSearch(plan, known, begun, seed=self.seed)
