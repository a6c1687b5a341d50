import contextlib
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

from interplay.verbs.ui import chart_pages, end_group, serve
from study.errors import SpecError
from study.tracking.mlflow_store import Experiment, tracking_uri
from tests.chromium import dump_dom
from tests.study.tracking.examples import mlflow_study, row


def test_a_folder_without_a_store_is_refused_with_what_to_run(tmp_path):
    with pytest.raises(SpecError, match=r"no MLflow store.*interplay run"):
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
        parameters = {"depth": depth, "params": 100 * depth}
        study.log_row(row(str(depth), parameters=parameters, loss=1 / depth))
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

    class Server:
        def __init__(self, command, env, **options):
            seen.update(command=command, uri=env["MLFLOW_BACKEND_STORE_URI"])

        def poll(self):
            return 0

    monkeypatch.setattr("interplay.verbs.ui.subprocess.Popen", Server)
    monkeypatch.setattr("interplay.verbs.ui.end_group", lambda process: None)
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
        stderr=subprocess.STDOUT, text=True,
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
        process.send_signal(stop)
        _, alive = psutil.wait_procs(group, timeout=200)
        for one in alive:
            one.kill()
    assert len(group) > 1, "the server is a process of its own"
    assert not alive
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def test_a_group_is_ended_with_its_orphans_and_those_that_do_not_listen(monkeypatch):
    """The leader ends at once; a process that it started ignores SIGTERM."""
    monkeypatch.setattr("interplay.verbs.ui.END_SECONDS", 0.5)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    start = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {deaf!r}]); print(p.pid, flush=True)"
    leader = subprocess.Popen(
        [sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, process_group=0
    )
    lines = sorted(leader.stdout.readline().strip() for _ in range(2))
    orphan = psutil.Process(int(lines[0]))
    end_group(leader)
    assert lines[1] == "on"
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
