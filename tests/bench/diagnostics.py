"""What the diagnostic `rank` costs: the training time of the quickstart's cells with it over that without."""

import statistics
from pathlib import Path

from study.plan import make_plan
from study.spec import load_spec
from tests.bench.figure import Figure
from trainables.loop import train

ROUNDS = 5
#: A share of the steps: what is measured costs the same however many there are, so the ratio of a whole cell is lower.
STEPS = 700


def rank_cost(folder: Path) -> Figure:
    """The sum over one cell of each depth of the quickstart, with and without in turn; the median over rounds."""
    plan = make_plan(load_spec("quickstart", [f"training.steps={STEPS}", "training.seeds=1"]))
    smallest = {planned.cell.shape.depth: planned.cell for planned in reversed(plan.cells)}
    with_rank, without = [], []
    for _ in range(ROUNDS):
        seconds = {(): 0.0, ("rank",): 0.0}
        for cell in smallest.values():
            for names in seconds:
                # In turn and in one process: the machine's speed drifts, and both must see the same of it.
                result = train(cell, data_root=folder, diagnostics=names)
                seconds[names] += result.train_seconds
        without.append(seconds[()])
        with_rank.append(seconds["rank",])
    ratios = [a / b for a, b in zip(with_rank, without, strict=True)]
    return Figure(
        what=f"diagnostics: [rank], {len(smallest)} cells of the quickstart",
        value=statistics.median(ratios),
        unit="ratio",
        limit=1.03,
        ours=f"{statistics.median(with_rank):.2f} s",
        rival=f"{statistics.median(without):.2f} s (the same cells without)",
    )
