"""Tables of the rows of a study: the run table, the measures of layers, the validation curves."""

import math
from collections.abc import Mapping

import pandas as pd

from analysis.fit.study import Study, study_of
from analysis.runs.columns import BITS_PER_BYTE
from analysis.runs.table import RunTable
from study.plan import Plan, PlannedCell
from study.tracking.ledger import Row, with_recorded
from trainables.model.family import OPTIONAL

#: Columns of the run table that the plan of a cell decides.
IDENTITY = (
    *("cell", "depth", "width", "heads", "params", "total_params", "budget", "compute", "seed"),
    *("lr", "lr_factor"),
    *("tokens", "flops"),
    # `compute` only of cells at equal FLOPs, and the following only of those that are not of the default network.
    *("network", *OPTIONAL),
)
#: Columns that its training adds.
MEASURED = ("epochs", "train_seconds", "tokens_per_second", "utilisation")


def identity(planned: PlannedCell) -> dict[str, str | int | float]:
    """Return what the run table and the tracker record of a cell before it is trained."""
    record = planned.row()
    return {name: record[name] for name in IDENTITY if name in record}


def run_table(plan: Plan, rows: Mapping[str, Row]) -> RunTable:
    """Return the run table of a study: one line per cell that has a row, in the plan's order.

    Unless the study is a grid, the column `order` numbers the rows in the order in which they finished, from 1 on. If
    cells were trained in addition to the main study, the column `purpose` names their purpose.
    """
    plan = with_recorded(plan, rows)
    ended = [planned for planned in plan.pool if planned.cell.key in rows]
    in_order = sorted(ended, key=lambda p: (rows[p.cell.key].ended, p.cell.key))
    order = {planned.cell.key: rank for rank, planned in enumerate(in_order, 1)}
    with_purpose = any(planned.purpose for planned in ended)
    # Only text has bytes.
    with_bytes = any(rows[planned.cell.key].bits_per_byte is not None for planned in ended)
    # Measures of single layers are in `layer_table`.
    measured = sorted({name for row in rows.values() for name in row.measures if "/" not in name})
    lines = [
        {
            **identity(planned),
            "loss": row.loss,
            **({BITS_PER_BYTE: row.bits_per_byte} if with_bytes else {}),
            "status": row.status,
            "reason": row.reason,
            "vocabulary": plan.vocabulary,
            **{name: getattr(row, name) for name in MEASURED},
            **{name: row.measures.get(name) for name in measured},
            "protocol": row.protocol,
            **({"order": order[row.cell]} if not plan.search.is_grid else {}),
            **({"purpose": planned.purpose} if with_purpose else {}),
        }
        for planned in ended
        for row in (rows[planned.cell.key],)
    ]
    return RunTable.from_frame(pd.DataFrame(lines), source=f"the study {plan.name!r}")


def study_of_rows(plan: Plan, rows: Mapping[str, Row]) -> Study | None:
    """The curves and crossings of a study's rows; None without a usable row."""
    table = run_table(plan, rows) if rows else None
    return None if table is None or table.used.empty else study_of(table)


def layer_table(plan: Plan, rows: Mapping[str, Row]) -> pd.DataFrame:
    """Return the measures of single layers, before the first step (step 0) and at the end of each cell.

    Columns cell, step, name, layer (from 1 on) and value; empty if no cell was measured.
    """
    plan = with_recorded(plan, rows)
    lines = []
    for key, row in rows.items():
        planned = plan.by_key(key)
        if planned is None or planned.purpose:
            continue
        last = round(row.trained_share * planned.cell.recipe.steps)
        for step, measures in ((0, row.start), (last, row.measures)):
            for full, value in measures.items():
                name, slash, layer = full.rpartition("/")
                if slash and layer.isdecimal():
                    lines.append((key, step, name, int(layer), value))
    return pd.DataFrame(lines, columns=["cell", "step", "name", "layer", "value"])


def curve_table(rows: Mapping[str, Row]) -> pd.DataFrame:
    """Return the finite validation losses of all rows, with columns cell, step and loss."""
    found = [(row.cell, e.step, e.loss) for row in rows.values() for e in row.evaluations]
    return pd.DataFrame([one for one in found if math.isfinite(one[2])], columns=["cell", "step", "loss"])
