"""History of a search: the estimate after each of its cells, and that of a simulated grid of the same cost.

It is computed from the run table, in the order in which the rows ended.
"""

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.curves.curves import Curves, build_curves
from analysis.design.objective import Estimate, Objective, compared, estimate
from analysis.runs.columns import FORECAST_ERROR
from analysis.runs.table import STOPPED, RunTable
from analysis.threads import single_threaded

#: Most points of a history; each is a fit that takes some hundredths of a second.
MOST_POINTS = 40
#: Simulated grids, and most seeds of each. With three studies the median rose with more seeds, by chance.
STUDIES, MOST_SEEDS = 15, 8
#: Largest cost of a simulated grid over that of the search.
REACH = 4.0
#: Lowest loss of a simulated grid, as a share of the lowest loss that the search measured.
LEAST_SHARE = 0.5
#: Training FLOPs per token and parameter where the table has none (Kaplan et al. 2020, section 2.1).
_FLOPS = 6


class SearchPoint(NamedTuple):
    """The estimate after a number of cells and training FLOPs."""

    cells: int
    flops: float
    estimate: Estimate


class GridPoint(NamedTuple):
    """The expected half-width of a grid with this number of seeds."""

    seeds: int
    flops: float
    halfwidth: float


@dataclass(frozen=True)
class SearchInfo:
    """Input of a report on a search besides its rows.

    Attributes:
        objective: objective of the search.
        stop_when: the half-width that ends the search, None without.
        grid: the grid of the spec, one row per shape: depth, params, flops of one cell.
        ended: why the search ended, a sentence; empty where unknown.
    """

    objective: Objective
    stop_when: float | None
    grid: pd.DataFrame = field(compare=False)
    ended: str = ""


@dataclass(frozen=True)
class SearchData:
    """History of a search as tables.

    Attributes:
        cells: order, flops (summed up to the cell's end), depth, params, seed, loss, outcome (`forecast`
            for a stopped cell, else its status).
        steps: cells, flops, value, low, high, halfwidth; NaN where there is none.
        grid: seeds, flops, expected halfwidth of a grid (NaN: open); empty where it cannot be simulated.
        objective: objective of the search.
        stop_when: the half-width that ends the search.
    """

    cells: pd.DataFrame
    steps: pd.DataFrame
    grid: pd.DataFrame
    objective: Objective
    stop_when: float | None

    def table(self) -> pd.DataFrame:
        """Return all tables as one for the CSV, distinguished by the column `what`."""
        parts = {"cell": self.cells, "step": self.steps, "grid": self.grid}
        present = [part.assign(what=name) for name, part in parts.items() if len(part)]
        table = pd.concat(present, ignore_index=True)
        return table[["what", *(name for name in table.columns if name != "what")]]


def rows_in_order(runs: RunTable) -> pd.DataFrame | None:
    """Return the rows of the study itself in the order in which they ended; None where the table has no order.

    Returns:
        depth, width, params, lr, seed, loss (NaN without one), status, flops (spent), order.
    """
    frame = runs.frame
    if "order" not in frame.columns:
        return None
    sound = frame["order"].notna() & frame[["depth", "width", "params", "seed"]].notna().all(axis=1)
    if "purpose" in frame.columns:
        sound &= frame["purpose"] == ""
    rows = frame[sound].sort_values("order", kind="stable")
    tokens = rows["tokens"].to_numpy(dtype=float)
    flops = _FLOPS * rows["params"].to_numpy(dtype=float) * np.where(np.isfinite(tokens), tokens, 0.0)
    if "flops" in rows.columns:
        own = pd.to_numeric(rows["flops"], errors="coerce").to_numpy(dtype=float)
        flops = np.where(np.isfinite(own), own, flops)
    if "trained_share" in rows.columns:
        share = pd.to_numeric(rows["trained_share"], errors="coerce").to_numpy(dtype=float)
        flops = np.where(np.isfinite(share), share, 1.0) * flops
    known = rows.index.isin(runs.used.index)
    kept = ["depth", "width", "params", "lr", "seed", "status", "order"]
    kept += [name for name in (FORECAST_ERROR,) if name in rows.columns]
    whole = dict.fromkeys(("depth", "width", "seed", "order"), "int64")
    return (
        rows[kept]
        .assign(loss=np.where(known, rows["loss"], np.nan), flops=flops)
        .astype(whole)
        .reset_index(drop=True)
    )


def history(
    rows: pd.DataFrame, objective: Objective, *, points: int = MOST_POINTS, level: float = 0.95
) -> list[SearchPoint]:
    """Estimate the objective after each cell, at evenly spaced cells and the last.

    Args:
        rows: one per cell in the order in which they ended, see `rows_in_order`.
        objective: objective of the search.
        points: most estimates.
        level: of the intervals.
    """
    if rows.empty:
        return []
    spent = np.cumsum(rows["flops"].to_numpy(dtype=float))
    counts = np.unique(np.linspace(1, len(rows), min(points, len(rows))).round().astype(int))
    return [
        SearchPoint(int(count), float(spent[count - 1]), estimate(rows.iloc[:count], objective, level=level))
        for count in counts
    ]


@single_threaded
def grid_steps(
    rows: pd.DataFrame,
    grid: pd.DataFrame,
    objective: Objective,
    *,
    most_seeds: int = MOST_SEEDS,
    level: float = 0.95,
) -> list[GridPoint]:
    """Simulate a grid with one more seed at a time, from the fit of the search.

    Losses at the grid's shapes are drawn from the curves, the seed noise and the lack of fit of `rows`; the half-width
    is the median of the simulated studies. Empty without a noise estimate, or where a depth of the grid has no curve.

    Args:
        rows: rows of the search.
        grid: depth, params and flops of one cell of each of its shapes.
        objective: objective of the search.
        most_seeds: most seeds of the grid; fewer where they cost more than `REACH` times the search.
        level: of the intervals.
    """
    used, _ = compared(rows)
    if used["depth"].nunique() < 2:
        return []
    curves = build_curves(used)
    if grid.empty or not curves.noise.known or not set(grid["depth"]) <= set(curves.depths):
        return []
    cost = float(grid["flops"].sum())
    reach = max(1, math.ceil(REACH * float(rows["flops"].sum()) / cost))
    seeds = min(most_seeds, reach)
    generator = np.random.default_rng(0)
    widths = np.empty((STUDIES, seeds))
    for study in range(STUDIES):
        table = _simulated(curves, grid, seeds, generator)
        for count in range(1, seeds + 1):
            part = table[table["seed"] < count]
            widths[study, count - 1] = estimate(part, objective, level=level).halfwidth
    return [
        GridPoint(count, count * cost, float(np.median(widths[:, count - 1])))
        for count in range(1, seeds + 1)
    ]


def _simulated(
    curves: Curves, grid: pd.DataFrame, seeds: int, generator: np.random.Generator
) -> pd.DataFrame:
    """Simulate the losses of a grid: depth, params, lr, seed, loss."""
    depth, params = grid["depth"].to_numpy(dtype=int), grid["params"].to_numpy(dtype=float)
    # Beyond the trained sizes the formula of the curve is extrapolated.
    loss = np.empty(len(grid))
    for value in sorted(set(depth.tolist())):
        loss[depth == value] = curves.smooth.loss(value, np.log(params[depth == value]))
    # Far outside a curve may fall below zero, which no loss does.
    loss = np.maximum(loss, float(curves.mean.min()) * LEAST_SHARE)
    sd = curves.noise.sd_at(loss)
    misfit = curves.misfit_sd_ratio * sd * generator.standard_normal(len(grid))
    rho = curves.noise.correlation
    common, own = generator.standard_normal(seeds), generator.standard_normal((len(grid), seeds))
    losses = (loss + misfit)[:, None] + sd[:, None] * (math.sqrt(rho) * common + math.sqrt(1 - rho) * own)
    return pd.DataFrame(
        {
            "depth": np.repeat(depth, seeds),
            "params": np.repeat(params, seeds),
            "lr": math.nan,
            "seed": np.tile(np.arange(seeds), len(grid)),
            "loss": losses.ravel(),
        }
    )


def search_data(
    runs: RunTable, search: SearchInfo, *, level: float = 0.95, points: int = MOST_POINTS
) -> SearchData | None:
    """Compute the history of a search; None where the table has no order of its rows.

    Args:
        runs: the run table.
        search: the search.
        level: of the intervals.
        points: most points of the history.
    """
    rows = rows_in_order(runs)
    if rows is None or rows.empty:
        return None
    outcome = rows["status"].where(rows["status"] != STOPPED, "forecast")
    cells = rows.assign(flops=np.cumsum(rows["flops"].to_numpy(dtype=float)), outcome=outcome)
    found = [
        (step.cells, step.flops, *attrgetter("value", "low", "high", "halfwidth")(step.estimate))
        for step in history(rows, search.objective, level=level, points=points)
    ]
    floats = dict.fromkeys(("flops", "value", "low", "high", "halfwidth"), float)
    steps = pd.DataFrame(found, columns=["cells", *floats]).astype(floats)
    grid = grid_steps(rows, search.grid, search.objective, level=level)
    return SearchData(
        cells[["order", "flops", "depth", "params", "seed", "loss", "outcome"]],
        steps.replace([np.inf, -np.inf], np.nan),
        pd.DataFrame(grid, columns=GridPoint._fields).replace(np.inf, np.nan),
        search.objective,
        search.stop_when,
    )
