"""A copy of a study's rows in MLflow: one run per study with its spec as parameters, below it one run per cell.

The rows of the ledger are the record; the copy can be made again from them at any time. The run of a cell is written
from its start to its row without an interruption, or deleted and written again, so that nothing is there twice.
"""

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from analysis.runs.costs import measured_costs, read_costs
from study.plan.rows import Row
from study.tracking.ledger import CurveUpdate
from study.tracking.mirror import (
    ENDED,
    curve_parts,
    final_metrics,
    last_step,
    lost_tags,
    row_tags,
    step_times,
)
from study.tracking.mlflow_store import Experiment, first_line, is_server, server_problem
from study.tracking.mlflow_view import NAME as VIEW_NAME
from study.tracking.mlflow_view import TAG as VIEW
from study.tracking.mlflow_view import WORKFLOW, page, saved_view
from study.tracking.study_paths import StudyPaths
from trainables.storage.storage import redacted

#: The most metrics, parameters and tags of one batch, and parameters of one batch, that MLflow takes.
BATCH, PARAMETERS = 1000, 100
#: The most characters of a tag, in every store, and of a parameter that MLflow takes.
TAG_CHARACTERS, PARAMETER_CHARACTERS = 4000, 6000
#: The tag with the id of the run above a run.
PARENT = "mlflow.parentRunId"
#: Keys of the spec that hold the address of a store.
ADDRESSES = ("resources.storage", "tracking.uri")
#: The tag with the text that MLflow shows above a run or an experiment, in Markdown.
NOTE = "mlflow.note.content"
#: The end of an experiment's note that a user has not written. Its page shows the first line of the note.
MARK = "Written by `interplay run`, which replaces this text."


@dataclass
class _OpenRun:
    """The run of a cell that this process writes; `sent` has the kinds and steps of the parts of its curves."""

    id: str
    latest: int = 0
    """Time of the last live part in ms; no later step may have an earlier one, because MLflow sorts by time."""
    sent: set[tuple[str, int]] = field(default_factory=set)


class MlflowStudy:
    """The runs of a study in an MLflow experiment, a `study.tracking.mirror.Target`."""

    hint: tuple[str, str] | None = None
    """None: `interplay ui` opens its page."""

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
        self.address = redacted(uri)
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
            self._log(run, update, lambda step: now, tags=lost_tags(update.lost))

    def log_row(self, row: Row) -> None:
        """Write the part of the curve that was not sent, the final metrics and tags, and end the run of the cell.

        The time of a step is interpolated between the start and the end of the cell.
        """
        when = step_times(row)
        end = int(row.ended * 1000)
        with self._run_of(row, when(0)) as run:
            final = [_metric(name, value, end, 0) for name, value in final_metrics(row).items()]
            if row.loss is not None and not row.evaluations:
                final.append(_metric("loss", row.loss, end, last_step(row)))
            self._log(run, row, when, final, row_tags(row))
            status = "FAILED" if row.status == "failed" else "FINISHED"
            self._experiment.client.set_terminated(run.id, status=status, end_time=end)
        self._closed[row.cell] = self._open.pop(row.cell).id

    def finish(self, status: str, progress: str = "") -> None:
        """End the runs of unfinished cells and the study's run, and write its files, its numbers and its answer."""
        self._study_run = self._study_run or self._begin_study()
        runs = self._cell_runs()
        files = self._log_files()
        # Loaded late: a run without a fit needs no numerical library.
        from analysis.fit.words import in_short

        named, metrics, note = self.paths.fit, [], [progress] if progress else []
        if named:
            fit = named.fit
            note = [*in_short(fit), *note]
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
        # Last, because a `costs.csv` that cannot be read must keep nothing else from the store.
        self.log_costs()

    def log_costs(self) -> None:
        """Give the run of each cell the measured costs of its shape, as metrics.

        A run whose values are those of `costs.csv` gets none. A value that was measured again is a later point of its
        metric, which MLflow shows.

        Raises:
            InputError: `costs.csv` has other content.
        """
        costs = measured_costs(read_costs(self.paths.costs))
        if not costs:
            return
        rows = [row for row in self.paths.ledger.rows().values() if row.study == self.paths.name]
        by_cell = {row.cell: costs.get(_shape(row), {}) for row in rows}
        now = int(time.time() * 1000)
        for run in self._experiment.runs():
            values, before = by_cell.get(_cell(run), {}), run.data.metrics
            changed = {name: value for name, value in values.items() if before.get(name) != value}
            self._write(
                run.info.run_id, [_metric(name, value, now, 0) for name, value in changed.items()], {}, {}
            )

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
        client, experiment = self._experiment.client, self._experiment.read()
        view = saved_view(experiment.creation_time or 0)
        if experiment.tags.get(VIEW) != view:
            client.set_experiment_tag(experiment.experiment_id, VIEW, view)

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
        runs, self.refused = client.search_runs([self._experiment.id], condition, ViewType.ALL), None
        active = [run_of_cell for run_of_cell in runs if run_of_cell.info.lifecycle_stage == "active"]
        run = next((run_of_cell for run_of_cell in active if self._fits(run_of_cell)), None)
        for old in active:
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
        self._earlier = {str(run_of_cell.info.run_id) for run_of_cell in runs} - {run_id}
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
        parts = curve_parts(part)
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
            text = redacted(text)
        if len(text) > PARAMETER_CHARACTERS:
            end = f"… {hashlib.sha256(text.encode()).hexdigest()[:16]}"
            text = text[: PARAMETER_CHARACTERS - len(end)] + end
        parameters[key] = text
    return parameters


def _metric(name: str, value: float, when: int, step: int) -> Any:
    from mlflow.entities import Metric

    return Metric(name, value, when, step)


def _shape(row: Row) -> tuple[int, ...]:
    """Return the `ShapeCosts.shape` of a row."""
    return row.depth, row.width, row.heads, row.kv_heads or row.heads, row.total_params


def _cell(run: Any) -> str:
    return str(run.data.tags.get("interplay.cell", ""))
