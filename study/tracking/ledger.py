"""The ledger of a study: one JSON file per finished cell, its row, which alone decides which cells are done."""

import importlib.metadata
import json
import logging
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from core.errors import printable
from core.files import write_text
from study.plan import Outcome, Plan
from trainables.cell import Shape
from trainables.model.family import OPTIONAL
from trainables.progress import Evaluation, Point
from trainables.storage.storage import Folder, open_storage, patiently, shown, unusable

_LOG = logging.getLogger(__name__)

#: Parameters of a row that are columns of the run table: `compute` only of cells at equal FLOPs, and those after
#: `network` only of networks other than the default one.
COLUMNS = (
    *("depth", "width", "heads", "params", "total_params", "budget", "compute", "seed", "lr", "lr_factor"),
    *("tokens", "flops", "network", *OPTIONAL),
)
#: Parameters of a row that say where its cell stands in the study.
PLACE = ("budget", "lr_factor", "seed")
#: Row files read at a time: an object store takes some 50 ms for each.
READERS = 16
#: Libraries that affect a loss or a row.
PACKAGES = ("interplay", "ray", "torch", "deepspeed", "transformers", "datasets", "mlflow", "optuna")

Status = Literal["done", "diverged", "failed"]
#: The parameters of a cell by name: its shape, size, seed, learning rate and recipe.
Parameters = dict[str, str | int | float | None]


class Row(BaseModel):
    """The record of one finished cell: everything that the run table, the report and MLflow need.

    The fields from `train_seconds` to `notes` describe the training; they are empty for a failed cell.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    cell: str
    name: str
    study: str = ""
    protocol: str
    purpose: str = ""
    """Purpose of a cell outside the main study, such as `sensitivity`."""
    status: Status
    reason: str | None = None
    ended: float = 0.0
    """Time at which the cell finished, in Unix seconds. No two rows of a study have the same."""
    lost: tuple[str, ...] = ()
    """Causes of the lost trials."""
    revision: str = ""
    parameters: Parameters = {}
    loss: float | None = None
    """Final validation loss in nats per token; None unless the cell is done."""
    bits_per_byte: float | None = None
    train_seconds: float | None = None
    tokens_per_second: float | None = None
    utilisation: float | None = None
    """Model FLOPs per second over the peak on the data sheet of the device, for all ranks."""
    memory_bytes: float | None = None
    epochs: float | None = None
    trained_share: float = 1.0
    """Fraction of its steps for which the cell was trained."""
    measures: dict[str, float] = {}
    """Measures other than the loss at the end, by name; see `trainables.progress.Evaluation`."""
    start: dict[str, float] = {}
    """Measures before the first step, by name."""
    device: str = ""
    resumed_from: int = 0
    """Step of the checkpoint from which the last trial continued; 0 for none."""
    notes: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()

    @property
    def place(self) -> tuple[Any, ...]:
        """What the rows of a study are sorted by: the main study first, then compute, N, shape, tokens, rate, seed."""
        names = ("compute", "budget", "depth", "width", "tokens", "lr_factor", "seed")
        return self.purpose, *(self.parameters.get(name) or 0 for name in names), self.cell

    def record(self, measures: Collection[str]) -> dict[str, Any]:
        """Return the row as one flat record of the run table, with these measures, None for those it lacks."""
        return {
            "cell": self.cell,
            **{name: self.parameters[name] for name in COLUMNS if name in self.parameters},
            "loss": self.loss,
            "bits_per_byte": self.bits_per_byte,
            "status": self.status,
            "reason": self.reason,
            "vocabulary": self.parameters.get("vocabulary"),
            "epochs": self.epochs,
            "train_seconds": self.train_seconds,
            "tokens_per_second": self.tokens_per_second,
            "utilisation": self.utilisation,
            **{name: self.measures.get(name) for name in measures},
            "protocol": self.protocol,
            "purpose": self.purpose,
        }

    def without_curves(self) -> Self:
        """Return the row with the validation losses as its only curve, so that memory does not grow with a study."""
        losses = tuple(one.model_copy(update={"measures": {}}) for one in self.evaluations)
        return self.model_copy(update={"points": (), "evaluations": losses})


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
        self.place, self.name = place, shown(str(place))

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
            patiently(write)
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
            placed = {"budget": planned.budget, "lr_factor": planned.lr_factor}
            if planned.compute is not None:
                placed["compute"] = planned.compute
            changes = {"name": planned.title, "purpose": planned.purpose}
            parameters = {**row.parameters, **placed}
            members.append(row.model_copy(update={**changes, "parameters": parameters}))
        elif _chosen_shape(plan, row):
            members.append(row)
    return {row.cell: row for row in sorted(members, key=lambda row: (row.ended, row.cell))}


def with_recorded(plan: Plan, rows: Mapping[str, Row]) -> Plan:
    """Return the plan with the cells of all rows, from which a search resumes."""
    new = []
    for row in in_table_order(rows):
        if plan.by_key(row.cell) is None and (chosen := _chosen_shape(plan, row)):
            shape, steps = chosen
            budget, factor, seed = (float(row.parameters.get(name) or 0) for name in PLACE)
            new.append(plan.planned_for(shape, budget, factor, int(seed), row.purpose, steps))
    return replace(plan, more=(*plan.more, *new)) if new else plan


def _chosen_shape(plan: Plan, row: Row) -> tuple[Shape, int] | None:
    """Return the shape and steps of a row that the plan does not list; None for a row of another study."""
    if row.protocol != plan.protocol or not (row.purpose or plan.search.chooses_cells):
        return None
    depth, width, heads = (float(row.parameters.get(name) or 0) for name in ("depth", "width", "heads"))
    _, factor, seed = (float(row.parameters.get(name) or 0) for name in PLACE)
    planner = plan.planner
    frontier = planner.spec.frontier
    if depth not in frontier.depth_values or width % frontier.step:
        return None
    shape = frontier.shape(int(depth), int(width))
    if heads != shape.heads:
        return None
    for steps in planner.spec.training.step_counts(shape):
        # The key needs no layout.
        if planner.trained(shape, factor, int(seed), planner.spec.recipe_of(steps)).key == row.cell:
            return shape, steps
    return None


def in_table_order(rows: Mapping[str, Row]) -> list[Row]:
    """Return rows in the order of the run table."""
    return sorted(rows.values(), key=lambda row: row.place)


def outcomes(rows: Mapping[str, Row]) -> dict[str, Outcome]:
    """Return the outcomes of finished cells for the search, without failed cells, which are tried again."""
    return {
        key: Outcome(row.loss, row.trained_share, row.status)
        for key, row in rows.items()
        if row.status != "failed"
    }


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
