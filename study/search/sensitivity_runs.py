"""Sensitivity runs: the cells around each crossing again, at other multiples of their learning rate.

The cells depend on where depths cross, so they are known only after the search has ended. They are not stored: the same
rows give the same cells.
"""

import itertools
from collections.abc import Callable, Sequence

from analysis.fit.rate_check import SENSITIVITY, near_crossing
from analysis.fit.study import Study
from study.plan.cells import Outcome, PlannedCell
from study.plan.plan import Plan
from study.search.source import Source
from study.spec.study import StudySpec


def sensitivity_cells(spec: StudySpec, plan: Plan, study: Study | None) -> list[PlannedCell]:
    """The cells of the sensitivity runs: both depths of each crossing, the next size below and above it, and all seeds.

    Args:
        spec: its section `sensitivity` has the multiples of the rate; without it there are no cells.
        plan: plans the cells.
        study: what is known; its sensitivity runs change nothing. None without a usable row.
    """
    if spec.sensitivity is None or study is None:
        return []
    rows = study.rows
    crossings = [item for item in study.crossings.items if item.params is not None]
    base = spec.search.lr_factors[0]
    cells: dict[str, PlannedCell] = {}
    for item, factor in itertools.product(crossings, spec.sensitivity.lr_factors):
        near = near_crossing(rows, item)[["depth", "width", "budget", "seed", "tokens"]]
        for row in near.to_dict("records"):
            shape = spec.frontier.shape(int(row["depth"]), int(row["width"]))
            steps = round(float(row["tokens"]) / (spec.training.batch * spec.training.context))
            planned = plan.planned_for(
                shape, float(row["budget"]), base * factor, int(row["seed"]), SENSITIVITY, steps
            )
            cells.setdefault(planned.cell.key, planned)
    # As in a grid: all shapes of one seed before the next, and the longest first.
    return sorted(cells.values(), key=lambda planned: (planned.cell.seed, -planned.flops))


class ThenSensitivityRuns:
    """A `Source` of the cells of a search and, after all of them have finished, of the sensitivity runs."""

    def __init__(
        self,
        search: Source,
        known: Callable[[str], bool],
        cells: Callable[[], Sequence[PlannedCell]],
        on_start: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Start with the search.

        Args:
            search: the study itself.
            known: whether the cell of a key has finished in an earlier run.
            cells: returns the cells of the sensitivity runs; called once, when every cell of the search has finished.
            on_start: called then with the number of cells still to run.
        """
        self._search, self._known, self._cells, self._on_start = search, known, cells, on_start
        self._running: set[str] = set()
        """Keys of cells of the search."""
        self._waiting: list[PlannedCell] | None = None

    @property
    def done(self) -> bool:
        """Whether no cell is left to start."""
        return self._left() == []

    def _left(self) -> list[PlannedCell] | None:
        """The sensitivity runs still to start; None while cells of the search are left or running."""
        if self._waiting is None and self._search.done and not self._running:
            self._waiting = [planned for planned in self._cells() if not self._known(planned.cell.key)]
            self._on_start(len(self._waiting))
        return self._waiting

    def take(self) -> PlannedCell | None:
        """Return the next cell to run, or None if nothing can start now."""
        waiting = self._left()
        if waiting is not None:
            return waiting.pop(0) if waiting else None
        planned = self._search.take()
        if planned is not None:
            self._running.add(planned.cell.key)
        return planned

    def tell(self, key: str, outcome: Outcome) -> None:
        """Record how a cell ended; only cells of the search reach the search."""
        if key in self._running:
            self._search.tell(key, outcome)
            self._running.remove(key)
