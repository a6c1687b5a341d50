"""Ray Tune for real, with trials that train nothing: what is scheduled, retried, stopped and said."""

import json
import math
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from ray.exceptions import RayActorError
from ray.tune.execution import tune_controller

from study.plan.plan import make_plan
from study.plan.saves import LEAST_SAVE_SECONDS, SAVES
from study.run import tune_interface
from study.run.cell_queue import CellQueue
from study.run.trial import Report, TrialSettings, read_report
from study.run.tune_interface import ActorManager, StopWhenSaved, StudyCallback
from study.run.tuner import run_cells
from study.search.source import seed_by_seed
from study.spec.study import load_spec
from study.workers.causes import own_place
from study.workers.machines import MachineLosses, Slots
from study.workers.ray_session import private_ray
from tests.stubs import Cells, Recorder, in_layout, stub_result, stub_row
from tests.study.small import SMALL
from trainables.cell import Cell
from trainables.layout import Layout
from trainables.progress import Evaluation, Point, Progress

TP2 = Layout(tensor_parallel=2, zero=1)


def trial(config):
    """Seed 1 is killed once, seed 2 raises every time, seed 3 has wrong input, seed 4 ends without a word."""
    from ray import tune

    from trainables.cell import Cell

    seed = Cell.model_validate_json(config["cell"]).seed
    mark = Path(TrialSettings.model_validate_json(config["settings"]).data_root) / f"tries-{seed}"
    with mark.open("a") as file:
        file.write("x")
    if seed == 1 and mark.read_text() == "x":
        tune.report({"report": Report(place=own_place()).model_dump_json()})
        print("NCCL WARN no link\n\n:a line of Ray's", file=sys.stderr, flush=True)
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


def queue_of(cells, devices=2, retries=0, root="d", run="", trunks=None):
    settings = TrialSettings(data_root=root, checkpoint_root=root, checkpoint_every=1, evaluations=1, run=run)
    return CellQueue(Cells(cells), settings, MachineLosses(Slots(devices, 1, 0)), retries, trunks)


def seeds(count):
    """Cells of one shape."""
    options = [f"training.seeds={count}", "frontier.depths=[1]", "frontier.budgets=[1600]"]
    return make_plan(load_spec(SMALL, options)).cells


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
        1: "the process of the trial died (ActorDiedError); its log ends with: NCCL WARN no link",
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


def test_library_defect_tune_ends_the_whole_run_when_rays_memory_monitor_kills_a_trial():
    """When this fails, `ActorManager` can go."""
    from ray.air.execution._internal import RayActorManager
    from ray.exceptions import OutOfMemoryError

    task, killed = Mock(), OutOfMemoryError("95% used")
    with pytest.raises(RuntimeError, match="unexpected exception"):
        RayActorManager._actor_task_failed(Mock(), task, killed)
    assert issubclass(tune_controller.RayActorManager, RayActorManager)
    manager = ActorManager(Mock())
    manager._cleanup_actor = Mock()
    manager._actor_task_failed(task, killed)
    ((_, error),) = (call.args for call in task._on_error.call_args_list)
    assert isinstance(error, RayActorError)


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


def test_a_gang_waits_for_its_devices_and_no_later_cell_overtakes_it(monkeypatch):
    one, two, three, four = seeds(4)
    wide = in_layout(three, TP2)
    queue = queue_of([one, two, wide, four])
    monkeypatch.setattr(queue.losses, "live_ranks", lambda: 0)

    def key(trial):
        given = queue.suggest(trial)
        return given["key"] if isinstance(given, dict) else given

    assert [key("a"), key("b")] == [one.cell.key, two.cell.key]
    assert key("c") is None
    queue.end("a", stub_row(one, 1.0))
    assert key("c") is None, "one device is free, and the gang needs two"
    queue.end("b", stub_row(two, 1.0))
    assert key("c") == wide.cell.key
    assert key("d") is None
    queue.end("c", stub_row(wide, 1.0))
    assert key("d") == four.cell.key
    assert key("e") is None, "the last cell may be lost, and is then tried again"
    queue.end("d", stub_row(four, 1.0))
    assert key("e") == "FINISHED"


#: Two seeds of one shape at three numbers of tokens, which are two trunks.
WSD = (
    *(
        "training.schedule=wsd",
        "training.warmup_steps=50",
        "training.tokens=[1M, 2M, 4M]",
        "training.seeds=2",
    ),
    *("frontier.depths=[1]", "frontier.budgets=[1600]"),
)


def steps_and_seed(queue, trial):
    given = queue.suggest(trial)
    if not isinstance(given, dict):
        return given
    one = Cell.model_validate_json(given["cell"])
    assert json.loads(given["lengths"]) == [977, 1953, 3906]
    return one.recipe.steps, one.seed


def test_cells_of_a_trunk_run_one_by_one_and_the_shortest_first():
    plan = make_plan(load_spec(SMALL, WSD))
    queue = queue_of(seed_by_seed(plan), devices=3, trunks=plan.trunks)
    by_place = {(p.cell.recipe.steps, p.cell.seed): p for p in plan.cells}
    began = []
    for round_ in range(3):
        trials = [f"{round_}{name}" for name in "abc"]
        begun = [steps_and_seed(queue, trial) for trial in trials]
        assert begun[2] is None, "one device stays free: both trunks have a running cell"
        began += begun[:2]
        for trial, place in zip(trials, begun[:2], strict=False):
            queue.end(trial, stub_row(by_place[place], 1.0))
    assert sorted(began) == sorted(by_place)
    assert [steps for steps, _ in began] == [977, 977, 1953, 1953, 3906, 3906]
    assert queue.suggest("last") == "FINISHED"


@pytest.mark.parametrize(("loss", "status"), [(None, "failed"), (None, "diverged"), (1.0, "done")])
def test_a_cell_that_ends_in_any_way_frees_the_longer_ones_of_its_trunk(loss, status, tmp_path):
    plan = make_plan(load_spec(SMALL, [*WSD, "training.seeds=1"]))
    short, middle, long = (planned for planned in plan.cells)
    queue = queue_of([short, middle, long], root=str(tmp_path), retries=1, trunks=plan.trunks)
    assert steps_and_seed(queue, "a") == (977, 0)
    assert queue.suggest("b") is None
    assert queue.lose("a"), "it is tried again"
    assert steps_and_seed(queue, "c") == (977, 0), "the lost cell comes before those that wait for it"
    assert queue.suggest("d") is None
    queue.end("c", stub_row(short, loss, status=status))
    assert steps_and_seed(queue, "e") == (1953, 0)
    assert queue.lose("e")
    assert steps_and_seed(queue, "f") == (1953, 0)
    assert not queue.lose("f")
    queue.end("f", stub_row(middle, None, status="failed"))
    assert steps_and_seed(queue, "g") == (3906, 0)
    assert queue.suggest("h") is None
    queue.end("g", stub_row(long, 1.0))
    assert queue.suggest("i") == "FINISHED"


@pytest.mark.parametrize("seed", range(20))
def test_trunks_never_block_a_queue_whatever_the_order_and_the_ends_of_their_cells(seed, tmp_path):
    chance = random.Random(seed)
    plan = make_plan(load_spec(SMALL, [*WSD, "training.seeds=3"]))
    cells = chance.sample(plan.cells, len(plan.cells))
    queue = queue_of(cells, devices=2, root=str(tmp_path), retries=2, trunks=plan.trunks)
    running, ended = [], []
    for number in range(200):
        given = queue.suggest(str(number))
        if given == "FINISHED":
            break
        if isinstance(given, dict):
            running.append((str(number), plan.by_key(given["key"])))
            continue
        assert running, "nothing runs and nothing starts"
        trial, planned = running.pop(chance.randrange(len(running)))
        end = chance.choice(["lost", "failed", "diverged", "done"])
        if end == "lost" and queue.lose(trial):
            continue
        queue.end(
            trial,
            stub_row(planned, 1.0 if end == "done" else None, status="failed" if end == "lost" else end),
        )
        ended.append(planned.cell.key)
    assert sorted(ended) == sorted(planned.cell.key for planned in plan.cells)


def test_no_cell_is_begun_beside_a_gang_that_waits_for_devices_which_are_there(monkeypatch):
    """Six devices of two machines may be free three and three: room for no group of four while others take each."""
    cells = seeds(4)
    live, clock = 2, 0.0
    monkeypatch.setattr("study.run.cell_queue.time.monotonic", lambda: clock)
    queue = queue_of([cells[1], in_layout(cells[0], TP2), *cells[2:]], devices=5)
    monkeypatch.setattr(queue.losses, "live_ranks", lambda: live)
    callback = StudyCallback(queue, Recorder(), one_machine=True)
    gang = SimpleNamespace(trial_id="gang")
    monkeypatch.setattr(tune_interface, "trial_error", lambda _: None)

    def starts(trial_id):
        return isinstance(queue.suggest(trial_id), dict)

    assert starts("one")
    assert starts("gang")
    assert starts("two"), "there are two devices for three ranks: the gang waits for a machine"
    live = 5
    assert not starts("three"), "there is room for all, and yet it waits"
    callback.on_trial_start(trial=gang)
    assert starts("three"), "the gang has its place"
    queue.end("one", stub_row(cells[1], 1.0))
    callback.on_trial_recover(trial=gang)
    queue.source.cells.append(cells[1])
    assert not starts("four"), "its machine was taken back, and it waits again"
    clock = 3601.0
    assert starts("four"), "but not for ever"


def test_a_cell_may_be_lost_as_often_as_it_progresses(tmp_path, monkeypatch):
    """Twenty spot machines taken back are no fault of the cell; one that takes its machine down each time is."""
    planned, other = seeds(2)
    recorder = Recorder()
    queue = queue_of([planned, other], devices=1, retries=1, root=tmp_path)
    callback = StudyCallback(queue, recorder, one_machine=True)
    monkeypatch.setattr(tune_interface, "trial_error", lambda _: ValueError("boom"))

    def lose(checkpoint):
        if checkpoint:
            folder = tmp_path / planned.cell.key / f"step-{checkpoint:09d}-{planned.cell.key}"
            folder.mkdir(parents=True)
            (folder / "complete.json").write_text("{}")
        given = queue.suggest("t")
        assert given["key"] == planned.cell.key, "it is tried again before the next cell is taken"
        callback.on_trial_error(trial=SimpleNamespace(trial_id="t"))
        return recorder.events[-1][0]

    unfinished = tmp_path / planned.cell.key / f"step-000000900-{planned.cell.key}"
    unfinished.mkdir(parents=True)
    assert lose(0) == "retried"
    assert [lose(step) for step in (3, 5, 40, 100)] == ["retried"] * 4
    assert [lose(0), lose(0)] == ["retried", "failed"]
    assert queue.source.told == {planned.cell.key: None}
    assert queue.suggest("t")["key"] == other.cell.key


def test_an_error_while_an_event_is_recorded_is_kept_for_the_user():
    """Tune wraps it in the text of a traceback."""

    class FullDisk(Recorder):
        def started(self, planned):
            raise OSError(28, "No space left on device")

    queue = queue_of(seeds(1))
    queue.suggest("t")
    callback = StudyCallback(queue, FullDisk(), one_machine=True)
    with pytest.raises(OSError, match="No space"):
        callback.on_trial_start(trial=SimpleNamespace(trial_id="t"))
    assert isinstance(callback.error, OSError)


def test_a_cell_that_was_interrupted_has_neither_ended_nor_failed():
    queue, recorder = queue_of(seeds(1)), Recorder()
    callback = StudyCallback(queue, recorder, one_machine=True)
    queue.suggest("t")
    trial = SimpleNamespace(trial_id="t")
    report = {"report": Report(interrupted=True).model_dump_json()}
    callback.on_trial_result(trial=trial, result=report)
    callback.on_trial_complete(trial=trial)
    assert queue.source.told == {}
    assert recorder.events == []
    queue.signals.came = True
    queue.source.cells = seeds(1)
    assert queue.suggest("u") is None, "nothing starts after a signal"


@pytest.mark.parametrize(
    ("again", "saves", "end"),
    [(103, 1000, 103), (1000, 1000, 100 + LEAST_SAVE_SECONDS + 1), (1000, 105, 105)],
)
@pytest.mark.parametrize("save", [0.0, LEAST_SAVE_SECONDS])
def test_a_stop_waits_for_cells_to_save_until_ctrl_c_comes_again_or_the_limit_has_passed(
    again, saves, end, save, monkeypatch
):
    """A cell saves at a second given, or never, as one whose process is stopped (SIGSTOP)."""
    seconds, asked, notices = 0, [], []
    monkeypatch.setattr(tune_interface, "make_stop_event", lambda run: partial(asked.append, run))
    monkeypatch.setattr(tune_interface.time, "monotonic", lambda: seconds)
    queue = queue_of(seeds(1), run="stop-1")
    stopper = StopWhenSaved(queue, notices.append)
    queue.suggest("t")
    queue.attempts["t"].started = True
    limit = LEAST_SAVE_SECONDS
    if save:
        # The limit follows from what the last save of the cell took.
        progress = Progress(step=1, steps=9, train_seconds=1.0, points=(), evaluations=(), save_seconds=save)
        report = {"report": Report(progress=progress).model_dump_json()}
        callback = StudyCallback(queue, Recorder(), one_machine=True)
        callback.on_trial_result(trial=SimpleNamespace(trial_id="t"), result=report)
        limit = SAVES * save
        end += limit - LEAST_SAVE_SECONDS if end > 105 else 0
    assert asked == []
    while not stopper.stop_all():
        seconds += 1
        queue.signals.came = seconds >= 100
        queue.signals.again = seconds >= again
        if seconds == saves:
            del queue.attempts["t"]
    assert seconds == end
    assert asked == ["stop-1"], "the cells are asked once to save"
    (text,) = notices
    assert f"1 running cell saves first (at most {limit:.0f} s" in text
