"""MLflow as a tracker, what it refuses, and what `fit mlflow:NAME` reads back."""

import json
import shutil
import socket
from dataclasses import replace

import numpy as np
import pytest

from analysis.fit.document import fit
from analysis.law.answer_words import short_answer
from analysis.runs.costs import ShapeCosts, write_costs
from analysis.runs.table import RunTable, read_runs
from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.rows import run_table
from study.run.recorder import Recorder
from study.spec.study import load_spec
from study.tracking.ledger import CurveUpdate, study_rows
from study.tracking.mirror import Mirror
from study.tracking.mlflow_mirror import BATCH
from study.tracking.mlflow_store import Experiment, server_problem, tracking_uri
from study.tracking.mlflow_view import page
from study.tracking.study_paths import StudyPaths
from study.tracking.targets import mirror_costs, progress
from tests.simulated_study import Truth, shapes_of, simulate
from tests.stubs import stub_result
from tests.study.small import SMALL
from tests.study.tracking.examples import (
    cell_runs,
    history,
    mlflow_study,
    point,
    row,
    runs,
    statuses,
    study_run,
)
from trainables.progress import Evaluation


@pytest.fixture
def study(uri):
    one = mlflow_study(uri)
    one.connect()
    return one


def test_a_row_is_recorded_once_it_is_complete(uri, study):
    study.log_curve(CurveUpdate("aaaa", "L1", {"depth": 1}, [point(10)]))
    assert study.connect() == {}
    study.log_row(row(status="diverged", reason="the loss is nan"))
    assert study.connect() == {"aaaa": 12.345}
    run = cell_runs(uri)["aaaa"]
    assert (run.data.tags["interplay.status"], run.data.tags["interplay.reason"]) == (
        "diverged",
        "the loss is nan",
    )
    assert history(uri, "aaaa", "loss") == [(10, 0.9), (20, 0.9)]


def test_the_runs_of_a_killed_driver_are_ended_and_replaced_by_whole_ones(uri, study):
    """The killed one has sent step 10 with other values: only the row has the curve that was kept."""
    for cell in ("aaaa", "bbbb"):
        study.log_curve(CurveUpdate(cell, "L1", {"depth": 1}, [point(5), point(10, 7.0)]))
    again = mlflow_study(uri, **{"interplay.revision": "two"})
    assert again.connect() == {}
    assert statuses(uri) == {"aaaa": "KILLED", "bbbb": "KILLED"}
    again.log_curve(CurveUpdate("aaaa", "L1", {"depth": 1}, [point(10)]))
    again.log_row(row("aaaa", steps=(5, 10, 15), start={"rank/1": 0.5}))
    assert history(uri, "aaaa") == [(5, 1.0), (10, 1.0), (15, 1.0)]
    assert history(uri, "aaaa", "validation_rank/1") == [(0, 0.5)]
    assert statuses(uri) == {"aaaa": "FINISHED", "bbbb": "KILLED"}
    (found,) = runs(uri, "tags.`interplay.kind` = 'study'")
    assert found.data.tags["interplay.revision"] == "two"


def costs_of(shape, batch, **values):
    depth, width, params = shape
    return ShapeCosts(
        depth=depth, width=width, heads=2, kv_heads=2, params=params, device="cpu", machine="M", precision="fp32",
        context=32, batch=batch, date="2026-11-29", versions="torch 2", **values,
    )  # fmt: skip


def test_the_runs_of_a_measured_shape_have_its_costs_also_if_they_are_measured_later(uri, study):
    ledger, file = study.paths.ledger, study.paths.costs
    for one in (row("aaaa"), row("bbbb", seed=1), row("cccc", depth=2, total_params=1800)):
        ledger.put(one)
        study.log_row(one)
    study.finish("FINISHED")
    assert "decode_ms" not in cell_runs(uri)["aaaa"].data.metrics
    shape, values = (1, 8, 1000), {"train_tokens_per_second": 5000.0, "kv_bytes_per_token": 64}
    one = costs_of(shape, 1, prefill_ms=2.5, decode_ms=1.25, **values)
    eight = costs_of(shape, 8, prefill_ms=9.0, decode_ms=4.0, **values)
    # Of several machines the one with most rows counts, as in the report.
    elsewhere = replace(one, machine="A", decode_ms=0.5)
    other = costs_of((1, 8, 999), 1, decode_ms=7.0)
    write_costs(file, [one, eight, elsewhere, other])
    spec = load_spec(SMALL, ["name=study", f"tracking.uri={uri}"])
    assert mirror_costs(spec, study.paths) is None
    expected = {
        "train_tokens_per_second": 5000,
        "kv_bytes_per_token": 64,
        "prefill_ms": 2.5,
        "decode_ms": 1.25,
    }
    expected |= {"prefill_ms_batch_8": 9, "decode_ms_batch_8": 4}
    for cell, stored in cell_runs(uri).items():
        metrics = stored.data.metrics
        assert {name: metrics[name] for name in expected if name in metrics} == (
            {} if cell == "cccc" else expected
        )
        assert metrics["loss"] == 0.5
    # What is there is not logged again, and a lower value measured later is the one that is shown.
    write_costs(file, [replace(one, decode_ms=1.0), eight])
    study.finish("FINISHED")
    study.finish("FINISHED")
    assert cell_runs(uri)["bbbb"].data.metrics["decode_ms"] == 1.0
    assert history(uri, "bbbb", "decode_ms") == [(0, 1.0), (0, 1.25)]
    assert history(uri, "bbbb", "prefill_ms") == [(0, 2.5)]
    # A run that is written again has them too.
    again = mlflow_study(uri)
    again.connect()
    again.log_row(row("aaaa", ended=99.0))
    again.finish("FINISHED")
    assert cell_runs(uri)["aaaa"].data.metrics["decode_ms"] == 1.0
    assert read_runs("mlflow:study", tracking_uri=uri).used["loss"].tolist() == [0.5] * 3


def test_costs_that_cannot_be_logged_are_named_and_a_study_without_runs_needs_none(uri, study, tmp_path):
    spec = load_spec(SMALL, ["name=study", f"tracking.uri={uri}"])
    write_costs(study.paths.costs, [costs_of((1, 8, 1000), 1, decode_ms=1.0)])
    assert mirror_costs(spec, study.paths) is None
    study.paths.ledger.put(row())
    nowhere = load_spec(SMALL, ["name=study", f"tracking.uri=sqlite:///{tmp_path / 'none.db'}"])
    assert mirror_costs(nowhere, study.paths) is None
    assert not (tmp_path / "none.db").exists()
    study.paths.costs.write_text("not,costs\n1,2\n")
    assert "costs.csv" in mirror_costs(spec, study.paths)


def test_a_shape_without_a_feed_forward_network_is_read_back_with_its_n(uri, study):
    study.log_row(row("aaaa", d_ff=0, params=256, budget=256.0))
    study.log_row(row("bbbb", seed=1))
    used = read_runs("mlflow:study", tracking_uri=uri).used
    assert dict(zip(used["cell"], used["params"], strict=True)) == {"aaaa": 4 * 64, "bbbb": 12 * 64}


def test_after_a_lost_connection_open_cells_stay_open(uri, study):
    study.log_curve(CurveUpdate("aaaa", "L1", {}, [point(5)]))
    assert study.connect() == {}
    study.log_curve(CurveUpdate("aaaa", "L1", {}, [point(5), point(10)]))
    assert statuses(uri) == {"aaaa": "RUNNING"}
    assert [step for step, _ in history(uri, "aaaa")] == [5, 10]
    study.log_row(row(steps=(5, 10, 20), ended=100.0))
    run = cell_runs(uri)["aaaa"]
    found = Experiment(uri, "study").client.get_metric_history(run.info.run_id, "train_loss")
    assert [one.step for one in found] == [5, 10, 20], (
        "in the order of time, although the row ended before it was sent"
    )


@pytest.mark.parametrize("call", ["log_batch", "set_terminated"])
def test_a_call_that_is_written_and_fails_leaves_nothing_twice(uri, study, monkeypatch, call):
    """As of a server whose answer is lost."""
    from mlflow.tracking import MlflowClient

    whole = getattr(MlflowClient, call)

    def lost(self, *arguments, **options):
        whole(self, *arguments, **options)
        raise ConnectionError("the answer is lost")

    study.log_curve(CurveUpdate("aaaa", "L1", {"depth": 1}, [point(10)]))
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, call, lost)
        with pytest.raises(ConnectionError):
            study.log_row(row())
    study.connect()
    study.log_row(row())
    assert history(uri, "aaaa") == [(10, 1.0), (20, 1.0)]
    assert history(uri, "aaaa", "loss") == [(10, 0.9), (20, 0.5)]
    assert statuses(uri) == {"aaaa": "FINISHED"}


def test_a_cell_that_failed_and_is_done_now_keeps_no_old_reason(uri, study):
    study.log_row(row(status="failed", reason="out of memory"))
    study.log_curve(CurveUpdate("aaaa", "L1", {}, [point(5)]))
    assert study.connect() == {}, "it runs again"
    study.log_row(row(ended=13.0))
    assert study.connect() == {"aaaa": 13.0}
    tags = cell_runs(uri)["aaaa"].data.tags
    assert (tags["interplay.status"], tags.get("interplay.reason")) == ("done", None)


def test_the_times_of_a_curve_end_with_its_row(uri, study):
    study.log_row(row(steps=(10, 20), ended=100.0, train_seconds=8.0))
    run = cell_runs(uri)["aaaa"]
    assert (run.info.start_time, run.info.end_time) == (92_000, 100_000)
    found = Experiment(uri, "study").client.get_metric_history(run.info.run_id, "train_loss")
    assert [(one.step, one.timestamp) for one in found] == [(10, 96_000), (20, 100_000)]


def test_a_row_without_evaluations_has_its_loss(uri, study):
    study.log_row(row(evaluations=()))
    assert history(uri, "aaaa", "loss") == [(20, 0.5)]


def test_the_readings_of_a_gpu_are_curves_of_the_system(uri, study):
    warm = [
        point(step).model_copy(update={"gpu": {"gpu_temperature_celsius": step + 50.0}}) for step in (10, 20)
    ]
    study.log_curve(CurveUpdate("aaaa", "L1", {}, warm[:1]))
    study.log_row(row(points=tuple(warm)))
    assert history(uri, "aaaa", "system/gpu_temperature_celsius") == [(10, 60.0), (20, 70.0)]


def test_a_row_with_nan_and_more_measures_than_a_batch_holds_arrives(uri, study):
    count = BATCH // 2 + 100
    many = {f"rank_residual/{layer}": layer / count for layer in range(1, count + 1)}
    nan = point(1, float("nan"))
    metrics = {f"measure.{name}": value for name, value in many.items()}
    metrics |= {f"validation_{name}": value for name, value in many.items()}
    curve = {"points": (nan,), "evaluations": (Evaluation(step=1, loss=1.0, measures=many),)}
    sent = row(**curve, measures=many, start=many)
    study.log_row(sent)
    found = cell_runs(uri)["aaaa"].data.metrics
    assert metrics.items() <= found.items()
    assert found["train_loss"] != found["train_loss"]


def test_fit_reads_from_mlflow_what_the_ledger_has_to_the_last_digit(uri, tmp_path):
    plan = make_plan(load_spec(SMALL))
    paths = StudyPaths(tmp_path, "study")
    paths.folder.mkdir()
    mirror = Mirror([mlflow_study(uri)], paths.ledger, [])
    mirror.open()
    mirror.start()
    recorder = Recorder(plan, {}, mirror, paths)
    for index, planned in enumerate(plan.cells[:5]):
        recorder.started(planned)
        loss = 1 + index / 3
        measured = (Evaluation(step=1, loss=loss, measures={"accuracy": index / 7, "rank/1": 0.5}),)
        recorder.ended(planned, stub_result(loss=loss, train_seconds=1 / 3, evaluations=measured))
    recorder.failed(plan.cells[5], "out of memory")
    diverged = stub_result(status="diverged", loss=None, evaluations=(Evaluation(step=1, loss=9.0),))
    recorder.ended(plan.cells[6], diverged)
    mirror.close()
    assert mirror.problems == []
    ours = run_table(study_rows(plan, paths.ledger.rows()), "study").frame.set_index("cell")
    theirs = read_runs("mlflow:study", {}, tracking_uri=uri).frame.set_index("cell")
    shared = [name for name in theirs.columns if name in ours.columns]
    assert {"depth", "width", "params", "seed", "lr", "loss", "accuracy", "status", "protocol"} <= set(shared)
    for name in shared:
        for cell, value in theirs[name].items():
            expected = ours.loc[cell, name]
            assert value == expected or (value != value and expected != expected) or not (value or expected)


def test_the_studys_run_and_the_experiment_have_the_answer_of_the_fit_once(uri, study):
    study.log_row(row())
    truth = Truth(2.5, 0.3, (1, 2, 4))
    shapes = shapes_of(truth.depths, np.geomspace(truth.crossing(1) / 4, truth.crossing(2) * 4, 6))
    fitted = fit(RunTable.from_frame(simulate(truth, shapes, 3, np.random.default_rng(0))))
    study.paths.folder.mkdir()
    (study.paths.folder / "fit.json").write_text(json.dumps(fitted.to_json()))
    (study.paths.folder / "report.html").write_text("<p>the page</p>")
    for again in (study, mlflow_study(uri)):
        again.finish("FINISHED")
    (run,) = runs(uri, "tags.`interplay.kind` = 'study'")
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith(short_answer(fitted.reading, fitted.best, fitted.level, fitted.tokens)[0])
    assert f"runs/{run.info.run_id}/artifacts/report.html?workflowType=machine_learning)" in note
    assert str(study.paths.folder / "report.html") in note
    assert experiment_note(uri).startswith(note)
    assert page(Experiment(uri, "study").id) in experiment_note(uri)
    assert run.data.metrics["crossing.L1-L2"] == pytest.approx(fitted.crossings[0].params)
    assert run.data.metrics["slope"] == pytest.approx(fitted.law.b)
    assert len(Experiment(uri, "study").client.get_metric_history(run.info.run_id, "crossing.L1-L2")) == 1


def experiment_note(uri):
    return Experiment(uri, "study").read().tags.get("mlflow.note.content")


def test_the_report_is_kept_beside_a_store_in_a_file_and_nowhere_else(tmp_path, template):
    """An experiment of an earlier version has the folder of its driver, which may be gone."""
    from mlflow.tracking import MlflowClient

    kept = {}
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        shutil.copy(template, tmp_path / name / "mlflow.db")
        uri = tracking_uri("auto", tmp_path / name)
        if name == "old":
            MlflowClient(uri).create_experiment("study", (tmp_path / "elsewhere").as_uri())
        study = mlflow_study(uri)
        study.paths.folder.mkdir()
        (study.paths.folder / "report.html").write_text("<p>the page</p>")
        study.finish("FINISHED")
        kept[name] = [path.relative_to(tmp_path).parts[:2] for path in tmp_path.rglob("artifacts/*")]
    assert kept == {"new": [("new", "mlartifacts")], "old": [("new", "mlartifacts")]}


def test_an_unfinished_study_says_how_many_cells_are_done(uri, study):
    study.finish("KILLED", "Unfinished: 7 of 18 cells are done.")
    assert experiment_note(uri).startswith("Unfinished: 7 of 18 cells are done.")
    plan = make_plan(load_spec(SMALL))
    done = [row("aaaa"), row("bbbb"), row("cccc", status="failed"), row("dddd", purpose="sensitivity")]
    assert progress(plan, done) == f"Unfinished: 2 of {len(plan.cells)} cells are done."


def test_a_note_that_a_user_has_written_stays(uri, study):
    Experiment(uri, "study").client.set_experiment_tag(study._experiment.id, "mlflow.note.content", "mine")
    study.finish("KILLED", "Unfinished: 7 of 18 cells are done.")
    assert experiment_note(uri) == "mine"
    assert "7 of 18" in study_run(uri).data.tags["mlflow.note.content"]


def test_the_notes_of_all_studies_of_an_experiment_are_in_its_own(uri, study):
    study.finish("KILLED", "One.")
    sister = mlflow_study(uri)
    sister.paths = StudyPaths(sister.paths.results, "sister", experiment="study")
    sister.finish("KILLED", "Two.")
    study.finish("KILLED", "Three.")
    assert experiment_note(uri).count("**") == 4
    assert "**sister**: Two." in experiment_note(uri)
    assert "**study**: Three." in experiment_note(uri)


def test_a_deleted_experiment_is_refused_with_the_way_out(uri, study):
    experiment = Experiment(uri, "study")
    experiment.client.delete_experiment(experiment.id)
    with pytest.raises(SpecError, match=r"deleted.*restore.*tracking\.experiment"):
        mlflow_study(uri).open()


def test_a_store_that_is_no_database_is_refused_with_the_key(tmp_path):
    (tmp_path / "mlflow.db").write_text("this is not a database, whatever its name says")
    with pytest.raises(SpecError, match=r"cannot be opened.*tracking\.uri"):
        mlflow_study(tracking_uri("auto", tmp_path)).open()


def test_a_server_that_accepts_and_never_answers_is_given_up():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        problem = server_problem(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)
    assert "does not answer" in problem


def test_a_password_in_the_address_of_a_server_is_never_shown():
    tracker = mlflow_study("http://bob:hunter2@127.0.0.1:9")
    assert "hunter2" not in tracker.problem() + tracker.address


def test_a_results_folder_sqlite_cannot_name_is_refused(tmp_path):
    for name in ("what?", "a%41b"):
        with pytest.raises(SpecError, match="cannot hold; use another"):
            tracking_uri("auto", tmp_path / name)
    assert tracking_uri("auto", tmp_path / "100 % #1").endswith("100 % #1/mlflow.db")
