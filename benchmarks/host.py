"""CPU time in which the host starts a step of a small model, against a plain torch loop, and which library takes it.

On a GPU such a step takes as long as the host needs to start its kernels. Here the model is so small that hardly
anything else is left.
"""

import collections
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.figure import Figure
from benchmarks.gpu import rival
from tests.trainables.train import golden
from trainables.cell import Cell
from trainables.layout import Layout
from trainables.train import loop
from trainables.train.loop import train

#: As many layers as the model of 10 million parameters of benchmarks/gpu has.
DEPTH = 6
STEPS, ROUNDS = 400, 5
#: Whose code a function is, by a part of its path; functions without a file are torch's kernels and their dispatch.
LIBRARIES = {
    "/deepspeed/": "DeepSpeed",
    "/transformers/": "transformers",
    "/torch/": "torch's Python",
    "/trainables/": "ours",
    "~": "torch's operations",
}


def measure(folder: Path) -> list[Figure]:
    """Return the ratio of the host's time per step, and the share of each library."""
    ratios, ours, plain = [], [], []
    for _ in range(ROUNDS):
        ours.append(_step(_train, folder))
        plain.append(_step(_plain, folder))
        ratios.append(ours[-1] / plain[-1])
    shares = _shares(folder)
    what = f"CPU time of the host per step, {DEPTH} layers, bf16"
    parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return [
        Figure(
            what,
            statistics.median(ratios),
            "ratio",
            1.2,
            f"{1e3 * statistics.median(ours):.1f} ms",
            f"{1e3 * statistics.median(plain):.1f} ms (plain torch)",
        ),
        Figure(f"{what}: DeepSpeed's part", shares["DeepSpeed"], "share", 0.1, parts),
    ]


def _cell(steps: int) -> Cell:
    cell = golden.cell(depth=DEPTH, precision="bf16")
    return cell.model_copy(update={"recipe": cell.recipe.model_copy(update={"steps": steps, "batch": 2})})


def _train(cell: Cell, folder: Path) -> None:
    train(cell, data_root=folder, evaluations=1)


def _plain(cell: Cell, folder: Path) -> None:
    rival.run(cell, folder, rival.plain(cell, folder), Layout())


def _step(run: Callable[[Cell, Path], None], folder: Path) -> float:
    """CPU seconds per step, by the difference of two numbers of steps."""
    seconds = []
    for steps in (STEPS // 4, STEPS):
        start = time.process_time()
        run(_cell(steps), folder)
        seconds.append(time.process_time() - start)
    return (seconds[1] - seconds[0]) / (STEPS - STEPS // 4)


def _shares(folder: Path) -> dict[str, float]:
    """The shares of the libraries in the time of the profiled steps, largest first."""
    profiler, steps_of = cProfile.Profile(), loop._Training._steps

    def profiled(*arguments: Any) -> float:
        profiler.enable()
        seconds = steps_of(*arguments)
        profiler.disable()
        return seconds

    with mock.patch.object(loop._Training, "_steps", profiled):
        _train(_cell(STEPS // 4), folder)
    seconds: collections.Counter[str] = collections.Counter()
    for (path, _, _), (_, _, spent, *_) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        name = next((name for part, name in LIBRARIES.items() if part in path), "others")
        seconds[name] += spent
    return {name: spent / seconds.total() for name, spent in seconds.most_common()}
