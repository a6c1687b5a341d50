"""Rows, trackers and MLflow experiments for tests."""

from pathlib import Path

from study.plan.rows import Row
from study.tracking.mlflow_mirror import MlflowStudy
from study.tracking.mlflow_store import Experiment
from study.tracking.study_paths import StudyPaths
from trainables.progress import Evaluation, Point

ALL_RUNS = "attributes.status != 'nothing'"


#: The fields that identify a cell.
CELL = {
    **{"depth": 1, "width": 8, "heads": 2, "params": 768, "total_params": 1000, "budget": 768.0, "seed": 0},
    **{"lr": 0.25, "lr_factor": 1.0, "tokens": 640, "flops": 3e6, "vocabulary": 9, "data_key": "d"},
    "recipe": {"init": "fan_in", "nothing": None},
}

#: The same as trackers have them, the recipe among them.
PARAMETERS = {**{name: value for name, value in CELL.items() if name != "recipe"}, "init": "fan_in"}


def point(step, loss=1.0):
    return Point(step=step, train_loss=loss, lr=0.1, grad_norm=2.0, tokens_per_second=3.0)


def row(cell="aaaa", status="done", loss=0.5, steps=(10, 20), reason=None, ended=12.345, **changes):
    return Row(
        cell=cell,
        name=f"L1-d8-{cell}",
        study="study",
        protocol="p",
        status=status,
        reason=reason,
        **CELL,
        loss=loss if status == "done" else None,
        train_seconds=2.0,
        tokens_per_second=99.0,
        device="cpu",
        ended=ended,
        points=tuple(point(s) for s in steps),
        evaluations=tuple(
            Evaluation(step=s, loss=loss if status == "done" and s == steps[-1] else 0.9) for s in steps
        ),
    ).model_copy(update=changes)


def mlflow_study(uri, parameters=None, **tags):
    folder = Path(uri.removeprefix("sqlite:///")).parent if uri.startswith("sqlite") else Path("none")
    return MlflowStudy(uri, "study", StudyPaths(folder, "study"), tags, parameters or {})


def study_run(uri):
    """The one run of the study."""
    (found,) = runs(uri, "tags.`interplay.kind` = 'study'")
    return found


def runs(uri, condition=ALL_RUNS):
    return list(Experiment(uri, "study").runs(condition))


def cell_runs(uri):
    """The runs of cells by key; each cell has one."""
    found = [run for run in runs(uri) if "interplay.cell" in run.data.tags]
    by_cell = {run.data.tags["interplay.cell"]: run for run in found}
    assert len(by_cell) == len(found)
    return by_cell


def statuses(uri):
    return {cell: run.info.status for cell, run in cell_runs(uri).items()}


def history(uri, cell, metric="train_loss"):
    run = cell_runs(uri)[cell]
    found = Experiment(uri, "study").client.get_metric_history(run.info.run_id, metric)
    return sorted((one.step, one.value) for one in found)
