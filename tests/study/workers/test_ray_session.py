"""Ray for as long as a study lasts."""

import importlib
import inspect
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import ray

from study.errors import SpecError
from study.workers.machines import Slots
from study.workers.ray_session import LOGS, check_address, make_stop_event, private_ray, stop_requested
from tests.environment import environment_without


@pytest.mark.slow
def test_a_private_ray_leaves_the_users_token_alone_and_ends_its_processes(tmp_path):
    """A fresh process with a home of its own: no file appears there, and Ray and its files are gone afterwards."""
    program = (
        "import os, psutil, signal\n"
        "def blocks_hang_up(pid='self'):\n"
        "    status = dict(line.split(':', 1) for line in open(f'/proc/{pid}/status'))\n"
        "    masks = int(status['SigBlk'], 16) | int(status['SigIgn'], 16)\n"
        "    return bool(masks >> (signal.SIGHUP - 1) & 1)\n"
        "from study.workers.machines import Slots\n"
        "from study.workers.ray_session import private_ray\n"
        "with private_ray(Slots(1, 1, 0)):\n"
        "    import ray\n"
        "    assert ray.cluster_resources()['CPU'] == 1\n"
        "    assert os.stat(os.environ['RAY_AUTH_TOKEN_PATH']).st_mode & 0o077 == 0\n"
        "    assert psutil.Process().children(recursive=True)\n"
        "    folder = os.environ['RAY_TMPDIR']\n"
        "    assert any(os.scandir(os.path.join(folder, 'ray'))), 'Ray has no other folder'\n"
        "    assert os.stat(folder).st_mode & 0o077 == 0, 'the driver unpickles errors from there'\n"
        "    assert all(blocks_hang_up(child.pid) for child in psutil.Process().children())\n"
        "    assert ray.get(ray.remote(blocks_hang_up).remote()), 'a closed terminal ends no trial'\n"
        "    assert not blocks_hang_up()\n"
        "    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "psutil.wait_procs(psutil.Process().children(recursive=True), timeout=20)\n"
        "with private_ray(Slots(1, 1, 0)):\n"
        "    assert ray.cluster_resources()['CPU'] == 1, 'a second session in one process'\n"
        "assert not {'RAY_AUTH_TOKEN_PATH', 'RAY_AUTH_MODE'} & set(os.environ)\n"
        "psutil.wait_procs(psutil.Process().children(recursive=True), timeout=20)\n"
        "print('left', len(psutil.Process().children(recursive=True)))\n"
    )
    kept = environment_without("RAY_")
    # The paths of Ray's sockets may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short:
        environment = {**kept, "HOME": str(tmp_path), "RAY_TMPDIR": short}
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            check=False,
        )
        left = [path.name for path in Path(short).iterdir()]
    assert done.returncode == 0, done.stderr
    assert not left, "no folder of a session, and no link to one"
    assert done.stdout.split() == ["left", "0"]
    assert not (tmp_path / ".ray").exists()


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:8265", "ray://127.0.0.1:10001", "127.0.0.1:1", "nohost.invalid:9"]
)
def test_an_address_that_is_no_clusters_is_told_at_once(address):
    """Ray would answer with a traceback, or ask for two minutes."""
    with pytest.raises(
        SpecError, match=r"RAY_ADDRESS is .*(HOST:PORT|no Ray cluster answers there).*Unset RAY_ADDRESS"
    ):
        check_address(address)


def test_what_listens_is_left_to_ray():
    check_address("auto")
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_address("{}:{}".format(*server.getsockname()))


def test_library_defect_ray_prints_losses_of_processes_in_spite_of_log_to_driver():
    """`private_ray` replaces this function of Ray 2.60, by which its log subscriber prints."""
    worker = importlib.import_module("ray._private.worker")
    assert callable(worker.print_to_stdstream)
    assert "print_to_stdstream" in inspect.getsource(worker.listen_error_messages)


def ask_until_it_stops(run, turns):
    """Ask a stop event so often, then until it is set; return the answers before."""
    with stop_requested(run) as stop:
        before = [stop() for _ in range(turns)]
        # One that no longer asks leaves no call behind.
        with stop_requested(run):
            pass
        ray.get(ray.get_actor("counter").add.remote())
        while not stop():
            time.sleep(0.05)
        return before


class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count

    def read(self):
        return self.count


@pytest.mark.slow
def test_a_stop_reaches_every_process_without_a_message_per_question_and_survives_the_loss_of_its_actor(
    monkeypatch,
):
    """Looking for an actor by its name wrote 287 bytes to the logs each time, 25 MB per trial and day (ray 2.60)."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short:
        monkeypatch.setenv("RAY_TMPDIR", short)
        with private_ray(Slots(1, 1, 0)):
            set_event = make_stop_event("stop-1")
            counter = ray.remote(Counter).options(name="counter", num_cpus=0).remote()
            logs = Path(os.environ[LOGS])

            def written(pid):
                return sum(file.stat().st_size for file in logs.glob(f"*{pid}*"))

            ask = ray.remote(ask_until_it_stops).options(num_cpus=0).remote
            answers = [ask("stop-1", 2000), ask("stop-1", 2000)]
            while ray.get(counter.read.remote()) < 2:
                time.sleep(0.1)
            asking = [p for p in psutil.Process().children(recursive=True) if "ask_until" in p.cmdline()[0]]
            assert len(asking) == 2
            assert all(written(process.pid) < 2000 * 287 / 4 for process in asking)
            (event,) = [
                p for p in psutil.Process().children(recursive=True) if "_StopEvent" in p.cmdline()[0]
            ]
            event.kill()
            event.wait(20)
            set_event()
            assert ray.get(answers, timeout=60) == [[False] * 2000] * 2
