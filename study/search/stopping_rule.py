"""When a search by crossings ends, and its estimates at fixed counts of ended cells."""

import math

import pandas as pd

from analysis.design.objective import CHECKS, Estimate, Objective, estimate, reached
from analysis.design.power import AHEAD
from study.search.source import SearchEnd
from study.spec.search import CrossingSection
from study.spec.study import StudySpec

#: Estimates are made each time this share of the ended cells has ended in addition: an estimate costs more the more
#: rows there are, so the cost per cell stays constant.
CHECK_SHARE = 1 / 20


def objective_of(spec: StudySpec) -> Objective:
    """Return what a study estimates; by default the projected depth at a size beyond its budgets."""
    name = spec.search.objective_name
    if name != "depth":
        return Objective(name)
    wanted = spec.search.target_params if isinstance(spec.search, CrossingSection) else None
    return Objective("depth", wanted or AHEAD * max(spec.frontier.budget_values))


def checks(count: int) -> list[int]:
    """Return the counts of ended cells up to `count` at which there is an estimate.

    They do not depend on the number of workers: a search ends at the same cell on every machine.
    """
    found = [1]
    while found[-1] <= count:
        found.append(found[-1] + max(1, math.floor(found[-1] * CHECK_SHARE)))
    return found[:-1]


class StoppingRule:
    """The estimates of one search, each a function of the first rows that ended and of nothing else."""

    def __init__(self, objective: Objective, halfwidth: float | None) -> None:
        """Begin without rows.

        Args:
            objective: what is estimated.
            halfwidth: relative half-width at which the search ends, if it ends by one.
        """
        self.objective, self.halfwidth = objective, halfwidth
        self._found: dict[int, Estimate] = {}
        self._judged = 0
        """Checks at which the half-width was not reached."""

    def is_due(self, count: int) -> bool:
        """Whether there is an estimate after exactly this number of ended cells."""
        return checks(count)[-1:] == [count]

    def latest(self, rows: pd.DataFrame) -> Estimate | None:
        """Return the estimate at the last check; None before the first."""
        due = checks(len(rows))
        return self._at(rows, due[-1]) if due else None

    def ending(self, rows: pd.DataFrame) -> SearchEnd | None:
        """Return the end of the search if any check of the rows in their order reached the half-width.

        Cells that finish after the rule was met do not undo it.
        """
        if self.halfwidth is None:
            return None
        due = checks(len(rows))
        while self._judged < len(due):
            place, count = self._judged, due[self._judged]
            judged = [self._at(rows, earlier) for earlier in due[max(0, place - CHECKS + 1) : place + 1]]
            if reached(judged, self.halfwidth):
                wanted = f"±{100 * self.halfwidth:g} % was asked for"
                return SearchEnd(
                    "halfwidth", f"{judged[-1].words} The search ends after {count} cells: {wanted}."
                )
            self._judged += 1
        return None

    def _at(self, rows: pd.DataFrame, count: int) -> Estimate:
        if count not in self._found:
            self._found[count] = estimate(rows.iloc[:count], self.objective)
        return self._found[count]
