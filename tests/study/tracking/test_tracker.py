import shutil
import socket
import time
from types import SimpleNamespace

import pytest

from study.errors import SpecError
from study.plan.plan import make_plan
from study.run.runner import _Listener
from study.spec.study import load_spec
from study.tracking.mlflow_store import (
    CurveUpdate,
    Outbox,
    Row,
    SearchUpdate,
    Store,
    open_store,
    store_uri,
    stored_curves,
    trouble,
)
from study.tracking.sender import SubprocessSender
from study.tracking.tracker import Tracker
from tests.stubs import stub_result
from tests.study.small import SMALL
from trainables.progress import Evaluation, Point


def point(step, loss=1.0):
    return Point(step=step, train_loss=loss, lr=0.1, grad_norm=2.0, tokens_per_second=3.0)


def row(cell="aaaa", status="done", loss=0.5, steps=(10, 20), reason=None):
    return Row(
        cell=cell,
        name=f"L1-d8-{cell}",
        protocol="p",
        status=status,
        reason=reason,
        params={"depth": 1, "lr": 0.25, "init": "fan_in", "nothing": None},
        metrics={
            "train_seconds": 2.0,
            "tokens_per_second": 99.0,
            **({"loss": loss} if status == "done" else {}),
        },
        tags={"interplay.device": "cpu", "interplay.ended": "12.345"},
        points=tuple(point(s) for s in steps),
        evaluations=tuple(Evaluation(step=s, loss=0.9) for s in steps),
    )


@pytest.fixture
def uri(template, tmp_path):
    shutil.copy(template, tmp_path / "mlflow.db")
    return store_uri("auto", tmp_path)


@pytest.fixture
def store(uri, tmp_path):
    return Store(uri, "study", tmp_path / "artifacts")


def all_runs(store, condition="attributes.status != 'nothing'"):
    return list(store.runs(condition))


def dead_uri():
    """The address of a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_a_row_survives_the_store_unchanged(store):
    parent = store.begin_study("study", {})
    sent = row()
    run = store.trial_run(parent, sent.cell, sent.name, sent.params)
    store.log_curves(run, sent.points, sent.evaluations, (-1, -1))
    assert store.rows() == {}, "a running trial is no row"
    store.end_trial(run, sent)
    found = store.rows()["aaaa"]
    assert (found.status, found.loss, found.protocol, found.reason) == ("done", 0.5, "p", None)
    assert found.params == {"depth": 1, "lr": 0.25, "init": "fan_in"}
    assert {name: found.metrics[name] for name in sent.metrics} == sent.metrics
    assert store.curves(["aaaa"]) == {"aaaa": [(10, 0.9), (20, 0.9)]}


def test_a_row_that_does_not_say_when_its_cell_ended_has_the_time_of_its_run(store):
    parent = store.begin_study("study", {})
    sent = row().model_copy(update={"tags": {"interplay.device": "cpu"}})
    before = time.time()
    store.end_trial(store.trial_run(parent, sent.cell, sent.name, sent.params), sent)
    assert before - 1 <= float(store.rows()["aaaa"].tags["interplay.ended"]) <= time.time() + 1


def test_cells_that_were_begun_are_those_without_a_row_in_the_order_they_began(store):
    parent = store.begin_study("study", {})
    runs = {}
    for cell in ("bbbb", "aaaa", "cccc", "dddd"):
        runs[cell] = store.trial_run(parent, cell, cell, {})
        time.sleep(0.002)
    store.end_trial(runs["aaaa"], row("aaaa"))
    store.end_trial(runs["cccc"], row("cccc", "failed"))
    assert store.begun() == ["bbbb", "dddd"]
    store.trial_run(parent, "cccc", "cccc", {}, runs["cccc"])
    assert store.begun() == ["bbbb", "cccc", "dddd"], "it runs again"
    store.end_stale(parent)
    assert "bbbb" in store.begun(), "a driver that is killed leaves no end"


@pytest.mark.parametrize("apart", [False, True])
def test_what_a_search_knows_is_written_to_the_studys_run(uri, store, tmp_path, apart):
    tracker = tracker_for(uri, store, tmp_path, apart=apart)
    tracker.start("study", {})
    tracker.news(SearchUpdate(3, {"search.flops": 3.0}, {"interplay.next": "L1-d8-s0"}))
    tracker.news(SearchUpdate(5, {"search.flops": 5.0, "search.value": 2.5}, {"interplay.next": ""}))
    tracker.close()
    tracker.finish("FINISHED", [])
    (study,) = all_runs(store, "tags.`interplay.kind` = 'study'")
    history = store.client.get_metric_history(study.info.run_id, "search.flops")
    assert [(m.step, m.value) for m in history] == [(3, 3.0), (5, 5.0)]
    assert study.data.metrics["search.value"] == 2.5
    assert study.data.tags["interplay.next"] == ""


@pytest.mark.parametrize("status", ["diverged", "failed"])
def test_an_ending_other_than_done_has_its_reason_and_no_loss(store, status):
    parent = store.begin_study("study", {})
    sent = row(status=status, reason="the loss is nan")
    store.end_trial(store.trial_run(parent, sent.cell, sent.name, sent.params), sent)
    found = store.rows()["aaaa"]
    assert (found.status, found.reason, found.loss) == (status, "the loss is nan", None)


def test_study_and_trial_runs_are_found_again_not_made_again(store):
    first = store.begin_study("study", {"interplay.revision": "one"})
    trial = store.trial_run(first, "aaaa", "name", {"depth": 1})
    store.log_curves(trial, [point(5), point(10)], [], (-1, -1))
    assert store.begin_study("study", {"interplay.revision": "two"}) == first
    assert store.trial_runs() == {"aaaa": trial}
    assert store.trial_run(first, "aaaa", "name", {"depth": 1}, trial) == trial
    assert store.logged(trial) == (10, -1)
    assert len(all_runs(store)) == 2
    assert store.client.get_run(first).data.tags["interplay.revision"] == "two"


def test_a_curve_is_logged_once_however_often_it_is_sent(store):
    parent = store.begin_study("study", {})
    run = store.trial_run(parent, "aaaa", "name", {})
    after = store.log_curves(run, [point(5), point(10)], [], (-1, -1))
    store.log_curves(run, [point(5), point(10), point(15)], [Evaluation(step=15, loss=1)], after)
    steps = [m.step for m in store.client.get_metric_history(run, "train_loss")]
    assert steps == [5, 10, 15]


def test_runs_left_running_by_a_killed_driver_are_ended(store):
    parent = store.begin_study("study", {})
    for cell in ("aaaa", "bbbb"):
        store.trial_run(parent, cell, cell, {})
    store.end_stale(parent, keep=["bbbb"])
    states = {
        r.data.tags["interplay.cell"]: r.info.status
        for r in all_runs(store)
        if "interplay.cell" in r.data.tags
    }
    assert states == {"aaaa": "KILLED", "bbbb": "RUNNING"}


def test_a_deleted_experiment_is_refused_with_the_way_out(store, uri, tmp_path):
    store.client.delete_experiment(store.experiment_id)
    with pytest.raises(SpecError, match=r"deleted.*restore.*tracking\.experiment"):
        Store(uri, "study", tmp_path)


def test_a_store_that_is_no_database_is_refused_with_the_key(tmp_path):
    (tmp_path / "mlflow.db").write_text("this is not a database, whatever its name says")
    with pytest.raises(SpecError, match=r"cannot be opened.*tracking\.uri"):
        open_store(store_uri("auto", tmp_path), "study", tmp_path)


def test_outbox_keeps_whole_rows_and_ignores_half_written_ones(tmp_path):
    outbox = Outbox(tmp_path / "outbox")
    assert outbox.rows() == {}
    outbox.put(row())
    (tmp_path / "outbox" / ".bbbb.part").write_text('{"cell": "bb')
    assert outbox.rows() == {"aaaa": row()}
    outbox.remove(row())
    outbox.remove(row())
    assert outbox.rows() == {}


def test_outbox_does_not_lose_a_newer_row_when_an_older_one_was_sent(tmp_path):
    outbox = Outbox(tmp_path / "outbox")
    old, new = row(status="failed", reason="out of memory"), row()
    outbox.put(old)
    outbox.put(new)
    outbox.remove(old)
    assert outbox.get("aaaa") == new


def test_a_damaged_outbox_file_is_set_aside_and_the_others_are_read(tmp_path, caplog):
    outbox = Outbox(tmp_path / "outbox")
    outbox.put(row("bbbb"))
    (tmp_path / "outbox" / "aaaa.json").write_bytes(b"")
    assert list(outbox.rows()) == ["bbbb"]
    assert "set aside" in caplog.text
    assert (tmp_path / "outbox" / "aaaa.unreadable").exists()
    assert list(outbox.rows()) == ["bbbb"]


def test_a_row_with_nan_in_its_curve_survives_disk_and_store(store, tmp_path):
    outbox = Outbox(tmp_path / "outbox")
    nan = float("nan")
    sent = row(status="diverged", reason="the training loss is nan").model_copy(
        update={
            "points": (Point(step=1, train_loss=nan, lr=0.1, grad_norm=float("inf"), tokens_per_second=1.0),)
        }
    )
    outbox.put(sent)
    back = outbox.get("aaaa")
    assert back.points[0].train_loss != back.points[0].train_loss
    assert back.points[0].grad_norm == float("inf")
    run = store.trial_run(store.begin_study("study", {}), back.cell, back.name, back.params)
    store.log_curves(run, back.points, back.evaluations, (-1, -1))
    store.end_trial(run, back)
    assert store.rows()["aaaa"].status == "diverged"


def tracker_for(uri, store, tmp_path, **options):
    problem = None if store else trouble(uri)
    outbox = Outbox(tmp_path / "outbox")
    return Tracker(store, uri, "study", outbox, tmp_path / "artifacts", problem, **options)


def test_tracker_sends_live_curves_and_rows_and_ends_every_run(uri, store, tmp_path, monkeypatch):
    monkeypatch.setattr("study.tracking.tracker.BATCH_SECONDS", 0.05)
    tracker = tracker_for(uri, store, tmp_path)
    tracker.start("study", {})
    tracker.live(CurveUpdate("aaaa", "L1", {"depth": 1}, [point(10)]))
    time.sleep(0.5)
    tracker.live(CurveUpdate("cccc", "L1", {"depth": 1}, [point(10)]))
    tracker.ended(row("aaaa", steps=(10, 20)))
    tracker.ended(row("bbbb", status="failed", reason="boom"))
    tracker.close()
    (tmp_path / "runs.csv").write_text("cell\n")
    tracker.finish("FINISHED", [tmp_path / "runs.csv", tmp_path / "absent"])
    assert tracker.problem is None
    assert tracker.outbox.rows() == {}
    runs = {r.data.tags.get("interplay.cell"): r for r in all_runs(store)}
    assert {k: r.info.status for k, r in runs.items()} == {
        None: "FINISHED",
        "aaaa": "FINISHED",
        "bbbb": "FAILED",
        "cccc": "KILLED",
    }
    assert runs["aaaa"].data.tags["mlflow.parentRunId"] == runs[None].info.run_id
    steps = [m.step for m in store.client.get_metric_history(runs["aaaa"].info.run_id, "train_loss")]
    assert steps == [10, 20]
    assert [f.path for f in store.client.list_artifacts(runs[None].info.run_id)] == ["runs.csv"]


@pytest.mark.slow
def test_a_process_of_its_own_sends_all_and_the_driver_does_when_it_dies(
    uri, store, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("study.tracking.tracker.BATCH_SECONDS", 0.05)
    senders = []

    class Watched(SubprocessSender):
        def __init__(self, address):
            super().__init__(address)
            senders.append(self)

    monkeypatch.setattr("study.tracking.tracker.Apart", Watched)
    tracker = tracker_for(uri, store, tmp_path, apart=True)
    tracker.start("study", {})
    tracker.live(CurveUpdate("aaaa", "L1", {"depth": 1}, [point(10)]))
    tracker.ended(row("bbbb", status="diverged", reason="the loss is nan"))
    deadline = time.monotonic() + 60
    while tracker.outbox.rows() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(store.rows()) == ["bbbb"]
    (sender,) = senders
    assert sender.process.poll() is None, "the rows came from it"
    sender.process.kill()
    tracker.ended(row("aaaa", steps=(10, 20)))
    tracker.close()
    tracker.finish("FINISHED", [])
    assert tracker.problem is None
    assert "the driver writes itself" in caplog.text
    assert {key: found.status for key, found in store.rows().items()} == {"aaaa": "done", "bbbb": "diverged"}
    runs = {r.data.tags.get("interplay.cell"): r for r in all_runs(store)}
    assert len(all_runs(store)) == 3, "each cell has one run, and the study its own"
    steps = [m.step for m in store.client.get_metric_history(runs["aaaa"].info.run_id, "train_loss")]
    assert steps == [10, 20], "what the process had sent is not sent again"


def test_causes_of_lost_trials_are_there_before_the_cell_ends_and_stay_in_later_runs(
    uri, store, tmp_path, monkeypatch
):
    monkeypatch.setattr("study.tracking.tracker.BATCH_SECONDS", 0.05)
    plan = make_plan(load_spec(SMALL, ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    planned, where = plan.cells[0], SimpleNamespace(checkpoints=tmp_path / "checkpoints")

    def lost(*reasons, result=None):
        """The tag after a run of the study that loses a trial for each reason, and then stops or ends the cell."""
        tracker = tracker_for(uri, store, tmp_path)
        tracker.start("study", {})
        listener = _Listener(plan, {}, tracker, where)
        listener.started(planned)
        for reason in reasons:
            listener.retried(planned, reason)
        if result:
            listener.ended(planned, result)
        tracker.close()
        assert tracker.problem is None
        (run,) = all_runs(store, "tags.`interplay.kind` = 'trial'")
        return run.data.tags.get("interplay.lost_trials")

    assert lost() is None
    assert lost("first") == "first", "the driver stops before the cell ends"
    assert lost("second", "third") == "first | second | third"
    assert lost(result=stub_result(loss=0.5)) == "first | second | third"
    (sent,) = store.rows().values()
    tracker = tracker_for(uri, store, tmp_path)
    tracker.outbox.put(sent)
    tracker.start("study", {})
    tracker.close()
    (again,) = store.rows().values()
    assert again.tags["interplay.lost_trials"] == "first | second | third", "a row sent twice says it once"


def test_a_dead_server_delays_nothing_and_loses_nothing(uri, store, tmp_path):
    dead = dead_uri()
    start = time.monotonic()
    away, problem = open_store(dead, "study", tmp_path)
    tracker = tracker_for(dead, away, tmp_path)
    tracker.start("study", {})
    for index in range(20):
        tracker.live(CurveUpdate(f"cell{index}", "L1", {}, [point(10)]))
        tracker.ended(row(f"cell{index}"))
    tracker.close()
    tracker.finish("FINISHED", [])
    assert time.monotonic() - start < 5 + 5, "five seconds for the driver, five for a batch of the sender"
    assert away is None
    assert "does not answer" in problem
    assert "does not answer" in tracker.problem
    assert len(tracker.outbox.rows()) == 20

    back = tracker_for(uri, store, tmp_path)
    back.start("study", {})
    back.close()
    assert back.outbox.rows() == {}
    assert len(store.rows()) == 20


def test_a_store_that_fails_while_it_is_used_keeps_the_row(uri, store, tmp_path, monkeypatch):
    def broken(*_):
        raise ConnectionError("the server went away\nwith a long story")

    monkeypatch.setattr(store, "end_trial", broken)
    tracker = tracker_for(uri, store, tmp_path)
    tracker.start("study", {})
    tracker.ended(row())
    tracker.close()
    assert tracker.problem == "the server went away"
    assert list(tracker.outbox.rows()) == ["aaaa"]


def test_a_cell_that_failed_and_is_done_now_keeps_no_old_reason(store):
    parent = store.begin_study("study", {})
    failed, done = row(status="failed", reason="out of memory"), row()
    run = store.trial_run(parent, failed.cell, failed.name, failed.params)
    store.end_trial(run, failed)
    assert store.trial_run(parent, done.cell, done.name, done.params, run) == run
    assert store.rows() == {}, "a failed cell that runs again is no row"
    store.end_trial(run, done)
    assert (store.rows()["aaaa"].status, store.rows()["aaaa"].reason) == ("done", None)


def test_a_done_cell_whose_run_was_left_running_is_still_a_row(store):
    parent = store.begin_study("study", {})
    run = store.trial_run(parent, "aaaa", "name", {})
    store.end_trial(run, row())
    store.client.update_run(run, status="RUNNING")
    assert store.rows()["aaaa"].status == "done"


def test_a_server_that_accepts_and_never_answers_is_given_up_quickly(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        store, problem = open_store(f"http://127.0.0.1:{silent.getsockname()[1]}", "study", tmp_path)
        assert time.monotonic() - start < 5
    assert store is None
    assert "does not answer" in problem


def test_curves_that_cannot_be_read_cost_a_warning_and_not_the_report(store, monkeypatch, caplog):
    def broken(*_):
        raise ConnectionError("gone")

    monkeypatch.setattr(store, "curves", broken)
    assert stored_curves(store, ["aaaa"]) == []
    assert "gone" in caplog.text
    assert stored_curves(None, ["aaaa"]) == []


def test_a_results_folder_sqlite_cannot_name_is_refused(tmp_path):
    for name in ("what?", "a%41b"):
        with pytest.raises(SpecError, match="cannot hold; take another"):
            store_uri("auto", tmp_path / name)
    assert store_uri("auto", tmp_path / "100 % #1").endswith("100 % #1/mlflow.db")
