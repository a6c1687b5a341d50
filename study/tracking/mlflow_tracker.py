"""MLflow as a tracker: one run per study, below it one run per cell, found again by the key of the cell."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from analysis.runs.mlflow import MEASURE
from study.tracking.mlflow_client import Experiment, server_problem
from study.tracking.rows import CurveUpdate, Parameters, Row, Status
from trainables.storage.storage import shown

#: The most characters of a tag that MLflow takes from every store.
TAG_CHARACTERS = 4000
#: The tag with the time at which a cell finished, in Unix seconds.
ENDED = "interplay.ended"
#: Prefix of final metrics measured before the first step. Those measured with the loss at the end have `MEASURE`.
START = "start."
#: Final metrics of a cell that have the name of the field of its row.
FINAL = (
    *("loss", "bits_per_byte", "train_seconds", "tokens_per_second", "utilisation", "memory_bytes"),
    *("epochs", "trained_share"),
)
#: Most metrics, parameters and tags of one batch (the limit of MLflow's REST API).
METRICS_PER_BATCH = 1000
#: MLflow's names of the parts of a training curve. None may be the name of a final metric: MLflow shows the value of
#: the highest step, which would be the curve's.
CURVES = {"train_loss": "train_loss", "lr": "lr", "grad_norm": "grad_norm", "tokens_per_second": "throughput"}


class MlflowTracker:
    """Writes a study to an MLflow experiment; see `study.tracking.tracker.Tracker`."""

    def __init__(
        self, uri: str, experiment: str, study: str, tags: Mapping[str, str], artifacts: Path | None
    ) -> None:
        """Write to the study's run, which has these tags; a new local experiment keeps files in `artifacts`."""
        self.uri, self.name, self.study, self.artifacts = uri, experiment, study, artifacts
        self.tags = {name: value[:TAG_CHARACTERS] for name, value in tags.items()}
        self.address = shown(uri)
        self._study_run = ""
        self._runs: dict[str, str] = {}
        """The run of each cell."""
        self._without_params: set[str] = set()
        """Cells whose run a killed driver created but did not fill."""
        self._steps: dict[str, tuple[int, int]] = {}
        """The last steps that MLflow has of the training curve and of the evaluations of the open cells."""

    def problem(self) -> str | None:
        """Return why the tracking server cannot be used, None if it can or is a file."""
        problem = server_problem(self.uri, timeout=1.0)
        # The address may hold a password, if it comes from the environment.
        return problem and problem.replace(self.uri, self.address)

    @cached_property
    def _experiment(self) -> Experiment:
        return Experiment(self.uri, self.name, self.artifacts)

    def open(self) -> None:
        """Open the experiment, made if it is missing; a SpecError if a retry cannot open it."""
        _ = self._experiment

    def recorded(self) -> dict[str, str] | None:
        """Return the tag `ENDED` of each cell with a complete row; None if there is no such experiment."""
        try:
            return _recorded(Experiment(self.uri, self.name, create=False).runs())
        except LookupError:
            return None

    def connect(self) -> dict[str, str]:
        """Set the study's run running, end the runs that a killed driver has left, and return what `recorded` does."""
        self._study_run = self._begin_study()
        open_cells = set(self._steps)
        # After an error the last answer may have been lost: ask for the steps again.
        self._steps.clear()
        runs = list(self._experiment.runs())
        self._runs = {_cell(run): str(run.info.run_id) for run in runs}
        self._without_params = {_cell(run) for run in runs if not run.data.params}
        self._end_stale(run for run in runs if _cell(run) not in open_cells)
        return _recorded(runs)

    def log_curve(self, update: CurveUpdate) -> None:
        """Add the new parts of a curve to the run of a cell, made if it is missing."""
        self._log(update, [], lost_tags(update.lost))

    def log_row(self, row: Row) -> None:
        """Write the curve past the steps already there, the final metrics and tags, and end the run of the cell."""
        from mlflow.entities import Metric

        # With a fixed time, the same metric written twice is one.
        when = int(row.ended * 1000)
        _, metrics, tags = to_mlflow(row)
        self._log(row, [Metric(name, value, when, 0) for name, value in metrics.items()], tags)
        status = "FAILED" if row.status == "failed" else "FINISHED"
        self._experiment.client.set_terminated(self._runs[row.cell], status=status)
        self._steps.pop(row.cell, None)

    def finish(self, status: str, artifacts: Iterable[Path]) -> None:
        """End the runs of cells that have not finished, attach the files and end the study's run."""
        self._study_run = self._study_run or self._begin_study()
        self._end_stale(self._experiment.runs())
        client = self._experiment.client
        for path in artifacts:
            if path.is_dir():
                client.log_artifacts(self._study_run, str(path), path.name)
            elif path.is_file():
                client.log_artifact(self._study_run, str(path))
        client.set_terminated(self._study_run, status=status)

    def _begin_study(self) -> str:
        """Return the study's run, made or found by its name, and set it running."""
        client = self._experiment.client
        tags = {"interplay.kind": "study", "interplay.study": self.study, **self.tags}
        condition = f"tags.`interplay.kind` = 'study' AND tags.`interplay.study` = '{self.study}'"
        for run in self._experiment.runs(condition):
            run_id = str(run.info.run_id)
            client.update_run(run_id, status="RUNNING")
            self._write(run_id, [], tags)
            return run_id
        made = client.create_run(self._experiment.experiment_id, run_name=self.study, tags=tags)
        return str(made.info.run_id)

    def _end_stale(self, runs: Iterable[Any]) -> None:
        for run in runs:
            if run.info.status == "RUNNING" and run.data.tags.get("mlflow.parentRunId") == self._study_run:
                self._experiment.client.set_terminated(run.info.run_id, status="KILLED")

    def _run_of(self, cell: str, name: str) -> str:
        """Return the one run of a cell, set running when it is used first after `connect`."""
        client = self._experiment.client
        run_id = self._runs.get(cell)
        if run_id is None:
            tags = {"interplay.kind": "trial", "interplay.cell": cell, "mlflow.parentRunId": self._study_run}
            made = client.create_run(self._experiment.experiment_id, run_name=name, tags=tags)
            run_id = self._runs[cell] = str(made.info.run_id)
            self._steps[cell] = -1, -1
            self._without_params.add(cell)
        elif cell not in self._steps:
            client.update_run(run_id, status="RUNNING")
            points, evaluations = (self._last_step(run_id, n) for n in ("train_loss", "validation_loss"))
            self._steps[cell] = points, evaluations
        return run_id

    def _last_step(self, run_id: str, name: str) -> int:
        history = self._experiment.client.get_metric_history(run_id, name)
        return max((metric.step for metric in history), default=-1)

    def _log(self, part: CurveUpdate | Row, more: Sequence[Any], tags: Mapping[str, str]) -> None:
        """Log parameters, the curve past the steps already there, more metrics, and tags to the run of a cell.

        Measures of the start are step 0, with the first points.
        """
        from mlflow.entities import Metric

        run_id = self._run_of(part.cell, part.name)
        now = int(time.time() * 1000)
        metrics: list[Any] = []
        last_point, last_evaluation = self._steps[part.cell]
        if last_point < 0:
            metrics += [Metric(f"validation_{name}", value, now, 0) for name, value in part.start.items()]
        for point in part.points:
            if point.step > last_point:
                last_point = point.step
                metrics += [
                    Metric(name, getattr(point, key), now, point.step) for key, name in CURVES.items()
                ]
        for evaluation in part.evaluations:
            if evaluation.step > last_evaluation:
                last_evaluation = evaluation.step
                values = {"loss": evaluation.loss, **evaluation.measures}
                metrics += [
                    Metric(f"validation_{name}", value, now, evaluation.step)
                    for name, value in values.items()
                ]
        self._write(
            run_id, [*metrics, *more], tags, part.parameters if part.cell in self._without_params else {}
        )
        self._without_params.discard(part.cell)
        self._steps[part.cell] = last_point, last_evaluation

    def _write(
        self, run_id: str, metrics: Sequence[Any], tags: Mapping[str, str], params: Parameters | None = None
    ) -> None:
        """Log parameters, metrics and tags in this order, so that a row with tags is complete.

        They go into as few batches as MLflow's limit allows, which holds for all three together: each call takes
        milliseconds of the driver.
        """
        from mlflow.entities import Param, RunTag

        given = [Param(name, str(value)) for name, value in (params or {}).items() if value is not None]
        written = [RunTag(name, value[:TAG_CHARACTERS]) for name, value in tags.items()]
        client, rest = self._experiment.client, list(metrics)
        while len(given) + len(rest) + len(written) > METRICS_PER_BATCH:
            room = METRICS_PER_BATCH - len(given)
            client.log_batch(run_id, metrics=rest[:room], params=given)
            given, rest = [], rest[room:]
        if given or rest or written:
            client.log_batch(run_id, metrics=rest, params=given, tags=written)


def to_mlflow(row: Row) -> tuple[Parameters, dict[str, float], dict[str, str]]:
    """Return the parameters, the final metrics and the tags of a row in MLflow's words."""
    values = {name: getattr(row, name) for name in FINAL} if row.status != "failed" else {}
    metrics = {name: float(value) for name, value in values.items() if value is not None}
    metrics |= {f"{MEASURE}{name}": value for name, value in row.measures.items()}
    metrics |= {f"{START}{name}": value for name, value in row.start.items()}
    tags = {
        "interplay.status": row.status,
        "interplay.protocol": row.protocol,
        # Written even if empty: a cell that failed and is done now must not keep its old reason.
        "interplay.reason": row.reason or "",
        "interplay.revision": row.revision,
        "interplay.device": row.device,
        "interplay.resumed_from": str(row.resumed_from or ""),
        "interplay.notes": " ".join(row.notes),
        "interplay.purpose": row.purpose,
        **lost_tags(row.lost),
        ENDED: f"{row.ended:.3f}",
    }
    return row.parameters, metrics, tags


def lost_tags(lost: Sequence[str]) -> dict[str, str]:
    """Return the tag with the causes of the lost trials of a cell, if it lost any."""
    return {"interplay.lost_trials": " | ".join(lost)} if lost else {}


def _cell(run: Any) -> str:
    return str(run.data.tags.get("interplay.cell", ""))


def _recorded(runs: Iterable[Any]) -> dict[str, str]:
    """Return when each cell finished whose row is complete."""
    return {
        _cell(run): str(run.data.tags[ENDED])
        for run in runs
        if run.info.status in ("FINISHED", "FAILED")
        and run.data.tags.get("interplay.status") in get_args(Status)
        and ENDED in run.data.tags
    }
