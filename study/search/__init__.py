"""The choice of the next cell to train: the samplers behind one interface, resumed from the run table alone."""

from pathlib import Path
from typing import TYPE_CHECKING

from study.plan.plan import Plan
from study.search.source import GridSearch, Keys, Rows, Search, SearchState, Source, Trials
from study.spec.search import CrossingSection, OptunaSection
from study.spec.study import StudySpec

if TYPE_CHECKING:
    from analysis.design.objective import SearchInfo

__all__ = ["Search", "SearchState", "Source", "end_words", "make_search", "search_info"]


def make_search(
    spec: StudySpec,
    plan: Plan,
    rows: Rows,
    begun: Keys = (),
    workers: int | None = None,
    database: Path | None = None,
) -> Search:
    """Return the search of a study, resumed from its rows.

    Args:
        spec: the study.
        plan: its cells.
        rows: of ended cells.
        begun: keys of cells without a row, which come first.
        workers: how many cells run at once; by default the plan's slots.
        database: SQLite file of the Optuna studies; without it they are kept in memory, by `grid` and `crossing` not
            at all.
    """
    if isinstance(spec.search, OptunaSection):
        from study.search.optuna_search import OptunaSearch, OptunaStudies

        return OptunaSearch(plan, rows, begun, OptunaStudies(plan, rows, begun, database, spec.search))
    trials = Trials()
    if database is not None:
        from study.search.optuna_search import OptunaStudies

        trials = OptunaStudies(plan, rows, begun, database)
    if isinstance(spec.search, CrossingSection):
        from study.search.crossing_search import CrossingSearch

        return CrossingSearch(plan, spec, rows, begun, workers or plan.slots, trials)
    return GridSearch(plan, rows, trials)


def end_words(spec: StudySpec, plan: Plan, rows: Rows) -> str:
    """Return why the search has ended by the rows of ended cells, a sentence; empty if no limit ended it."""
    if not isinstance(spec.search, CrossingSection):
        return ""
    ending = make_search(spec, plan, rows).ending
    return ending.words if ending else ""


def search_info(spec: StudySpec, ended: str) -> "SearchInfo | None":
    """Return what a report adds about a search that has ended because of `ended`; None if all cells are trained."""
    if not spec.search.chooses_by_rows:
        return None
    from analysis.design.objective import SearchInfo
    from study.search.crossing_search import objective_of

    return SearchInfo(objective_of(spec), ended)
