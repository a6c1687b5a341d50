"""How long a gang takes to its first step: it starts a process for each rank."""

import dataclasses
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from study.plan import PlannedCell, make_plan
from study.plan.rows import Row
from study.run.trial import TrialSettings, run_with
from study.run.tuner import run_cells
from study.spec.study import load_spec
from study.workers.machines import Slots
from study.workers.ray_session import private_ray
from tests.stubs import Cells, stub_row
from trainables.cell import Cell
from trainables.data.store.open import open_store
from trainables.layout import Layout
from trainables.progress import Progress, Result

CELLS = 5
RANKS = 2


class Starts:
    """A callback that notes when each trial started, by its cell's key."""

    def __init__(self) -> None:
        self.starts: dict[str, float] = {}

    def started(self, planned: PlannedCell) -> None:
        self.starts[planned.cell.key] = time.time()

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        pass

    def ended(self, planned: PlannedCell, result: Result) -> Row:
        return stub_row(planned, result.loss)

    def failed(self, planned: PlannedCell, reason: str) -> Row:
        raise AssertionError(reason)

    def retried(self, planned: PlannedCell, reason: str) -> None:
        raise AssertionError(reason)

    def notice(self, text: str) -> None:
        raise AssertionError(text)


def timed(cell: Cell, *, data_root: Path, report: Any = None, **options: Any) -> Result:
    """`train` that writes down when rank 0 has done its first step."""
    from trainables.train import loop

    loop.REPORT_EVERY = 0.0
    mark = data_root / cell.key

    def first(_: Progress) -> None:
        if not mark.exists():
            mark.write_text(repr(time.time()))

    return loop.train(cell, data_root=data_root, report=first if report else None, **options)


def trial(config: dict[str, Any]) -> None:
    """The Tune trainable."""
    run_with(timed, config)


def imports() -> float:
    """Seconds that a new process takes to import what a rank needs."""
    code = "import trainables.train.loop; from trainables.ranks.process_group import *; import_deepspeed()"
    start = time.time()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.time() - start


def measure(folder: Path) -> list[Figure]:
    """Median seconds from the start of a trial over two ranks to the end of its first step, over those of imports."""
    spec = load_spec("quickstart", ["training.steps=60", f"training.seeds={CELLS}", "frontier.depths=[2]"])
    plan = make_plan(spec)
    layout = Layout(tensor_parallel=RANKS, zero=1)
    first = [planned for planned in plan.cells if planned.budget == plan.cells[0].budget]
    cells = [dataclasses.replace(p, costs=dataclasses.replace(p.costs, given=layout)) for p in first]
    open_store(spec.data, context=spec.training.context, root=folder, key=cells[0].cell.data_key)
    keys = [planned.cell.key for planned in cells]
    settings = TrialSettings(
        data_root=folder.resolve(),
        checkpoint_root=folder.resolve() / "checkpoints",
        checkpoint_every=60,
        evaluations=1,
    )
    log, slots = Starts(), Slots(RANKS, 1, 0)
    with private_ray(slots):
        run_cells(Cells(cells), slots, settings, 0, log, folder / "tune", trainable=trial)
    ours = statistics.median(float((folder / key).read_text()) - log.starts[key] for key in keys)
    rival = statistics.median(imports() for _ in keys)
    what = f"a gang of {RANKS}, from the trial's start to its first step, median of {len(keys)}"
    return [
        Figure(
            what, ours / rival, "ratio", 2.0, f"{ours:.1f} s", f"{rival:.1f} s, the imports of one process"
        )
    ]
