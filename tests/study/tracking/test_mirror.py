"""A tracker that is away, late or cut off at any point: the ledger has every row, and the tracker gets each once."""

import multiprocessing
import os
import signal
import socket
import threading
import time

import pytest

from study.errors import SpecError
from study.plan.plan import make_plan
from study.run.recorder import Recorder
from study.spec.study import load_spec
from study.tracking.ledger import CurveUpdate, Ledger
from study.tracking.mirror import Mirror
from study.tracking.study_paths import StudyPaths
from tests.stubs import stub_result
from tests.study.small import SMALL
from tests.study.tracking.examples import (
    PARAMETERS,
    cell_runs,
    history,
    mlflow_study,
    point,
    row,
    runs,
    statuses,
)


class MemoryTracker:
    """A tracker that is one class: it keeps everything in memory, and fails while `away` is set."""

    address, refused, hint = "memory", None, None

    def __init__(self):
        self.away, self.ended, self.curves, self.status = False, {}, [], None
        self.broken = set()

    def _check(self):
        if self.away:
            raise ConnectionError("it went away\nwith a long story")

    def problem(self):
        return "it does not answer" if self.away else None

    def open(self):
        self._check()

    def connect(self):
        self._check()
        return dict(self.ended)

    def log_curve(self, update):
        self._check()
        self.curves.append(update)

    def log_row(self, row):
        self._check()
        if row.cell in self.broken:
            raise ValueError("refused")
        self.ended[row.cell] = row.ended

    def finish(self, status, progress=""):
        self._check()
        self.status, self.progress = status, progress


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "rows")


def finish(mirror, ledger, *rows):
    for one in rows:
        ledger.put(one)
        mirror.ended(one)


def mirrored(tracker, ledger, *rows, live=()):
    """One run of a study that finishes these cells."""
    mirror = Mirror([tracker], ledger, ledger.rows().values())
    mirror.open()
    mirror.start()
    for update in live:
        mirror.put(update)
    finish(mirror, ledger, *rows)
    mirror.close()
    mirror.finish("FINISHED")
    return mirror


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_live_curves_and_rows_reach_mlflow_and_every_run_ends(uri, ledger):
    mirror = Mirror([mlflow_study(uri)], ledger, [])
    assert mirror.open() == []
    mirror.start()
    mirror.put(CurveUpdate("aaaa", "L1", {"depth": 1}, [point(10)]))
    wait_until(lambda: "aaaa" in statuses(uri))
    mirror.put(CurveUpdate("cccc", "L1", {"depth": 1}, [point(10)]))
    finish(mirror, ledger, row("aaaa", steps=(10, 20)), row("bbbb", status="failed", reason="boom"))
    mirror.close()
    mirror.finish("FINISHED")
    assert mirror.problems == []
    assert statuses(uri) == {"aaaa": "FINISHED", "bbbb": "FAILED", "cccc": "KILLED"}
    (study,) = runs(uri, "tags.`interplay.kind` = 'study'")
    assert study.info.status == "FINISHED"
    assert cell_runs(uri)["aaaa"].data.tags["mlflow.parentRunId"] == study.info.run_id
    assert [step for step, _ in history(uri, "aaaa")] == [10, 20]


def test_a_second_run_makes_no_run_twice_and_sends_nothing_again(uri, ledger):
    mirrored(mlflow_study(uri), ledger, row("aaaa"), row("bbbb"))
    before = {run.info.run_id: run.info.end_time for run in cell_runs(uri).values()}
    mirrored(mlflow_study(uri), ledger)
    assert {run.info.run_id: run.info.end_time for run in cell_runs(uri).values()} == before
    assert len(runs(uri)) == 3


@pytest.mark.parametrize("when", ["start", "middle", "end"])
def test_a_tracker_that_is_away_loses_no_row_and_the_same_or_the_next_run_sends_it(ledger, when):
    tracker = MemoryTracker()
    tracker.away = when == "start"
    mirror = Mirror([tracker], ledger, [])
    assert mirror.open() == (["it does not answer"] if when == "start" else [])
    mirror.start()
    finish(mirror, ledger, row("aaaa"))
    if when == "start":
        wait_until(lambda: mirror.problems)
        tracker.away = False
    else:
        wait_until(lambda: "aaaa" in tracker.ended)
        tracker.away = True
    finish(mirror, ledger, row("bbbb"))
    if when == "middle":
        wait_until(lambda: mirror.problems)
        tracker.away = False
    finish(mirror, ledger, row("cccc"))
    mirror.close()
    mirror.finish("FINISHED")
    assert set(ledger.rows()) == {"aaaa", "bbbb", "cccc"}
    if when == "end":
        assert mirror.problems
        assert set(tracker.ended) == {"aaaa"}
        tracker.away = False
        mirror = mirrored(tracker, ledger)
    assert mirror.problems == []
    assert set(tracker.ended) == {"aaaa", "bbbb", "cccc"}
    assert tracker.status == "FINISHED"


def test_a_dead_server_gets_its_rows_later(uri, ledger):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{probe.getsockname()[1]}"
    live = [CurveUpdate(f"cell{index}", "L1", {}, [point(10)]) for index in range(20)]
    mirror = mirrored(mlflow_study(dead), ledger, *(row(f"cell{index}") for index in range(20)), live=live)
    assert "does not answer" in mirror.problems[0]
    assert len(ledger.rows()) == 20
    assert mirrored(mlflow_study(uri), ledger).problems == []
    assert len(statuses(uri)) == 20


def test_a_row_that_the_tracker_refuses_keeps_no_other_from_it(ledger):
    tracker = MemoryTracker()
    tracker.broken = {"aaaa"}
    mirror = mirrored(tracker, ledger, row("aaaa"), row("bbbb"))
    assert mirror.problems == ["memory: refused"]
    assert set(tracker.ended) == {"bbbb"}


def test_a_ledger_that_cannot_be_read_keeps_no_other_row_from_the_tracker(ledger, monkeypatch):
    def get(cell, read=ledger.get):
        if cell == "aaaa":
            raise ConnectionError("the storage does not answer")
        return read(cell)

    tracker = MemoryTracker()
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "get", get)
        mirror = mirrored(tracker, ledger, row("aaaa"), row("bbbb"))
    assert mirror.problems == ["memory: the storage does not answer"]
    assert set(tracker.ended) == {"bbbb"}
    assert mirrored(tracker, ledger).problems == []
    assert set(tracker.ended) == {"aaaa", "bbbb"}


def test_a_tracker_that_hangs_holds_no_study_up(ledger):
    """Whatever the driver does while a call of the tracker lasts returns before that call does."""
    tracker, asked, over = MemoryTracker(), threading.Event(), threading.Event()

    def log_row(row):
        asked.set()
        if not over.wait(50):
            tracker.ended[row.cell] = "the driver waited for it"

    tracker.log_row = log_row
    mirror = Mirror([tracker], ledger, [])
    mirror.start()
    finish(mirror, ledger, row())
    assert asked.wait(50)
    mirror.put(CurveUpdate("bbbb", "L1", {}, [point(10)]))
    finish(mirror, ledger, row("cccc"))
    mirror.close(patience=0.2)
    mirror.finish("FINISHED")
    assert mirror.problems == ["memory took more than 0 s"]
    assert (tracker.ended, tracker.status) == ({}, None)
    over.set()


def test_a_cell_that_failed_before_is_sent_while_it_runs_again(ledger, monkeypatch):
    monkeypatch.setattr("study.tracking.mirror.BATCH_SECONDS", 0.05)
    tracker = MemoryTracker()
    mirrored(tracker, ledger, row("aaaa", "failed", reason="out of memory"))
    mirrored(tracker, ledger, row("aaaa", ended=13.0), live=[CurveUpdate("aaaa", "L1", {}, [point(10)])])
    assert tracker.ended == {"aaaa": 13.0}


def run_and_die(uri, place, call, number):
    """Finish a cell in a driver that is killed at the given call of MLflow's client, or within a batch of its store."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from mlflow.tracking import MlflowClient

    owner = SqlAlchemyStore if call.startswith("_") else MlflowClient
    whole, calls = getattr(owner, call), 0

    def dying(self, *arguments, **options):
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, *arguments, **options)

    setattr(owner, call, dying)
    ledger = Ledger(place)
    tracker, sent = mlflow_study(uri), threading.Event()
    log_curve = tracker.log_curve

    def log_and_report(update):
        log_curve(update)
        sent.set()

    tracker.log_curve = log_and_report
    # Twenty steps live, then the row: in one batch, the mirror would send the row alone.
    mirror = Mirror([tracker], ledger, [])
    mirror.open()
    mirror.start()
    mirror.put(CurveUpdate("aaaa", "L1-d8-aaaa", row().parameters, [point(10)]))
    assert sent.wait(50)
    finish(mirror, ledger, row())
    mirror.close()


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("create_run", 2),
        *((call, number) for call in ("log_batch", "_log_metrics", "_set_tags") for number in (1, 2)),
        ("set_terminated", 1),
    ],
)
def test_a_driver_killed_at_any_call_of_mlflow_loses_and_doubles_nothing(uri, tmp_path, call, number):
    ledger = Ledger(tmp_path / "rows")
    child = multiprocessing.get_context("fork").Process(
        target=run_and_die, args=(uri, tmp_path / "rows", call, number)
    )
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    if not ledger.rows():
        ledger.put(row())  # the next run trains the cell
    assert mirrored(mlflow_study(uri), ledger).problems == []
    assert statuses(uri) == {"aaaa": "FINISHED"}
    run = cell_runs(uri)["aaaa"]
    assert run.data.params == {name: str(value) for name, value in PARAMETERS.items()}
    assert run.data.tags["interplay.status"] == "done"
    assert [step for step, _ in history(uri, "aaaa")] == [10, 20]
    assert history(uri, "aaaa", "loss") == [(10, 0.9), (20, 0.5)]
    assert len(runs(uri, "tags.`interplay.kind` = 'study'")) == 1


def test_causes_of_lost_trials_are_there_before_the_cell_ends_and_stay_in_later_runs(uri, tmp_path):
    plan = make_plan(load_spec(SMALL, ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    (planned,) = plan.cells
    paths = StudyPaths(tmp_path, "study")
    paths.folder.mkdir()

    def lost(*reasons, result=None):
        """The tag after a run of the study that loses a trial for each reason, and then stops or ends the cell."""
        mirror = Mirror([mlflow_study(uri)], paths.ledger, paths.ledger.rows().values())
        mirror.open()
        mirror.start()
        recorder = Recorder(plan, {}, mirror, paths)
        recorder.started(planned)
        for reason in reasons:
            recorder.retried(planned, reason)
        if result:
            recorder.ended(planned, result)
        mirror.close()
        assert mirror.problems == []
        return cell_runs(uri)[planned.cell.key].data.tags.get("interplay.lost_trials")

    assert lost() is None
    assert lost("first") == "first", "the driver stops before the cell ends"
    assert lost("second", "third") == "first | second | third"
    assert lost(result=stub_result(loss=0.5)) == "first | second | third"
    (found,) = paths.ledger.rows().values()
    assert found.lost == ("first", "second", "third")
    assert paths.unfinished.keys == []


def test_a_store_that_no_waiting_mends_is_refused_before_the_study(ledger):
    tracker = MemoryTracker()

    def refuse():
        raise SpecError("deleted")

    tracker.open = refuse
    with pytest.raises(SpecError, match="deleted"):
        Mirror([tracker], ledger, []).open()
