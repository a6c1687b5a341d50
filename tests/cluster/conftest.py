"""Fixtures of the tests of the cluster files: a simulated cloud, and a file system without locks."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.simulated.simulation import Simulation, Traces, missing


@pytest.fixture(scope="module")
def simulation(tmp_path_factory):
    """A cloud with only the laptop; after a module, nothing of it may remain."""
    if reason := missing():
        pytest.skip(reason)
    with Simulation(tmp_path_factory.mktemp("simulated")) as started:
        yield started
        traces = Traces.of(started)
    assert not traces.left()


@pytest.fixture(scope="session")
def no_flock(tmp_path_factory):
    """The environment of a process to which a file system has no flock(2), below a folder or, with "/", everywhere.

    As on Lustre mounted without `-o flock`.
    """
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    library = tmp_path_factory.mktemp("no_flock") / "no_flock.so"
    source = Path(__file__).parent / "no_flock.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return lambda folder: {"LD_PRELOAD": str(library), "NO_FLOCK_BELOW": str(folder)}
