"""The interface between a search and the driver: take a cell, report its row; and the search of a grid."""

import contextlib
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from study.plan.cells import PlannedCell
from study.plan.plan import Plan
from study.plan.rows import Row

if TYPE_CHECKING:
    from analysis.design.objective import Estimate


#: The file of the Optuna studies in the folder of a study.
DATABASE = "optuna.db"
#: Rows of ended cells by cell key, in the order in which they ended.
Rows = Mapping[str, Row]
#: Keys of cells that were begun and have no row (failed or cut off), in the order in which they began.
Keys = Collection[str]


def database_problem(file: Path) -> str | None:
    """Return why SQLite cannot write to a file, or None if it can.

    A file system may have no locks (Lustre mounted without `-o flock`), and the file may be damaged. No study needs it:
    the trials are made again from the rows.
    """
    try:
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute("begin immediate")
            (verdict,) = database.execute("pragma quick_check(1)").fetchone()
            database.rollback()
    except sqlite3.Error as error:
        return str(error)
    return None if verdict == "ok" else str(verdict)


class Source(Protocol):
    """The source of the driver's cells."""

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None if no cell can start now."""

    def tell(self, row: Row) -> None:
        """Use the row of a cell that has ended or failed."""

    @property
    def done(self) -> bool:
        """Whether no further cell will be returned."""


@dataclass(frozen=True)
class SearchEnd:
    """The limit that ended a search, and a sentence about it."""

    limit: Literal["halfwidth", "max_flops", "max_cells", "options"]
    words: str


@dataclass(frozen=True)
class SearchState:
    """Progress of a search: its ended cells, their training FLOPs, and the estimate at the last check, if any."""

    cells: int
    flops: float
    estimate: "Estimate | None"


class Trials:
    """A record of the cells of a search; this one keeps nothing."""

    def begin(self, planned: PlannedCell) -> None:
        """Record that a cell runs."""

    def end(self, row: Row) -> None:
        """Record how a cell ended."""

    def close(self) -> None:
        """End what is open when no further cell will be taken in this run."""


class Search(Source):
    """The `Source` of a sampler, with what is reported of it."""

    total: int
    """Cells of the whole search at most, those already known included."""
    ending: SearchEnd | None = None
    """The limit that ended the search; None for a search without limits."""

    def __init__(self, trials: Trials) -> None:
        """Record the cells in `trials`."""
        self.trials = trials

    def take(self) -> PlannedCell | None:
        """Return the next cell to run; None if no cell can start now."""
        planned = self._next()
        if planned:
            self.trials.begin(planned)
        return planned

    def tell(self, row: Row) -> None:
        """Use the row of a cell that has ended or failed."""
        self._record(row)
        self.trials.end(row)

    def _next(self) -> PlannedCell | None:
        raise NotImplementedError

    def _record(self, row: Row) -> None:
        """Use the row of a cell; by default the choice of cells does not depend on rows."""

    def news(self) -> SearchState | None:
        """Return the state if a check was due after the last ended cell, else None."""
        return None

    def state(self) -> SearchState | None:
        """Return the state now; None for a search that estimates nothing."""
        return None

    def close(self) -> None:
        """End what is open when no further cell will be taken in this run."""
        self.trials.close()


class GridSearch(Search):
    """The cells of a plan that have no row."""

    def __init__(self, plan: Plan, rows: Rows, trials: Trials) -> None:
        """Begin with all of them."""
        super().__init__(trials)
        self.total = len(plan.cells)
        self._waiting = [planned for planned in seed_by_seed(plan) if planned.cell.key not in rows]

    @property
    def done(self) -> bool:
        """Whether every cell has ended or is running."""
        return not self._waiting

    def _next(self) -> PlannedCell | None:
        return self._waiting.pop(0) if self._waiting else None


class ListedCells(Source):
    """Cells in the order given; the choice depends on no row."""

    def __init__(self, cells: Iterable[PlannedCell]) -> None:
        """Begin with all of them."""
        self._waiting = list(cells)

    @property
    def done(self) -> bool:
        """Whether every cell has ended or is running."""
        return not self._waiting

    def take(self) -> PlannedCell | None:
        """Return the next cell to run."""
        return self._waiting.pop(0) if self._waiting else None

    def tell(self, row: Row) -> None:
        """Do nothing."""


def seed_by_seed(plan: Plan) -> list[PlannedCell]:
    """Return the cells of a plan in the order of a grid.

    All shapes of one seed come before the next, so that an unfinished study has whole curves. The longest of a seed
    come first, so that no worker is left with a long cell at the end. Cells that share a trunk follow one another, the
    shortest first.
    """
    longest = {trunk: members[-1].flops for trunk, members in plan.trunks.items()}
    order = {trunk: index for index, trunk in enumerate(longest)}

    def after(planned: PlannedCell) -> tuple[float, int, int]:
        trunk = planned.cell.trunk or ""
        if trunk not in longest:
            return -planned.flops, -1, 0
        return -longest[trunk], order[trunk], planned.cell.recipe.steps

    place = {seed: index for index, seed in enumerate(dict.fromkeys(p.cell.seed for p in plan.cells))}
    return sorted(plan.cells, key=lambda planned: (place[planned.cell.seed], *after(planned)))
