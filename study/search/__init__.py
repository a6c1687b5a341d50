"""The choice of the next cell to train: the samplers behind one interface, resumed from the run table alone."""

from pathlib import Path

from study.plan.cells import Outcome
from study.plan.plan import Plan
from study.search.source import GridSearch, Keys, Known, Search, SearchState, Source
from study.spec.search import CrossingSection, OptunaSection
from study.spec.study import StudySpec

__all__ = ["Outcome", "Search", "SearchState", "Source", "make_search"]


def make_search(
    spec: StudySpec,
    plan: Plan,
    known: Known,
    begun: Keys = (),
    workers: int | None = None,
    database: Path | None = None,
) -> Search:
    """Return the search of a study, resumed from its results.

    Args:
        spec: the study.
        plan: its cells.
        known: outcomes of ended cells.
        begun: keys of cells without an outcome, which come first.
        workers: how many cells run at once; by default the plan's slots.
        database: SQLite file of the Optuna studies; without it they are kept in memory, by `grid` and `crossing` not
            at all.
    """
    if isinstance(spec.search, OptunaSection):
        from study.search.optuna_search import OptunaSearch, OptunaStudies

        return OptunaSearch(plan, known, begun, OptunaStudies(plan, known, begun, database, spec.search))
    if isinstance(spec.search, CrossingSection):
        from study.search.crossing_search import CrossingSearch

        search: Search = CrossingSearch(plan, spec, known, begun, workers or plan.slots)
    else:
        search = GridSearch(plan, known)
    if database is not None:
        from study.search.optuna_search import OptunaStudies

        search.trials = OptunaStudies(plan, known, begun, database)
    return search
