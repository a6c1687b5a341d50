"""What the diagnostic `rank` costs: the work of the quickstart's cells with it over that without."""

import statistics
import time
from pathlib import Path

from benchmarks.figure import Figure
from study.plan.plan import make_plan
from study.spec.study import load_spec
from trainables.train.loop import train

ROUNDS = 7
#: A fifth of the quickstart's: the diagnostics cost the same however many there are, so there it is a fifth of this.
STEPS = 280


def measure(folder: Path) -> list[Figure]:
    """Processor time of one cell of each depth, the smallest, with and without in turn; the median over rounds.

    By the clock a busy machine differs from itself by more than the limit.
    """
    plan = make_plan(load_spec("quickstart", [f"training.steps={STEPS}", "training.seeds=1"]))
    smallest = {planned.cell.shape.depth: planned.cell for planned in reversed(plan.cells)}
    for cell in smallest.values():
        # The first packs the data.
        train(cell, data_root=folder, diagnostics=["rank"])
    with_rank, without = [], []
    for _ in range(ROUNDS):
        spent = {False: 0.0, True: 0.0}
        for cell in smallest.values():
            # In turn and in one process: the machine's speed drifts, and both must see the same of it.
            for is_looked_into in spent:
                start = time.process_time()
                train(cell, data_root=folder, diagnostics=["rank"] if is_looked_into else [])
                spent[is_looked_into] += time.process_time() - start
        without.append(spent[False])
        with_rank.append(spent[True])
    ratios = [a / b for a, b in zip(with_rank, without, strict=True)]
    what = f"the diagnostic rank, {len(smallest)} cells of the quickstart"
    ours = f"{statistics.median(with_rank):.2f} s"
    rival = f"{statistics.median(without):.2f} s (the same cells without)"
    return [Figure(what, statistics.median(ratios), "ratio", 1.03, ours, rival)]
