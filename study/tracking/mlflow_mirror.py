"""A copy of a study's rows in MLflow: one run per study with its spec as parameters, below it one run per cell.

The rows of the ledger are the record; the copy can be made again from them at any time. The run of a cell is written
from its start to its row without an interruption, or deleted and written again, so that nothing is there twice.
"""

import contextlib
import hashlib
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from analysis.fit.answer import short_answer
from analysis.runs.mlflow import MEASURE
from study.errors import SpecError
from study.plan import Plan, make_plan
from study.spec.study import StudySpec
from study.tracking.ledger import CurveUpdate, Ledger, Row, study_rows
from study.tracking.mlflow_store import Experiment, first_line, is_server, server_problem, tracking_uri
from study.tracking.mlflow_view import NAME as VIEW_NAME
from study.tracking.mlflow_view import TAG as VIEW
from study.tracking.mlflow_view import WORKFLOW, page, saved_view
from study.tracking.study_paths import StudyPaths, study_paths
from trainables.storage.storage import shown

#: Seconds between two batches of live curves, and between two attempts to reach an unreachable server.
BATCH_SECONDS = 5.0
#: The most metrics, parameters and tags of one batch, and parameters of one batch, that MLflow takes.
BATCH, PARAMETERS = 1000, 100
#: The most characters of a tag, in every store, and of a parameter that MLflow takes.
TAG_CHARACTERS, PARAMETER_CHARACTERS = 4000, 6000
#: The tag with the id of the run above a run.
PARENT = "mlflow.parentRunId"
#: Keys of the spec that hold the address of a store.
ADDRESSES = ("resources.storage", "tracking.uri")
#: The tag with the time at which a cell finished, in Unix seconds.
ENDED = "interplay.ended"
#: The tag with the text that MLflow shows above a run or an experiment, in Markdown.
NOTE = "mlflow.note.content"
#: The end of an experiment's note that a user has not written. Its page shows the first line of the note.
MARK = "Written by `interplay run`, which replaces this text."
#: Final metrics of a cell that have the name of the field of its row and no curve.
FINAL = ("bits_per_byte", "train_seconds", "utilisation", "memory_bytes", "epochs", "trained_share")
#: Parts of a training curve. None may be the name of a final metric: MLflow shows the value of the highest step.
CURVES = ("train_loss", "lr", "grad_norm", "tokens_per_second")
#: Prefix of the metrics that MLflow's page of a run shows as those of the system.
SYSTEM = "system/"

#: An item that the driver queues: the key of a cell whose row is in the ledger, or a live curve.
Item = str | CurveUpdate


class Mirror:
    """Sends rows and live curves to MLflow from a thread, so that the driver never waits for it.

    Every error of MLflow is kept in `problem`. Live curves may be lost, because the row has the whole curve, and rows
    that cannot be sent are sent at the next start.
    """

    def __init__(self, study: "MlflowStudy", ledger: Ledger, rows: Iterable[Row]) -> None:
        """Begin with the study's `rows` from earlier runs; those that MLflow lacks are sent first."""
        self.study, self.ledger = study, ledger
        self.problem: str | None = None
        self._ended = {row.cell: row.ended for row in rows}
        self._connected = False
        self._missing: list[str] = []
        """The cells whose rows MLflow lacked when it was last connected, in the order in which they finished."""
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stuck = False

    def open(self) -> str | None:
        """Open the experiment; return why it cannot be used now. After a SpecError it never can."""
        self.problem = self.study.problem()
        if self.problem is None:
            try:
                self.study.open()
            except SpecError:
                raise
            except Exception as error:  # noqa: BLE001 - no failure of MLflow may fail a study
                self.problem = f"{self.study.address}: {first_line(error)}"
        return self.problem

    def start(self) -> None:
        """Begin to send."""
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._thread.start()

    def put(self, update: CurveUpdate) -> None:
        """Queue a live curve."""
        # A cell that failed is trained again, so its old row must not be sent.
        self._ended.pop(update.cell, None)
        self._queue.put(update)

    def ended(self, row: Row) -> None:
        """Queue the row of a finished cell, which is in the ledger."""
        self._ended[row.cell] = row.ended
        self._queue.put(row.cell)

    def close(self, patience: float | None = 60.0) -> None:
        """Send what is queued and stop, within `patience` seconds. Safe to call again."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            self.problem, self._stuck = f"{self.study.address} took more than {patience:.0f} s", True
        self._thread = None

    def finish(self, status: str, progress: str = "") -> None:
        """After `close`: write the answer and end the study's run, if MLflow can be used.

        `progress` is how much of an unfinished study is done, in a sentence.
        """
        if not self._stuck and not self.study.problem():
            self._attempt(self.study.finish, status, progress)

    def _run(self) -> None:
        """Send until closed: live curves merged by cell every few seconds, rows as they come."""
        self._send([])
        closing = False
        while not closing:
            items: list[Item | None] = [self._queue.get()]
            if isinstance(items[0], CurveUpdate):
                time.sleep(BATCH_SECONDS)
            with contextlib.suppress(queue.Empty):
                while True:
                    items.append(self._queue.get_nowait())
            closing = None in items
            self._send([item for item in items if item is not None])

    def _send(self, items: Sequence[Item]) -> None:
        """Send a batch; if MLflow was unreachable or failed, connect again and send all rows that it lacks."""
        cells = list(dict.fromkeys(item for item in items if isinstance(item, str)))
        if not self._connected:
            if (problem := self.study.problem()) or not self._attempt(self._connect):
                self.problem = problem or self.problem
                return
            cells, self.problem, self._connected = self._missing, self.study.refused, True
        for cell in cells:
            if not self._attempt(self._send_row, cell) and self.study.problem():
                return
        for update in _merged(items, skip=set(cells)):
            if not self._attempt(self.study.log_curve, update):
                return

    def _send_row(self, cell: str) -> None:
        if row := self.ledger.get(cell):
            self.study.log_row(row)

    def _connect(self) -> None:
        ended, recorded = dict(self._ended), self.study.connect()
        missing = [cell for cell in ended if recorded.get(cell) != ended[cell]]
        self._missing = sorted(missing, key=lambda cell: (ended[cell], cell))

    def _attempt(self, send: Callable[..., None], *arguments: object) -> bool:
        """Whether a call succeeds. After an error the mirror connects again, and reads which rows MLflow has."""
        try:
            send(*arguments)
        except Exception as error:  # noqa: BLE001 - no failure of MLflow may fail a study
            self.problem, self._connected = first_line(error), False
            return False
        return True


def _merged(items: Iterable[Item], skip: Set[str]) -> list[CurveUpdate]:
    """Return one update for each cell, but for those to skip."""
    merged: dict[str, CurveUpdate] = {}
    for item in items:
        if isinstance(item, CurveUpdate) and item.cell not in skip:
            update = merged.setdefault(item.cell, CurveUpdate(item.cell, item.name, item.parameters))
            update.points += item.points
            update.evaluations += item.evaluations
            update.start |= item.start
            update.lost = item.lost or update.lost
    return list(merged.values())


@dataclass
class _OpenRun:
    """The run of a cell that this process writes; `sent` has the kinds and steps of the parts of its curves."""

    id: str
    latest: int = 0
    """Time of the last live part in ms; no later step may have an earlier one, because MLflow sorts by time."""
    sent: set[tuple[str, int]] = field(default_factory=set)


class MlflowStudy:
    """The runs of a study in an MLflow experiment. All methods but `problem` may raise any error, or wait."""

    def __init__(
        self,
        uri: str,
        experiment: str,
        paths: StudyPaths,
        tags: Mapping[str, str],
        parameters: Mapping[str, str],
    ) -> None:
        """Write to the study's run, which has these tags and parameters."""
        self.uri, self.name, self.paths, self.tags, self.parameters = uri, experiment, paths, tags, parameters
        self.address = shown(uri)
        """The store for messages, without anything secret."""
        self.refused: str | None = None
        """Why the study's run has the parameters of an earlier run of the study."""
        self._study_run = ""
        self._earlier: set[str] = set()
        """Earlier runs of the study, deleted or not."""
        self._open: dict[str, _OpenRun] = {}
        self._closed: dict[str, str] = {}
        """The runs of all other cells, each deleted when its cell is written again."""

    def problem(self) -> str | None:
        """Return why the tracking server cannot be used, None if it can or is a file."""
        return server_problem(self.uri, timeout=1.0)

    @cached_property
    def _experiment(self) -> Experiment:
        return Experiment(self.uri, self.name)

    def open(self) -> None:
        """Open the experiment, made if it is missing; a SpecError if a retry cannot open it."""
        _ = self._experiment

    def connect(self) -> dict[str, float]:
        """Set the study's run running and end the runs that a killed driver has left.

        Return when the cells finished whose rows are complete.
        """
        self._write_view()
        self._study_run = self._begin_study()
        runs = self._cell_runs(running=self._open)
        self._closed = {_cell(run): str(run.info.run_id) for run in runs if _cell(run) not in self._open}
        ended = ("FINISHED", "FAILED")
        complete = [run for run in runs if run.info.status in ended and ENDED in run.data.tags]
        return {_cell(run): float(run.data.tags[ENDED]) for run in complete}

    def log_curve(self, update: CurveUpdate) -> None:
        """Add the new parts of a curve to the run of a cell, made if it is missing."""
        now = int(time.time() * 1000)
        with self._run_of(update, now) as run:
            self._log(run, update, lambda step: now, tags=_lost_tags(update.lost))

    def log_row(self, row: Row) -> None:
        """Write the part of the curve that was not sent, the final metrics and tags, and end the run of the cell.

        The time of a step is interpolated between the start and the end of the cell.
        """
        end, seconds = int(row.ended * 1000), row.train_seconds or 0.0
        last = max((one.step for curve in (row.points, row.evaluations) for one in curve), default=1)

        def when(step: int) -> int:
            return int(end - 1000 * seconds * (1 - step / last))

        with self._run_of(row, when(0)) as run:
            final = [_metric(name, value, end, 0) for name, value in final_metrics(row).items()]
            if row.loss is not None and not row.evaluations:
                final.append(_metric("loss", row.loss, end, last))
            self._log(run, row, when, final, row_tags(row))
            status = "FAILED" if row.status == "failed" else "FINISHED"
            self._experiment.client.set_terminated(run.id, status=status, end_time=end)
        self._closed[row.cell] = self._open.pop(row.cell).id

    def finish(self, status: str, progress: str = "") -> None:
        """End the runs of unfinished cells and the study's run, and write its files, its numbers and its answer."""
        self._study_run = self._study_run or self._begin_study()
        runs = self._cell_runs()
        files = self._log_files()
        fit, metrics, note = self.paths.fit, [], [progress] if progress else []
        if fit:
            note = [*short_answer(fit.reading, fit.best, fit.level, fit.tokens), *note]
            numbers = {f"crossing.L{c.shallow}-L{c.deep}": c.params for c in fit.crossings}
            numbers["slope"] = fit.law.b
            # A fixed time: a store of MLflow drops a metric with the key, step, time and value of another one.
            when = max((run.info.end_time or 0 for run in runs), default=0)
            metrics = [_metric(name, value, when, 0) for name, value in numbers.items() if value is not None]
        report = self.paths.folder / "report.html"
        if report.name in files:
            link = f"#/experiments/{self._experiment.id}/runs/{self._study_run}/artifacts/{report.name}"
            note.append(f"Report: [{report.name}]({link}?{WORKFLOW}), written as {report}")
        elif report.is_file():
            note.append(f"Report: {report}")
        self._write(self._study_run, metrics, {NOTE: "\n\n".join(note)} if note else {}, {})
        self._write_note()
        self._experiment.client.set_terminated(self._study_run, status=status)

    def _log_files(self) -> list[str]:
        """Give the study's run its files, of which a store in a file gets the report alone; return their names."""
        experiment, paths = self._experiment, self.paths.outputs
        if not is_server(self.uri):
            paths = [path for path in paths if path.suffix == ".html"] if experiment.keeps_files else []
        for path in paths:
            if path.is_dir():
                experiment.client.log_artifacts(self._study_run, str(path), path.name)
            elif path.is_file():
                experiment.client.log_artifact(self._study_run, str(path))
        return [path.name for path in paths if path.exists()]

    def _write_view(self) -> None:
        """Give the experiment the saved view with which its page opens."""
        client, found = self._experiment.client, self._experiment.read()
        view = saved_view(found.creation_time or 0)
        if found.tags.get(VIEW) != view:
            client.set_experiment_tag(found.experiment_id, VIEW, view)

    def _write_note(self) -> None:
        """Make the notes of all studies of the experiment its own note, unless a user has written that."""
        before = self._experiment.read().tags.get(NOTE, "")
        if before and not before.endswith(MARK):
            return
        studies = self._experiment.runs("tags.`interplay.kind` = 'study'")
        notes = {run.info.run_name: run.data.tags.get(NOTE) for run in studies}
        parts = [f"**{name}**: {note}" for name, note in sorted(notes.items()) if note]
        if len(notes) == 1:
            parts = [note for note in notes.values() if note]
        charts = f"\n\nCharts: [{VIEW_NAME}]({page(self._experiment.id)})\n\n{MARK}"
        note = "\n\n".join(parts)[: TAG_CHARACTERS - len(charts)] + charts
        if parts and note != before:
            self._experiment.client.set_experiment_tag(self._experiment.id, NOTE, note)

    def _begin_study(self) -> str:
        """Return the study's run with its parameters and tags, set running.

        MLflow's parameters cannot change, so a run with other ones is deleted and made anew. A run without some of
        them, of a driver that was killed, gets these.
        """
        from mlflow.entities import ViewType

        client, study = self._experiment.client, self.paths.name
        tags = {"interplay.kind": "study", "interplay.study": study}
        condition = " AND ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        # The newest first.
        found, self.refused = client.search_runs([self._experiment.id], condition, ViewType.ALL), None
        there = [one for one in found if one.info.lifecycle_stage == "active"]
        run = next((one for one in there if self._fits(one)), None)
        for old in there:
            if old is not run:
                try:
                    client.delete_run(old.info.run_id)
                except Exception as error:  # noqa: BLE001 - the store may allow no deletion
                    self.refused = (
                        f"{self.address} keeps an earlier spec of the study {study!r} as parameters, because the run "
                        f"that has them could not be deleted ({first_line(error).rstrip('.')})"
                    )
                    run = run or old
        run = run or client.create_run(self._experiment.id, run_name=study, tags=tags)
        run_id = str(run.info.run_id)
        self._earlier = {str(one.info.run_id) for one in found} - {run_id}
        client.update_run(run_id, status="RUNNING")
        self._write(run_id, [], self.tags, self.parameters if self._fits(run) else {})
        return run_id

    def _fits(self, run: Any) -> bool:
        """Whether a run can have the parameters of the study."""
        return bool(run.data.params.items() <= self.parameters.items())

    def _cell_runs(self, running: Collection[str] = ()) -> list[Any]:
        """Return the runs of all cells of the experiment.

        Those below an earlier run of the study are moved below its present one, and of these the ones that no driver
        has ended are ended, but for the cells that are `running`.
        """
        client, runs = self._experiment.client, list(self._experiment.runs())
        for run in runs:
            parent = run.data.tags.get(PARENT)
            if parent in self._earlier:
                client.set_tag(run.info.run_id, PARENT, self._study_run)
                parent = self._study_run
            if parent == self._study_run and run.info.status == "RUNNING" and _cell(run) not in running:
                client.set_terminated(run.info.run_id, status="KILLED")
        return runs

    @contextlib.contextmanager
    def _run_of(self, part: CurveUpdate | Row, start: int) -> Iterator[_OpenRun]:
        """Give the open run of a cell, or a new one in place of an earlier one; after an error it is not used again."""
        cell, client = part.cell, self._experiment.client
        run = self._open.get(cell)
        if run is None:
            if old := self._closed.get(cell):
                client.delete_run(old)
                del self._closed[cell]
            tags = {"interplay.kind": "trial", "interplay.cell": cell, PARENT: self._study_run}
            made = client.create_run(self._experiment.id, start, tags=tags, run_name=part.name)
            run = self._open[cell] = _OpenRun(str(made.info.run_id))
        try:
            yield run
        except Exception:
            # Part of it may have been written.
            self._closed[cell] = self._open.pop(cell).id
            raise

    def _log(
        self,
        run: _OpenRun,
        part: CurveUpdate | Row,
        when: Callable[[int], int],
        final: Sequence[Any] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log the parts of a curve that were not sent, with the time of each step in ms, final metrics and tags.

        Measures of the start are those of step 0.
        """
        parts = {
            ("point", one.step): {
                **{name: getattr(one, name) for name in CURVES},
                **{f"{SYSTEM}{name}": value for name, value in one.gpu.items()},
            }
            for one in part.points
        }
        parts |= {
            ("evaluation", one.step): {"loss": one.loss, **_validation(one.measures)}
            for one in part.evaluations
        }
        if part.start:
            parts["evaluation", 0] = _validation(part.start)
        metrics = list(final)
        for kind, step in sorted(parts.keys() - run.sent):
            at = max(when(step), run.latest)
            metrics += [_metric(name, value, at, step) for name, value in parts[kind, step].items()]
        self._write(run.id, metrics, tags or {}, {} if run.latest else part.parameters)
        run.latest = max(run.latest, when(0))
        run.sent |= parts.keys()

    def _write(
        self, run_id: str, metrics: Sequence[Any], tags: Mapping[str, str], parameters: Mapping[str, Any]
    ) -> None:
        """Log in as few batches as MLflow's limit allows, each of which takes milliseconds of the driver."""
        from mlflow.entities import Param, RunTag

        client, rest = self._experiment.client, list(metrics)
        given = [Param(name, str(value)) for name, value in parameters.items() if value is not None]
        written = [RunTag(name, text[:TAG_CHARACTERS]) for name, text in tags.items()]
        while len(given) > PARAMETERS:
            client.log_batch(run_id, params=given[:PARAMETERS])
            given = given[PARAMETERS:]
        while len(given) + len(rest) + len(written) > BATCH:
            client.log_batch(run_id, metrics=rest[:BATCH])
            rest = rest[BATCH:]
        if given or rest or written:
            client.log_batch(run_id, metrics=rest, params=given, tags=written)


def final_metrics(row: Row) -> dict[str, float]:
    """Return the numbers of a row that have no curve, by their names in MLflow; its loss ends the curve `loss`."""
    values = {name: getattr(row, name) for name in FINAL} if row.status != "failed" else {}
    return {
        **{name: float(value) for name, value in values.items() if value is not None},
        **{f"{MEASURE}{name}": value for name, value in row.measures.items()},
    }


def _validation(measures: Mapping[str, float]) -> dict[str, float]:
    """Return the measures of an evaluation by the names of their curves."""
    return {f"validation_{name}": value for name, value in measures.items()}


def row_tags(row: Row) -> dict[str, str]:
    """Return the texts of a row by their names in MLflow."""
    tags = {
        "interplay.status": row.status,
        "interplay.protocol": row.protocol,
        "interplay.reason": row.reason or "",
        "interplay.revision": row.revision,
        "interplay.device": row.device,
        "interplay.resumed_from": str(row.resumed_from or ""),
        "interplay.notes": " ".join(row.notes),
        "interplay.purpose": row.purpose,
        **_lost_tags(row.lost),
        ENDED: f"{row.ended:.3f}",
    }
    return {name: text for name, text in tags.items() if text}


def spec_parameters(spec: BaseModel, prefix: str = "") -> dict[str, str]:
    """Return every key of a spec, dotted, with its value as text that an override reads.

    Values that are neither text nor a section are JSON. The addresses of stores have no user and no options, which may
    be secret. A text that is too long for MLflow is cut, and ends with a hash of the whole.
    """
    parameters: dict[str, str] = {}
    for name, value in spec.model_dump(mode="json").items():
        key, section = prefix + name, getattr(spec, name)
        if isinstance(section, BaseModel):
            parameters |= spec_parameters(section, f"{key}.")
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if key in ADDRESSES and re.search("://.*[@?]", text):
            text = shown(text)
        if len(text) > PARAMETER_CHARACTERS:
            end = f"… {hashlib.sha256(text.encode()).hexdigest()[:16]}"
            text = text[: PARAMETER_CHARACTERS - len(end)] + end
        parameters[key] = text
    return parameters


def _lost_tags(lost: Sequence[str]) -> dict[str, str]:
    return {"interplay.lost_trials": " | ".join(lost)} if lost else {}


def _metric(name: str, value: float, when: int, step: int) -> Any:
    from mlflow.entities import Metric

    return Metric(name, value, when, step)


def _cell(run: Any) -> str:
    return str(run.data.tags.get("interplay.cell", ""))


def make_mirror(
    spec: StudySpec, protocol: str, paths: StudyPaths, rows: Iterable[Row], tags: Mapping[str, str]
) -> Mirror:
    """Return the mirror of a study; `rows` may hold those of other studies, and its run has these tags."""
    uri = tracking_uri(spec.tracking.uri, paths.results)
    known = {"interplay.protocol": protocol, "interplay.spec": spec.to_yaml(), **tags}
    own = [row for row in rows if row.study == spec.name]
    return Mirror(MlflowStudy(uri, spec.experiment, paths, known, spec_parameters(spec)), paths.ledger, own)


def mirror_study(spec: StudySpec, results: Path) -> str:
    """Send the rows of a study that MLflow lacks, and its answer; return the store and the number of rows.

    Raises:
        SpecError: the study has no rows or is being run, or MLflow cannot be used.
    """
    plan, paths = make_plan(spec, to_read=True), study_paths(spec, results.resolve())
    rows = [row for row in paths.ledger.rows().values() if row.study == spec.name]
    if not rows:
        raise SpecError(f"the study {spec.name!r} has no rows in {paths.ledger.name} yet.")
    newest = max(rows, key=lambda row: row.ended)
    with paths.locked():
        mirror = make_mirror(spec, plan.protocol, paths, rows, {"interplay.revision": newest.revision})
        if mirror.open() is None:
            mirror.start()
            mirror.close(patience=None)
            finished = paths.fit is not None
            done = progress(plan, study_rows(plan, paths.ledger.rows()).values())
            mirror.finish("FINISHED" if finished else "KILLED", "" if finished else done)
    refused = mirror.study.refused
    if mirror.problem and mirror.problem != refused:
        raise SpecError(f"{mirror.problem}. The rows are in {paths.ledger.name}.")
    sent = f"{len(rows)} rows of {spec.name} are in {mirror.study.address}, experiment {spec.experiment}."
    return f"{sent} {refused}." if refused else sent


def progress(plan: Plan, rows: Collection[Row]) -> str:
    """Return how many cells of an unfinished study are done, in a sentence; a search may choose fewer than planned."""
    done = sum(row.status != "failed" and not row.purpose for row in rows)
    most = "at most " if plan.search.chooses_cells else ""
    return f"Unfinished: {done} of {most}{len(plan.cells)} cells are done."
