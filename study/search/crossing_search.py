"""The search of the sampler `crossing`: single cells, chosen by `analysis.design.next_cells`, and when it ends.

The next cell follows from the rows in the order in which they ended and from the running cells, so that a search that
was killed resumes identically.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from analysis.design.gains import Choice
from analysis.design.next_cells import propose
from analysis.design.objective import CHECKS, Estimate, Objective, estimate, estimate_sentence, reached
from analysis.design.power import AHEAD
from analysis.runs.columns import COLUMNS
from analysis.runs.table import RunTable
from core.numbers import prefixed
from study.plan.cells import PlannedCell
from study.plan.plan import Plan
from study.plan.rows import Row, run_table
from study.search.source import Keys, Rows, Search, SearchEnd, SearchState, Trials
from study.spec.search import CrossingSection
from study.spec.study import StudySpec

#: From this number of workers on, the time to choose cells matters.
MANY_WORKERS = 8
#: With that many workers, cells are chosen anew after at least this number of ended cells.
LEAST_GROUP = 8
#: Estimates are made each time this share of the ended cells has ended in addition: an estimate costs more the more
#: rows there are, so the cost per cell stays constant.
CHECK_SHARE = 1 / 20


class CrossingSearch(Search):
    """The cells of a plan, the most informative for their cost first, until a limit is reached.

    New rows are used in whole groups; the cells of an incomplete group count as running. With many workers the choice
    is thus not repeated for each cell, and it still follows from the rows alone.
    """

    def __init__(
        self, plan: Plan, spec: StudySpec, rows: Rows, begun: Keys, workers: int, trials: Trials
    ) -> None:
        """Resume from the rows of ended cells; `begun` are the keys of those without one, which come first.

        Rows of cells that the plan does not list, which were chosen under other limits, count as all others do.
        """
        super().__init__(trials)
        assert isinstance(spec.search, CrossingSection)
        self.total, self._workers, self._name = plan.cell_count, workers, plan.name
        self._section, self._objective = spec.search, objective_of(spec)
        # Sensitivity runs are not the search's.
        self._cells = {planned.cell.key: planned for planned in plan.pool}
        self._options = _options(self._cells)
        """The cells as a table, labelled by key."""
        self._costs = sorted(set(self._options["flops"]))
        self._tried: set[str] = set()
        self._running: list[str] = []
        """Keys, in the order in which they began."""
        self._rows: list[Row] = []
        """Rows of the ended cells, in the order of their ends."""
        self._spent: list[float] = []
        """Training FLOPs of the ended cells, up to the last step of a diverged one."""
        self._estimates: dict[int, Estimate] = {}
        """At the checks so far, by the number of rows they follow from."""
        self._judged = 0
        """Checks at which the half-width was not reached."""
        self._queue: list[Choice] = []
        self._basis: tuple[int, int] | None = None
        """The rows and the affordable cells that the queue was chosen by; None before the first choice."""
        for row in rows.values():
            if not row.purpose:
                self._end(row)
        self._waiting = [self._begin(key) for key in begun if key in self._cells and key not in rows]
        self.ending = self._ending()

    @property
    def done(self) -> bool:
        """Whether no further cell will be returned."""
        return self.ending is not None and not self._waiting

    def _next(self) -> PlannedCell | None:
        """Return the next cell to run; None if the search has ended or waits for running cells."""
        if self._waiting:
            return self._waiting.pop(0)
        if self.ending is not None:
            return None
        if not self._upcoming():
            # A running cell may still leave FLOPs unspent, or change which cells are worth trying.
            if not self._running:
                self.ending = SearchEnd("options", "no remaining cell is worth its cost.")
            return None
        planned = self._begin(self._queue.pop(0).cell)
        if not self._queue:
            self._basis = None
        self.ending = self._limit()
        return planned

    def _record(self, row: Row) -> None:
        self._end(row)
        if self.ending is None:
            self.ending = self._ending() if self._is_due() else self._limit()

    def news(self) -> SearchState | None:
        """Return the state if a check was due after the last ended cell, else None."""
        return self.state() if self._is_due() else None

    def state(self) -> SearchState:
        """Return the state now."""
        latest = [self._estimate(count) for count in checks(len(self._rows))[-1:]]
        return SearchState(len(self._rows), math.fsum(self._spent), latest[0] if latest else None)

    def _is_due(self) -> bool:
        return checks(len(self._rows))[-1:] == [len(self._rows)]

    def _estimate(self, count: int) -> Estimate:
        """Return the estimate from the first rows that ended."""
        if count not in self._estimates:
            self._estimates[count] = estimate(self._table(count), self._objective)
        return self._estimates[count]

    def _begin(self, key: str) -> PlannedCell:
        self._tried.add(key)
        self._running.append(key)
        return self._cells[key]

    def _end(self, row: Row) -> None:
        self._tried.add(row.cell)
        if row.cell in self._running:
            self._running.remove(row.cell)
        self._rows.append(row)
        self._spent.append(row.flops * row.trained_share)

    def _table(self, count: int) -> RunTable | None:
        """Return the run table of the first rows that ended; None without rows."""
        rows = {row.cell: row for row in self._rows[:count]}
        return run_table(rows, self._name) if rows else None

    def _upcoming(self) -> list[Choice]:
        """Return the next choices, best first.

        They are made anew when another group of cells has ended, or when the affordable cells are others than before: a
        search that was killed chooses from these, and must choose the same.
        """
        group = group_of(self._workers)
        seen = len(self._rows) // group * group
        basis = (seen, bisect_right(self._costs, self._left()))
        if basis != self._basis:
            options = self._affordable()
            pending = pd.concat([_ended(self._rows[seen:]), self._options.loc[self._running]])
            count = max(group, self._workers - len(self._running))
            table = self._table(seen)
            rows = pd.DataFrame(columns=list(COLUMNS)) if table is None else table.frame
            self._queue = propose(rows, pending, options, self._objective, count)
            self._basis = basis
        return self._queue

    def _affordable(self) -> pd.DataFrame:
        """Return the cells that were not tried and fit into the remaining training FLOPs."""
        options = self._options
        return options[(options["flops"] <= self._left()) & ~options.index.isin(list(self._tried))]

    def _left(self) -> float:
        """Return the remaining training FLOPs."""
        most = math.inf if self._section.max_flops is None else self._section.max_flops
        return most - math.fsum(self._spent) - float(self._options["flops"].loc[self._running].sum())

    def _ending(self) -> SearchEnd | None:
        """Return the limit that is reached; the half-width if any check reached it.

        Cells that finish after that check do not undo it.
        """
        wanted, due = self._section.halfwidth, checks(len(self._rows))
        while wanted is not None and self._judged < len(due):
            last = due[max(0, self._judged - CHECKS + 1) : self._judged + 1]
            judged = [self._estimate(count) for count in last]
            if reached(judged, wanted):
                end = f"The search ends after {last[-1]} cells: ±{100 * wanted:g} % was asked for."
                return SearchEnd("halfwidth", f"{estimate_sentence(judged[-1])} {end}")
            self._judged += 1
        return self._limit()

    def _limit(self) -> SearchEnd | None:
        tried, most, flops = len(self._tried), self._section.max_cells, self._section.max_flops
        if most is not None and tried >= most:
            return SearchEnd("max_cells", f"the limit of {most:,} cells is reached.")
        if self._cells.keys() <= self._tried:
            return SearchEnd("options", f"all {tried:,} cells it may train have been tried.")
        # A running cell may diverge, and leave FLOPs for others.
        if flops is not None and not self._running and self._affordable().empty:
            return SearchEnd("max_flops", f"no other cell fits into {prefixed(flops)} training FLOPs.")
        return None


def group_of(workers: int) -> int:
    """Return after how many ended cells a search with this number of workers chooses anew.

    With up to three workers it does so after each cell, because cells end seldom. Many workers choose without the
    results of the running cells anyway, so the results of half as many change little.
    """
    return max(LEAST_GROUP, workers // 2) if workers >= MANY_WORKERS else max(1, workers // 2)


def _options(cells: Mapping[str, PlannedCell]) -> pd.DataFrame:
    """Return the columns of a run table that a choice needs, of planned cells by key."""
    shapes = {key: planned.cell.shape for key, planned in cells.items()}
    return _table(
        shapes,
        [shape.depth for shape in shapes.values()],
        [shape.budget_params for shape in shapes.values()],
        [planned.cell.seed for planned in cells.values()],
        [planned.flops for planned in cells.values()],
    )


def _ended(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the same columns of the cells of rows."""
    fields = ("cell", "depth", "params", "seed", "flops")
    return _table(*([getattr(row, name) for row in rows] for name in fields))


def _table(
    keys: Iterable[str], depth: list[int], params: list[int], seed: list[int], flops: list[float]
) -> pd.DataFrame:
    columns = {"depth": depth, "params": params, "seed": seed, "flops": flops}
    return pd.DataFrame(columns, index=list(keys), dtype=float)


def objective_of(spec: StudySpec) -> Objective:
    """Return what a study estimates; by default the projected depth at a size beyond its budgets."""
    search = spec.search if isinstance(spec.search, CrossingSection) else None
    if search and search.objective != "depth":
        return Objective(search.objective)
    target = search.target_params if search else None
    return Objective("depth", target or AHEAD * max(spec.frontier.budget_values))


def checks(count: int) -> list[int]:
    """Return the counts of ended cells up to `count` at which there is an estimate.

    They do not depend on the number of workers: a search ends at the same cell on every machine.
    """
    seeds = [1]
    while seeds[-1] <= count:
        seeds.append(seeds[-1] + max(1, math.floor(seeds[-1] * CHECK_SHARE)))
    return seeds[:-1]
