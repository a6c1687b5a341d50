"""Ray Tune for real, with trials that train nothing: what is scheduled, retried, stopped and said."""

import dataclasses
import math
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from study.plan.plan import make_plan
from study.run import tuner
from study.run.trial import Report, TrialSettings
from study.run.tuner import Trials, make_scheduler, make_tune_callback, read_report, run_cells
from study.search import Outcome
from study.spec.study import load_spec
from study.workers.machines import Slots
from study.workers.process_loss import LossCause
from study.workers.ray_session import private_ray
from tests.stubs import Cells, stub_result
from tests.study.run.test_losses import dead_node, lost_peer
from tests.study.small import SMALL
from trainables.layout import Layout
from trainables.progress import Evaluation, Point, Progress


def trial(config):
    """Seed 1 is killed once, seed 2 raises every time, seed 3 has wrong input, seed 4 ends without a word."""
    from ray import tune

    from trainables.cell import Cell

    seed = Cell.model_validate_json(config["cell"]).seed
    mark = Path(TrialSettings.model_validate_json(config["settings"]).data_root) / f"tries-{seed}"
    with mark.open("a") as file:
        file.write("x")
    if seed == 1 and mark.read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == 2:
        raise RuntimeError("boom\nand more")
    if seed == 3:
        tune.report({"report": Report(failure="the data is gone").model_dump_json()})
        return
    if seed == 4:
        return
    time.sleep(0.1)
    tune.report({"report": Report(result=stub_result(loss=float(seed))).model_dump_json()})


def here():
    """Two slots on this machine."""
    # Imported here: Ray reads its mode of authentication when it is imported, before a program has set it.
    from study.workers.placement import Placer

    return Placer(Slots(2, 1, 0), one_machine=True)


class Recorder:
    def __init__(self):
        self.events = []

    def notice(self, text):
        self.events.append(("notice", None, text))

    def started(self, planned):
        self.events.append(("started", planned.cell.seed, ""))

    def progress(self, planned, progress):
        self.events.append(("progress", planned.cell.seed, ""))

    def ended(self, planned, result):
        self.events.append(("ended", planned.cell.seed, ""))

    def failed(self, planned, reason):
        self.events.append(("failed", planned.cell.seed, reason))

    def retried(self, planned, reason):
        self.events.append(("retried", planned.cell.seed, reason))

    def of(self, kind):
        return {seed: reason for event, seed, reason in self.events if event == kind}


@pytest.mark.slow
def test_trials_end_each_in_its_own_way_and_ray_stays_silent(tmp_path, capfd):
    plan = make_plan(load_spec(SMALL, ["training.seeds=7", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    source, listener = Cells(plan.cells), Recorder()
    settings = TrialSettings(data_root=tmp_path, checkpoint_root=tmp_path, checkpoint_every=1, evaluations=1)
    with private_ray(Slots(2, 1, 0)):
        finished = run_cells(
            source, Slots(2, 1, 0), settings, 1, listener, tmp_path / "tune", trainable=trial
        )
    by_key = {p.cell.key: p.cell.seed for p in plan.cells}
    told = {by_key[key]: loss for key, loss in source.told.items()}
    assert finished
    assert told == {0: 0.0, 1: 1.0, 2: None, 3: None, 4: None, 5: 5.0, 6: 6.0}
    assert set(listener.of("ended")) == {0, 1, 5, 6}
    assert listener.of("retried") == {
        1: "the process of the trial died (ActorDiedError)",
        2: "RuntimeError: boom and more",
    }
    failed = listener.of("failed")
    assert failed == {
        2: "RuntimeError: boom and more",
        3: "the data is gone",
        4: "the trial ended without a result",
    }
    tries = {seed: len((tmp_path / f"tries-{seed}").read_text()) for seed in range(7)}
    assert tries == {0: 1, 1: 2, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1}, "input errors are not tried again"
    assert not (tmp_path / "tune").exists()
    out, err = capfd.readouterr()
    assert (out, err) == ("", ""), "the live table must not be broken by a library's chatter"


@pytest.mark.extended
def test_library_defect_tune_pickles_searcher_and_callbacks():
    """Tune pickles them for `Tuner.restore`. When this fails, `_NotPickled` can go."""
    import threading

    from ray import tune
    from ray.tune import Callback

    class Unpicklable(Callback):
        lock = None

        def __init__(self):
            self.lock = threading.Lock()

    with pytest.raises(TypeError, match="cannot pickle"):
        tune.Tuner(trial, run_config=tune.RunConfig(callbacks=[Unpicklable()]))


class StubTrial:
    """Counts how often it is asked for its status."""

    def __init__(self, status="PENDING"):
        self.state, self.asked = status, 0

    @property
    def status(self):
        self.asked += 1
        return self.state

    def is_finished(self):
        return self.status in ("TERMINATED", "ERROR")


def test_trials_run_in_the_order_they_came_and_those_that_ended_are_looked_at_no_more():
    added = []
    scheduler, trials = make_scheduler(added.append), [StubTrial() for _ in range(5)]
    for one in trials:
        scheduler.on_trial_add(None, one)
    assert added == trials
    assert scheduler.choose_trial_to_run(None) is trials[0]
    trials[0].state = "RUNNING"
    trials[1].state = "PAUSED"
    assert scheduler.choose_trial_to_run(None) is trials[2]
    trials[2].state = trials[3].state = "TERMINATED"
    trials[4].state = "ERROR"
    assert scheduler.choose_trial_to_run(None) is trials[1]
    trials[0].state = "PENDING"
    scheduler.on_trial_add(None, trials[0])
    assert scheduler.choose_trial_to_run(None) is trials[0], "it was lost and is tried again"
    assert scheduler.open == [trials[1], trials[0]]
    asked = [one.asked for one in trials[2:]]
    scheduler.choose_trial_to_run(None)
    assert [one.asked for one in trials[2:]] == asked


@pytest.mark.extended
def test_library_defect_tunes_own_scheduler_goes_through_ended_trials():
    """When this fails, Tune's scheduler may do, and `make_scheduler` can go."""
    from ray.tune.schedulers import FIFOScheduler

    ended = StubTrial("TERMINATED")
    FIFOScheduler().choose_trial_to_run(SimpleNamespace(get_trials=lambda: [ended]))
    assert ended.asked


def test_a_report_that_cannot_be_read_fails_its_cell_and_not_the_study():
    report = read_report('{"result": {"status": "done"}}')
    assert report.result is None
    assert "cannot be read" in report.failure


def test_a_report_of_a_diverged_cell_survives_its_way_to_the_driver():
    nan = float("nan")
    points = (Point(step=1, train_loss=nan, lr=0.1, grad_norm=nan, tokens_per_second=1.0),)
    evaluations = (Evaluation(step=1, loss=float("inf")),)
    sent = stub_result(status="diverged", loss=None, points=points, evaluations=evaluations)
    back = read_report(Report(result=sent).model_dump_json()).result
    assert math.isnan(back.points[0].train_loss)
    assert math.isnan(back.points[0].grad_norm)
    assert back.evaluations[0].loss == math.inf


def test_a_gang_waits_for_its_devices_and_no_later_cell_overtakes_it(tmp_path):
    plan = make_plan(load_spec(SMALL, ["training.seeds=4", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    wide = dataclasses.replace(plan.cells[2], layout=Layout(tensor_parallel=2, zero=1))
    cells = [*plan.cells[:2], wide, plan.cells[3]]
    settings = TrialSettings(data_root=tmp_path, checkpoint_root=tmp_path, checkpoint_every=1, evaluations=1)
    source = Cells(cells)
    trials = Trials(source, settings, devices=2)

    def key(trial):
        given = trials.suggest(trial)
        return given["key"] if isinstance(given, dict) else given

    assert [key("a"), key("b")] == [cells[0].cell.key, cells[1].cell.key]
    assert key("c") is None
    trials.end("a", Outcome(1.0))
    assert key("c") is None, "one device is free, and the gang needs two"
    trials.end("b", Outcome(1.0))
    assert key("c") == wide.cell.key
    assert key("d") is None
    trials.end("c", Outcome(1.0))
    assert key("d") == cells[3].cell.key
    assert key("e") == "FINISHED"


def test_no_cell_is_begun_beside_a_gang_that_waits_for_devices_which_are_there(tmp_path, monkeypatch):
    """Six devices of two machines may be free three and three: room for no group of four while others take each."""
    plan = make_plan(load_spec(SMALL, ["training.seeds=4", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    wide = dataclasses.replace(plan.cells[0], layout=Layout(tensor_parallel=2, zero=1))
    settings = TrialSettings(data_root=tmp_path, checkpoint_root=tmp_path, checkpoint_every=1, evaluations=1)
    live, clock = 2, 0.0
    monkeypatch.setattr("study.run.tuner.time.monotonic", lambda: clock)
    trials = Trials(Cells([plan.cells[1], wide, *plan.cells[2:]]), settings, 5, lambda: live)
    callback = make_tune_callback(trials, Recorder(), here())

    def starts(trial_id):
        return isinstance(trials.suggest(trial_id), dict)

    assert starts("one")
    assert starts("gang")
    assert starts("two"), "there are two devices for three ranks: the gang waits for a machine"
    live = 5
    assert not starts("three"), "there is room for all, and yet it waits"
    callback.on_trial_start(iteration=1, trials=[], trial=SimpleNamespace(trial_id="gang"))
    assert starts("three"), "the gang has its place"
    trials.end("one", Outcome(1.0))
    trials.wait("gang")
    trials.source.cells.append(plan.cells[1])
    assert not starts("four"), "it was lost and waits again"
    clock = 3601.0
    assert starts("four"), "but not for ever"


def test_a_cell_that_gets_on_between_lost_machines_uses_up_no_retry(monkeypatch):
    """Twenty spot machines taken back are no fault of the cell; one that takes its machine down each time is."""
    from ray.exceptions import ActorDiedError

    (planned,) = make_plan(
        load_spec(SMALL, ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"])
    ).cells
    recorder = Recorder()
    settings = TrialSettings(data_root="d", checkpoint_root="c", checkpoint_every=1, evaluations=1)
    trials = Trials(Cells([planned]), settings, 1)
    callback = make_tune_callback(trials, recorder, here())
    trials.suggest("t")
    progress = Progress(step=1, steps=2, train_seconds=1, points=(), evaluations=())
    report = {"report": Report(progress=progress).model_dump_json()}

    def retries(error, progressed):
        """How many retries are added when a trial is lost."""
        trial = SimpleNamespace(trial_id="t", max_failures=2)
        monkeypatch.setattr("study.run.tuner.trial_error", lambda _: error)
        if progressed:
            callback.on_trial_result(iteration=1, trials=[trial], trial=trial, result=report)
        callback.on_trial_recover(iteration=1, trials=[trial], trial=trial)
        return trial.max_failures - 2

    assert retries(dead_node(), progressed=False) == 0, "it had done nothing yet"
    assert retries(dead_node(), progressed=True) == 1
    assert retries(dead_node(), progressed=False) == 0
    assert retries(ActorDiedError(), progressed=True) == 0
    assert retries(lost_peer(LossCause.MACHINE), progressed=True) == 1, "that of any rank counts"
    assert retries(lost_peer(LossCause.PROCESS), progressed=True) == 0
    assert len([event for event, *_ in recorder.events if event == "retried"]) == 6


def test_an_error_while_an_event_is_recorded_is_kept_for_the_user(tmp_path):
    """Tune wraps it in the text of a traceback."""

    class FullDisk(Recorder):
        def started(self, planned):
            raise OSError(28, "No space left on device")

    plan = make_plan(load_spec(SMALL, ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    settings = TrialSettings(data_root="d", checkpoint_root="c", checkpoint_every=1, evaluations=1)
    trials = Trials(Cells(plan.cells), settings, 1)
    trials.suggest("t")
    with pytest.raises(OSError, match="No space"):
        make_tune_callback(trials, FullDisk(), here()).on_trial_start(
            iteration=1, trials=[], trial=SimpleNamespace(trial_id="t")
        )
    assert isinstance(trials.error, OSError)


def test_a_cell_that_was_interrupted_has_neither_ended_nor_failed():
    plan = make_plan(load_spec(SMALL, ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    settings = TrialSettings(data_root="d", checkpoint_root="c", checkpoint_every=1, evaluations=1)
    source, recorder = Cells(plan.cells), Recorder()
    trials = Trials(source, settings, 2)
    callback = make_tune_callback(trials, recorder, here())
    trials.suggest("t")
    trial = SimpleNamespace(trial_id="t")
    report = {"report": Report(interrupted=True).model_dump_json()}
    callback.on_trial_result(iteration=1, trials=[trial], trial=trial, result=report)
    callback.on_trial_complete(iteration=1, trials=[trial], trial=trial)
    assert source.told == {}
    assert recorder.events == []
    trials.signals.came = True
    source.cells = list(plan.cells)
    assert trials.suggest("u") is None, "nothing starts after a signal"


def test_a_stop_waits_for_cells_to_save_until_ctrl_c_comes_again_or_the_limit_has_passed(monkeypatch):
    """The cells never save, as those whose processes are stopped (SIGSTOP)."""
    plan = make_plan(load_spec(SMALL, ["training.seeds=1", "frontier.depths=[1]", "frontier.budgets=[1600]"]))
    settings = TrialSettings(
        data_root="d", checkpoint_root="c", checkpoint_every=1, evaluations=1, run="stop-1"
    )

    def ended_at(again):
        """The second at which Tune is ended that was asked for the end at 100, and again at the second given."""
        seconds, asked, ends, recorder = 0.0, [], [], Recorder()
        monkeypatch.setattr(tuner, "request_stop", asked.append)
        monkeypatch.setattr(tuner.time, "monotonic", lambda: seconds)
        monkeypatch.setattr(tuner.os, "kill", lambda pid, number: ends.append((seconds, pid, number)))
        trials = Trials(Cells(plan.cells), settings, 1)
        callback = make_tune_callback(trials, recorder, here())
        trials.suggest("t")
        running = [SimpleNamespace(trial_id="t", status="RUNNING")]
        while not ends:
            trials.signals.came = trials.signals.came or seconds >= 100
            trials.signals.again = seconds >= again
            callback.on_step_end(iteration=1, trials=running)
            seconds += 1
        assert asked == ["stop-1"], "the cells are asked once to save"
        ((event, _, text),) = recorder.events
        assert event == "notice"
        assert "1 running cell saves first (at most 90 s" in text
        assert ends[0][1:] == (os.getpid(), signal.SIGUSR1)
        return ends[0][0]

    assert ended_at(again=103) == 103
    assert ended_at(again=1000) == 100 + tuner.SAVE_SECONDS + 1
