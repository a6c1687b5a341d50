"""The ledger of a study: its MLflow experiment, and the rows on disk that MLflow does not have yet.

An ended run tagged with its cell key is a row. A row that ends is first put on disk (`outbox/KEY.json`), and removed
once MLflow has it. A tracking server that is away therefore delays nothing and loses nothing: the outbox counts as part
of the ledger and is sent when the server is back.
"""

import contextlib
import fcntl
import logging
import os
import re
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlparse

from pydantic import BaseModel, ConfigDict, ValidationError

from study.errors import SpecError
from study.spec.resources import TrackingSection
from study.spec.section import from_environment
from trainables.progress import Evaluation, Point

_LOG = logging.getLogger(__name__)

Status = Literal["done", "stopped", "diverged", "failed"]
#: Read by MLflow when it is imported. Its own defaults block for minutes on a dead port (7 retries, back-off 2,
#: 120 s each) and write of every migration to the terminal.
ENVIRONMENT = {
    # Two lines a run, on stdout, where the store is a server.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
#: Most metrics and parameters of one MLflow batch (the REST API's own limits).
METRICS_PER_BATCH = 1000
PAGE = 1000
#: The tag of the causes of a cell's lost trials, ` | ` between them, and the most characters of it.
LOST_TRIALS = "interplay.lost_trials"
TAG_CHARACTERS = 4000
#: The tag of when a cell ended, in Unix seconds, later than all rows before it: the order of the rows.
ENDED = "interplay.ended"
#: Final metrics that begin so are measures beside the loss, such as `measure.accuracy`, and columns of the run table;
#: `curve_name` is what a measure is called at every evaluation. What was measured before the first step has a prefix of
#: its own.
MEASURE, START = "measure.", "start."
#: MLflow's names of the parts of a training curve. None may be a final metric's too: MLflow shows the value of the
#: highest step, and that would be the curve's.
CURVES = {"train_loss": "train_loss", "lr": "lr", "grad_norm": "grad_norm", "tokens_per_second": "throughput"}


def curve_name(measure: str) -> str:
    """MLflow's name of a measure along the training of a cell, beside `validation_loss`."""
    return f"validation_{measure}"


class Row(BaseModel):
    """One ended cell, complete: what the run table, MLflow and the report need."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    cell: str
    name: str
    protocol: str
    status: Status
    reason: str | None
    params: dict[str, str | int | float | None]
    metrics: dict[str, float]
    tags: dict[str, str]
    points: tuple[Point, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()

    @property
    def loss(self) -> float | None:
        """Final validation loss in nats per token, for a cell that is done; of one that was stopped, the forecast."""
        return self.metrics.get("loss") if self.status in ("done", "stopped") else None

    @property
    def loss_se(self) -> float | None:
        """Standard error of a loss that is a forecast."""
        return self.metrics.get("loss_se") if self.status == "stopped" else None

    @property
    def measures(self) -> dict[str, float]:
        """What was measured beside the loss at the end, by name; see `trainables.progress.Evaluation`."""
        return self._named(MEASURE)

    @property
    def start(self) -> dict[str, float]:
        """What was measured before the first step, by name."""
        return self._named(START)

    def _named(self, prefix: str) -> dict[str, float]:
        return {
            name.removeprefix(prefix): value
            for name, value in self.metrics.items()
            if name.startswith(prefix)
        }

    @property
    def share(self) -> float:
        """Share of its steps that a cell was trained for, where it has ended."""
        return self.metrics.get("trained_share", 1.0)


@dataclass
class CurveUpdate:
    """New parts of the curve of a running cell, and tags that are to be there even if it never ends, for MLflow."""

    cell: str
    name: str
    params: Mapping[str, str | int | float | None]
    points: list[Point] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    start: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class SearchUpdate:
    """What a search knows after `step` ended cells: metrics and tags of the study's own run."""

    step: int
    metrics: dict[str, float]
    tags: dict[str, str]


def quiet() -> None:
    """Keep MLflow and its database layer from writing to the terminal, and its HTTP client from waiting."""
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    for name in ("mlflow", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="mlflow|sqlalchemy|alembic")


def store_uri(uri: str, results: Path) -> str:
    """Return the MLflow URI of a spec.

    `auto` is INTERPLAY_TRACKING, which a cluster's head sets, else a SQLite file under the results folder.
    """
    if uri != "auto":
        return uri
    if named := from_environment("INTERPLAY_TRACKING", TrackingSection, "uri"):
        return store_uri(named, results)
    path = (results / "mlflow.db").resolve()
    if re.search(r"\?|%[0-9a-fA-F]{2}", str(path)):
        raise SpecError(
            f"the results folder {results} has a `?` or a `%` code in its path, which SQLite's address cannot hold; "
            "take another."
        )
    return f"sqlite:///{path}"


def trouble(uri: str, timeout: float = 3.0) -> str | None:
    """Ask an HTTP tracking server how it is; return one sentence if it cannot be used, None if it can.

    MLflow's client would wait three times as long for a server that accepts a connection and never answers. Other
    stores (SQLite, a database) are always worth a try.
    """
    if urlparse(uri).scheme not in ("http", "https"):
        return None
    try:
        with urllib.request.urlopen(uri.rstrip("/") + "/health", timeout=timeout):
            return None
    except urllib.error.HTTPError as error:
        # A proxy may not know /health; only an error of the server itself says that it is of no use.
        return (
            None if error.code < 500 else f"the tracking server {uri} answers {error.code} ({error.reason})"
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"the tracking server {uri} does not answer ({reason})"


class Store:
    """An MLflow experiment as a table of cells. Every method talks to MLflow at once and raises what it raises."""

    def __init__(self, uri: str, experiment: str, artifacts: Path | None = None) -> None:
        """Open (and make, when missing) the experiment; `artifacts` is where a local store keeps files."""
        quiet()
        from mlflow.tracking import MlflowClient

        self.uri, self.experiment = uri, experiment
        self.client = MlflowClient(uri)
        found = self.client.get_experiment_by_name(experiment)
        if found is None:
            location = artifacts.resolve().as_uri() if artifacts else None
            self.experiment_id = str(self.client.create_experiment(experiment, artifact_location=location))
        elif found.lifecycle_stage != "active":
            raise SpecError(
                f"the MLflow experiment {experiment!r} in {uri} is deleted; restore it there "
                f"(mlflow experiments restore --experiment-id {found.experiment_id}), or give the study another "
                "name with --set tracking.experiment=NAME."
            )
        else:
            self.experiment_id = str(found.experiment_id)

    def runs(self, condition: str) -> Iterator[Any]:
        """Yield all runs that fulfil an MLflow filter, page by page."""
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], condition, max_results=PAGE, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def rows(self) -> dict[str, Row]:
        """All ended cells of the experiment by key.

        A cell counts by its own tag and not by MLflow's status: a driver killed while it sent a row again leaves the
        run of a done cell RUNNING. A failed cell that runs again is no row.
        """
        rows: dict[str, Row] = {}
        for run in self.runs("tags.`interplay.kind` = 'trial'"):
            row = _row(run)
            if row is None or not _is_ended(run):
                continue
            if row.cell not in rows or row.status != "failed":
                rows[row.cell] = row
        return rows

    def begun(self) -> list[str]:
        """Keys of the cells that have a run and no row, in the order in which they began: a driver was cut off."""
        found = sorted(self.runs("tags.`interplay.kind` = 'trial'"), key=lambda run: int(run.info.start_time))
        return [
            run.data.tags["interplay.cell"]
            for run in found
            if "interplay.cell" in run.data.tags and not _is_ended(run)
        ]

    def curves(self, cells: Iterable[str]) -> dict[str, list[tuple[int, float]]]:
        """Validation loss by step of each cell that MLflow has."""
        wanted = set(cells)
        result: dict[str, list[tuple[int, float]]] = {}
        if not wanted:
            return result
        for run in self.runs("tags.`interplay.kind` = 'trial'"):
            cell = run.data.tags.get("interplay.cell")
            if cell in wanted:
                history = self.client.get_metric_history(run.info.run_id, "validation_loss")
                result[cell] = sorted((m.step, m.value) for m in history)
        return result

    def begin_study(self, name: str, tags: Mapping[str, str]) -> str:
        """Return the study run, made or found by its name, and set it running."""
        for run in self.runs(f"tags.`interplay.kind` = 'study' AND tags.`interplay.study` = '{name}'"):
            run_id = str(run.info.run_id)
            self.client.update_run(run_id, status="RUNNING")
            break
        else:
            run_id = str(
                self.client.create_run(
                    self.experiment_id,
                    run_name=name,
                    tags={"interplay.kind": "study", "interplay.study": name, **tags},
                ).info.run_id
            )
        for key, value in tags.items():
            self.client.set_tag(run_id, key, value)
        return run_id

    def end_stale(self, parent: str, keep: Iterable[str] = ()) -> None:
        """End every run a killed driver left RUNNING, except those of the cells that run now."""
        kept = set(keep)
        for run in self.runs("tags.`interplay.kind` = 'trial' AND attributes.status = 'RUNNING'"):
            if run.data.tags.get("interplay.cell") not in kept and _parent(run) == parent:
                self.client.set_terminated(run.info.run_id, status="KILLED")

    def trial_runs(self) -> dict[str, str]:
        """The run of each cell that has one, by cell key."""
        runs = self.runs("tags.`interplay.kind` = 'trial'")
        return {cell: str(run.info.run_id) for run in runs if (cell := run.data.tags.get("interplay.cell"))}

    def trial_run(
        self,
        parent: str,
        cell: str,
        name: str,
        params: Mapping[str, object],
        found: str | None = None,
    ) -> str:
        """Return the one run of a cell, the one found among `trial_runs` or a new one, and set it running."""
        from mlflow.entities import Param

        if found is not None:
            self.client.update_run(found, status="RUNNING")
            return found
        tags = {
            "interplay.kind": "trial",
            "interplay.cell": cell,
            "mlflow.parentRunId": parent,
        }
        run_id = str(self.client.create_run(self.experiment_id, run_name=name, tags=tags).info.run_id)
        self.client.log_batch(run_id, params=[Param(k, str(v)) for k, v in params.items() if v is not None])
        return run_id

    def log_curves(
        self,
        run_id: str,
        points: Iterable[Point],
        evaluations: Iterable[Evaluation],
        after: tuple[int, int],
        start: Mapping[str, float] | None = None,
    ) -> tuple[int, int]:
        """Log the curve past the steps already there; return the new last steps of points and evaluations.

        What was measured at the start goes with the first points, as step 0 of the measures.
        """
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics: list[Any] = []
        last_point, last_evaluation = after
        if last_point < 0 and start:
            metrics += [Metric(curve_name(name), value, now, 0) for name, value in start.items()]
        for point in points:
            if point.step > last_point:
                last_point = point.step
                for key, name in CURVES.items():
                    metrics.append(Metric(name, getattr(point, key), now, point.step))
        for evaluation in evaluations:
            if evaluation.step > last_evaluation:
                last_evaluation = evaluation.step
                measured = {curve_name(name): value for name, value in evaluation.measures.items()}
                for name, value in {"validation_loss": evaluation.loss, **measured}.items():
                    metrics.append(Metric(name, value, now, evaluation.step))
        for first in range(0, len(metrics), METRICS_PER_BATCH):
            self.client.log_batch(run_id, metrics=metrics[first : first + METRICS_PER_BATCH])
        return last_point, last_evaluation

    def logged(self, run_id: str) -> tuple[int, int]:
        """Return the last steps MLflow has of a run's training curve and of its evaluations, -1 for none."""
        return self._last_step(run_id, "train_loss"), self._last_step(run_id, "validation_loss")

    def _last_step(self, run_id: str, name: str) -> int:
        return max((m.step for m in self.client.get_metric_history(run_id, name)), default=-1)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Write tags of a run."""
        from mlflow.entities import RunTag

        self.client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])

    def log_news(self, run_id: str, news: Iterable[SearchUpdate]) -> None:
        """Write what a search came to know to the study's run; of tags the last."""
        from mlflow.entities import Metric, RunTag

        now, items = int(time.time() * 1000), list(news)
        metrics = [Metric(name, value, now, one.step) for one in items for name, value in one.metrics.items()]
        tags = {name: value[:TAG_CHARACTERS] for one in items for name, value in one.tags.items()}
        for start in range(0, len(metrics), METRICS_PER_BATCH):
            self.client.log_batch(run_id, metrics=metrics[start : start + METRICS_PER_BATCH])
        self.client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])

    def lost_trials(self, run_id: str) -> str:
        """Return the causes of the trials that a cell has lost so far, empty for none."""
        return str(self.client.get_run(run_id).data.tags.get(LOST_TRIALS, ""))

    def end_trial(self, run_id: str, row: Row) -> None:
        """Write the final metrics and tags of a row and end its run; the status is what makes it part of the ledger."""
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        # Every tag is written, empty or not: a cell that failed and is done now must not keep its old reason.
        tags = {
            "interplay.status": row.status,
            "interplay.protocol": row.protocol,
            "interplay.reason": (row.reason or "")[:4000],
            **row.tags,
        }
        metrics = [Metric(k, v, now, 0) for k, v in row.metrics.items()]
        # A batch's limit holds for tags and metrics together. The tags go last: with the status the row counts.
        while len(metrics) + len(tags) > METRICS_PER_BATCH:
            self.client.log_batch(run_id, metrics=metrics[:METRICS_PER_BATCH])
            metrics = metrics[METRICS_PER_BATCH:]
        self.client.log_batch(run_id, metrics=metrics, tags=[RunTag(k, v) for k, v in tags.items()])
        self.client.set_terminated(run_id, status="FAILED" if row.status == "failed" else "FINISHED")

    def end_study(self, run_id: str, status: str, artifacts: Iterable[Path]) -> None:
        """Attach the study's files to its run and end it with an MLflow status."""
        for path in artifacts:
            if path.is_dir():
                self.client.log_artifacts(run_id, str(path), path.name)
            elif path.is_file():
                self.client.log_artifact(run_id, str(path))
        self.client.set_terminated(run_id, status=status)


class Outbox:
    """Ended rows on disk that MLflow does not have yet. Safe to use from the driver and the sender at once."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, made with the first row."""
        self.folder = folder
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep out other threads and, for the sender may have a process of its own, other processes."""
        with self._lock, (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def put(self, row: Row) -> None:
        """Write a row so that a kill or a power cut leaves either all of it or nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{row.cell}.part"
        with self._alone():
            with part.open("w") as file:
                file.write(row.model_dump_json())
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path(row.cell))

    def get(self, cell: str) -> Row | None:
        """Return a row that waits, None where there is none; an unreadable file is set aside."""
        path = self._path(cell)
        try:
            return Row.model_validate_json(path.read_text())
        except FileNotFoundError:
            return None
        except (ValidationError, UnicodeDecodeError):
            aside = path.with_suffix(".unreadable")
            path.replace(aside)
            _LOG.warning("The row %s cannot be read and was set aside; its cell is trained again.", aside)
            return None

    def remove(self, row: Row) -> None:
        """Forget a row that MLflow has, unless a newer one of the same cell has taken its place."""
        with self._alone():
            if self.get(row.cell) == row:
                self._path(row.cell).unlink()

    def rows(self) -> dict[str, Row]:
        """Return the rows that wait, by cell key."""
        files = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        return {row.cell: row for path in files if (row := self.get(path.stem))}

    def _path(self, cell: str) -> Path:
        return self.folder / f"{cell}.json"


def open_store(uri: str, experiment: str, artifacts: Path | None) -> tuple[Store | None, str | None]:
    """Open the store; where its server cannot be used now, return None and the reason.

    Raises:
        SpecError: a local store or a database that cannot be opened, which no waiting mends.
    """
    problem = trouble(uri)
    if problem:
        return None, problem
    try:
        return Store(uri, experiment, artifacts), None
    except SpecError:
        raise
    except Exception as error:
        if urlparse(uri).scheme in ("http", "https"):
            return None, f"the tracking server {uri}: {sentence(error)}"
        raise SpecError(
            f"the MLflow store {uri} cannot be opened: {sentence(error)} Check tracking.uri, or leave it `auto` for a "
            "SQLite file under the results folder."
        ) from error


def stored_curves(store: Store | None, cells: Iterable[str]) -> list[tuple[str, int, float]]:
    """Return (cell, step, validation loss) of cells that MLflow has; none, with a warning, where it cannot be asked."""
    try:
        found = store.curves(cells) if store else {}
    except Exception as error:  # noqa: BLE001 - a report without old curves beats no report
        _LOG.warning("The curves of earlier runs could not be read from MLflow: %s", sentence(error))
        return []
    return [(cell, step, loss) for cell, curve in found.items() for step, loss in curve]


def _is_ended(run: Any) -> bool:
    """Whether a run has a row: a cell that failed and runs again has none."""
    status = run.data.tags.get("interplay.status")
    return status in get_args(Status) and not (status == "failed" and run.info.status == "RUNNING")


def _row(run: Any) -> Row | None:
    tags, status = run.data.tags, run.data.tags.get("interplay.status")
    if status not in get_args(Status) or "interplay.cell" not in tags:
        return None
    return Row(
        cell=tags["interplay.cell"],
        name=run.info.run_name or "",
        protocol=tags.get("interplay.protocol", ""),
        status=status,
        reason=tags.get("interplay.reason") or None,
        params={key: _number(value) for key, value in run.data.params.items()},
        metrics=dict(run.data.metrics),
        # A row of an earlier version does not say when its cell ended; its run ended soon after.
        tags={
            ENDED: str((run.info.end_time or 0) / 1000),
            **{k: v for k, v in tags.items() if k.startswith("interplay.")},
        },
    )


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _parent(run: Any) -> str | None:
    parent = run.data.tags.get("mlflow.parentRunId")
    return None if parent is None else str(parent)


def sentence(error: BaseException) -> str:
    """The first line of an error, for people."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]
