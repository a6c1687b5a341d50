"""A driver killed at each stage of a row's way, and the run after it: no row is lost, none is there twice."""

import contextlib
import multiprocessing
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from study.run import runner
from study.spec.study import load_spec
from study.tracking.ledger import Ledger
from study.tracking.mlflow_store import Experiment, tracking_uri
from tests.stubs import stub_result
from tests.study.run.kill_stages import STAGES, kill_at
from tests.study.run.test_study import ALONE, SPEC, TWO, Laptop
from tests.study.tracking.examples import point
from trainables.progress import Progress
from trainables.storage.storage import joined

OPTIONS = [*TWO, ALONE, "training.steps=20"]
ROWS = 2


def in_turn(source, slots, settings, retries, callback, **options):
    """`run_cells` without Ray: each cell has a checkpoint, reports its progress and then its result."""
    while planned := source.take():
        callback.started(planned)
        Path(joined(settings.checkpoint_root, planned.cell.key), "step-1").mkdir(parents=True, exist_ok=True)
        callback.progress(
            planned, Progress(step=10, steps=20, train_seconds=1, points=(point(10),), evaluations=())
        )
        callback.ended(planned, stub_result(loss=1.5, step=20, points=(point(10), point(20))))
    return True


@pytest.fixture
def spec(tmp_path, template, monkeypatch):
    """Two cells of one shape, which nothing trains; the rest of a run is real but for the report."""
    monkeypatch.setattr("study.run.runner.run_cells", in_turn)
    monkeypatch.setattr("study.run.runner.private_ray", lambda slots: contextlib.nullcontext())
    monkeypatch.setattr("study.tracking.mirror.BATCH_SECONDS", 0.05)
    (tmp_path / "tiny.yaml").write_text(SPEC)
    (tmp_path / "results").mkdir()
    shutil.copy(template, tmp_path / "results" / "mlflow.db")
    return load_spec(str(tmp_path / "tiny.yaml"), OPTIONS)


def run_and_die(stage, spec, results):
    kill_at(stage)
    runner.run_study(spec, results, Console(quiet=True))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.slow
def test_a_driver_killed_anywhere_on_a_rows_way_loses_and_doubles_nothing(stage, spec, tmp_path):
    results = tmp_path / "results"
    child = multiprocessing.get_context("fork").Process(target=run_and_die, args=(stage, spec, results))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    recorded = set(Ledger(results / "tiny" / "rows").rows())
    assert ("before the row" in stage) == (not recorded)
    summary = runner.run_study(spec, results, Console(quiet=True))
    assert summary.finished
    assert summary.recorder.trained == ROWS - len(recorded), "no cell with a row is trained again"
    check(results)


def check(results):
    """Each cell is there once: as a row file, in the run table and in MLflow, and nothing else is left."""
    table = pd.read_csv(results / "tiny" / "runs.csv", dtype={"cell": str})
    rows = Ledger(results / "tiny" / "rows").rows()
    assert sorted(table["cell"]) == sorted(rows)
    assert len(rows) == ROWS
    assert set(table["status"]) == {"done"}
    store = Experiment(tracking_uri("auto", results), "tiny")
    runs = list(store.runs("attributes.status != 'nothing'"))
    assert {run.info.status for run in runs} == {"FINISHED"}
    cells = [run for run in runs if run.data.tags["interplay.kind"] == "trial"]
    assert len(runs) == len(cells) + 1
    assert sorted(run.data.tags["interplay.cell"] for run in cells) == sorted(rows)
    for run in cells:
        for metric in ("loss", "train_loss"):
            steps = [one.step for one in store.client.get_metric_history(run.info.run_id, metric)]
            assert steps == sorted(set(steps)) != []
        assert run.data.metrics["loss"] == rows[run.data.tags["interplay.cell"]].loss
    assert not list((results / "tiny" / "checkpoints").glob("*/*"))
    assert (results / "tiny" / "unfinished.json").read_text() == "{}"


@pytest.mark.extended
def test_the_command_killed_between_the_row_file_and_mlflow_goes_on(tmp_path):
    """One of the stages above with real trials."""
    stage = "after the row file"
    laptop = Laptop(tmp_path)
    overrides = [*TWO, "training.steps=40"]
    program = [sys.executable, "-m", "tests.study.run.kill_stages", stage, "run", str(tmp_path / "tiny.yaml")]
    killed = subprocess.run(
        [*program, "--results", str(laptop.results), *overrides],
        env=laptop.environment,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    again = laptop.run("run", "tiny.yaml", *overrides)
    assert again.returncode == 0, again.stdout + again.stderr
    check(laptop.results)
