"""History of a search: the estimate after each cell, from the run table in the order in which its rows ended."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.design.objective import Objective, estimate
from analysis.runs.table import RunTable

#: Most points of a history; each is a fit that takes some hundredths of a second.
MOST_POINTS = 40


@dataclass(frozen=True)
class SearchInfo:
    """Input of a report on a search besides its rows.

    Attributes:
        objective: of the search.
        stop_when: the half-width that ends the search, None without.
        ended: why the search ended, a sentence; empty where unknown.
    """

    objective: Objective
    stop_when: float | None
    ended: str = ""


@dataclass(frozen=True)
class SearchData:
    """History of a search as tables.

    Attributes:
        cells: order, flops (summed up to the cell's end), depth, params, seed, loss, outcome (its status).
        steps: cells, flops, value, low, high, halfwidth; NaN where there is none.
        search: objective and end of the search.
    """

    cells: pd.DataFrame
    steps: pd.DataFrame
    search: SearchInfo

    def table(self) -> pd.DataFrame:
        """Return all tables as one for the CSV, distinguished by the column `what`."""
        parts = [self.cells.assign(what="cell"), self.steps.assign(what="step")]
        table = pd.concat(parts, ignore_index=True)
        return table[["what", *(name for name in table.columns if name != "what")]]


def rows_in_order(runs: RunTable) -> pd.DataFrame | None:
    """Return the rows of the study itself in the order in which they ended; None where the table has no order.

    Returns:
        depth, width, params, lr, seed, loss (NaN without one), status, flops, order.
    """
    frame = runs.frame
    if "order" not in frame.columns:
        return None
    if "purpose" in frame.columns:
        frame = frame[frame["purpose"] == ""]
    rows = frame.sort_values("order", kind="stable")
    types = dict.fromkeys(("depth", "width", "seed", "order"), "int64") | {"flops": "float64"}
    rows = rows.assign(loss=rows["loss"].where(rows.index.isin(runs.used.index)))
    kept = ["depth", "width", "params", "lr", "seed", "status", "order", "loss", "flops"]
    return rows[kept].astype(types).reset_index(drop=True)


def history(
    rows: pd.DataFrame, objective: Objective, *, points: int = MOST_POINTS, level: float = 0.95
) -> pd.DataFrame:
    """Estimate the objective from the first of `rows_in_order`, at `points` evenly spaced counts: `SearchData.steps`.

    `level` is that of the intervals. The last count is of all rows.
    """
    spent = np.cumsum(rows["flops"].to_numpy(dtype=float))
    counts = np.unique(np.linspace(1, len(rows), min(points, len(rows))).round().astype(int))
    names = ["value", "low", "high", "halfwidth"]
    known = [vars(estimate(rows.iloc[:count], objective, level=level)) for count in counts]
    found = pd.DataFrame(known)[names].astype(float).replace([np.inf, -np.inf], np.nan)
    return found.assign(cells=counts, flops=spent[counts - 1])[["cells", "flops", *names]]


def search_data(
    runs: RunTable, search: SearchInfo, *, level: float = 0.95, points: int = MOST_POINTS
) -> SearchData | None:
    """Compute the history of a search; None where the run table has no order of its rows."""
    rows = rows_in_order(runs)
    if rows is None or rows.empty:
        return None
    cells = rows.assign(flops=rows["flops"].cumsum(), outcome=rows["status"])
    cells = cells[["order", "flops", "depth", "params", "seed", "loss", "outcome"]]
    steps = history(rows, search.objective, level=level, points=points)
    return SearchData(cells, steps, search)
