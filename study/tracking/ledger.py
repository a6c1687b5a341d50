"""The ledger of a study: one JSON file per finished cell, its row, which alone decides which cells are done."""

import importlib.metadata
import json
import logging
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from core.errors import printable
from core.files import write_text
from study.plan import Plan
from study.plan.rows import Parameters, Row
from trainables.cell import Shape
from trainables.progress import Evaluation, Point
from trainables.storage.storage import Folder, open_storage, redacted, unusable, with_retries

_LOG = logging.getLogger(__name__)

#: Fields of a planned cell that say where a row of it stands in the study.
PLACE = ("purpose", "budget", "compute", "compute_unit", "lr_factor")
#: Row files read at a time: an object store takes some 50 ms for each.
READERS = 16
#: Libraries that affect a loss or a row.
PACKAGES = ("interplay", "ray", "torch", "deepspeed", "transformers", "datasets", "mlflow", "optuna")


@dataclass
class CurveUpdate:
    """New parts of the curve of a running cell, and the causes of its lost trials."""

    cell: str
    name: str
    parameters: Parameters
    points: list[Point] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    start: dict[str, float] = field(default_factory=dict)
    lost: tuple[str, ...] = ()


class Ledger:
    """Rows of finished cells, one file per cell, in a folder or an object store."""

    def __init__(self, place: str | Path) -> None:
        """Use the folder or URI `place`, made with the first row; `name` is it for messages, without secrets."""
        self.place, self.name = place, redacted(str(place))

    @cached_property
    def _storage(self) -> Folder:
        return open_storage(self.place)

    def put(self, row: Row) -> None:
        """Write a row, so that a kill or a power cut leaves either all of it or what was there before.

        Raises:
            OSError: the disk is full, or the store is unreachable for minutes.
            InputError: the store refuses the file.
        """
        storage, content = self._storage, row.model_dump_json().encode()

        def write() -> None:
            try:
                storage.write("", f"{row.cell}.json", content)
            except OSError as error:
                raise unusable(storage.name, error) from error

        if storage.is_remote:
            with_retries(write)
        else:
            storage.local.mkdir(parents=True, exist_ok=True)
            storage.write("", f"{row.cell}.json", content)

    def get(self, cell: str) -> Row | None:
        """Return a row with its curves; None, with a warning for a damaged file, if there is none."""
        content = self._storage.read("", f"{cell}.json")
        if content is None:
            return None
        try:
            row = Row.model_validate(_printable(json.loads(content)))
            if row.cell != cell:
                raise ValueError(f"it is of cell {row.cell}")
            return row
        except (ValueError, RecursionError):
            _LOG.warning("The row file %s.json is damaged; its cell will be trained again.", cell)
            return None

    def rows(self) -> dict[str, Row]:
        """Return all rows by cell key, without training curves."""

        def read(cell: str) -> Row | None:
            row = self.get(cell)
            return row.without_curves() if row else None

        cells = sorted(name.removesuffix(".json") for name in self._storage.names() if name.endswith(".json"))
        with ThreadPoolExecutor(READERS) as pool:
            return {row.cell: row for row in pool.map(read, cells) if row}


def _printable(value: Any) -> Any:
    """Return JSON with the control characters of all texts escaped: a terminal would obey those that others wrote."""
    if isinstance(value, dict):
        return {printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return printable(value, "\n\t") if isinstance(value, str) else value


class UnfinishedCells:
    """Cells that have started and have no row, in the order of their starts, with the causes of their lost trials.

    A small file, so that a later run resumes them first and keeps the causes, and `status` can list what is running.
    """

    def __init__(self, path: Path) -> None:
        """Read the file at `path`, if there is one."""
        self.path = path
        self._cells: dict[str, dict[str, Any]] = {}
        try:
            self._cells = json.loads(path.read_text())
        except FileNotFoundError:
            pass
        except ValueError:
            _LOG.warning("%s is damaged and ignored; checkpoints are still used.", path)

    @property
    def keys(self) -> list[str]:
        """Their keys, in the order of their starts."""
        return list(self._cells)

    @property
    def running(self) -> set[str]:
        """The keys of the cells that the last driver has started, which run if it is alive."""
        return {key for key, cell in self._cells.items() if cell["running"]}

    def lost_trials(self, key: str) -> list[str]:
        """Causes of the lost trials of a cell."""
        return list(self._cells[key]["lost"]) if key in self._cells else []

    def resume(self, done: Collection[str]) -> None:
        """Begin a run: no cell runs yet, and those that are done (a kill came after their row) are removed."""
        self._cells = {k: {**cell, "running": False} for k, cell in self._cells.items() if k not in done}
        self._write()

    def start(self, key: str, lost: list[str]) -> None:
        """Record that a cell has started, whose earlier trials were lost by these causes."""
        self._cells[key] = {"running": True, "lost": lost}
        self._write()

    def lose(self, key: str, cause: str) -> None:
        """Record that a trial of a cell was lost; Ray Tune reports a trial that is lost before its start too."""
        self._cells.setdefault(key, {"running": False, "lost": []})["lost"].append(cause)
        self._write()

    def end(self, key: str) -> None:
        """Remove a cell that has a row."""
        if self._cells.pop(key, None):
            self._write()

    def _write(self) -> None:
        write_text(self.path, json.dumps(self._cells))


def study_rows(plan: Plan, rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return those of the ledger's rows that belong to a study, in the order in which the cells finished.

    These are the rows of its plan, and those of the same protocol that a search or a sensitivity run of the study has
    chosen under other limits. A cell that the plan lists has the title, budget, factor and purpose of the plan: another
    spec may have trained it as a sensitivity run.
    """
    members = []
    for key, row in rows.items():
        if planned := plan.by_key(key):
            changes = {"name": planned.title, **{name: getattr(planned, name) for name in PLACE}}
            members.append(row.model_copy(update=changes))
        elif _chosen_shape(plan, row):
            members.append(row)
    return {row.cell: row for row in sorted(members, key=lambda row: (row.ended, row.cell))}


def _chosen_shape(plan: Plan, row: Row) -> tuple[Shape, int] | None:
    """Return the shape and steps of a row that the plan does not list; None for a row of another study."""
    if row.protocol != plan.protocol or not (row.purpose or plan.search.may_end_early):
        return None
    planner = plan.planner
    frontier = planner.spec.frontier
    if row.depth not in frontier.depth_values or row.width % frontier.step:
        return None
    shape = frontier.shape(row.depth, row.width)
    if row.heads != shape.heads:
        return None
    for steps in planner.spec.training.step_counts(shape):
        # The key needs no layout.
        if planner.trained(shape, row.lr_factor, row.seed, planner.spec.recipe_of(steps)).key == row.cell:
            return shape, steps
    return None


def ended_rows(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the rows that a search resumes from: without those of failed cells, which are tried again."""
    return {key: row for key, row in rows.items() if row.status != "failed"}


def unfinished_cells(
    plan: Plan, rows: Mapping[str, Row], started: UnfinishedCells, checkpoints: str | Path
) -> list[str]:
    """Return the keys of the cells that were started and have no result, in the order in which they started.

    They failed, or a driver that ended before them recorded their start, or they left a checkpoint.
    """
    failed = [key for key, row in rows.items() if row.status == "failed"]
    kept = [*started.keys, *sorted(open_storage(checkpoints).tags())]
    cut = [key for key in kept if plan.by_key(key) and key not in rows]
    return list(dict.fromkeys([*failed, *cut]))


def versions() -> dict[str, str]:
    """Return the versions of this project and of the libraries that affect a loss or a row."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}
