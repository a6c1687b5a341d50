"""Many cells in one study: what each leaves behind in memory, open files and on disk."""

import pytest

from benchmarks import long

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """The figures of the benchmark `long`, with fewer cells than it has, by their names."""
    found = long.measure(tmp_path_factory.mktemp("long"), cells=96)
    return {figure.what.partition(": ")[2]: figure for figure in found}


def test_memory_and_open_files_of_driver_and_workers_stay_flat(figures):
    for name in ("the driver", "the largest worker"):
        # Between the middle third of the cells and the last, 32 cells: at most 3 MiB and one file.
        assert figures[f"memory of {name}, growth per 1,000 cells"].value < 1000 * 3 / 32
        assert figures[f"open files of {name}, growth per 1,000 cells"].value < 1000 * 1 / 32


def test_a_tiny_cell_leaves_little_on_disk(figures):
    """A row of four points, the weights of 3,000 parameters, and their runs in MLflow."""
    assert figures["results folder per cell"].value < 100
