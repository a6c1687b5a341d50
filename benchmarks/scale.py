"""A large study on one computer: 256 workers of one GPU each that only sleep, and 1,000 cells.

The GPUs are numbers that Ray is told of; all else is the product's own. `python -m benchmarks.scale` prints the CPU of
the driver per cell, its memory, that of the workers, and how long a worker waits between two cells. It needs 32 GB
of memory and swap, and half an hour; `--workers 24 --cells 60 --seconds 8` takes a minute. Two cores start 256 workers
in eight minutes: shorter cells end before all have one. `--workers 8 --cells 2000 --seconds 0` shows by how much each
cell lets the driver's memory grow.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from statistics import linear_regression, median, quantiles

import psutil
from rich.console import Console

from benchmarks.driver import Meter, metered
from benchmarks.sleeper import sleeper
from study.plan.cells import PlannedCell
from study.plan.rows import Row
from study.run.cell_queue import CellRecorder
from study.run.runner import run_study
from study.spec.study import load_spec
from tests.stubs import stub_result
from tests.study.small import SMALL
from trainables.progress import Result


class Gaps(Meter):
    """Also measures for how long the devices of a cell that has ended wait for the next one."""

    def __init__(self, callback: CellRecorder) -> None:
        super().__init__(callback)
        self.free: list[float] = []
        self.gaps: list[float] = []

    def started(self, planned: PlannedCell) -> None:
        if self.free:
            self.gaps.append(time.monotonic() - self.free.pop(0))
        super().started(planned)

    def ended(self, planned: PlannedCell, result: Result) -> Row:
        self.free.append(time.monotonic())
        return super().ended(planned, result)


def memory_of_ray(peak: list[tuple[int, int]]) -> None:
    """Keep the largest memory of the processes below this one, in bytes, and their number then.

    Pages that they share are divided among them, and pages in the swap count. The kernel sums them up: a list of all
    mappings of 256 processes takes seconds of the CPU that is measured.
    """
    while True:
        sizes = []
        for process in psutil.Process().children(recursive=True):
            try:
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            except (FileNotFoundError, ProcessLookupError):
                continue
            sizes.append(
                sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Pss:", "SwapPss:")))
            )
        peak[0] = max(peak[0], (sum(sizes), len(sizes)))
        time.sleep(20)


def main() -> None:
    """Run the study and print one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=480.0)
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(options.workers)))
    # Ray ends processes where memory is short, also where there is swap.
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - Ray's own spelling
    seeds = -(-options.cells // 15)
    spec = load_spec(
        SMALL,
        [
            *("resources.device=h100-80gb", f"resources.slots={options.workers}", "training.precision=bf16"),
            # Ray starts as many processes at a time as it has CPUs.
            *("resources.cpus_per_trial=0.05", f"training.seeds={seeds}"),
        ],
    )
    peak = [(0, 0)]
    threading.Thread(target=memory_of_ray, args=(peak,), daemon=True).start()
    began = time.monotonic()
    asleep = sleeper(options.seconds, stub_result().model_dump(mode="json"))
    with tempfile.TemporaryDirectory() as folder, metered(asleep, Gaps) as meters:
        summary = run_study(spec, Path(folder), Console(quiet=True))
    (meter,) = meters
    later = meter.memory[len(meter.memory) // 2 :]
    idle, cpu, *_ = meter.figures(options.workers)
    figures = {
        "cells": summary.recorder.trained,
        "workers": options.workers,
        "sleep_seconds": options.seconds,
        "seconds": time.monotonic() - began,
        "driver_cpu_ms_per_cell": cpu.value,
        "idle_percent": idle.value,
        "seconds_between_cells_median": median(meter.gaps),
        "seconds_between_cells_p90": quantiles(meter.gaps, n=10)[-1],
        "driver_bytes": max(meter.memory),
        # The slope of the second half, when all that is loaded once is there.
        "driver_bytes_per_cell": linear_regression(range(len(later)), later).slope,
        "bytes_of_rays_processes": peak[0][0],
        "rays_processes": peak[0][1],
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
