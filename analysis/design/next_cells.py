"""Choose the next cells: those that most reduce the variance of the objective per FLOP.

Until every depth has a few sizes and enough shapes have two seeds, cells fill the cheap part of the sizes: the first
design. After that the fit is treated as a linear model with Gaussian errors, whose variances after any further cell can
be computed before the cell is trained (`analysis.design.gains`). The curves of the depths give the crossings,
and these the slope of the law or the projected depth. Cells are chosen one by one; chosen and running cells count as
measured with the losses that the curves predict. The result is another seed where noise dominates, and another size
where shapes deviate from the curves.

A crossing counts only if both depths are measured on both sides of it, up to where the gap exceeds its error. All cells
missing for that are compared with the others as one step.

Source: sequential c-optimal design for one combination of the parameters, per unit of cost (Atkinson, Donev and Tobias
2007, chapters 10 and 17).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from analysis.curves.curves import Curves, build_curves
from analysis.design.gains import Choice, GainSearch
from analysis.design.objective import Objective
from analysis.law.crossings import LEAST_SIZES
from analysis.runs.learning_rates import choose_rates
from analysis.threads import single_threaded

#: Depth and N.
Shape = tuple[int, float]
# docs/search.md has what other values cost in simulated studies.
#: Rounds of the first design: places as shares of the range of ln N, and seeds. A round has one size of every depth at
#: all places so far, and is filled before the next. The first places cost by far the fewest FLOPs: with places over the
#: whole range a search cost three times as much.
ROUNDS = (((0.0, 0.25, 0.5), 2), ((0.125, 0.375), 2), ((), 3), ((0.625, 0.75), 3))
#: Least degrees of freedom of the noise for the fit to guide the choice.
LEAST_DOF = 12
#: Cells of a depth after which the search stops waiting for `LEAST_SIZES`. With two of three cells failing at random,
#: the 99th percentile of 60 depths had its sizes after 16 cells; after 8 they lacked sizes in 43 %.
IN_VAIN = 16
#: Number of diverged cells after which a shape is excluded. If one cell in ten diverges by its seed, 1 % of the good
#: shapes are lost, with one cell it were 10 %; a third would be spent on every bad shape.
LOST_RUNS = 2
#: Cells of equal gain and cost: cheapest first, low seeds before high ones.
ORDER = ["flops", "depth", "params", "seed"]


@single_threaded
def propose(
    rows: pd.DataFrame,
    pending: pd.DataFrame,
    options: pd.DataFrame,
    objective: Objective,
    count: int,
) -> list[Choice]:
    """Choose the next cells, best first: `count` of them, fewer only if options run out.

    A pure function that does not depend on the order of rows, pending cells and options. Asking for n gives the same
    cells as asking n times for one, with those chosen before among the pending ones.

    Args:
        rows: run table of the ended cells; of its columns depth, params, lr, seed, loss (NaN: diverged or failed), and
            status if there is one, are used.
        pending: cells that are running, with the columns depth, params, seed and flops.
        options: to choose among, with the same columns, labelled by cell; none is a row or pending.
        objective: of the search.
        count: how many to choose.
    """
    lost = _lost_shapes(rows)
    able = options.drop(options.index[[shape in lost for shape in _shapes(options)]]).sort_values(ORDER)
    waiting = pending.sort_values(ORDER)
    if count < 1 or able.empty:
        return []
    # As `analysis.runs.comparison` chooses them, without what a search has no need for, which takes longer.
    finite = rows[np.isfinite(rows["loss"].to_numpy(dtype=float))]
    used = choose_rates(finite.sort_values(["depth", "params", "lr", "loss", "seed"], ignore_index=True)).rows
    curves = _guide(rows, used, pd.concat([able, waiting]))
    if curves is None:
        return _first(finite, waiting, able, count)
    used, waiting, able = (table[table["depth"].isin(curves.depths)] for table in (used, waiting, able))
    if able.empty:
        return []
    search = GainSearch(curves, able, used, waiting, rows["params"].to_numpy(dtype=float), objective)
    chosen: list[Choice] = []
    while len(chosen) < count and (choice := search.choose()) is not None:
        chosen.append(choice)
    return chosen


def _shapes(table: pd.DataFrame) -> list[Shape]:
    """Return depth and N of every row."""
    return [
        (int(depth), float(params))
        for depth, params in zip(table["depth"].tolist(), table["params"].tolist(), strict=True)
    ]


def _lost_shapes(rows: pd.DataFrame) -> set[Shape]:
    """Return the shapes that are excluded: `LOST_RUNS` of their cells diverged, and none has a loss.

    One cell may diverge by its seed, and one that failed for another reason is no evidence: with a trainer that fails
    every third cell, excluding shapes at once lost most of the small ones.
    """
    finite = np.isfinite(rows["loss"].to_numpy(dtype=float))
    diverged = ~finite & (rows["status"] == "diverged") if "status" in rows else ~finite
    alive = set(_shapes(rows[finite]))
    gone = Counter(_shapes(rows[diverged]))
    return {shape for shape, runs in gone.items() if runs >= LOST_RUNS and shape not in alive}


def _guide(rows: pd.DataFrame, used: pd.DataFrame, further: pd.DataFrame) -> Curves | None:
    """Fit the curves, or return None while there is too little for the fit to guide the choice.

    A depth that can have no more sizes, or with many cells that gave no loss, does not delay the others: it is used
    as it is, or left out if it has fewer than two sizes.
    """
    sizes: dict[int, set[float]] = defaultdict(set)
    for depth, params in _shapes(used):
        sizes[depth].add(params)
    tried = rows["depth"].value_counts()
    for depth in {depth for depth, params in _shapes(further) if params not in sizes[depth]}:
        if len(sizes[depth]) < LEAST_SIZES and tried.get(depth, 0) < IN_VAIN:
            return None
    used = used[used["depth"].isin([depth for depth, places in sizes.items() if len(places) > 1])]
    if used["depth"].nunique() < 2:
        return None
    sizes_of = np.log(np.concatenate([used["params"], further["params"]]).astype(float))
    curves = build_curves(used, span=(float(sizes_of.min()), float(sizes_of.max())))
    return curves if curves.noise.is_measured and curves.noise.dof >= LEAST_DOF else None


def _first(finite: pd.DataFrame, waiting: pd.DataFrame, able: pd.DataFrame, count: int) -> list[Choice]:
    """Choose what is missing of the first design, then its further rounds, then the cheapest options."""
    seeds_of: dict[Shape, set[int]] = defaultdict(set)
    for table in (finite, waiting):
        for shape, seed in zip(_shapes(table), table["seed"].tolist(), strict=True):
            seeds_of[shape].add(int(seed))
    every = {*seeds_of, *_shapes(able)}
    cells: list[Any] = []
    rest = list(able.itertuples())
    places: tuple[float, ...] = ()
    for more, seeds in ROUNDS:
        places += more
        cells += _missing(_spread(every, places), seeds_of, rest, seeds)
        taken = {cell.Index for cell in cells}
        rest = [cell for cell in rest if cell.Index not in taken]
    return [Choice(cell.Index, math.nan, "first") for cell in [*cells, *rest][:count]]


def _spread(shapes: set[Shape], places: Sequence[float]) -> list[Shape]:
    """Return for every depth the shape nearest to each of the places, by depth.

    An excluded shape is neither an option nor measured, and the next one replaces it.
    """
    logs = [math.log(params) for _, params in shapes]
    low, high = min(logs), max(logs)
    wanted: list[Shape] = []
    for depth in sorted({shape[0] for shape in shapes}):
        free = sorted(shape for shape in shapes if shape[0] == depth)
        for share in places[: len(free)]:
            place = low + share * (high - low)
            wanted.append(min(free, key=lambda shape: (abs(math.log(shape[1]) - place), shape[1])))
            free.remove(wanted[-1])
    return wanted


def _missing(
    wanted: list[Shape], seeds_of: dict[Shape, set[int]], able: Sequence[Any], seeds: int
) -> list[Any]:
    """Return the cells that give every wanted shape so many seeds, seed after seed, cheapest first.

    They are added to `seeds_of`. `able` are the rows of the table of options.
    """
    by_shape: dict[Shape, list[Any]] = defaultdict(list)
    for cell in able:
        by_shape[int(cell.depth), float(cell.params)].append(cell)
    cells: list[Any] = []
    for rank in range(seeds):
        added = []
        for shape in wanted:
            untrained = [cell for cell in by_shape[shape] if cell.seed not in seeds_of[shape]]
            if untrained and len(seeds_of[shape]) <= rank:
                added.append(min(untrained, key=attrgetter("seed")))
                seeds_of[shape].add(int(added[-1].seed))
        cells += sorted(added, key=attrgetter(*ORDER))
    return cells
