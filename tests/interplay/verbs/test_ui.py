import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil
import pytest
from rich.console import Console

from interplay.verbs.ui import chart_pages, serve
from study.errors import SpecError
from study.tracking.mlflow_store import Experiment, tracking_uri
from tests.chromium import dump_dom
from tests.study.tracking.examples import mlflow_study, row


def test_a_folder_without_a_store_is_refused_with_what_to_run(tmp_path):
    with pytest.raises(SpecError, match=r"no MLflow store.*interplay\.run"):
        serve(tmp_path, "127.0.0.1", 5000, Console(quiet=True))


def test_a_port_in_use_is_refused_with_another_one(tmp_path):
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=rf"port {port}.*--port {port + 1}"):
            serve(tmp_path, "127.0.0.1", port, Console(quiet=True))


def test_a_tracking_server_has_its_page_already(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:hunter2@track.example:5001/path")
    serve(tmp_path, "127.0.0.1", 5000, Console())
    assert capsys.readouterr().out == "MLflow on https://track.example:5001/path\n"


def test_the_page_with_the_charts_of_each_experiment_is_named(uri):
    theirs = Experiment(uri, "theirs").id
    ours = mlflow_study(uri)
    ours.connect()
    query = "workflowType=machine_learning&compareRunsMode=CHART"
    assert set(chart_pages(uri)) == {
        f"#/experiments/{ours._experiment.id}/runs?{query}&viewStateShareKey=interplay",
        f"#/experiments/{theirs}/runs?{query}&orderByKey=metrics.%60loss%60&orderByAsc=true",
        f"#/experiments/1/runs?{query}&orderByKey=metrics.%60loss%60&orderByAsc=true",
    }


@pytest.fixture
def uri(template, tmp_path):
    """The address of a store with MLflow's tables."""
    shutil.copy(template, tmp_path / "mlflow.db")
    return tracking_uri("auto", tmp_path)


@contextlib.contextmanager
def served(results):
    """The first line of `interplay ui` on a results folder, and the address of its page, while it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "interplay", "ui", "--port", str(port), "--results", results], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        wait_for(process, port)
        yield process
    finally:
        process.terminate()
        process.wait(60)


def wait_for(process, port):
    """The page at a port, once it answers."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).read().decode()
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.5)


@pytest.mark.slow
def test_the_page_opens_with_loss_against_depth_and_the_answer(uri, tmp_path):
    study = mlflow_study(uri)
    study.connect()
    for depth in (1, 2):
        study.log_row(row(str(depth), depth=depth, params=100 * depth, loss=1 / depth))
    study.finish("KILLED", "Unfinished: 2 of 18 cells are done.")
    with served(tmp_path) as process:
        link = process.stdout.readline().strip()
        page = dump_dom(link, wait=200_000)
    assert "depth vs. loss" in page
    assert "params vs. loss" in page
    assert "Unfinished: 2 of 18 cells are done." in page
    # Two points in each of the two.
    assert page.count('class="point"') >= 4


def test_another_store_is_served_with_the_artifacts_beside_it(tmp_path, monkeypatch):
    other = f"sqlite:///{tmp_path / 'other.db'}"
    Experiment(other, "shown")
    seen = {}

    def become(program, command, environment):
        seen.update(command=command, uri=environment["MLFLOW_BACKEND_STORE_URI"])

    monkeypatch.setattr("interplay.verbs.ui.os.execve", become)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve(tmp_path / "results", "127.0.0.1", port, Console(quiet=True), other)
    assert seen["uri"] == other
    assert (tmp_path / "mlartifacts").as_uri() in seen["command"]
    with pytest.raises(SpecError, match="no MLflow store"):
        serve(tmp_path, "127.0.0.1", port, Console(quiet=True), "databricks")


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop",
    [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.extended)],
)
def test_the_page_comes_up_on_loopback_and_ends_with_its_server(tmp_path, stop):
    (tmp_path / "results").mkdir()
    Experiment(tracking_uri("auto", tmp_path / "results"), "shown")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "interplay", "ui", "--port", str(port)], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, process_group=0,
    )  # fmt: skip
    try:
        assert "MLflow" in wait_for(process, port)
        listening = [
            c.laddr.ip
            for p in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for c in p.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr.port == port
        ]
        assert set(listening) == {"127.0.0.1"}
    finally:
        group = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        # A terminal that is closed hangs up on all processes of its group, a supervisor terminates one.
        (os.killpg if stop == signal.SIGHUP else os.kill)(process.pid, stop)
        _, alive = psutil.wait_procs(group, timeout=200)
        for one in alive:
            one.kill()
    assert len(group) > 1, "the server is a process of its own"
    assert not alive
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
