"""The quickstart: how much wall time the orchestration takes, and the memory of all processes."""

import threading
import time
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks.figure import Figure
from interplay.study_fit import fit_and_report
from study.run.runner import run_study
from study.spec.study import load_spec


class MemoryWatch(threading.Thread):
    """Samples the memory of this process and all it started, Ray's included; shared pages are counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.stopped = threading.Event()
        self.me = psutil.Process()

    def run(self) -> None:
        while not self.stopped.wait(1.0):
            self.peak = max(self.peak, sum(map(_pss, [self.me, *self.me.children(recursive=True)])))


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


def measure(folder: Path) -> list[Figure]:
    """Run the quickstart in an empty results folder."""
    watch = MemoryWatch()
    watch.start()
    start = time.monotonic()
    summary = run_study(load_spec("quickstart"), folder, Console(quiet=True), fit_and_report)
    wall = time.monotonic() - start
    watch.stopped.set()
    watch.join()
    spent = summary.recorder
    tax = spent.wall_seconds * spent.plan.slots / spent.train_seconds
    return [
        Figure("quickstart: wall time x slots over training time", tax, "ratio", 1.15),
        Figure("quickstart: peak memory of all processes", watch.peak / 2**30, "GiB", 6.0),
        Figure("quickstart: from start to report", wall / 60, "min", 8.0),
    ]
