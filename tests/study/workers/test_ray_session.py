"""Ray for as long as a study lasts."""

import importlib
import inspect
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from study.errors import SpecError
from study.workers.ray_session import check_address
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
        "    assert any(os.scandir(os.environ['RAY_TMPDIR']))\n"
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
