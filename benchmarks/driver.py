"""What a study costs its driver: CPU per finished cell, memory, and how busy it keeps 32 workers.

The driver is the process of `interplay run` with all of its threads: the search, the row files, the live table, Ray
Tune's loop, Ray's client, and the thread that writes to MLflow. Not in it are the trials and Ray's own servers.

The cells sleep; all else is the product's own. The measurement begins when every worker has had its first cell, because
until then the machine starts their processes, and ends with the start of the last cell.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import psutil
from rich.console import Console

from benchmarks.figure import Figure
from benchmarks.sleeper import sleeper
from study.plan.cells import PlannedCell
from study.plan.rows import Row
from study.run.cell_queue import CellRecorder
from study.run.runner import run_study
from study.run.trial import TrialSettings
from study.run.tuner import run_cells
from study.search import Source
from study.spec.study import load_spec
from study.workers.machines import Slots
from tests.stubs import stub_result
from tests.study.small import SMALL
from trainables.progress import Progress, Result

CELLS, WORKERS, SECONDS = 1000, 32, 10.0


class Meter:
    """Records when each cell started and ended, and the CPU of this process by then, before another callback."""

    def __init__(self, callback: CellRecorder) -> None:
        self.callback = callback
        self.process = psutil.Process()
        self.starts: list[float] = []
        self.ends: list[tuple[float, float]] = []
        """When a cell ended, and for how long it had slept."""
        self.cpu: list[float] = []
        """Seconds of all threads of this process until then."""
        self.memory: list[int] = []

    def started(self, planned: PlannedCell) -> None:
        self.starts.append(time.monotonic())
        self.callback.started(planned)

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        self.callback.progress(planned, progress)

    def ended(self, planned: PlannedCell, result: Result) -> Row:
        self.ends.append((time.monotonic(), result.train_seconds))
        row = self.callback.ended(planned, result)
        times = self.process.cpu_times()
        self.cpu.append(times.user + times.system)
        self.memory.append(self.process.memory_info().rss)
        return row

    def failed(self, planned: PlannedCell, reason: str) -> Row:
        raise AssertionError(reason)

    def retried(self, planned: PlannedCell, reason: str) -> None:
        raise AssertionError(reason)

    def notice(self, text: str) -> None:
        raise AssertionError(text)

    def figures(self, workers: int) -> list[Figure]:
        """The idle share of the workers, the CPU per cell, and how CPU and memory grow."""
        begin, finish = self.starts[workers - 1], self.starts[-1]
        slept = sum(max(0.0, min(when, finish) - max(when - seconds, begin)) for when, seconds in self.ends)
        idle = 1 - slept / (workers * (finish - begin))
        counted = [i for i, (when, _) in enumerate(self.ends) if begin <= when <= finish]
        cpu = [self.cpu[i] for i in counted]
        third = (len(cpu) - 1) // 3
        first, last = ((cpu[i + third] - cpu[i]) / third for i in (0, len(cpu) - 1 - third))
        each = 1000 * (cpu[-1] - cpu[0]) / (len(cpu) - 1)
        half, end = self.memory[len(self.memory) // 2], self.memory[-1]
        what = f"{len(self.ends)} cells on {workers} workers"
        ours, rival = f"{1000 * last:.1f} ms", f"{1000 * first:.1f} ms"
        return [
            Figure(f"{what}: share of their time without a cell", 100 * idle, "%", 5.0),
            Figure(f"{what}: CPU of the driver per finished cell", each, "ms", 60.0),
            Figure(
                f"{what}: that of the last third over that of the first",
                last / first,
                "ratio",
                1.1,
                ours,
                rival,
            ),
            Figure(f"{what}: memory at the end over that half-way", end / half, "ratio", 1.05),
        ]


AnyMeter = TypeVar("AnyMeter", bound=Meter)


@contextmanager
def metered(trainable: Callable[[dict[str, Any]], None], meter: type[AnyMeter]) -> Iterator[list[AnyMeter]]:
    """Let a meter measure the events of a study's cells, which this trainable trains."""
    meters: list[AnyMeter] = []

    def run(
        source: Source,
        slots: Slots,
        settings: TrialSettings,
        retries: int,
        callback: CellRecorder,
        scratch: Path,
        **options: Any,
    ) -> bool:
        meters.append(meter(callback))
        return run_cells(source, slots, settings, retries, meters[-1], scratch, trainable, **options)

    with mock.patch("study.run.runner.run_cells", run):
        yield meters


def measure(
    folder: Path,
    cells: int = CELLS,
    workers: int = WORKERS,
    seconds: float = SECONDS,
    sampler: str = "crossing",
) -> list[Figure]:
    """Run a study of sleeping cells, chosen one by one or all of a grid."""
    shapes = 15
    chosen = {
        "crossing": [
            "search.sampler=crossing",
            f"search.max_cells={cells}",
            f"search.max_seeds={cells // 10}",
        ],
        "grid": [f"training.seeds={-(-cells // shapes)}"],
    }
    spec = load_spec(SMALL, [*chosen[sampler], f"resources.slots={workers}"])
    asleep = sleeper(seconds, stub_result().model_dump(mode="json"))
    with metered(asleep, Meter) as meters, Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=120, height=50)
        summary = run_study(spec, folder, console)
    (meter,) = meters
    assert summary.recorder.trained == len(meter.ends) >= cells, (
        f"{summary.recorder.trained} of {cells} cells were run"
    )
    return meter.figures(workers)
