"""A long study of tiny cells: memory and open files of driver and workers, time per cell, size of the results per cell.

The cells are trained, rows and MLflow are written, and the report is made, as by `interplay run`; only the cells are as
short as they can be, so that what each one leaves behind adds up soonest. A series of a third of the cells is compared
with one of another third, after a first third in which caches fill.
"""

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console

from benchmarks.driver import Meter, metered
from benchmarks.figure import Figure
from study.plan.cells import PlannedCell
from study.run.cell_queue import CellCallback
from study.run.runner import run_study
from study.run.trial import run_trial
from study.spec.study import load_spec
from tests.study.small import SMALL
from trainables.progress import Result

CELLS, WORKERS = 1000, 2
#: Cells between two samples, which take some 10 ms each.
EVERY = 4
#: Growth per 1,000 cells that counts as flat: rows without their curves and Tune's trials stay in the driver's memory.
MEGABYTES, FILES = 40.0, 4.0
TINY = (
    *("training.steps=4", "training.batch=4", "training.context=32", "resources.evaluations=1"),
    *("data.sequences=1000", "data.validation_sequences=32", "frontier.budgets=[1600,3200]"),
)


@dataclass(frozen=True)
class Sample:
    """The processes of a study after some of its cells: the driver, the trials, Ray's own servers."""

    when: float
    cpu: float
    """Seconds of driver and trials until now."""
    memory: tuple[int, ...]
    """In bytes, of the largest process of each kind."""
    files: tuple[int, ...]


class Census(Meter):
    """Samples the processes of a study as its cells end."""

    def __init__(self, callback: CellCallback) -> None:
        super().__init__(callback)
        self.samples: list[Sample] = []

    def ended(self, planned: PlannedCell, result: Result) -> None:
        super().ended(planned, result)
        if len(self.ends) % EVERY:
            return
        trials: list[psutil.Process] = []
        servers: list[psutil.Process] = []
        for process in self.process.children(recursive=True):
            # Others, such as git, may have ended since.
            with suppress(psutil.NoSuchProcess):
                if process.name() in ("raylet", "gcs_server"):
                    servers.append(process)
                elif " ".join(process.cmdline()).startswith("ray::ImplicitFunc"):
                    trials.append(process)
        kinds = ([self.process], trials, servers)
        memory = tuple(max(map(_memory, kind), default=0) for kind in kinds)
        files = tuple(max(map(_files, kind), default=0) for kind in kinds)
        cpu = math.fsum(sum(process.cpu_times()[:2]) for process in (self.process, *trials))
        self.samples.append(Sample(time.monotonic(), cpu, memory, files))

    def growth(self, values: Sequence[float]) -> float:
        """Growth per 1,000 cells of one value per sample, from the median of the middle third to that of the last."""
        third = len(values) // 3
        before, after = values[third : 2 * third], values[-third:]
        return 1000 * (median(after) - median(before)) / (EVERY * (len(values) - 2 * third))

    def per_cell(self, values: Sequence[float]) -> tuple[float, float]:
        """Increase per cell of a value that adds up, in the middle third and in the last."""
        third = len(values) // 3
        before, after = (
            (part[-1] - part[0]) / (EVERY * (len(part) - 1))
            for part in (values[third : 2 * third], values[-third:])
        )
        return before, after


def _memory(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _files(process: psutil.Process) -> int:
    return int(process.num_fds())


def _size(*paths: Path) -> int:
    """Bytes on disk of files and folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return sum(file.stat().st_blocks * 512 for file in files if file.exists())


def measure(folder: Path, cells: int = CELLS, workers: int = WORKERS) -> list[Figure]:
    """Run a study of tiny cells and return what grows with them."""
    shapes = 6
    spec = load_spec(SMALL, [*TINY, f"training.seeds={-(-cells // shapes)}", f"resources.slots={workers}"])
    with metered(run_trial, Census) as meters, Path(os.devnull).open("w") as nowhere:
        summary = run_study(spec, folder, Console(file=nowhere, force_terminal=True, width=120, height=50))
    (census,) = meters
    count = summary.recorder.trained
    assert count == len(census.ends) >= cells, f"{count} of {cells} cells were run"
    before, after = census.per_cell([sample.cpu for sample in census.samples])
    wall = census.per_cell([sample.when for sample in census.samples])
    what = f"{count} tiny cells"
    study = folder / spec.name
    parts = {
        "the row file": (study / "rows",),
        "the weights": (study / "models",),
        "MLflow": (folder / "mlflow.db",),
    }
    sizes = {name: _size(*paths) / count / 1024 for name, paths in parts.items()}
    ours = ", ".join(f"{name} {size:.1f}" for name, size in sizes.items())
    whole = _size(folder) / count / 1024
    figures = [
        Figure(
            f"{what}: CPU of driver and workers per cell, last third over middle third",
            after / before, "ratio", 1.15,
            f"{after:.2f} s ({wall[1]:.2f} s by the clock)", f"{before:.2f} s ({wall[0]:.2f} s)",
        ),
        Figure(f"{what}: results folder per cell", whole, "KiB", None, ours),
    ]  # fmt: skip
    for index, name in enumerate(("the driver", "the largest worker", "Ray's largest server")):
        limits = (None, None) if index == 2 else (MEGABYTES, FILES)
        memory = census.growth([sample.memory[index] / 2**20 for sample in census.samples])
        files = census.growth([sample.files[index] for sample in census.samples])
        end = census.samples[-1]
        figures += [
            Figure(f"{what}: memory of {name}, growth per 1,000 cells", memory, "MiB", limits[0],
                   f"{end.memory[index] / 2**20:.0f} MiB"),
            Figure(f"{what}: open files of {name}, growth per 1,000 cells", files, "", limits[1],
                   f"{end.files[index]}"),
        ]  # fmt: skip
    return figures
