"""What interruptions cost: processes are killed on a Poisson clock; how much work is lost.

A cell works in steps of 0.05 s, saves its step every `EVERY` seconds where the driver looks for it, and resumes from
there: all but the training is the product's own. The table is in units of the time between two checkpoints, so that it
holds for spot machines that are taken away after hours as for processes that are killed after seconds.

`python -m tests.bench.churn` prints it.
"""

import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from study.plan.cells import PlannedCell
from study.run.cell_queue import CellCallback
from study.run.runner import run_study
from study.spec.study import load_spec
from tests.bench.driver import Meter, metered
from tests.bench.sleeper import loss_of
from tests.stubs import stub_result
from tests.study.small import SMALL

#: Workers, seconds of work of a cell, and seconds between two of its checkpoints.
WORKERS, SECONDS, EVERY = 8, 40.0, 4.0
#: Mean seconds until a worker is killed. Shorter ones would measure the cores: a new process takes two seconds of one.
MEANS = (40.0, 80.0, 160.0, 320.0)


def work(seconds: float, every: float, alive: str, result: Mapping[str, Any], config: dict[str, Any]) -> None:
    """A trainable that works, saves and resumes; `alive` is a folder with a file of each working process."""
    from ray import tune

    root = Path(json.loads(config["settings"])["checkpoint_root"]) / config["key"]
    steps = round(seconds / 0.05)
    step = max((int(tag.name.split("-")[1]) for tag in root.glob("step-*") if any(tag.iterdir())), default=0)
    mine = Path(alive) / str(os.getpid())
    mine.write_text(config["key"])
    saved = time.monotonic()
    while step < steps:
        time.sleep(0.05)
        step += 1
        if time.monotonic() - saved >= every:
            (root / f"step-{step}").mkdir(parents=True)
            (root / f"step-{step}" / "complete.json").write_text("{}")
            saved = time.monotonic()
            mine.touch()
    mine.unlink()
    done = {**result, "loss": loss_of(config), "train_seconds": seconds}
    tune.report({"report": json.dumps({"result": done})})


class Churn(Meter):
    """Notes the losses of trials, and how long each was away."""

    def __init__(self, callback: CellCallback) -> None:
        super().__init__(callback)
        self.lost_at: dict[str, float] = {}
        self.away: list[float] = []

    def started(self, planned: PlannedCell) -> None:
        if since := self.lost_at.pop(planned.cell.key, None):
            self.away.append(time.monotonic() - since)
        super().started(planned)

    def retried(self, planned: PlannedCell, reason: str) -> None:
        self.lost_at[planned.cell.key] = time.monotonic()
        self.callback.retried(planned, reason)


def churn(folder: Path, mean: float, cells: int = 45, seed: int = 0) -> dict[str, float]:
    """Run a study whose workers are killed after `mean` seconds each on average; return what that cost."""
    alive, over, clock = folder / "alive", threading.Event(), random.Random(seed)
    alive.mkdir(parents=True)
    wasted: list[float] = []

    def kill() -> None:
        while not over.wait(clock.expovariate(WORKERS / mean)):
            working = sorted(alive.iterdir(), key=lambda file: file.name)
            # The clock is that of all workers; one that is away cannot be killed.
            if len(working) <= (chosen := clock.randrange(WORKERS)):
                continue
            file = working[chosen]
            try:
                since_saved = time.time() - file.stat().st_mtime
                os.kill(int(file.name), signal.SIGKILL)
                wasted.append(since_saved)
                file.unlink()
            except (FileNotFoundError, ProcessLookupError):
                continue

    spec = load_spec(
        SMALL,
        [f"resources.slots={WORKERS}", f"training.seeds={-(-cells // 15)}", "resources.max_retries=50"],
    )
    trainable = partial(work, SECONDS, EVERY, str(alive), stub_result().model_dump(mode="json"))
    with metered(trainable, Churn) as meters:
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        began = time.monotonic()
        summary = run_study(spec, folder / "results", Console(quiet=True))
        seconds = time.monotonic() - began
        over.set()
    (meter,) = meters
    useful = len(meter.ends) * SECONDS
    return {
        "mean": mean,
        "cells": len(meter.ends),
        "failed": len(summary.failed),
        "kills": len(meter.away),
        "wasted": sum(wasted) / useful,
        "away": sum(meter.away) / useful,
        "expected": EVERY / 2 / mean,
        "seconds": seconds,
    }


def main() -> None:
    """Print one line per mean time between two interruptions of a worker."""
    print(
        "| mean time between interruptions, in checkpoint intervals | interruptions | work lost | half an interval |"
    )
    print("|---|---|---|---|")
    for mean in MEANS:
        with tempfile.TemporaryDirectory(prefix="interplay-churn-") as folder:
            found = churn(Path(folder), mean)
        assert not found["failed"], found
        print(
            f"| {mean / EVERY:.0f} | {found['kills']:.0f} | {found['wasted']:.1%} | {found['expected']:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
