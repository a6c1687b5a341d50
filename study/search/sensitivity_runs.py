"""Sensitivity runs: the cells around each crossing again, at other multiples of their learning rate.

The cells depend on where depths cross, so they are known only after the search has ended. They are not stored: the same
rows give the same cells.
"""

import itertools

from analysis.fit.rate_check import SENSITIVITY, near_crossing
from analysis.fit.study import Study
from study.plan.cells import PlannedCell
from study.plan.plan import Plan
from study.spec.study import StudySpec


def sensitivity_cells(spec: StudySpec, plan: Plan, study: Study | None) -> list[PlannedCell]:
    """The cells of the sensitivity runs: both depths of each crossing, the next size below and above it, and all seeds.

    Args:
        spec: its section `sensitivity` has the multiples of the rate; without it there are no cells.
        plan: plans the cells.
        study: what is known; its sensitivity runs change nothing. None without a usable row.
    """
    if spec.sensitivity is None or study is None:
        return []
    rows = study.rows
    crossings = [item for item in study.crossings.items if item.params is not None]
    base = spec.search.lr_factors[0]
    cells: dict[str, PlannedCell] = {}
    for item, factor in itertools.product(crossings, spec.sensitivity.lr_factors):
        near = near_crossing(rows, item)[["depth", "width", "budget", "seed", "tokens"]]
        for row in near.to_dict("records"):
            shape = spec.frontier.shape(int(row["depth"]), int(row["width"]))
            steps = round(float(row["tokens"]) / (spec.training.batch * spec.training.context))
            planned = plan.planned_for(
                shape, float(row["budget"]), base * factor, int(row["seed"]), SENSITIVITY, steps
            )
            cells.setdefault(planned.cell.key, planned)
    # As in a grid: all shapes of one seed before the next, and the longest first.
    return sorted(cells.values(), key=lambda planned: (planned.cell.seed, -planned.flops))
