"""The sensitivity arm of a study: the cells about each crossing again, at other multiples of their learning rate.

Which cells these are depends on where depths cross, so they are known once the search has ended and never stored: the
same rows give the same arm.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from analysis.curves.curves import build_curves
from analysis.fit.learning_rate_shift import ARM, split
from analysis.law.crossings import find_crossings
from analysis.runs.comparison import compare
from analysis.runs.table import STOPPED, RunTable
from study.plan.cells import Outcome, PlannedCell
from study.plan.plan import Plan
from study.search.source import Source
from study.spec.study import StudySpec
from trainables.cell import Shape

#: A crossing itself needs no bootstrap, only its verdict does.
_DRAWS = 100


def sensitivity_cells(spec: StudySpec, plan: Plan, table: RunTable) -> list[PlannedCell]:
    """The cells of the arm: both depths of each crossing, the size below it and the size above, and all their seeds.

    Args:
        spec: whose section `sensitivity` names the multiples of the rate; without it there is no arm.
        plan: plans the cells.
        table: the run table of the study; rows of the arm itself change nothing.
    """
    main, _ = split(table)
    if spec.sensitivity is None or main.used.empty:
        return []
    rows = compare(main).rows
    # A forecast has no other half: its run ended early.
    whole = rows[rows["status"] != STOPPED]
    crossings = [
        item
        for item in find_crossings(build_curves(rows), draws=_DRAWS).items
        if item.adjacent and item.params is not None
    ]
    base = spec.search.lr_factors[0]
    cells: dict[str, PlannedCell] = {}
    for item, factor in itertools.product(crossings, spec.sensitivity.lr_factors):
        for depth in (item.shallow, item.deep):
            near = _about(whole[whole["depth"] == depth], float(item.params or 0))
            for row in near[["depth", "width", "heads", "budget", "seed"]].to_dict("records"):
                shape = Shape(depth=int(row["depth"]), width=int(row["width"]), heads=int(row["heads"]))
                planned = plan.planned_for(shape, float(row["budget"]), base * factor, int(row["seed"]), ARM)
                cells.setdefault(planned.cell.key, planned)
    # As in a grid: all shapes of one seed before the next, and the longest first.
    return sorted(cells.values(), key=lambda planned: (planned.cell.seed, -planned.flops))


def _about(rows: pd.DataFrame, params: float) -> pd.DataFrame:
    """Rows of the largest size up to `params` and of the smallest beyond it."""
    sizes = np.sort(rows["params"].unique())
    right = int(np.searchsorted(sizes, params, side="right"))
    return rows[rows["params"].isin(sizes[max(0, right - 1) : right + 1])]


class ThenSensitivityRuns:
    """The cells of a search, and once all of these have ended those of the arm; a `Source` as the search is one."""

    def __init__(
        self,
        search: Source,
        known: Callable[[str], bool],
        arm: Callable[[], Sequence[PlannedCell]],
        opened: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Begin with the search.

        Args:
            search: the study itself.
            known: whether the cell of a key has ended in an earlier run.
            arm: its cells; asked once, when every cell of the search has ended.
            opened: hears then how many of its cells are still to run.
        """
        self._search, self._known, self._arm, self._tell_opened = search, known, arm, opened
        self._running: set[str] = set()
        self._waiting: list[PlannedCell] | None = None
        self._own: set[str] = set()

    @property
    def done(self) -> bool:
        """Whether no cell will ever be given again."""
        waiting = self._opened
        return waiting is not None and not waiting

    @property
    def _opened(self) -> list[PlannedCell] | None:
        """The arm's cells that wait, None while the search has cells to give or to wait for."""
        if self._waiting is None and self._search.done and not self._running:
            self._waiting = [planned for planned in self._arm() if not self._known(planned.cell.key)]
            self._tell_opened(len(self._waiting))
            self._own = {planned.cell.key for planned in self._waiting}
        return self._waiting

    def take(self) -> PlannedCell | None:
        """Return the next cell to run, or None where nothing can be started now."""
        waiting = self._opened
        if waiting is not None:
            return waiting.pop(0) if waiting else None
        planned = self._search.take()
        if planned is not None:
            self._running.add(planned.cell.key)
        return planned

    def tell(self, key: str, outcome: Outcome) -> None:
        """Say how a cell ended; the search hears of its own cells only."""
        if key in self._own:
            return
        self._search.tell(key, outcome)
        self._running.discard(key)
