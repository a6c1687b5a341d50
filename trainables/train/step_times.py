"""Time the first training steps of cells, each on one rank: `python -m trainables.train.step_times DATA < CELLS`.

DATA is the folder or URI of their packed data, CELLS a JSON list of `[cell, layout]`. Prints a `StepTimes` as a JSON
line for each cell.
"""

import sys
import time
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter

from trainables.cell import Cell
from trainables.layout import Layout

#: Steps whose time says how many fit into `SECONDS`, and the least number of steps that are timed.
FIRST_STEPS, LEAST_STEPS = 6, 10
#: Seconds that the steps of a cell are timed, if they are short: several processes must overlap.
SECONDS = 2.0


class Asked(NamedTuple):
    """A cell and its layout, of one rank."""

    cell: Cell
    layout: Layout


class StepTimes(BaseModel):
    """The times of a cell: the median of its steps in seconds, and peak memory in bytes as in `Result`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_seconds: float
    steps: int
    flops_per_second: float
    memory_bytes: int
    device: str
    computing: float
    """CPU time over wall time of the training; below 1 for a process of one thread that waited for a core."""
    compile_seconds: float | None = None
    """What the first step took beyond one of the others, if layers or loss are compiled; else None. It has the first
    launches of all kernels too."""


def step_times(cell: Cell, layout: Layout, data_root: str) -> StepTimes:
    """Train the first steps of a cell as a study does, with one evaluation, and time them. Nothing is saved.

    Raises:
        DataError: the data cannot be used.
        InputError: the cell cannot be trained in this layout.
    """
    from trainables.train.engine import missing_for_compiler
    from trainables.train.loop import train

    first_steps: list[float] = []
    steps, tokens = FIRST_STEPS, cell.recipe.batch * cell.recipe.context
    for _ in range(2):
        short = cell.model_copy(update={"recipe": cell.recipe.model_copy(update={"steps": steps})})
        began, used = time.perf_counter(), time.process_time()
        result = train(short, data_root=data_root, layout=layout, evaluations=1)
        computing = (time.process_time() - used) / (time.perf_counter() - began)
        # A curve has up to 60 points: each is the rate of one or a few steps, and the rate of the result their median.
        seconds, timed = tokens / result.tokens_per_second, steps
        first_steps.append(tokens / result.points[0].tokens_per_second)
        steps = max(LEAST_STEPS, min(10**4, round(SECONDS / seconds)))
    is_compiled = layout.compiled and missing_for_compiler() is None
    return StepTimes(
        step_seconds=seconds,
        steps=timed,
        flops_per_second=result.flops_per_second,
        memory_bytes=result.memory_bytes,
        device=result.device,
        computing=computing,
        compile_seconds=max(0.0, first_steps[0] - seconds) if is_compiled else None,
    )


def main() -> None:
    """Time the cells of stdin."""
    for asked in TypeAdapter(list[Asked]).validate_json(sys.stdin.buffer.read()):
        print(step_times(asked.cell, asked.layout, sys.argv[1]).model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
