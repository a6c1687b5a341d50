"""Tables of the rows of a study: the run table, the measures of layers, the validation curves."""

import math
from collections.abc import Mapping

import pandas as pd

from analysis.fit.study import Study, study_of
from analysis.runs.columns import BITS_PER_BYTE
from analysis.runs.table import RunTable
from study.tracking.ledger import Row, in_table_order


def run_table(rows: Mapping[str, Row], source: str, *, with_order: bool = False) -> RunTable:
    """Return the run table of rows: one line for each, sorted by budget, shape, tokens, learning rate and seed.

    If cells were trained in addition to the main study, the column `purpose` names their purpose.

    Args:
        rows: of one study, as `study_rows` returns them.
        source: name of the study, for messages.
        with_order: whether the column `order` numbers the rows in the order in which they finished, from 1 on.

    Raises:
        InputError: there are no rows.
    """
    ended = sorted(rows.values(), key=lambda row: (row.ended, row.cell))
    order = {row.cell: rank for rank, row in enumerate(ended, 1)}
    # Only text has bytes, and few studies have sensitivity runs.
    absent = {
        *([BITS_PER_BYTE] if all(row.bits_per_byte is None for row in ended) else []),
        *([] if any(row.purpose for row in ended) else ["purpose"]),
    }
    # Measures of single layers are in `layer_table`.
    measures = sorted({name for row in ended for name in row.measures if "/" not in name})
    records = [
        {
            **{name: value for name, value in row.record(measures).items() if name not in absent},
            **({"order": order[row.cell]} if with_order else {}),
        }
        for row in in_table_order(rows)
    ]
    return RunTable.of_records(records, f"the study {source!r}")


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
        last = round(row.trained_share * float(row.parameters.get("steps") or 0))
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
