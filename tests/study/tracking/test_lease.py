"""The lease of a study in shared storage, held by real processes."""

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from core.errors import InputError
from study.errors import SpecError
from study.run.runner import run_study
from study.spec.study import load_spec
from study.tracking import lease
from study.tracking.lease import FILE, FOLDER, Driver, leased
from study.tracking.study_paths import StudyPaths
from tests.command import interplay
from tests.study.small import SMALL
from trainables.storage.storage import open_storage

#: Holds a lease until its standard input ends; the machine may be another one.
HOLDER = """
import socket, sys
from study.tracking import lease
from trainables.storage.storage import open_storage
uri, host = sys.argv[1:]
if host != socket.gethostname():
    socket.gethostname = lease.this_machine = lambda: host
lease.RENEW_SECONDS = 0.2
with lease.leased(open_storage(uri), "deep"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.2)
    monkeypatch.setattr(lease, "LOST_SECONDS", 3.0)
    monkeypatch.setenv(lease.CLUSTER, "there")
    return f"{'file' if request.param == 'folder' else 'local'}://{tmp_path}/deep"


@pytest.fixture
def holder(place):
    """Start a process that holds the lease, on a machine of a name."""
    started = []

    def start(host):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, place, host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def put(place, driver):
    content = driver.model_dump_json() if isinstance(driver, Driver) else json.dumps(driver)
    file = Path(place.partition("://")[2], FOLDER, FILE)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def read(place):
    content = open_storage(place).read(FOLDER, FILE)
    return content and Driver.model_validate_json(content)


@pytest.mark.parametrize("host", ["other", os.uname().nodename])
def test_a_second_driver_is_refused_by_the_name_of_the_first(place, holder, host):
    first = holder(host)
    with (
        pytest.raises(
            SpecError, match=rf"'deep'.*process {first.pid} on {host} of the cluster there, started \d"
        ),
        leased(open_storage(place), "deep"),
    ):
        pytest.fail("two drivers run")
    first.communicate()
    assert read(place) is None, "a clean end leaves none"
    waited = []
    with leased(open_storage(place), "deep", waited.append):
        assert read(place).pid == os.getpid()
    assert waited == []


@pytest.mark.slow
def test_of_two_drivers_that_begin_at_once_one_runs(place):
    """Without the moment between write and read, 4 of 25 pairs both ran, and 12 ended both."""
    program = HOLDER
    for old, new in {
        "RENEW_SECONDS = 0.2": "RENEW_SECONDS = 1.0",
        "with lease": "sys.stdin.readline()\nwith lease",
        "sys.stdin.read()": "import time; time.sleep(4)",
    }.items():
        assert old in program
        program = program.replace(old, new)
    for _ in range(2):
        pair = [
            subprocess.Popen(
                [sys.executable, "-c", program, place, os.uname().nodename], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        time.sleep(1)
        for process in pair:
            process.stdin.write("\n")
            process.stdin.flush()
        ended = [process.communicate(timeout=60) for process in pair]
        assert sorted(output for output, _ in ended) == ["", "held\n"], ended


def test_the_lease_of_a_lost_driver_is_waited_for_and_taken_over(place, holder):
    first = holder("other")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    waited = []
    with leased(open_storage(place), "deep", waited.append):
        assert read(place).pid == os.getpid()
    assert [driver.pid for driver in waited] == [first.pid]


def test_a_driver_that_was_killed_on_this_machine_is_not_waited_for(place, holder):
    first = holder(os.uname().nodename)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with leased(open_storage(place), "deep", lambda _: pytest.fail("it waits")):
        assert read(place).pid == os.getpid()


def test_a_driver_of_another_machine_with_this_ones_name_is_not_taken_for_one_that_has_ended(place):
    """Two laptops are both called `ubuntu`, and the process ids of one mean nothing on the other."""
    put(place, lease.this_driver().model_copy(update={"machine": "other", "pid": 2**22, "renewals": 1}))
    waited = []
    with leased(open_storage(place), "deep", waited.append):
        pass
    assert [(driver.host, driver.pid) for driver in waited] == [(os.uname().nodename, 2**22)]


def test_a_lease_that_another_user_wrote_reaches_no_terminal_and_ends_by_no_traceback(place, monkeypatch):
    monkeypatch.setattr(lease, "LOST_SECONDS", 0.1)
    driver = lease.this_driver().model_dump()
    shown = []
    for change in ({"host": "o\x1b]52;c;AA\x07"}, {"pid": -5}, {"began": 1e300}, {"began": float("nan")}):
        put(place, {"token": "a", **driver, "machine": "other", **change})
        with leased(open_storage(place), "deep", lambda other: shown.append(str(other))):
            pass
    assert len(shown) == 4
    assert all(map(str.isprintable, shown))


def test_a_store_that_cannot_be_used_is_named(place):
    storage = open_storage(place)
    file = Path(place.partition("://")[2], FOLDER, FILE)
    file.mkdir(parents=True)
    with (
        pytest.raises(InputError, match=rf"(?i){re.escape(storage.name)}.*is a directory"),
        leased(storage, "deep"),
    ):
        pytest.fail("it is held")


def test_an_error_of_any_library_costs_no_lease(place, monkeypatch):
    """Those of s3fs or adlfs are no OSError."""
    storage, came = open_storage(place), threading.Event()
    read_once = lease._read

    def read_file(storage):
        if threading.current_thread().name == "lease" and not came.is_set():
            came.set()
            raise RuntimeError("ServerDisconnectedError")
        return read_once(storage)

    with leased(storage, "deep"):
        monkeypatch.setattr(lease, "_read", read_file)
        assert came.wait(20)
        renewals, deadline = 0, time.monotonic() + 20
        while renewals < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            renewals = now.renewals if (now := read_once(storage)) else 0
        assert renewals >= 2


def test_a_driver_learns_that_another_one_has_taken_its_lease(place):
    """As after an outage in which it could not renew it."""
    storage, told, came = open_storage(place), [], threading.Event()

    def lost(driver):
        told.append(driver)
        came.set()

    with leased(storage, "deep", lost=lost):
        other = lease.this_driver()
        storage.write(FOLDER, FILE, other.model_dump_json().encode())
        assert came.wait(20)
    assert told == [other]
    assert read(place) == other, "it is the other driver's, who still runs"


def test_a_store_that_cannot_be_reached_for_a_while_costs_no_lease(place, monkeypatch):
    storage, back = open_storage(place), threading.Event()
    write = type(storage).write

    def unreachable(self, *arguments):
        if not back.is_set():
            back.set()
            raise ConnectionError
        write(self, *arguments)

    with leased(storage, "deep", lost=lambda _: pytest.fail("it was lost")):
        monkeypatch.setattr(type(storage), "write", unreachable)
        assert back.wait(20)
        # A store of files shows one that is being written as empty.
        while not (now := read(place)) or now.renewals < 2:
            time.sleep(0.05)


@pytest.mark.parametrize("text", ["{", '{"token": "a", "host": "b", "pid": 1, "began": 1e999}', "[]"])
def test_a_damaged_lease_is_that_of_a_lost_driver(place, text):
    storage = open_storage(place)
    if not storage.is_remote:
        (storage.local / FOLDER).mkdir(parents=True)
    storage.write(FOLDER, FILE, text.encode())
    waited = []
    with leased(storage, "deep", waited.append):
        assert read(place).pid == os.getpid()
    assert waited == [lease.UNREADABLE]


def test_a_lease_of_somebody_else_commands_no_terminal():
    driver = Driver(token="a", host="\x1b[2J" + "x" * 1000, pid=1, began=0)
    assert str(driver).isprintable()
    assert len(str(driver)) < 300


def test_a_study_in_a_folder_without_locks_has_a_lease(tmp_path, holder, place, monkeypatch):
    """A lock that is a file would outlive a lost machine, and no other machine could run the study."""
    first = holder("other")

    def flock(*_):
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    spec = load_spec(SMALL, ["name=deep"])
    with pytest.raises(SpecError, match=f"process {first.pid} on other"):
        run_study(spec, tmp_path)
    assert [file.name for file in (tmp_path / "deep").rglob("*") if file.name.startswith("run.")] == [
        "run.lock"
    ]
    assert (tmp_path / "deep/run.lock").read_text() == ""
    with StudyPaths(tmp_path, "deep").locked() as is_held:
        assert not is_held


def test_the_command_is_refused_while_a_driver_of_another_cluster_runs_the_study(tmp_path, holder, place):
    first = holder("other")
    storage = f"resources.storage={place.rpartition('/')[0]}"
    done = interplay(tmp_path, "run", str(SMALL), "name=deep", storage, "--results", str(tmp_path / "r"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"process {first.pid} on other" in done.stderr
    assert not (tmp_path / "r/deep/spec.yaml").exists(), "nothing was begun"
