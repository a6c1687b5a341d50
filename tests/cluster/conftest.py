"""What the tests on a simulated cloud share."""

import pytest

from tests.cluster.simulated.simulation import Simulation, Traces, missing


@pytest.fixture(scope="module")
def simulation(tmp_path_factory):
    """A cloud without a machine but the laptop; when a module is through with it, nothing of it may be left."""
    if reason := missing():
        pytest.skip(reason)
    with Simulation(tmp_path_factory.mktemp("simulated")) as started:
        yield started
        traces = Traces.of(started)
    assert not traces.left()
