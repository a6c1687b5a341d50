"""Ray Tune for real, with trials that train nothing: what is scheduled, retried, stopped and said."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from study.errors import SpecError
from study.plan import make_plan
from study.spec import load_spec
from study.trial import Report, TrialSettings
from study.tuner import Slots, check_devices, ray_session, read_report, run_cells
from tests.stubs import stub_result
from tests.study.small import SMALL
from trainables.progress import Evaluation, Point


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


class Source:
    def __init__(self, cells):
        self.cells, self.told = list(cells), {}

    @property
    def done(self):
        return not self.cells

    def take(self):
        return self.cells.pop(0) if self.cells else None

    def tell(self, key, outcome):
        assert key not in self.told
        self.told[key] = outcome.loss


class Listener:
    def __init__(self):
        self.events = []

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
    source, listener = Source(plan.cells), Listener()
    settings = TrialSettings(data_root=tmp_path, checkpoint_root=tmp_path, checkpoint_every=1, evaluations=1)
    with ray_session(Slots(2, 1, 0)):
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


@pytest.mark.slow
def test_ray_session_leaves_the_users_token_alone_and_ends_its_processes(tmp_path):
    """A fresh process with a home of its own: no file appears there, and Ray is gone afterwards."""
    program = (
        "import os, psutil\n"
        "from study.tuner import Slots, ray_session\n"
        "with ray_session(Slots(1, 1, 0)):\n"
        "    import ray\n"
        "    assert ray.cluster_resources()['CPU'] == 1\n"
        "    assert os.stat(os.environ['RAY_AUTH_TOKEN_PATH']).st_mode & 0o077 == 0\n"
        "    assert psutil.Process().children(recursive=True)\n"
        "psutil.wait_procs(psutil.Process().children(recursive=True), timeout=20)\n"
        "with ray_session(Slots(1, 1, 0)):\n"
        "    assert ray.cluster_resources()['CPU'] == 1, 'a second session in one process'\n"
        "assert not {'RAY_AUTH_TOKEN_PATH', 'RAY_AUTH_MODE'} & set(os.environ)\n"
        "psutil.wait_procs(psutil.Process().children(recursive=True), timeout=20)\n"
        "print('left', len(psutil.Process().children(recursive=True)))\n"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment = {**kept, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["left", "0"]
    assert not (tmp_path / ".ray").exists()


@pytest.mark.slow
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


def test_gpus_that_this_machine_does_not_have_are_refused(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("study.tuner.local_gpus", lambda: 1)
    check_devices(Slots(1, 1, 1), "h100-80gb")
    check_devices(Slots(64, 1, 0), "cpu")
    with pytest.raises(SpecError, match=r"h100-80gb with 3 slots needs 3 GPUs.*has 1.*resources\.slots"):
        check_devices(Slots(3, 1, 1), "h100-80gb")
