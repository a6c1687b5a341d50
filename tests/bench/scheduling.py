"""What the scheduling costs: a trial beyond its own steps, a plan of 10,000 cells, memory over 1,000 trials."""

import itertools
import os
import statistics
import time
from pathlib import Path
from typing import Any

import psutil

from study.plan import PlannedCell, make_plan
from study.run.trial import Report, TrialSettings
from study.run.tuner import run_cells
from study.spec.study import load_spec
from study.workers.machines import Slots
from study.workers.ray_session import private_ray
from tests.bench.figure import Figure
from tests.stubs import Cells, stub_result
from trainables.data.store.open import open_store
from trainables.progress import Progress, Result

TRIALS = 20
STUB_TRIALS = 1000


class CellLog:
    """Notes when each cell ended, how long it trained, and the memory of this process."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []
        self.memory: list[int] = []
        self.process = psutil.Process()

    def started(self, planned: PlannedCell) -> None:
        pass

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        pass

    def retried(self, planned: PlannedCell, reason: str) -> None:
        pass

    def failed(self, planned: PlannedCell, reason: str) -> None:
        raise AssertionError(reason)

    def ended(self, planned: PlannedCell, result: Result) -> None:
        self.ends.append((time.monotonic(), result.train_seconds))
        if len(self.ends) % 50 == 0:
            self.memory.append(self.process.memory_info().rss)


def stub(config: dict[str, Any]) -> None:
    """A trial that trains nothing."""
    from ray import tune

    tune.report({"report": Report(result=stub_result()).model_dump_json()})


def trial_cost(folder: Path) -> Figure:
    """Median seconds between the ends of two trials on one warm actor, less the second one's training."""
    seeds = TRIALS + 3
    spec = load_spec("quickstart", ["training.steps=100", f"training.seeds={seeds}", "frontier.depths=[1]"])
    plan = make_plan(spec)
    cells = [p for p in plan.cells if p.budget == plan.cells[0].budget]
    open_store(spec.data, context=spec.training.context, root=folder, key=cells[0].cell.data_key)
    log = CellLog()
    with private_ray(Slots(1, 1, 0)):
        run_cells(Cells(cells), Slots(1, 1, 0), _settings(folder), 0, log, folder / "tune")
    ends = log.ends[-TRIALS - 1 :]
    costs = [b[0] - a[0] - b[1] for a, b in itertools.pairwise(ends)]
    return Figure(
        f"cost of a trial beyond its steps, median of {len(costs)}", statistics.median(costs), "s", 0.5
    )


def driver_memory(folder: Path) -> Figure:
    """Growth of the driver's memory over the second half of 1,000 trials that train nothing."""
    spec = load_spec("quickstart", [f"training.seeds={STUB_TRIALS}", "frontier.depths=[1]"])
    cells = list(make_plan(spec).cells[:STUB_TRIALS])
    log = CellLog()
    with private_ray(Slots(os.cpu_count() or 1, 1, 0)):
        slots = Slots(os.cpu_count() or 1, 1, 0)
        run_cells(Cells(cells), slots, _settings(folder), 0, log, folder / "tune", trainable=stub)
    assert len(log.ends) == STUB_TRIALS
    half = len(log.memory) // 2
    growth = statistics.median(log.memory[-3:]) / statistics.median(log.memory[half - 2 : half + 1])
    what = f"driver's memory at the end of {STUB_TRIALS} stub trials over its memory half-way"
    return Figure(what, growth, "ratio", 1.05)


def plan_time() -> Figure:
    """Seconds to plan 10,000 cells."""
    budgets = "{min: 1.0e6, max: 1.0e9, points: 50}"
    spec = load_spec(
        "quickstart",
        [
            f"frontier.budgets={budgets}",
            "frontier.depths=[2, 3, 4, 5, 6, 8, 10, 12, 14, 16]",
            "frontier.tolerance=0.3",
            "training.seeds=20",
            "resources.device=h100-80gb",
        ],
    )
    start = time.perf_counter()
    plan = make_plan(spec)
    seconds = time.perf_counter() - start
    return Figure(
        f"plan of {len(plan.cells):,} cells", seconds * 10_000 / len(plan.cells), "s for 10,000", 3.0
    )


def _settings(folder: Path) -> TrialSettings:
    return TrialSettings(
        data_root=folder.resolve(),
        checkpoint_root=folder.resolve() / "checkpoints",
        checkpoint_every=60,
        evaluations=1,
    )
