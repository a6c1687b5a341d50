"""MLflow as a tracker, what it refuses, and what `fit mlflow:NAME` reads back."""

import shutil
import socket
from pathlib import Path

import pytest
from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

from analysis.runs.table import read_runs
from study.errors import SpecError
from study.plan.plan import make_plan
from study.run.recorder import Recorder
from study.spec.study import load_spec
from study.tracking.ledger import study_rows
from study.tracking.mirror import Mirror
from study.tracking.mlflow_client import Experiment, server_problem, tracking_uri
from study.tracking.mlflow_tracker import METRICS_PER_BATCH
from study.tracking.rows import CurveUpdate
from study.tracking.study_paths import StudyPaths
from study.tracking.tables import run_table
from tests.stubs import stub_result
from tests.study.small import SMALL
from tests.study.tracking.examples import (
    ALL_RUNS,
    cell_runs,
    history,
    mlflow_tracker,
    point,
    row,
    runs,
    statuses,
)
from trainables.progress import Evaluation


@pytest.fixture
def tracker(uri):
    one = mlflow_tracker(uri)
    one.connect()
    return one


def test_a_row_is_recorded_once_it_is_complete(uri, tracker):
    tracker.log_curve(CurveUpdate("aaaa", "L1", {"depth": 1}, [point(10)]))
    assert tracker.recorded() == {}
    tracker.log_row(row(status="diverged", reason="the loss is nan"))
    assert tracker.recorded() == {"aaaa": "12.345"}
    run = cell_runs(uri)["aaaa"]
    assert (run.data.tags["interplay.status"], run.data.tags["interplay.reason"]) == (
        "diverged",
        "the loss is nan",
    )
    assert "loss" not in run.data.metrics
    assert history(uri, "aaaa", "validation_loss") == [(10, 0.9), (20, 0.9)]


def test_reading_makes_nothing(uri, tmp_path):
    assert mlflow_tracker(uri).recorded() is None
    missing = tracking_uri("auto", tmp_path / "none")
    assert mlflow_tracker(missing).recorded() is None
    assert not (tmp_path / "none").exists()


def test_runs_are_found_again_and_those_of_a_killed_driver_ended(uri, tracker):
    for cell in ("aaaa", "bbbb"):
        tracker.log_curve(CurveUpdate(cell, "L1", {"depth": 1}, [point(5), point(10)]))
    again = mlflow_tracker(uri, **{"interplay.revision": "two"})
    assert again.connect() == {}
    assert statuses(uri) == {"aaaa": "KILLED", "bbbb": "KILLED"}
    again.log_row(row("aaaa", steps=(5, 10, 15)))
    assert [step for step, _ in history(uri, "aaaa")] == [5, 10, 15], "each point once"
    (study,) = runs(uri, "tags.`interplay.kind` = 'study'")
    assert study.data.tags["interplay.revision"] == "two"


def test_after_a_lost_connection_open_cells_stay_open(uri, tracker):
    tracker.log_curve(CurveUpdate("aaaa", "L1", {}, [point(5)]))
    assert tracker.connect() == {}
    tracker.log_curve(CurveUpdate("aaaa", "L1", {}, [point(5), point(10)]))
    assert statuses(uri) == {"aaaa": "RUNNING"}
    assert [step for step, _ in history(uri, "aaaa")] == [5, 10]


def test_a_cell_that_failed_and_is_done_now_keeps_no_old_reason(uri, tracker):
    tracker.log_row(row(status="failed", reason="out of memory"))
    tracker.log_curve(CurveUpdate("aaaa", "L1", {}, [point(5)]))
    assert tracker.recorded() == {}, "it runs again"
    tracker.log_row(row(ended=13.0))
    assert tracker.recorded() == {"aaaa": "13.000"}
    tags = cell_runs(uri)["aaaa"].data.tags
    assert (tags["interplay.status"], tags["interplay.reason"]) == ("done", "")


def test_a_row_with_nan_and_more_measures_than_a_batch_holds_arrives(uri, tracker):
    count = METRICS_PER_BATCH // 2 + 100
    many = {f"rank_residual/{layer}": layer / count for layer in range(1, count + 1)}
    nan = point(1, float("nan"))
    metrics = {f"{prefix}.{name}": value for prefix in ("measure", "start") for name, value in many.items()}
    curve = {"points": (nan,), "evaluations": (Evaluation(step=1, loss=1.0, measures=many),)}
    sent = row(**curve, measures=many, start=many)
    tracker.log_row(sent)
    found = cell_runs(uri)["aaaa"].data.metrics
    assert metrics.items() <= found.items()
    assert found["train_loss"] != found["train_loss"]


def test_fit_reads_from_mlflow_what_the_ledger_has_to_the_last_digit(uri, tmp_path):
    plan = make_plan(load_spec(SMALL))
    paths = StudyPaths(tmp_path, "study")
    paths.folder.mkdir()
    mirror = Mirror(mlflow_tracker(uri), paths.ledger, [])
    mirror.open()
    mirror.start()
    recorder = Recorder(plan, {}, mirror, paths)
    for index, planned in enumerate(plan.cells[:5]):
        recorder.started(planned)
        measured = (Evaluation(step=1, loss=1.0, measures={"accuracy": index / 7, "rank/1": 0.5}),)
        recorder.ended(planned, stub_result(loss=1 + index / 3, train_seconds=1 / 3, evaluations=measured))
    recorder.failed(plan.cells[5], "out of memory")
    mirror.close()
    assert mirror.problem is None
    ours = run_table(plan, study_rows(plan, paths.ledger.rows())).frame.set_index("cell")
    theirs = read_runs("mlflow:study", {}, tracking_uri=uri).frame.set_index("cell")
    shared = [name for name in theirs.columns if name in ours.columns]
    assert {"depth", "width", "params", "seed", "lr", "loss", "accuracy", "status", "protocol"} <= set(shared)
    for name in shared:
        for cell, value in theirs[name].items():
            expected = ours.loc[cell, name]
            assert value == expected or (value != value and expected != expected) or not (value or expected)


@pytest.mark.parametrize("how", ["copied", "moved"])
def test_the_artifacts_of_a_results_folder_follow_it(uri, tmp_path, how):
    """MLflow stores absolute locations: of a copy they would be those of the folder that was copied."""
    old, new = tmp_path / "old [100 %]", tmp_path / "new"
    old.mkdir()
    shutil.copy(tmp_path / "mlflow.db", old)
    report = tmp_path / "report.html"
    report.write_text("first")
    first = mlflow_tracker(tracking_uri("auto", old))
    first.finish("FINISHED", [report])
    (kept,) = old.glob("artifacts/*/artifacts/report.html")
    if how == "copied":
        shutil.copytree(old, new)
    else:
        old.rename(new)
    # MLflow (3.17) keeps the places of runs by their ids for the life of a process; a copy is used in another.
    _artifact_repos_cache.clear()
    report.write_text("second")
    again = mlflow_tracker(tracking_uri("auto", new))
    again.open()
    again.finish("FINISHED", [report])
    (place,) = new.glob("artifacts/*/artifacts/report.html")
    assert place.read_text() == "second"
    assert place.relative_to(new) == kept.relative_to(old), "the study's one run"
    assert kept.read_text() == "first" if how == "copied" else not old.exists()
    experiment = Experiment(tracking_uri("auto", new), "study", new / "artifacts")
    (run,) = experiment.runs(ALL_RUNS)
    found = experiment.client.list_artifacts(run.info.run_id)
    assert [one.path for one in found] == ["report.html"]
    fetched = experiment.client.download_artifacts(run.info.run_id, "report.html", str(tmp_path))
    assert Path(fetched).read_text() == "second"


def test_artifacts_that_were_put_elsewhere_stay_there(uri, tmp_path):
    elsewhere = tmp_path / "elsewhere" / "files"
    Experiment(uri, "theirs", elsewhere)
    experiment = Experiment(uri, "study", tmp_path / "artifacts")
    found = experiment.client.get_experiment_by_name("theirs")
    assert found.artifact_location == elsewhere.as_uri()


def test_a_deleted_experiment_is_refused_with_the_way_out(uri, tracker):
    experiment = Experiment(uri, "study")
    experiment.client.delete_experiment(experiment.experiment_id)
    with pytest.raises(SpecError, match=r"deleted.*restore.*tracking\.experiment"):
        mlflow_tracker(uri).open()


def test_a_store_that_is_no_database_is_refused_with_the_key(tmp_path):
    (tmp_path / "mlflow.db").write_text("this is not a database, whatever its name says")
    with pytest.raises(SpecError, match=r"cannot be opened.*tracking\.uri"):
        mlflow_tracker(tracking_uri("auto", tmp_path)).open()


def test_a_server_that_accepts_and_never_answers_is_given_up():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        problem = server_problem(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)
    assert "does not answer" in problem


def test_a_password_in_the_address_of_a_server_is_never_shown():
    tracker = mlflow_tracker("http://bob:hunter2@127.0.0.1:9")
    assert "hunter2" not in tracker.problem() + tracker.address


def test_a_results_folder_sqlite_cannot_name_is_refused(tmp_path):
    for name in ("what?", "a%41b"):
        with pytest.raises(SpecError, match="cannot hold; use another"):
            tracking_uri("auto", tmp_path / name)
    assert tracking_uri("auto", tmp_path / "100 % #1").endswith("100 % #1/mlflow.db")
