"""What a run does before its cells: pack the data, and time a few steps for the times of this and later plans."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from core.numbers import duration
from study.errors import SpecError
from study.plan.cells import PlannedCell
from study.plan.plan import Plan
from study.plan.speed import Speed, fitted, keep, machine, timing_fields
from study.spec.devices import DEVICES
from study.workers.environment import COMPILE_CACHE, added_variables
from trainables.data import DataSpec
from trainables.data.packing import OnProgress
from trainables.data.store.batches import window_count
from trainables.data.store.open import open_store, packed_windows
from trainables.train.step_times import StepTimes

#: Seconds between two lines on the packing where the output is no terminal.
LINE_SECONDS = 30.0
#: Seconds that a measurement may take: on a CPU, and on a GPU or if a cell is compiled, which took 39 s on a CPU. Cells
#: that are not timed by then are left out.
LIMIT, COMPILED_LIMIT = 30.0, 300.0
#: The least share of its wall time that a process of one thread spends computing on a quiet machine. Beside as many
#: busy processes as cores it is about a half (0.50 to 0.63, measured). The load average would count the timed processes
#: too, and what ended a minute ago.
QUIET_SHARE = 0.9
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
            with progress_bar(console) as show:
                store = open_store(data, context=context, root=root, key=key, on_progress=show)
            windows = window_count(len(store.train), context, store.row)
            for note in store.manifest.get("notes", ()):
                console.print(Text(note, style="yellow"), soft_wrap=True)
        return windows
    except ConnectionError as error:
        raise SpecError(str(error)) from error


@contextlib.contextmanager
def progress_bar(console: Console) -> Iterator[OnProgress]:
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
    """Whether the speed of this machine for the plan's recipe is unknown, and what is left takes more than seconds.

    A speed that was measured beside other work counts as unknown.

    Args:
        plan: of the study.
        left: share of its cells that are not trained yet.
    """
    planner, speed = plan.planner, plan.planner.speed
    is_here = machine(planner.layouts.device) is not None
    is_timed = (
        speed is not None
        and not speed.busy
        and speed.recipe == timing_fields(planner.recipe, planner.layouts.vocabulary)
    )
    return is_here and not is_timed and left * plan.hours * 3600 >= WORTH_SECONDS and bool(tried_cells(plan))


def tried_cells(plan: Plan) -> list[PlannedCell]:
    """Return the cells that are timed: the cheapest, the largest, and of the others the deepest and the widest.

    Only cells of one rank can be timed; there may be none.
    """
    cells = sorted((p for p in plan.pool if p.layout.ranks == 1), key=lambda planned: planned.flops)
    if not cells:
        return []
    deepest = max(cells, key=lambda planned: planned.cell.shape.depth)
    widest = max(cells, key=lambda planned: planned.cell.shape.width)
    return list({planned.cell.shape: planned for planned in (cells[0], cells[-1], deepest, widest)}.values())


@dataclass(frozen=True)
class Timed:
    """The steps of some cells of a plan, and the speed that was kept."""

    cells: list[tuple[PlannedCell, StepTimes]]
    speed: Speed


def time_steps(plan: Plan, data: str | Path, console: Console) -> Timed:
    """Time cells of a plan, as many side by side as it has workers on a CPU, and keep the speed for later plans.

    It takes at most `LIMIT` or `COMPILED_LIMIT` seconds; the console shows how far it is.

    Args:
        plan: for this machine.
        data: folder or URI of the packed data.
        console: for one line of progress.

    Raises:
        SpecError: a cell cannot be trained, or not even the first was timed within the limit.
    """
    planner, cells = plan.planner, tried_cells(plan)
    device = planner.layouts.device
    limit = COMPILED_LIMIT if device.is_gpu or any(p.layout.compiled for p in cells) else LIMIT
    asked = json.dumps([[p.cell.model_dump(mode="json"), p.layout.model_dump(mode="json")] for p in cells])
    workers = 1 if device.is_gpu else plan.slots
    with console.status("timing a few steps") as status:
        lines = timed_lines(
            "trainables.train.step_times", asked, data, workers, limit, lambda lines, left: status.update(
                f"timing a few steps: {min(map(len, lines))} of {len(cells)} cells, at most {duration(left)} left"
            ), on_gpu=device.is_gpu,
        )  # fmt: skip
    runs = [[StepTimes.model_validate_json(line) for line in of_process] for of_process in lines]
    times = [max(same, key=lambda timed: timed.step_seconds) for same in zip(*runs, strict=False)]
    if not times:
        raise SpecError(
            f"the first steps of the smallest cell took longer than {limit:.0f} s; it was given up. Where other work "
            "takes the processors, try again when it has ended."
        )
    cells = cells[: len(times)]
    costs = [replace(planner.layouts.choose(p.cell.shape).cost, device=DEVICES[device.name]) for p in cells]
    step, layer, work = fitted(costs, [timed.step_seconds for timed in times])
    computing = min(timed.computing for same in runs for timed in same)
    compiling = [timed.compile_seconds for timed in times if timed.compile_seconds is not None]
    speed = Speed(
        step=step, layer=layer, work=work,
        machine=machine(device), device=device.name, workers=plan.slots,
        recipe=timing_fields(planner.recipe, planner.layouts.vocabulary),
        cells=[f"L{p.cell.shape.depth}-d{p.cell.shape.width}" for p in cells],
        date=datetime.now(UTC).date().isoformat(),
        busy=not device.is_gpu and computing < QUIET_SHARE,
        compile_seconds=statistics.median(compiling) if compiling else None,
    )  # fmt: skip
    keep(speed)
    return Timed(list(zip(cells, times, strict=True)), speed)


def timed_lines(
    module: str,
    asked: str,
    data: str | Path,
    workers: int,
    limit: float,
    show: Callable[[list[list[str]], float], None],
    *,
    on_gpu: bool,
) -> list[list[str]]:
    """Run a module that times cells in some processes at a time; return the lines that each prints within the limit.

    Args:
        module: it reads `asked` from stdin and prints a line of JSON for each cell.
        asked: the cells.
        data: folder or URI of the packed data.
        workers: number of processes, each of one thread on a CPU.
        limit: seconds after which they are ended.
        show: called often with the lines of each process so far, also before an error, and the seconds left.
        on_gpu: whether they use a GPU.

    Raises:
        SpecError: a process failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        return _timed_lines(
            [sys.executable, "-m", module, str(data)],
            asked,
            workers,
            limit,
            Path(scratch),
            show,
            on_gpu=on_gpu,
        )


def _timed_lines(
    command: list[str],
    asked: str,
    workers: int,
    limit: float,
    scratch: Path,
    show: Callable[[list[list[str]], float], None],
    *,
    on_gpu: bool,
) -> list[list[str]]:
    """Run a command in some processes; their output goes to files below `scratch`, which are read meanwhile."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment |= added_variables(environment, on_gpu=on_gpu, compile_cache=None)
    # Empty, so that a second measurement has to compile too.
    environment[COMPILE_CACHE] = str(scratch / "compiled")
    (scratch / "cells").write_text(asked)
    outputs = [scratch / f"{index}.out" for index in range(workers)]
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        started = []
        for output in outputs:
            files = [
                stack.enter_context(path.open(mode))
                for path, mode in (
                    (scratch / "cells", "r"),
                    (output, "w"),
                    (output.with_suffix(".err"), "w"),
                )
            ]
            process = subprocess.Popen(
                command, env=environment, stdin=files[0], stdout=files[1], stderr=files[2]
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        while (left := began + limit - time.monotonic()) > 0 and any(
            timer.poll() is None for timer in started
        ):
            show([_lines(output) for output in outputs], left)
            time.sleep(0.1)
        lines = [_lines(output) for output in outputs]
        show(lines, left)
        for process, output in zip(started, outputs, strict=True):
            if process.poll():
                last = output.with_suffix(".err").read_text(errors="replace").strip().rpartition("\n")[2]
                raise SpecError(f"a cell could not be timed: {last}")
    return lines


def _lines(output: Path) -> list[str]:
    """The whole lines of JSON in a file that a process may be writing."""
    whole = output.read_text(errors="replace").rpartition("\n")[0]
    return [line for line in whole.splitlines() if line.startswith("{")]
