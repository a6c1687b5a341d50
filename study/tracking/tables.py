"""Tables of the rows of a study: the curves and crossings, the measures of layers, the validation curves."""

import math
from collections.abc import Mapping

import pandas as pd

from analysis.fit.study import Study, study_of
from study.plan.rows import Row, run_table


def study_of_rows(rows: Mapping[str, Row], source: str) -> Study | None:
    """The curves and crossings of a study's rows; None without a usable row."""
    table = run_table(rows, source) if rows else None
    return None if table is None or table.used.empty else study_of(table)


def layer_table(rows: Mapping[str, Row]) -> pd.DataFrame:
    """Return the measures of single layers, before the first step (step 0) and at the end of each cell.

    Columns cell, step, name, layer (from 1 on) and value; empty if no cell was measured.
    """
    lines = []
    for key, row in rows.items():
        if row.purpose:
            continue
        last = round(row.trained_share * float(row.recipe.get("steps") or 0))
        for step, measures in ((0, row.start), (last, row.measures)):
            for full, value in measures.items():
                name, slash, layer = full.rpartition("/")
                if slash and layer.isdecimal():
                    lines.append((key, step, name, int(layer), value))
    return pd.DataFrame(lines, columns=["cell", "step", "name", "layer", "value"])


def curve_table(rows: Mapping[str, Row]) -> pd.DataFrame:
    """Return the finite validation losses of all rows, with columns cell, step and loss."""
    points = [(row.cell, e.step, e.loss) for row in rows.values() for e in row.evaluations]
    return pd.DataFrame(
        [point for point in points if math.isfinite(point[2])], columns=["cell", "step", "loss"]
    )
