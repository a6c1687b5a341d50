"""Where the files of a study lie, and which of its cells have a row."""

import csv
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from analysis.runs.table import RunTable
from study.errors import SpecError
from study.plan import Outcome, Plan, PlannedCell
from study.spec.frontier import heads_of
from study.spec.resources import ResourcesSection
from study.spec.section import from_environment
from study.spec.study import StudySpec
from study.tracking.mlflow_store import ENDED, MEASURE, Outbox, Row, Store, open_store, store_uri
from trainables.cell import Shape
from trainables.storage.storage import located, open_storage, under

#: What a planned cell brings to its line of the run table, and what its training adds.
IDENTITY = (
    *("cell", "depth", "width", "heads", "params", "total_params", "budget", "seed", "lr", "lr_factor"),
    *("tokens", "flops"),
)
#: What it takes to plan the cell of a row again.
SHAPE = ("depth", "width", "heads", "seed", "budget", "lr_factor")
#: The tag of the arm that a cell was trained for.
ARM = "interplay.arm"
#: The file in a study's folder that names its storage, where that is not the results folder.
STORAGE = "storage"
#: The spec of a series in the folder of its page, where a study has `spec.yaml`.
SERIES = "series.yaml"
MEASURED = ("train_seconds", "tokens_per_second", "utilisation")
#: Of cells that ended before their last step: the standard error of the loss, which is a forecast, and the share of
#: the steps that were trained. Columns of tables that have such cells.
STOPPED = ("loss_se", "trained_share")


@dataclass(frozen=True)
class StudyPaths:
    """Every path a study writes to, under one results folder."""

    results: Path
    name: str
    storage: str = "auto"
    """`resources.storage` of the spec."""

    @property
    def folder(self) -> Path:
        """The study's own folder."""
        return self.results / self.name

    @property
    def shared(self) -> str | Path:
        """The root of what all machines share: folder or URI."""
        named = self.storage
        if named == "auto":
            named = from_environment("INTERPLAY_STORAGE", ResourcesSection, "storage") or "auto"
        if named == "auto":
            return self.results
        place = located(named)
        return place.resolve() if isinstance(place, Path) else place

    def remember(self) -> None:
        """Leave word of the storage beside the study: it may come from the environment of this machine alone."""
        if self.is_shared:
            (self.folder / STORAGE).write_text(str(self.shared))
        else:
            (self.folder / STORAGE).unlink(missing_ok=True)

    @property
    def is_shared(self) -> bool:
        """Whether that is another place than the results folder."""
        return self.shared != self.results

    @property
    def data(self) -> str | Path:
        """Packed token stores of all studies."""
        return under(self.shared, "data")

    @property
    def checkpoints(self) -> str | Path:
        """Checkpoints of running cells, by key."""
        return under(under(self.shared, self.name), "checkpoints")

    @property
    def models(self) -> str | Path:
        """Final weights of cells that are done, by key."""
        return under(under(self.shared, self.name), "models")

    @property
    def shared_results(self) -> str | Path:
        """A copy of the table, the fit and the report, where the driver's own disk may go with its machine."""
        return under(under(self.shared, self.name), "results")

    @property
    def runs(self) -> Path:
        """The run table."""
        return self.folder / "runs.csv"

    @property
    def artifacts(self) -> Path:
        """Files that a local MLflow store keeps."""
        return self.results / "mlartifacts"

    @property
    def outbox(self) -> Outbox:
        """Rows that MLflow does not have yet."""
        return Outbox(self.folder / "outbox")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study for this process: two drivers would train the same cells twice.

        Raises:
            SpecError: another process runs the study; its id is in the message.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / "run.lock", timeout=0)
        owner = self.folder / "run.pid"
        try:
            with lock:
                owner.write_text(str(os.getpid()))
                try:
                    yield
                finally:
                    owner.unlink(missing_ok=True)
        except Timeout:
            raise SpecError(
                f"the study {self.name!r} in {self.results} is being run by process {owner.read_text().strip()}; "
                "wait for it, stop it with Ctrl-C (nothing is lost), or use another --results folder."
            ) from None

    def driver(self) -> int | None:
        """The process that runs the study now, None if none does."""
        owner = self.folder / "run.pid"
        if not owner.is_file():
            return None
        try:
            with FileLock(self.folder / "run.lock", timeout=0):
                return None
        except Timeout:
            return int(owner.read_text())


def study_paths_of(folder: Path) -> StudyPaths:
    """Return the paths of a study by its own folder, with the storage of its last run, wherever that was."""
    mark = folder / STORAGE
    return StudyPaths(folder.parent, folder.name, mark.read_text() if mark.is_file() else str(folder.parent))


def places(spec: StudySpec, results: Path) -> StudyPaths:
    """Return the paths of a study."""
    return StudyPaths(results, spec.name, spec.resources.storage)


@dataclass(frozen=True)
class Connection:
    """A study's tracking URI and its store; without one, `problem` says why."""

    uri: str
    store: Store | None
    problem: str | None


def connect(spec: StudySpec, where: StudyPaths) -> Connection:
    """Open the tracking store of a study, if its server is there."""
    uri = store_uri(spec.tracking.uri, where.results)
    if uri.startswith("sqlite"):
        where.results.mkdir(parents=True, exist_ok=True)
    artifacts = where.artifacts if spec.tracking.uri == "auto" and uri.startswith("sqlite") else None
    store, problem = open_store(uri, spec.experiment, artifacts)
    return Connection(uri, store, problem)


def known_rows(plan: Plan, connection: Connection, where: StudyPaths) -> dict[str, Row]:
    """Return the rows of the study in the order in which they ended: those of MLflow and those that wait to be sent.

    Rows of cells that the plan does not list are the study's too where they share its protocol and a search or an arm
    of it made them; `with_recorded` plans them. Where the server is away, the run table of the last run stands in for
    it.
    """
    rows = connection.store.rows() if connection.store else _rows_of_table(where.runs)
    rows |= where.outbox.rows()
    found = (row for key, row in rows.items() if plan.by_key(key) or _recorded(plan, row))
    return {row.cell: row for row in sorted(found, key=lambda row: (ended_at(row), row.cell))}


def with_recorded(plan: Plan, rows: Mapping[str, Row]) -> Plan:
    """Return the plan with the cells of all rows: a search's limits may have been others when it made them."""
    found = [_recorded(plan, row) for key, row in rows.items() if plan.by_key(key) is None]
    new = sorted((planned for planned in found if planned), key=_place)
    return replace(plan, more=(*plan.more, *new)) if new else plan


def _recorded(plan: Plan, row: Row) -> PlannedCell | None:
    """The cell of a row that the plan does not list; None for one of another study."""
    arm = row.tags.get(ARM, "")
    if row.protocol != plan.protocol or not (arm or plan.search.chooses_cells):
        return None
    if any(row.params.get(name) is None for name in SHAPE):
        return None
    depth, width, heads, seed = (int(row.params[name] or 0) for name in ("depth", "width", "heads", "seed"))
    frontier = plan.planner.spec.frontier
    if depth not in frontier.depth_values or heads != heads_of(frontier, width):
        return None
    budget, factor = float(row.params["budget"] or 0), float(row.params["lr_factor"] or 0)
    planned = plan.planned_for(Shape(depth=depth, width=width, heads=heads), budget, factor, seed, arm)
    return planned if planned.cell.key == row.cell else None


def ended_at(row: Row) -> float:
    """When a cell ended, in Unix seconds; of a row read back from a table its rank, which comes before any time."""
    return float(row.tags.get(ENDED) or 0.0)


def _place(planned: PlannedCell) -> tuple[Any, ...]:
    return planned.budget, planned.cell.shape.depth, planned.lr_factor, planned.cell.seed, planned.cell.key


def outcomes(rows: Mapping[str, Row]) -> dict[str, Outcome]:
    """What the search is told of earlier runs. Failed cells are left out, so that they are tried again."""
    return {
        key: Outcome(row.loss, row.loss_se, row.share, row.status)
        for key, row in rows.items()
        if row.status != "failed"
    }


def identity(planned: PlannedCell) -> dict[str, str | int | float]:
    """What the run table and MLflow say of a cell before it is trained."""
    record = planned.row()
    return {name: record[name] for name in IDENTITY}


def begun(plan: Plan, rows: Mapping[str, Row], where: StudyPaths, store: Store | None = None) -> list[str]:
    """Keys of cells that were begun and have no result, in the order in which they began.

    They failed, or MLflow has a run of theirs without an end, or they left a checkpoint.
    """
    failed = [key for key, row in rows.items() if row.status == "failed"]
    kept = [*(store.begun() if store else ()), *sorted(open_storage(where.checkpoints).tags())]
    cut = [key for key in kept if plan.by_key(key) and key not in rows]
    return list(dict.fromkeys([*failed, *cut]))


def run_table(plan: Plan, rows: Mapping[str, Row]) -> RunTable:
    """Return the run table of a study: a line for each cell that has a row, in the plan's order.

    The column `order` of a search says in which order the rows ended, from 1 on; `arm`, where a cell of one is there,
    what the cell was trained for beside the main study.
    """
    plan = with_recorded(plan, rows)
    ended = [planned for planned in plan.pool if planned.cell.key in rows]
    stopped = any(row.status == "stopped" for row in rows.values())
    in_order = sorted(ended, key=lambda p: (ended_at(rows[p.cell.key]), p.cell.key))
    order = {planned.cell.key: rank for rank, planned in enumerate(in_order, 1)}
    arms = any(planned.arm for planned in ended)
    # Those of single layers are in the report's figure of the diagnostics.
    measured = sorted({name for row in rows.values() for name in row.measures if "/" not in name})
    lines = [
        {
            **identity(planned),
            "loss": row.loss,
            "status": row.status,
            "reason": row.reason,
            "vocabulary": plan.vocabulary,
            **{name: row.metrics.get(name) for name in MEASURED},
            **({"loss_se": row.loss_se, "trained_share": row.share} if stopped else {}),
            **{name: row.measures.get(name) for name in measured},
            "protocol": row.protocol,
            **({"order": order[row.cell]} if not plan.search.is_grid else {}),
            **({"arm": planned.arm} if arms else {}),
        }
        for planned in ended
        for row in (rows[planned.cell.key],)
    ]
    return RunTable.from_frame(pd.DataFrame(lines), source=f"the study {plan.name!r}")


def layer_table(plan: Plan, rows: Mapping[str, Row]) -> pd.DataFrame:
    """Return what was measured of single layers, before the first step (step 0) and at the end of each cell.

    Columns cell, step, name, layer (from 1 on) and value; empty where no cell was measured.
    """
    plan = with_recorded(plan, rows)
    lines = []
    for key, row in rows.items():
        planned = plan.by_key(key)
        if planned is None or planned.arm:
            continue
        last = round(row.share * planned.cell.recipe.steps)
        for step, measures in ((0, row.start), (last, row.measures)):
            for full, value in measures.items():
                name, slash, layer = full.rpartition("/")
                if slash and layer.isdecimal():
                    lines.append((key, step, name, int(layer), value))
    return pd.DataFrame(lines, columns=["cell", "step", "name", "layer", "value"])


def _rows_of_table(path: Path) -> dict[str, Row]:
    """Read back the rows of a run table, without curves; empty where there is none."""
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {row.cell: row for row in map(_row_of_line, csv.DictReader(file)) if row.status != "failed"}


def _row_of_line(line: Mapping[str, str]) -> Row:
    numbers = ("loss", *MEASURED, *STOPPED)
    others = {*IDENTITY, *numbers, "vocabulary", "status", "reason", "protocol", "order", "arm"}
    measures = {f"{MEASURE}{key}": float(text) for key, text in line.items() if key not in others and text}
    return Row.model_validate(
        {
            "cell": line["cell"],
            "name": "",
            "protocol": line.get("protocol", ""),
            "status": line["status"],
            "reason": line.get("reason") or None,
            "params": {key: float(line[key]) for key in SHAPE if line.get(key)},
            "metrics": {key: float(line[key]) for key in numbers if line.get(key)} | measures,
            "tags": {tag: line[key] for tag, key in ((ENDED, "order"), (ARM, "arm")) if line.get(key)},
        }
    )
