"""Fixtures of the tests on a simulated cloud."""

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
