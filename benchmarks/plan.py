"""Seconds to plan 10,000 cells."""

import time
from pathlib import Path

from benchmarks.figure import Figure
from study.plan import make_plan
from study.spec.study import load_spec


def measure(folder: Path) -> list[Figure]:
    spec = load_spec(
        "quickstart",
        [
            "frontier.budgets={min: 1.0e6, max: 1.0e9, points: 50}",
            "frontier.depths=[2, 3, 4, 5, 6, 8, 10, 12, 14, 16]",
            "frontier.tolerance=0.3",
            "training.seeds=20",
            "resources.device=h100-80gb",
        ],
    )
    start = time.perf_counter()
    cells = len(make_plan(spec).trainable().cells)
    seconds = (time.perf_counter() - start) * 10_000 / cells
    return [Figure(f"plan of {cells:,} cells", seconds, "s for 10,000", 3.0)]
