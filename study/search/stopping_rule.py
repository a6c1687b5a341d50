"""What ends a search by crossings, and how far it has come: the estimate at fixed counts of ended cells."""

import math
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from analysis.design.objective import CHECKS, Estimate, Objective, estimate, reached
from analysis.design.power import AHEAD
from study.spec.study import StopWhenSection, StudySpec

#: Estimates are made after so many more ended cells, as a share of those that have ended: their cost grows with the
#: rows, and so the cost for each cell does not.
CHECK_SHARE = 1 / 20


@dataclass(frozen=True)
class Ending:
    """Which limit ended a search."""

    limit: Literal["stop_when", "max_flops", "max_cells", "options"]
    words: str
    """One sentence for people."""


def objective_of(spec: StudySpec) -> Objective:
    """What a study wants to know: that of its search, for the projected depth at a size beyond its budgets."""
    search = spec.search
    if search.objective_name != "depth":
        return Objective(search.objective_name)
    return Objective("depth", search.target_params or AHEAD * max(spec.frontier.budget_values))


def checks(count: int) -> list[int]:
    """The counts of ended cells up to `count` at which there is an estimate.

    They are the same for any number of workers: a search that has ended on one machine has ended on all.
    """
    found = [1]
    while found[-1] <= count:
        found.append(_after(found[-1]))
    return found[:-1]


def _after(check: int) -> int:
    return check + max(1, math.floor(check * CHECK_SHARE))


class Watch:
    """The estimates of one search, each a function of the first rows that ended and of nothing else."""

    def __init__(self, objective: Objective, stop_when: StopWhenSection | None) -> None:
        """Watch a search that ends at `stop_when`, if at any certainty."""
        self.objective, self.stop_when = objective, stop_when
        self._found: dict[int, Estimate] = {}
        self._judged = 0
        """Checks at which the certainty was not reached."""
        self._due, self._last = {1}, 1

    def is_due(self, count: int) -> bool:
        """Whether there is an estimate of exactly so many ended cells."""
        while self._last < count:
            self._last = _after(self._last)
            self._due.add(self._last)
        return count in self._due

    def latest(self, rows: pd.DataFrame) -> Estimate | None:
        """The estimate at the last check; None before the first."""
        due = checks(len(rows))
        return self._at(rows, due[-1]) if due else None

    def ending(self, rows: pd.DataFrame) -> Ending | None:
        """Whether the certainty asked for was reached at any check of the rows in their order.

        Of cells that ended later, because they ran then, none takes it back.
        """
        if self.stop_when is None:
            return None
        due = checks(len(rows))
        while self._judged < len(due):
            place, count = self._judged, due[self._judged]
            judged = [self._at(rows, earlier) for earlier in due[max(0, place - CHECKS + 1) : place + 1]]
            if reached(judged, self.stop_when.halfwidth):
                asked = f"±{100 * self.stop_when.halfwidth:g} % was asked for"
                return Ending(
                    "stop_when", f"{judged[-1].words} After {count} cells this is certain enough: {asked}."
                )
            self._judged += 1
        return None

    def _at(self, rows: pd.DataFrame, count: int) -> Estimate:
        if count not in self._found:
            self._found[count] = estimate(rows.iloc[:count], self.objective)
        return self._found[count]
