"""Where the files of a study lie, and which of its cells have a row."""

import csv
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from analysis.runs import RunTable
from study.errors import SpecError
from study.plan import Plan, PlannedCell
from study.search import Outcome
from study.spec import StudySpec
from study.tracking import Outbox, Row, Store, open_store, store_uri

#: What a planned cell brings to its line of the run table, and what its training adds.
IDENTITY = (
    *("cell", "depth", "width", "heads", "params", "total_params", "budget", "seed", "lr", "lr_factor"),
    *("tokens", "flops"),
)
MEASURED = ("train_seconds", "tokens_per_second", "utilisation")


@dataclass(frozen=True)
class Places:
    """Every path a study writes to, under one results folder."""

    results: Path
    name: str

    @property
    def folder(self) -> Path:
        """The study's own folder."""
        return self.results / self.name

    @property
    def data(self) -> Path:
        """Packed token stores, shared by all studies."""
        return self.results / "data"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of running cells, by key."""
        return self.folder / "checkpoints"

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


def places(spec: StudySpec, results: Path) -> Places:
    """Return the paths of a study."""
    return Places(results, spec.name)


@dataclass(frozen=True)
class Connection:
    """A study's tracking URI and its store; without one, `problem` says why."""

    uri: str
    store: Store | None
    problem: str | None


def connect(spec: StudySpec, where: Places) -> Connection:
    """Open the tracking store of a study, if its server is there."""
    uri = store_uri(spec.tracking.uri, where.results)
    if uri.startswith("sqlite"):
        where.results.mkdir(parents=True, exist_ok=True)
    artifacts = where.artifacts if spec.tracking.uri == "auto" else None
    store, problem = open_store(uri, spec.experiment, artifacts)
    return Connection(uri, store, problem)


def known_rows(plan: Plan, connection: Connection, where: Places) -> dict[str, Row]:
    """Return the rows of the plan's cells: those of MLflow and those that still wait to be sent there.

    Where the server is away, the run table of the last run stands in for it.
    """
    rows = connection.store.rows() if connection.store else _rows_of_table(where.runs)
    rows |= where.outbox.rows()
    keys = {planned.cell.key for planned in plan.cells}
    return {key: row for key, row in rows.items() if key in keys}


def outcomes(rows: Mapping[str, Row]) -> dict[str, Outcome]:
    """What the search is told of earlier runs. Failed cells are left out, so that they are tried again."""
    return {key: Outcome(row.loss) for key, row in rows.items() if row.status != "failed"}


def identity(planned: PlannedCell) -> dict[str, str | int | float]:
    """What the run table and MLflow say of a cell before it is trained."""
    record = planned.row()
    return {name: record[name] for name in IDENTITY}


def begun(plan: Plan, rows: Mapping[str, Row], where: Places) -> set[str]:
    """Keys of cells that were begun and have no result: they failed, or left a checkpoint."""
    failed = {key for key, row in rows.items() if row.status == "failed"}
    folders = {path.name for path in where.checkpoints.iterdir()} if where.checkpoints.is_dir() else set()
    return failed | {p.cell.key for p in plan.cells if p.cell.key in folders and p.cell.key not in rows}


def run_table(plan: Plan, rows: Mapping[str, Row]) -> RunTable:
    """Return the run table of a plan: a line for each of its cells that has a row, in the plan's order."""
    lines = [
        {
            **identity(planned),
            "loss": row.loss,
            "status": row.status,
            "reason": row.reason,
            "vocabulary": plan.vocabulary,
            **{name: row.metrics.get(name) for name in MEASURED},
            "protocol": row.protocol,
        }
        for planned in plan.cells
        if (row := rows.get(planned.cell.key))
    ]
    return RunTable.from_frame(pd.DataFrame(lines), source=f"the study {plan.name!r}")


def _rows_of_table(path: Path) -> dict[str, Row]:
    """Read back the rows of a run table, without curves; empty where there is none."""
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {row.cell: row for row in map(_row_of_line, csv.DictReader(file)) if row.status != "failed"}


def _row_of_line(line: Mapping[str, str]) -> Row:
    numbers = ("loss", *MEASURED)
    return Row.model_validate(
        {
            "cell": line["cell"],
            "name": "",
            "protocol": line.get("protocol", ""),
            "status": line["status"],
            "reason": line.get("reason") or None,
            "params": {},
            "metrics": {key: float(line[key]) for key in numbers if line.get(key)},
            "tags": {},
        }
    )
