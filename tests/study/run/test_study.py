"""Whole studies by the real command in processes of their own: run, killed, stopped, without a tracking server."""

import contextlib
import csv
import html
import json
import os
import pty
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from study.plan.plan import make_plan
from study.spec.study import load_spec
from study.tracking.ledger import Ledger
from study.tracking.mlflow_store import Experiment, tracking_uri
from tests.environment import environment_without
from trainables.train.loop import train

pytestmark = pytest.mark.slow

SPEC = """
name: tiny
data: {kind: hierarchy, vocabulary: 8, branching: 2, levels: 4, synonyms: 2, sequences: 4000, validation_sequences: 64}
frontier: {depths: [1, 2], heads: 2, budgets: [1600, 6200], tolerance: 0.15}
training: {steps: 80, batch: 8, context: 32, lr: {rule: width, base: 0.4, cap: 0.04}, seeds: 2}
resources: {device: cpu, slots: 2, checkpoint_every_seconds: 0.5}
"""
#: Cells of one shape, long enough for a few commands beside them.
LONG = ("training.steps=1500", "frontier.budgets=[6200]", "frontier.depths=[2]")
#: Long enough to be killed in the middle, after the first checkpoint, and short enough to be trained to the end.
SHORT = ("training.steps=800", *LONG[1:], "resources.checkpoint_every_seconds=0.2")
#: One process of trials, which costs more to start than these cells to train.
ALONE = "resources.slots=1"
#: One cell more than are trained at a time.
TWO = (*SHORT, "training.seeds=2", ALONE)


class Laptop:
    """A folder with a spec, a home of its own, and the command."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "tiny.yaml").write_text(SPEC)
        kept = environment_without("RAY_", "MLFLOW_")
        self.environment = {**kept, "HOME": str(folder / "home"), "COLUMNS": "120"}
        self.results = folder / "results"
        self.started = []

    def command(self, *arguments):
        return [sys.executable, "-m", "interplay", *arguments]

    def run(self, *arguments, timeout=1000):
        return subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    def start(self, *arguments):
        process = subprocess.Popen(
            self.command(*arguments), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def rows(self):
        with (self.results / "tiny" / "runs.csv").open() as file:
            return list(csv.DictReader(file))

    def runs(self):
        """MLflow's runs: (study runs, trial runs)."""
        store = Experiment(tracking_uri("auto", self.results), "tiny")
        runs = list(store.runs("attributes.status != 'nothing'"))
        kinds = [run.data.tags["interplay.kind"] for run in runs]
        assert set(kinds) <= {"study", "trial"}
        return [[r for r, k in zip(runs, kinds, strict=True) if k == kind] for kind in ("study", "trial")]

    def wait_for(self, condition, process, timeout=1000):
        deadline = time.monotonic() + timeout
        while not condition():
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.1)

    def checkpoints(self):
        return list(self.results.glob("tiny/checkpoints/*/*/complete.json"))


@pytest.fixture
def laptop(tmp_path):
    one = Laptop(tmp_path)
    yield one
    # A test that failed half-way must not leave a study behind that slows all others.
    for process in one.started:
        process.kill()


def test_a_study_from_nothing_to_its_report_and_again(laptop):
    done = laptop.run("run", "tiny.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "no library noise"
    folder = laptop.results / "tiny"
    assert {"report.html", "fit.json", "runs.csv", "figures", "spec.yaml"} <= {
        p.name for p in folder.iterdir()
    }
    rows = laptop.rows()
    assert len(rows) == len({r["cell"] for r in rows}) == 8
    assert {r["status"] for r in rows} == {"done"}
    assert all(0.7 < float(r["loss"]) < 2.3 for r in rows), "better than chance, worse than the entropy"
    fit = json.loads((folder / "fit.json").read_text())
    assert fit["rows"]["used"] == 8
    assert {"crossings", "law", "alternatives"} <= set(fit)
    studies, trials = laptop.runs()
    assert [r.info.status for r in studies] == ["FINISHED"]
    assert [r.info.status for r in trials] == ["FINISHED"] * 8
    assert {r.data.tags["mlflow.parentRunId"] for r in trials} == {studies[0].info.run_id}
    assert {r.data.tags["interplay.cell"] for r in trials} == {r["cell"] for r in rows}
    assert "interplay.revision" in studies[0].data.tags
    assert not laptop.checkpoints()
    assert not (laptop.folder / "home" / ".ray").exists()

    before = {r["cell"]: r["loss"] for r in rows}
    again = laptop.run("run", "tiny.yaml")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "nothing to train" in again.stdout
    assert laptop.rows() == rows, "read back from the row files, the run table is the same to the last digit"

    more = laptop.run("run", "tiny.yaml", "training.seeds=3")
    assert more.returncode == 0, more.stdout + more.stderr
    assert "4 cells in" in more.stdout
    assert len(laptop.rows()) == 12
    assert before.items() <= {r["cell"]: r["loss"] for r in laptop.rows()}.items()

    status = json.loads(laptop.run("status", "tiny.yaml", "--json").stdout)
    assert status["counts"] == {"done": 8}
    fit_again = laptop.run("fit", "tiny.yaml", "--json")
    assert json.loads(fit_again.stdout)["rows"]["used"] == 8
    from_mlflow = json.loads(laptop.run("fit", "mlflow:tiny", "--json").stdout)
    assert from_mlflow["rows"]["used"] == 12
    page = (folder / "report.html").read_bytes()
    part = laptop.run("run", "tiny.yaml")
    assert part.returncode == 2, "with fewer seeds it would replace the report of all"
    assert "name=tiny-2 tracking.experiment=tiny" in part.stderr
    assert (folder / "report.html").read_bytes() == page
    report = laptop.run("report", "results/tiny/runs.csv", "--out", "elsewhere")
    assert report.returncode == 0, report.stderr
    assert (laptop.folder / "elsewhere" / "report.html").stat().st_size > 10_000


def test_a_study_by_tokens_per_parameter_answers_at_that_ratio(laptop):
    sizes = ("frontier.budgets=[1600, 3100, 6200]", "training.batch=4", ALONE)
    done = laptop.run("run", "tiny.yaml", "training.tokens_per_parameter=5", *sizes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at 5 tokens per parameter" in done.stdout
    rows = laptop.rows()
    assert len(rows) == 12
    for row in rows:
        assert abs(float(row["tokens"]) - 5 * float(row["params"])) <= 4 * 32 / 2
    fit = json.loads((laptop.results / "tiny" / "fit.json").read_text())
    assert fit["tokens"]["rule"] == "ratio"
    assert not [warning for warning in fit["warnings"] if "protocol" in warning]
    assert "5 tokens per parameter" in (laptop.results / "tiny" / "report.html").read_text()
    _, trials = laptop.runs()
    assert {(r.data.params["tokens"], r.data.params["steps"]) for r in trials} == {
        (row["tokens"], str(int(row["tokens"]) // (4 * 32))) for row in rows
    }


def test_a_study_at_equal_flops_answers_at_these(laptop):
    sizes = ("frontier.flops=[2e8, 4e8]", "frontier.spread=[0.125, 0.25, 0.5, 1, 2]", "frontier.heads=1")
    done = laptop.run(
        *("run", "tiny.yaml", *sizes, "frontier.tolerance=0.3", "training.batch=12", "training.context=16"),
        *("training.seeds=1", ALONE),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = laptop.rows()
    assert {float(row["compute"]) for row in rows} == {2e8, 4e8}
    for row in rows:
        assert abs(float(row["flops"]) / float(row["compute"]) - 1) <= 0.01
    shapes = [(row["depth"], row["width"]) for row in rows]
    assert (
        len(set(shapes)) < len(shapes) == len({(row["depth"], row["width"], row["compute"]) for row in rows})
    )
    fit = json.loads((laptop.results / "tiny" / "fit.json").read_text())
    assert (fit["tokens"]["rule"], fit["rows"]["used"], fit["compute"]["budgets"]) == (
        *("compute", len(rows)),
        [2e8, 4e8],
    )
    assert "equal FLOPs (2e8 to 4e8)" in done.stdout
    assert "equal FLOPs: 2e8 to 4e8" in (laptop.results / "tiny" / "report.html").read_text()
    best = laptop.run("recommend", "--fit", "tiny", "--flops", "4e8", "--json")
    assert best.returncode == 0, best.stderr
    (at,) = json.loads(best.stdout)
    assert (at["flops"], at["source"], at["depth"] in (1, 2)) == (4e8, "measured", True)
    status = json.loads(laptop.run("status", "tiny", "--json").stdout)
    assert status["counts"] == {"done": len(rows)}
    assert any("4e8 FLOPs" in sentence for sentence in status["answer"])
    _, trials = laptop.runs()
    assert {float(trial.data.params["compute"]) for trial in trials} == {2e8, 4e8}


def test_a_study_at_equal_time_answers_in_minutes(laptop):
    speeds = "{L1-d4: 2e5, L1-d8: 2e5, L1-d12: 1.5e5, L2-d4: 1.2e5, L2-d8: 1e5, L2-d12: 8e4}"
    done = laptop.run(
        *("run", "tiny.yaml", f"frontier.minutes={{0.005: {speeds}, 0.02: {speeds}}}", "frontier.heads=1"),
        *("training.batch=8", "training.context=16", "training.seeds=1", ALONE),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = laptop.rows()
    assert len(rows) == 12
    assert {(float(row["compute"]), row["compute_unit"]) for row in rows} == {
        (0.005, "minutes"),
        (0.02, "minutes"),
    }
    fit = json.loads((laptop.results / "tiny" / "fit.json").read_text())
    assert fit["tokens"]["rule"] == "compute"
    assert "equal training time (0.30 s to 1.2 s)" in done.stdout
    page = (laptop.results / "tiny" / "report.html").read_text()
    assert "equal training time: 0.30 s to 1.2 s" in page
    _, trials = laptop.runs()
    assert {(float(t.data.params["compute"]), t.data.params["compute_unit"]) for t in trials} == {
        (0.005, "minutes"),
        (0.02, "minutes"),
    }


def test_a_study_of_several_numbers_of_tokens_compares_one_and_says_which(laptop):
    levels = ("training.tokens=[5120,10240]", "frontier.budgets=[1600, 3100, 6200]", ALONE)
    done = laptop.run("run", "tiny.yaml", *levels)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = laptop.rows()
    assert len(rows) == 24
    assert {row["tokens"] for row in rows} == {"5120", "10240"}
    assert json.loads(laptop.run("status", "tiny", "--json").stdout)["counts"] == {"done": 24}
    fit = json.loads((laptop.results / "tiny" / "fit.json").read_text())
    assert (fit["tokens"]["rule"], fit["tokens"]["compared"], fit["tokens"]["levels"]) == (
        "level",
        10240,
        [5120, 10240],
    )
    assert not [warning for warning in fit["warnings"] if "protocol" in warning]
    page = (laptop.results / "tiny" / "report.html").read_text()
    assert "5,120 and 10,240 tokens per cell" in page
    assert fit["tokens"]["sentence"] in html.unescape(page)
    shorter = laptop.run("report", "tiny", "--tokens", "5120", "--out", "shorter")
    assert shorter.returncode == 0, shorter.stderr
    other = json.loads((laptop.folder / "shorter" / "fit.json").read_text())
    assert (other["tokens"]["compared"], other["rows"]["used"]) == (5120, 12)
    recommended = laptop.run("recommend", "--fit", "shorter/fit.json", "3e3")
    assert recommended.returncode == 0, recommended.stderr


def test_a_killed_trial_goes_on_from_its_checkpoint_to_the_same_bits(laptop):
    overrides = [*SHORT, "training.seeds=1"]
    process = laptop.start("run", "tiny.yaml", *overrides)
    laptop.wait_for(laptop.checkpoints, process)
    trials = [
        p
        for p in psutil.Process(process.pid).children(recursive=True)
        if "ray::ImplicitFunc" in " ".join(p.cmdline())
    ]
    assert trials
    for trial in trials:
        trial.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=1000)
    assert process.returncode == 0, output
    assert "again" in output
    assert "ActorDiedError" in output
    _, runs = laptop.runs()
    assert [r.info.status for r in runs] == ["FINISHED"]
    assert int(runs[0].data.tags["interplay.resumed_from"]) > 0
    client = Experiment(tracking_uri("auto", laptop.results), "tiny").client
    steps = [m.step for m in client.get_metric_history(runs[0].info.run_id, "train_loss")]
    assert steps == sorted(set(steps)), "each point of the curve once"
    (planned,) = make_plan(load_spec(str(laptop.folder / "tiny.yaml"), [*SHORT, "training.seeds=1"])).cells
    assert steps[-1] == planned.cell.recipe.steps
    whole = train(planned.cell, data_root=laptop.results / "data")
    assert (whole.status, whole.resumed_from) == ("done", 0)
    assert float(laptop.rows()[0]["loss"]) == whole.loss


def test_after_a_killed_driver_the_next_run_finishes_the_study(laptop):
    overrides = list(TWO)
    process = laptop.start("run", "tiny.yaml", *overrides)
    laptop.wait_for(lambda: list(laptop.results.glob("tiny/checkpoints/*/*/complete.json")), process)
    ray = [p for p in psutil.Process(process.pid).children(recursive=True) if "Agent" not in p.name()]
    process.kill()
    process.wait()
    # Ray's two agents, which do no work, linger for a minute or two; the trials and the rest end at once.
    _, alive = psutil.wait_procs(ray, timeout=30)
    assert not alive, "Ray ends with its driver"
    again = laptop.run("run", "tiny.yaml", *overrides)
    assert again.returncode == 0, again.stdout + again.stderr
    rows = laptop.rows()
    assert len(rows) == len({r["cell"] for r in rows}) == 2
    studies, trials = laptop.runs()
    assert [r.info.status for r in studies] == ["FINISHED"]
    assert [r.info.status for r in trials] == ["FINISHED"] * 2
    assert any("interplay.resumed_from" in r.data.tags for r in trials)


def test_a_stopped_study_says_how_to_go_on_and_does(laptop):
    overrides = list(TWO)
    process = laptop.start("run", "tiny.yaml", *overrides)
    laptop.wait_for(laptop.checkpoints, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    # Interrupted in the middle of a library's import, Python ends itself by the signal; a shell shows 130 for both.
    assert process.returncode in (130, -signal.SIGINT), output
    assert "Traceback" not in output
    assert f"run tiny.yaml {shlex.join(overrides)}" in output.replace("\n", " ")
    studies, trials = laptop.runs()
    assert [r.info.status for r in studies] == ["KILLED"]
    assert "RUNNING" not in {r.info.status for r in trials}
    again = laptop.run("run", "tiny.yaml", *overrides)
    assert again.returncode == 0, again.stdout + again.stderr
    studies, trials = laptop.runs()
    assert [r.info.status for r in (*studies, *trials)] == ["FINISHED"] * 3


@pytest.mark.extended
def test_a_study_stopped_before_its_first_trial_ends_as_cleanly(laptop):
    process = laptop.start("run", "tiny.yaml", *TWO)
    # The data is being packed or Ray started.
    laptop.wait_for((laptop.results / "data").is_dir, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    # Interrupted in the middle of a library's import, Python ends itself by the signal; a shell shows 130 for both.
    assert process.returncode in (130, -signal.SIGINT), output
    assert "Traceback" not in output
    studies, trials = laptop.runs()
    assert [r.info.status for r in studies] == ["KILLED"]
    assert "RUNNING" not in {r.info.status for r in trials}


#: One cell that saves by itself only when it is stopped.
UNSAVED = (
    "training.steps=3000",
    *LONG[1:],
    "training.seeds=1",
    "resources.checkpoint_every_seconds=1000",
    ALONE,
)


def wait_for_trial(laptop, process):
    """Wait until a trial runs; whether it imports or trains, a stop lets it save."""

    def is_trial(child):
        with contextlib.suppress(psutil.NoSuchProcess):
            return "ray::ImplicitFunc.train" in " ".join(child.cmdline())

    def is_there():
        return any(is_trial(child) for child in psutil.Process(process.pid).children(recursive=True))

    laptop.wait_for(is_there, process)
    time.sleep(5)


def check_saved_and_resumed(laptop, overrides):
    assert len(laptop.checkpoints()) == 1, "saved when it was stopped"
    again = laptop.run("run", "tiny.yaml", *overrides)
    assert again.returncode == 0, again.stdout + again.stderr
    _, (trial,) = laptop.runs()
    assert int(trial.data.tags["interplay.resumed_from"]) > 0
    assert len(laptop.rows()) == 1


@pytest.mark.extended
def test_the_ranks_of_a_running_cell_save_when_a_study_is_terminated(laptop):
    overrides = [*UNSAVED[:-1], "resources.tensor_parallel=2"]
    process = laptop.start("run", "tiny.yaml", *overrides)
    wait_for_trial(laptop, process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    assert "1 running cell saves" in output
    check_saved_and_resumed(laptop, overrides)


@pytest.mark.extended
def test_a_closed_terminal_stops_a_study_as_cleanly(laptop):
    """The kernel sends SIGHUP to every process of the terminal, those of Ray included."""
    overrides = list(UNSAVED)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(laptop.folder)
        os.execve(sys.executable, laptop.command("run", "tiny.yaml", *overrides), laptop.environment)
    over = threading.Event()
    reader = threading.Thread(target=drain, args=(terminal, over))
    reader.start()
    process = psutil.Process(pid)
    process.poll = lambda: None if process.is_running() and process.status() != psutil.STATUS_ZOMBIE else 1
    wait_for_trial(laptop, process)
    over.set()
    reader.join()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    studies, trials = laptop.runs()
    assert [r.info.status for r in (*studies, *trials)] == ["KILLED"] * 2
    check_saved_and_resumed(laptop, overrides)


def drain(terminal, over):
    """Read what a program writes, and in the end close its terminal."""
    while not over.is_set():
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 4096)
    os.close(terminal)


def test_a_dead_tracking_server_neither_stops_nor_slows_a_study_and_gets_its_rows_later(laptop):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = [f"tracking.uri=http://127.0.0.1:{port}", "training.steps=10", ALONE]
    done = laptop.run("run", "tiny.yaml", *where)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not answer" in done.stdout
    assert len(laptop.rows()) == 8
    assert len(Ledger(laptop.results / "tiny" / "rows").rows()) == 8

    again = laptop.run("run", "tiny.yaml", *where)
    assert "nothing to train" in again.stdout

    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            "1",
            "--backend-store-uri",
            tracking_uri("auto", laptop.folder),
            "--default-artifact-root",
            (laptop.folder / "art").as_uri(),
        ],
        cwd=laptop.folder,
        env=laptop.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        laptop.wait_for(lambda: _answers(port), server)
        back = laptop.run("run", "tiny.yaml", *where)
        assert back.returncode == 0, back.stdout + back.stderr
    finally:
        for child in psutil.Process(server.pid).children(recursive=True):
            child.terminate()
        server.terminate()
        server.wait(30)
    assert "nothing to train" in back.stdout
    assert len(list(Experiment(tracking_uri("auto", laptop.folder), "tiny").runs())) == 8


def _answers(port):
    import urllib.error
    import urllib.request

    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.extended
def test_a_full_disk_ends_a_study_with_a_message_and_nothing_recorded_is_lost(laptop):
    laptop.results.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(laptop.results)]
    if not shutil.which("mount") or subprocess.run(options, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        overrides = list(TWO)
        process = laptop.start("run", "tiny.yaml", *overrides)
        laptop.wait_for(laptop.checkpoints, process)
        with contextlib.suppress(OSError), (laptop.results / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(4096))
                filler.flush()
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 2, output
        assert "No space left on device" in output
        assert "Traceback" not in output
        (laptop.results / "filler").unlink()
        again = laptop.run("run", "tiny.yaml", *overrides)
        assert again.returncode == 0, again.stdout + again.stderr
        rows = laptop.rows()
        assert len({r["cell"] for r in rows}) == len(rows) == 2
        assert {r["status"] for r in rows} == {"done"}
    finally:
        subprocess.run(["umount", str(laptop.results)], check=True)


def test_data_that_cannot_be_used_leaves_no_run_open(laptop):
    (laptop.folder / "tiny.txt").write_text("abc\n")
    done = laptop.run("run", "text", "data.path=tiny.txt")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    store = Experiment(tracking_uri("auto", laptop.results), "text")
    assert [r.info.status for r in store.runs("attributes.status != 'nothing'")] == ["FAILED"]
