"""Many cells in one study: what each leaves behind in memory, open files and on disk.

The cells are trained, rows and MLflow are written, and the live table is drawn, as by `interplay run`; the cells are as
short as they can be. Growth is the median of the last third of the samples less that of the middle third, after a first
third in which caches fill.
"""

import os
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil
import pytest
from rich.console import Console

from benchmarks.driver import Meter, metered
from study.run.runner import run_study
from study.run.trial import run_trial
from study.spec.study import load_spec
from tests.study.small import SMALL

pytestmark = pytest.mark.extended

#: Cells, and cells between two samples.
CELLS, EVERY = 96, 4
TINY = (
    *("training.steps=4", "training.batch=4", "training.context=32", "resources.evaluations=1"),
    *("data.sequences=1000", "data.validation_sequences=32", "frontier.budgets=[1600,3200]"),
    # Six shapes.
    *(f"training.seeds={CELLS // 6}", "resources.slots=2"),
)


class Census(Meter):
    """Also notes memory in bytes and open files of the driver, and of the largest trial, as cells end."""

    def __init__(self, callback):
        super().__init__(callback)
        self.driver, self.trial = [], []

    def ended(self, planned, result):
        row = super().ended(planned, result)
        if len(self.ends) % EVERY == 0:
            self.driver.append(measures(self.process))
            trials = []
            for process in self.process.children(recursive=True):
                # Others, such as git, may have ended since.
                with suppress(psutil.NoSuchProcess):
                    if " ".join(process.cmdline()).startswith("ray::ImplicitFunc"):
                        trials.append(measures(process))
            self.trial.append(tuple(map(max, zip(*trials, strict=True))))
        return row


def measures(process):
    return process.memory_info().rss, process.num_fds()


def growth(values):
    third = len(values) // 3
    return median(values[-third:]) - median(values[third : 2 * third])


@pytest.fixture(scope="module")
def census(tmp_path_factory):
    """The samples of the study, and its folder of results."""
    folder = tmp_path_factory.mktemp("long")
    with metered(run_trial, Census) as meters, Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=120, height=50)
        summary = run_study(load_spec(SMALL, TINY), folder, console)
    assert summary.recorder.trained == CELLS
    return meters[0], folder


def test_memory_and_open_files_of_driver_and_workers_stay_flat(census):
    for samples in (census[0].driver, census[0].trial):
        memory, files = zip(*samples, strict=True)
        assert len(samples) == CELLS // EVERY
        assert growth(memory) < 3 * 2**20
        assert growth(files) < 1


def test_a_tiny_cell_leaves_little_on_disk(census):
    """A row of four points, the weights of 3,000 parameters, and their runs in MLflow."""
    size = sum(path.stat().st_blocks * 512 for path in census[1].rglob("*") if path.is_file())
    assert 0 < size / CELLS < 100 * 1024
