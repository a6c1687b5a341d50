"""CPU time of proposals: 32 cells at once in a search with 500 finished ones, and each cell after them."""

import math
import statistics
import time
from pathlib import Path

import numpy as np

from analysis.design.simulated_study import Truth
from benchmarks.figure import Figure
from study.plan import PlannedCell, make_plan
from study.plan.rows import Row
from study.search import make_search
from study.spec.study import load_spec
from tests.stubs import stub_row
from tests.study.small import SMALL

TRUTH = Truth(2.4, 0.15, (1, 2, 4, 6, 8), asymptote=0.72, drop=0.2, noise=0.003, slope=0.04)
#: Five depths at twelve budgets and those between, each with up to ten seeds: a thousand cells to choose from.
STUDY = (
    "search={sampler: crossing, max_cells: 100_000, max_seeds: 10}",
    "frontier.depths=[1, 2, 4, 6, 8]",
    "frontier.budgets={min: 1600, max: 200_000, points: 12}",
)
FINISHED, WORKERS = 500, 32
REPEATS = 5


def measure(folder: Path) -> list[Figure]:
    """Measure CPU seconds for 32 cells at once, and for each cell told and proposed after that."""
    spec = load_spec(SMALL, STUDY)
    plan = make_plan(spec)
    order = np.random.default_rng(0).permutation(len(plan.pool))[:FINISHED]
    outcomes = {plan.pool[i].cell.key: _row(plan.pool[i]) for i in order}
    times = []
    for _ in range(REPEATS):
        search = make_search(spec, plan, outcomes, workers=WORKERS)
        begin = time.process_time()
        running = [search.take() for _ in range(WORKERS)]
        times.append(time.process_time() - begin)
    begin, count = time.process_time(), 4 * WORKERS
    for _ in range(count):
        planned = running.pop(0)
        assert planned is not None
        search.tell(_row(planned))
        search.news()
        running.append(search.take())
    each = (time.process_time() - begin) / count
    what = f"asking {WORKERS} cells at once, {FINISHED} finished, {len(plan.pool):,} to choose from"
    ours = statistics.median(times)
    return [
        Figure(what, ours, "s", 0.2, f"{ours:.3f} s"),
        # The driver may spend 30 ms per cell in all.
        Figure(
            f"telling and asking one of {WORKERS} workers' cells", each, "s", 0.015, f"{1000 * each:.1f} ms"
        ),
    ]


def _row(planned: PlannedCell) -> Row:
    shape, seed = planned.cell.shape, planned.cell.seed
    shared = np.random.default_rng([seed]).standard_normal()
    scatter = np.random.default_rng([seed, shape.depth, shape.width]).standard_normal()
    noise = math.sqrt(TRUTH.shared) * shared + math.sqrt(1 - TRUTH.shared) * scatter
    return stub_row(planned, float(TRUTH.loss(shape.depth, shape.budget_params) * (1 + TRUTH.noise * noise)))
