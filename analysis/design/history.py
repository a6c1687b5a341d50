"""How a search went: what was known after each of its cells, and what a grid would have known for the same work.

Nothing of this is stored: it is computed again from the run table, in the order in which the rows ended.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.curves.curves import Curves, build_curves
from analysis.design.objective import Estimate, Objective, compared, estimate
from analysis.runs.columns import FORECAST_ERROR
from analysis.runs.table import STOPPED, RunTable
from analysis.threads import single_threaded

#: Points of a history; each is a fit of some hundredths of a second.
MOST_POINTS = 40
#: Simulated grids whose median is told, and their seeds at most. With three studies it rose with more seeds, by chance.
STUDIES, MOST_SEEDS = 15, 8
#: A grid is followed until it costs so many times what the search did.
REACH = 4.0
#: Lowest loss of a simulated grid, as a share of the lowest that the search measured.
LEAST_SHARE = 0.5
#: Training FLOPs of one token for a parameter, where a table does not say its own (Kaplan et al. 2020, section 2.1).
_FLOPS = 6


class Step(NamedTuple):
    """What was known after so many cells and so many training FLOPs."""

    cells: int
    flops: float
    estimate: Estimate


class GridStep(NamedTuple):
    """What a grid is expected to know after so many whole seeds."""

    seeds: int
    flops: float
    halfwidth: float


@dataclass(frozen=True)
class Search:
    """What a report is told of a search beside its rows.

    Attributes:
        objective: what it looked for.
        stop_when: the half-width asked for, None without.
        grid: the spec's own grid, one row a shape: depth, params, flops of one cell.
        ended: why it ended, a sentence; empty where that is not known.
    """

    objective: Objective
    stop_when: float | None
    grid: pd.DataFrame = field(compare=False)
    ended: str = ""


@dataclass(frozen=True)
class SearchData:
    """How a search went.

    Attributes:
        cells: order, flops (summed up to the cell's end), depth, params, seed, loss, outcome (`done`, `forecast`,
            or what else its status says).
        steps: cells, flops, value, low, high, halfwidth; NaN where there is none.
        grid: seeds, flops, halfwidth a grid is expected to reach (NaN: open); empty where it cannot be simulated.
        objective: what was sought.
        stop_when: the half-width asked for.
    """

    cells: pd.DataFrame
    steps: pd.DataFrame
    grid: pd.DataFrame
    objective: Objective
    stop_when: float | None

    def table(self) -> pd.DataFrame:
        """For the CSV: told apart by the column `what`."""
        parts = {"cell": self.cells, "step": self.steps, "grid": self.grid}
        present = [part.assign(what=name) for name, part in parts.items() if len(part)]
        table = pd.concat(present, ignore_index=True)
        return table[["what", *(name for name in table.columns if name != "what")]]


def rows_in_order(runs: RunTable) -> pd.DataFrame | None:
    """The rows of the study itself as they ended; None where the table does not say the order.

    Returns:
        depth, width, params, lr, seed, loss (NaN without one), status, flops (those spent), order, in this order.
    """
    frame = runs.frame
    if "order" not in frame.columns:
        return None
    sound = frame["order"].notna() & frame[["depth", "width", "params", "seed"]].notna().all(axis=1)
    if "arm" in frame.columns:
        sound &= frame["arm"] == ""
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
) -> list[Step]:
    """What was known after each cell, thinned to so many evenly spaced ones and the last.

    Args:
        rows: one a cell in the order they ended, see `rows_in_order`.
        objective: what was sought.
        points: at most so many.
        level: of the intervals.
    """
    if rows.empty:
        return []
    spent = np.cumsum(rows["flops"].to_numpy(dtype=float))
    counts = np.unique(np.linspace(1, len(rows), min(points, len(rows))).round().astype(int))
    return [
        Step(int(count), float(spent[count - 1]), estimate(rows.iloc[:count], objective, level=level))
        for count in counts
    ]


@single_threaded
def grid_steps(
    rows: pd.DataFrame,
    grid: pd.DataFrame,
    objective: Objective,
    *,
    most_seeds: int = MOST_SEEDS,
    studies: int = STUDIES,
    seed: int = 0,
    level: float = 0.95,
) -> list[GridStep]:
    """What a grid would be expected to know, one whole seed after the other, simulated from what the search found.

    Losses at the grid's shapes are drawn from the curves, the seed noise and the lack of fit of `rows`; the half-width
    is the median of the simulated studies. Empty without a noise estimate, or where a depth of the grid has no curve.

    Args:
        rows: of the search.
        grid: depth, params and flops of one cell of each of its shapes.
        objective: what was sought.
        most_seeds: of the grid; fewer where it costs `REACH` times the search before.
        studies: how many are simulated.
        seed: of the simulation.
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
    generator = np.random.default_rng(seed)
    widths = np.empty((studies, seeds))
    for study in range(studies):
        table = _simulated(curves, grid, seeds, generator)
        for count in range(1, seeds + 1):
            part = table[table["seed"] < count]
            widths[study, count - 1] = estimate(part, objective, level=level).halfwidth
    return [
        GridStep(count, count * cost, float(np.median(widths[:, count - 1]))) for count in range(1, seeds + 1)
    ]


def _simulated(
    curves: Curves, grid: pd.DataFrame, seeds: int, generator: np.random.Generator
) -> pd.DataFrame:
    """Losses of a grid as they might come out: depth, params, lr, seed, loss."""
    depth, params = grid["depth"].to_numpy(dtype=int), grid["params"].to_numpy(dtype=float)
    # Beyond the sizes trained a curve is only its formula, which is what there is to expect from.
    loss = np.empty(len(grid))
    for value in sorted(set(depth.tolist())):
        loss[depth == value] = curves.smooth.loss(value, np.log(params[depth == value]))
    # Far outside a curve may fall below zero, and no loss does.
    loss = np.maximum(loss, float(curves.mean.min()) * LEAST_SHARE)
    sd = curves.noise.sd_at(loss)
    stray = curves.misfit_sd_ratio * sd * generator.standard_normal(len(grid))
    rho = curves.noise.correlation
    common, own = generator.standard_normal(seeds), generator.standard_normal((len(grid), seeds))
    losses = (loss + stray)[:, None] + sd[:, None] * (math.sqrt(rho) * common + math.sqrt(1 - rho) * own)
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
    runs: RunTable, search: Search, *, level: float = 0.95, points: int = MOST_POINTS
) -> SearchData | None:
    """How a search went; None where the table does not say in which order its rows ended.

    Args:
        runs: the run table.
        search: what it was for.
        level: of the intervals.
        points: of the history at most.
    """
    rows = rows_in_order(runs)
    if rows is None or rows.empty:
        return None
    outcome = rows["status"].where(rows["status"] != STOPPED, "forecast")
    cells = pd.DataFrame(
        {
            "order": rows["order"],
            "flops": np.cumsum(rows["flops"].to_numpy(dtype=float)),
            "depth": rows["depth"],
            "params": rows["params"],
            "seed": rows["seed"],
            "loss": rows["loss"],
            "outcome": outcome,
        }
    )
    return SearchData(
        cells,
        _steps(history(rows, search.objective, level=level, points=points)),
        pd.DataFrame(
            grid_steps(rows, search.grid, search.objective, level=level), columns=GridStep._fields
        ).replace(np.inf, np.nan),
        search.objective,
        search.stop_when,
    )


def _steps(steps: Sequence[Step]) -> pd.DataFrame:
    lines = [
        {
            "cells": step.cells,
            "flops": step.flops,
            "value": step.estimate.value,
            "low": step.estimate.low,
            "high": step.estimate.high,
            "halfwidth": step.estimate.halfwidth,
        }
        for step in steps
    ]
    floats = dict.fromkeys(("flops", "value", "low", "high", "halfwidth"), float)
    return pd.DataFrame(lines).astype(floats).replace([np.inf, -np.inf], np.nan)
