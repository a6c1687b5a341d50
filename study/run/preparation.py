"""What a run does before its cells: pack the data, and time a few steps for the times of this and later plans."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from analysis.numbers import duration
from study.errors import SpecError
from study.plan.cells import PlannedCell
from study.plan.plan import Plan
from study.plan.speed import Speed, deciding, fitted, keep, machine
from study.spec.devices import DEVICES
from trainables.data import DataSpec
from trainables.data.packing import OnProgress
from trainables.data.store.batches import window_count
from trainables.data.store.open import open_store, packed_windows
from trainables.train.step_times import StepTimes

#: Seconds between two lines on the packing where the output is no terminal.
LINE_SECONDS = 30.0
#: Seconds after which a measurement is given up.
LIMIT = 300.0
#: A study that the plan gives less time than this is not worth the measurement.
WORTH_SECONDS = 30.0


def packed(data: DataSpec, context: int, root: str | Path, key: str, console: Console) -> int:
    """Pack the data of a study below `root`, a folder or URI, unless it is there under its `data_key` already.

    What of the data was replaced or left out is printed when it is packed.

    Returns:
        The different training sequences (windows) of the packed data.

    Raises:
        DataError: the data cannot be used, or the disk is full.
        InputError: nothing can be written to the storage.
        SpecError: the storage cannot be reached.
    """
    try:
        windows = packed_windows(data, context, root, key)
        if windows is None:
            with shown(console) as show:
                store = open_store(data, context=context, root=root, key=key, on_progress=show)
            windows = window_count(len(store.train), context, store.row)
            for note in store.manifest.get("notes", ()):
                console.print(Text(note, style="yellow"), soft_wrap=True)
        return windows
    except ConnectionError as error:
        raise SpecError(str(error)) from error


@contextlib.contextmanager
def shown(console: Console) -> Iterator[OnProgress]:
    """Yield an `OnProgress` that shows one line: updated in a terminal, else printed every half minute."""
    began = printed = time.monotonic()
    current, first = "", (began, 0.0)
    with console.status("packing the data") as status:

        def show(stage: str, share: float | None) -> None:
            nonlocal current, first, printed
            now = time.monotonic()
            if stage != current:
                current, first = stage, (now, 0.0)
            elif share is not None and not first[1]:
                first = (now, share)
            text = f"packing the data: {stage}"
            if share is not None:
                text += f", {share:.0%}"
                if share > first[1] > 0:
                    left = (now - first[0]) / (share - first[1]) * (1 - share)
                    text += f", about {duration(left)} left"
            if console.is_terminal:
                status.update(Text(text))
            elif now - printed >= LINE_SECONDS:
                printed = now
                console.print(Text(text), soft_wrap=True)

        yield show
    spent = time.monotonic() - began
    if spent >= LINE_SECONDS:
        console.print(Text(f"packed the data in {duration(spent)}", style="dim"))


def is_worth_timing(plan: Plan, left: float = 1.0) -> bool:
    """Whether no cells of the plan's recipe were timed on this machine, and what is left takes more than seconds.

    Args:
        plan: of the study.
        left: share of its cells that are not trained yet.
    """
    planner, speed = plan.planner, plan.planner.speed
    is_here = machine(planner.layouts.device) is not None
    known = speed is not None and speed.recipe == deciding(planner.recipe, planner.layouts.vocabulary)
    return is_here and not known and left * plan.hours * 3600 >= WORTH_SECONDS and bool(tried_cells(plan))


def tried_cells(plan: Plan) -> list[PlannedCell]:
    """Return the cells that are timed: the largest, and of the others the cheapest, the deepest and the widest.

    Only cells of one rank can be timed; there may be none.
    """
    cells = sorted((p for p in plan.main if p.layout.ranks == 1), key=lambda planned: planned.flops)
    if not cells:
        return []
    deepest = max(cells, key=lambda planned: planned.cell.shape.depth)
    widest = max(cells, key=lambda planned: planned.cell.shape.width)
    return list({planned.cell.shape: planned for planned in (cells[-1], cells[0], deepest, widest)}.values())


def time_steps(plan: Plan, data: str | Path) -> list[tuple[PlannedCell, StepTimes]]:
    """Time cells of a plan, as many side by side as it has workers on a CPU, and keep the speed for later plans.

    Args:
        plan: for this machine.
        data: folder or URI of the packed data.

    Raises:
        SpecError: a cell cannot be trained.
    """
    planner, cells = plan.planner, tried_cells(plan)
    device = planner.layouts.device
    asked = json.dumps([[p.cell.model_dump(mode="json"), p.layout.model_dump(mode="json")] for p in cells])
    command = [sys.executable, "-m", "trainables.train.step_times", str(data)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(1 if device.is_gpu else plan.slots):
            process = subprocess.Popen(
                command, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdin is not None
            process.stdin.write(asked)
            process.stdin.close()
            process.stdin = None
            started.append(process)
        found = []
        for process in started:
            try:
                output, errors = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired as error:
                raise SpecError(
                    f"the steps of {len(cells)} cells took longer than {LIMIT:.0f} s; it was given up."
                ) from error
            if process.returncode:
                last = errors.strip().rpartition("\n")[2]
                raise SpecError(f"a cell of {plan.name!r} could not be trained for a few steps: {last}")
            found.append(
                [StepTimes.model_validate_json(line) for line in output.splitlines() if line.startswith("{")]
            )
    times = [max(same, key=lambda one: one.step_seconds) for same in zip(*found, strict=True)]
    costs = [replace(planner.layouts.choose(p.cell.shape).cost, device=DEVICES[device.name]) for p in cells]
    step, layer, work = fitted(costs, [one.step_seconds for one in times])
    speed = Speed(
        step=step, layer=layer, work=work,
        machine=machine(device), device=device.name, workers=plan.slots,
        recipe=deciding(planner.recipe, planner.layouts.vocabulary),
        cells=[f"L{p.cell.shape.depth}-d{p.cell.shape.width}" for p in cells],
        date=datetime.now(UTC).date().isoformat(),
    )  # fmt: skip
    keep(speed)
    return list(zip(cells, times, strict=True))
