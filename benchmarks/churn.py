"""What interruptions cost: processes are killed on a Poisson clock; how much work is lost.

A cell works in steps of 0.05 s, saves every `EVERY` seconds into a folder or a bucket, and resumes from its newest
valid checkpoint. Only the training is none: search, retries, and saving, completing and finding a checkpoint are the
product's own. A copy to the bucket takes `COPY` seconds. The table is in units of the time between two checkpoints, so
that it holds for spot machines that are taken away after hours as for processes that are killed after seconds.

`python -m benchmarks.churn [folder] [bucket] [SECONDS…]` prints that table, for these mean seconds until a worker is
killed. `python -m benchmarks.churn single` prints what a kill, and the loss of a machine after a spot notice, cost a
real cell that saves to a bucket; there "before" completes a checkpoint only at the next save, as earlier versions did.
"""

import contextlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from rich.console import Console

from benchmarks.driver import Meter, metered
from benchmarks.sleeper import loss_of
from study.plan.cells import PlannedCell
from study.run.cell_queue import CellCallback
from study.run.runner import run_study
from study.spec.study import load_spec
from tests.stubs import stub_result
from tests.study.small import SMALL
from trainables.storage.storage import MARKER, Bucket, Folder, joined, open_storage

#: Workers, seconds of work of a cell, seconds between two of its checkpoints, and seconds of a step.
WORKERS, SECONDS, EVERY, STEP = 8, 40.0, 4.0, 0.05
#: Seconds that the copy of a checkpoint to a bucket takes, and seconds between two looks whether it has ended.
COPY, CHECK = 1.0, 1.0
#: Mean seconds until a worker is killed. Shorter ones would measure the cores: a new process takes seconds of one.
MEANS = (40.0, 80.0)
#: In the single experiments: steps per second at most, seconds between two checkpoints, seconds of a copy, and seconds
#: from a spot notice to the loss of the machine.
RATE, INTERVAL, SLOW_COPY, NOTICE = 20, 10.0, 3.0, 120.0


@contextlib.contextmanager
def slow_copies(seconds: float) -> Iterator[None]:
    """Let each copy of a rank's files to a bucket take some seconds."""
    publish = Bucket.publish

    def slowly(self: Bucket, tag: str, names: Iterable[str]) -> None:
        time.sleep(seconds)
        publish(self, tag, names)

    with mock.patch.object(Bucket, "publish", slowly):
        yield


class Weights:
    """An engine without a model, as far as a save uses one."""

    def __init__(self) -> None:
        self.checkpoint_engine = SimpleNamespace()

    def save_checkpoint(self, folder: str, tag: str, **_: Any) -> None:
        """Write one small file, as DeepSpeed writes a rank's."""
        self.checkpoint_engine.save({"weights": 1.0}, f"{folder}/{tag}/weights.pt")


def work(
    seconds: float, every: float, copy: float, alive: str, result: Mapping[str, Any], config: dict[str, Any]
) -> None:
    """A trainable that works, saves and resumes; `alive` is a folder with a file of each working process."""
    import torch.distributed as dist
    from ray import tune
    from torch._C._distributed_c10d import HashStore

    from trainables.checkpoint import checkpoint
    from trainables.layout import Layout

    if not dist.is_initialized():
        # As `join` without importing DeepSpeed, which takes seconds.
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    key, root = config["key"], json.loads(config["settings"])["checkpoint_root"]
    # A stage whose files have no names of parameters.
    storage, layout = open_storage(joined(root, key)), Layout(zero=1)
    storage.check()
    damaged: set[str] = set()
    restored = checkpoint.find(storage, key, layout, [], damaged)
    state = restored.marker.state if restored else checkpoint.TrainingState(cell=key)
    if restored:
        storage.release(restored.tag)
    mine = Path(alive) / str(os.getpid())
    mine.write_text(json.dumps({"cell": key, "root": root, "step": state.step}))
    saved: checkpoint.Saved | None = None
    steps, saved_at = round(seconds / STEP), time.monotonic()
    checked_at = saved_at
    with slow_copies(copy):
        while state.step < steps:
            time.sleep(STEP)
            state.step += 1
            _note(mine, key, root, state.step)
            now = time.monotonic()
            if storage.is_remote and now - checked_at < CHECK:
                continue
            checked_at = now
            if saved is not None and saved.is_copied:
                _finished(saved)
                saved = None
            if now - saved_at >= every:
                if saved is not None:
                    _finished(saved)
                saved = checkpoint.save(Weights(), storage, layout, state, damaged)
                if not storage.is_remote:
                    _finished(saved)
                    saved = None
                saved_at = time.monotonic()
        if saved is not None:
            _finished(saved)
    mine.unlink()
    done = {**result, "loss": loss_of(config), "train_seconds": seconds}
    tune.report({"report": json.dumps({"result": done})})


def _finished(saved: Any) -> None:
    """Complete a checkpoint, which must not fail."""
    problem = saved.finish()
    assert problem is None, problem


def _note(file: Path, key: str, root: str, step: int) -> None:
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"cell": key, "root": root, "step": step}))
    part.replace(file)


def valid_step(storage: Folder) -> int:
    """Return the step of the newest checkpoint with a marker; 0 without one."""
    tags = [tag for tag in storage.tags() if tag.startswith("step-") and storage.read(tag, MARKER)]
    return max((int(tag.split("-")[1]) for tag in tags), default=0)


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


def churn(
    folder: Path,
    mean: float,
    *,
    bucket: bool,
    cells: int = 15,
    workers: int = WORKERS,
    seconds: float = SECONDS,
    every: float = EVERY,
    copy: float = COPY,
    seed: int = 0,
) -> dict[str, float]:
    """Run a study whose workers are killed after `mean` seconds each on average; return what that cost."""
    alive, over, clock = folder / "alive", threading.Event(), random.Random(seed)
    alive.mkdir(parents=True)
    wasted: list[float] = []

    def kill() -> None:
        while not over.wait(clock.expovariate(workers / mean)):
            working = sorted(alive.glob("[0-9]*[0-9]"))
            # The clock is that of all workers; one that is away cannot be killed.
            if len(working) <= (chosen := clock.randrange(workers)):
                continue
            file = working[chosen]
            try:
                os.kill(int(file.name), signal.SIGKILL)
                note = json.loads(file.read_text())
                file.unlink()
            except (FileNotFoundError, ProcessLookupError):
                continue
            saved = valid_step(open_storage(joined(note["root"], note["cell"])))
            wasted.append((note["step"] - saved) * STEP)

    spec = load_spec(
        SMALL,
        [
            *(f"resources.slots={workers}", f"training.seeds={-(-cells // 15)}", "resources.max_retries=50"),
            *([f"resources.storage=local://{folder}/bucket"] if bucket else []),
        ],
    )
    trainable = partial(work, seconds, every, copy, str(alive), stub_result().model_dump(mode="json"))
    with metered(trainable, Churn) as meters:
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        began = time.monotonic()
        summary = run_study(spec, folder / "results", Console(quiet=True))
        took = time.monotonic() - began
        over.set()
        killer.join()
    (meter,) = meters
    useful = len(meter.ends) * seconds
    return {
        "mean": mean,
        "cells": len(meter.ends),
        "failed": len(summary.failed),
        "kills": len(wasted),
        "wasted": sum(wasted) / useful,
        "each": sum(wasted) / max(1, len(wasted)),
        "away": sum(meter.away) / useful,
        "expected": every / 2 / mean,
        "seconds": took,
    }


def train_slowly(cell: str, data: str, bucket: str, every: str, counter: str, notice: str, mode: str) -> None:
    """Train a cell that saves to a slow bucket, and keep its step in a file; `notice` is a file once a notice came."""
    from trainables.cell import Cell
    from trainables.checkpoint import checkpoint
    from trainables.layout import Layout
    from trainables.train import loop

    next_batch = loop._Training._batch
    with Path(counter).open("r+b") as file:
        step = mmap.mmap(file.fileno(), 8)

    def batch(self: Any) -> Any:
        time.sleep(1 / RATE)
        step[:] = int(self.state.step).to_bytes(8, "little")
        return next_batch(self)

    with contextlib.ExitStack() as stack:
        stack.enter_context(slow_copies(SLOW_COPY))
        stack.enter_context(mock.patch.object(loop._Training, "_batch", batch))
        if mode == "before":
            stack.enter_context(mock.patch.object(checkpoint.Saved, "is_copied", False))
        loop.train(
            Cell.model_validate_json(Path(cell).read_text()),
            data_root=data,
            layout=Layout(),
            checkpoints=bucket,
            checkpoint_every=float(every),
            at_risk=Path(notice).exists,
        )


def lost_steps(
    folder: Path, cell: str, mode: str, every: float, *, first: bool, until_kill: float
) -> tuple[int, int]:
    """Train a cell, kill it, and return the steps by then and the step of its newest valid checkpoint.

    The kill comes `until_kill` seconds after the files of the second checkpoint are in the bucket or, if `first`, after
    a spot notice, which comes once training runs.
    """
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text(cell)
    (folder / "step").write_bytes(bytes(8))
    names = [folder / name for name in ("cell.json", "data", "step", "notice")]
    place = f"local://{folder}/bucket"
    program = "import sys; from benchmarks.churn import train_slowly; train_slowly(*sys.argv[1:])"
    arguments = [names[0], names[1], place, every, names[2], names[3], mode]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.DEVNULL, cwd=Path.cwd()
    )

    def step() -> int:
        return int.from_bytes((folder / "step").read_bytes(), "little")

    try:
        while process.poll() is None and not (
            step() if first else len(list((folder / "bucket").glob("step-*/*.pt"))) > 1
        ):
            time.sleep(0.05)
        if first:
            names[3].touch()
        time.sleep(until_kill)
        assert process.poll() is None, "the cell ended before it was killed"
    finally:
        process.kill()
        process.wait()
    return step(), valid_step(open_storage(place))


def cell() -> str:
    """Return a small cell as JSON, of far more steps than an experiment takes."""
    from trainables.cell import Cell, Recipe, Shape
    from trainables.data import data_key
    from trainables.data.kinds.hierarchy import HierarchyData

    data = HierarchyData(
        vocabulary=8, branching=2, levels=4, synonyms=2, sequences=800, validation_sequences=20
    )
    return Cell(
        shape=Shape(depth=2, width=16, heads=2),
        recipe=Recipe(steps=100_000, batch=8, context=16),
        data=data,
        data_key=data_key(data, 16),
        lr=0.02,
        seed=0,
    ).model_dump_json()


def single(folder: Path) -> None:
    """Print what one kill, and one machine taken away after a notice, cost, before and after."""
    experiments: dict[str, dict[str, Any]] = {
        # Within the interval, after the time that a copy and a check take.
        "kill -9": {"every": INTERVAL, "first": False, "until_kill": INTERVAL / 2},
        "spot notice": {"every": 3600.0, "first": True, "until_kill": NOTICE},
    }
    print("| | lost before | lost now |")
    print("|---|---|---|")
    results: dict[tuple[str, str], tuple[int, int]] = {}

    def measure(name: str, mode: str) -> None:
        results[name, mode] = lost_steps(
            folder / f"{name}-{mode}".replace(" ", "-"), cell(), mode, **experiments[name]
        )

    for name in experiments:
        threads = [threading.Thread(target=measure, args=(name, mode)) for mode in ("before", "now")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lost = [
            f"{at - saved} steps of {at} ({(at - saved) / RATE:.0f} s)"
            for at, saved in (results[name, mode] for mode in ("before", "now"))
        ]
        print(f"| {name} | {lost[0]} | {lost[1]} |", flush=True)


def main() -> None:
    """Print one line per kind of storage and mean time between two interruptions of a worker."""
    if sys.argv[1:] == ["single"]:
        with tempfile.TemporaryDirectory(prefix="interplay-churn-") as folder:
            single(Path(folder))
        return
    kinds = [name for name in ("folder", "bucket") if name in sys.argv] or ["folder", "bucket"]
    means = [float(text) for text in sys.argv[1:] if text not in kinds] or MEANS
    print("| mean time between interruptions, in intervals | interruptions | work lost | in intervals each |")
    print("|---|---|---|---|")
    for mean in means:
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix="interplay-churn-") as folder:
                cost = churn(Path(folder), mean, bucket=kind == "bucket")
            assert not cost["failed"], cost
            print(
                f"| {mean / EVERY:.0f}, {kind} | {cost['kills']:.0f} | {cost['wasted']:.1%} | "
                f"{cost['each'] / EVERY:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
