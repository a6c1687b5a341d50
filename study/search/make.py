"""The search of a study, by the sampler its spec names."""

from collections.abc import Collection, Mapping

from study.plan.plan import Plan
from study.search.crossing_search import CrossingSearch
from study.search.optuna_search import FrontierSearch
from study.search.source import Outcome
from study.spec.study import StudySpec

Search = FrontierSearch | CrossingSearch


def make_search(
    spec: StudySpec,
    plan: Plan,
    known: Mapping[str, Outcome],
    begun: Collection[str] = (),
    workers: int | None = None,
) -> Search:
    """Return the search of a study, begun from what is known.

    Args:
        spec: the study.
        plan: its cells.
        known: outcomes of cells that ended before, by cell key, in the order in which they ended.
        begun: keys of cells that were begun and have no outcome, in the order in which they began: they come first.
        workers: how many cells run at once; by default the plan's slots.
    """
    if spec.search.sampler == "crossing":
        return CrossingSearch(plan, spec, known, begun, workers or plan.slots)
    return FrontierSearch(plan, spec.search, known, begun)
