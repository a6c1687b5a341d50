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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import pandas as pd

from analysis.curves.curves import Curves, build_curves
from analysis.design.gains import Cell, GainSearch, Option, Step
from analysis.design.objective import Objective
from analysis.runs.learning_rates import choose_rates
from analysis.threads import single_threaded

__all__ = ["Choice", "Objective", "Option", "propose"]

#: Depth and N of a shape.
Key = tuple[int, float]
#: Rounds of the first design: places as shares of the range of ln N, and seeds. A round has one size of every depth at
#: all places so far, and is filled before the next. The first places cost by far the fewest FLOPs.
ROUNDS = (((0.0, 0.25, 0.5), 2), ((0.125, 0.375), 2), ((), 3), ((0.625, 0.75), 3))
#: Least sizes of every depth, and least degrees of freedom of the noise, for the fit to guide the choice.
LEAST_SIZES = 3
LEAST_DOF = 12
#: Cells of a depth after which the search stops waiting for `LEAST_SIZES`.
IN_VAIN = 16
#: Number of diverged cells after which a shape is excluded.
LOST_RUNS = 2


@dataclass(frozen=True)
class Choice:
    """A chosen option.

    Attributes:
        option: the cell.
        gain: expected relative reduction of the variance of the objective; NaN in the first design.
        reason: why it was chosen, in words.
    """

    option: Option
    gain: float
    reason: str


@single_threaded
def propose(
    rows: pd.DataFrame,
    pending: Sequence[Option],
    options: Sequence[Option],
    objective: Objective,
    count: int,
) -> list[Choice]:
    """Choose the next cells, best first: `count` of them, fewer only if options run out.

    A pure function that does not depend on the order of rows, pending cells and options. Asking for n gives the same
    cells as asking n times for one, with those chosen before among the pending ones.

    Args:
        rows: one row per ended cell: depth, width, params, lr, seed, loss (NaN: diverged or failed).
        pending: cells that are running.
        options: to choose among; none is a row or pending.
        objective: of the search.
        count: how many to choose.
    """
    lost = _lost_shapes(rows)
    able = _in_order(item for item in options if (item.depth, item.params) not in lost)
    waiting = _in_order(pending)
    if count < 1 or not able:
        return []
    # As `analysis.runs.comparison` chooses them, without what a search has no need for, which takes longer.
    finite = rows[np.isfinite(rows["loss"].to_numpy(dtype=float))]
    used = choose_rates(finite.sort_values(["depth", "params", "lr", "loss", "seed"], ignore_index=True)).rows
    curves = _guide(rows, used, [*able, *waiting])
    if curves is None:
        return _first(rows, waiting, able, count)
    able, waiting = ([item for item in part if item.depth in curves.depths] for part in (able, waiting))
    if not able:
        return []
    done = [cell for cell in _cells(used) if cell[0] in curves.depths]
    search = GainSearch(curves, able, done, waiting, rows["params"].to_numpy(dtype=float), objective)
    chosen: list[Choice] = []
    while len(chosen) < count and (step := search.best()) is not None:
        # One at a time even if several belong together, so that asking for n equals asking n times for one.
        item = able[step.option]
        first = not search.cells.taken[search.shape_of[step.option]].any()
        chosen.append(Choice(item, step.gain, _why(item, step, first)))
        search.take(step.option)
    return chosen


def _in_order(options: Iterable[Option]) -> list[Option]:
    """Sort options: cheapest first, low seeds before high ones."""
    return sorted(options, key=attrgetter("cost", "depth", "params", "seed"))


def _cells(rows: pd.DataFrame) -> list[Cell]:
    """Return (depth, N, seed) of every row."""
    columns = (rows[name].tolist() for name in ("depth", "params", "seed"))
    return [(int(depth), float(params), int(seed)) for depth, params, seed in zip(*columns, strict=True)]


def _lost_shapes(rows: pd.DataFrame) -> set[Key]:
    """Return the shapes that are excluded: `LOST_RUNS` of their cells diverged, and none has a loss.

    One cell may diverge by its seed, and one that failed for another reason is no evidence: with a trainer that fails
    every third cell, excluding shapes at once lost most of the small ones.
    """
    finite = np.isfinite(rows["loss"].to_numpy(dtype=float))
    diverged = ~finite & (rows["status"] == "diverged") if "status" in rows else ~finite
    alive = {cell[:2] for cell in _cells(rows[finite])}
    gone = Counter(cell[:2] for cell in _cells(rows[diverged]))
    return {shape for shape, runs in gone.items() if runs >= LOST_RUNS and shape not in alive}


def _guide(rows: pd.DataFrame, used: pd.DataFrame, further: list[Option]) -> Curves | None:
    """Fit the curves, or return None while there is too little for the fit to guide the choice.

    A depth that can have no more sizes, or with many cells that gave no loss, does not delay the others: it is used
    as it is, or left out if it has fewer than two sizes.
    """
    sizes: dict[int, set[float]] = defaultdict(set)
    for depth, params, _ in _cells(used):
        sizes[depth].add(params)
    tried = rows["depth"].value_counts()
    for depth in {item.depth for item in further}:
        more = any(item.depth == depth and item.params not in sizes[depth] for item in further)
        if more and len(sizes[depth]) < LEAST_SIZES and tried.get(depth, 0) < IN_VAIN:
            return None
    used = used[[len(sizes[int(depth)]) > 1 for depth in used["depth"]]]
    if used["depth"].nunique() < 2:
        return None
    sizes_of = np.log([*used["params"], *(item.params for item in further)])
    curves = build_curves(used, span=(float(sizes_of.min()), float(sizes_of.max())))
    return curves if curves.noise.is_measured and curves.noise.dof >= LEAST_DOF else None


def _why(item: Option, step: Step, first: bool) -> str:
    crossing = f"the crossing {step.pair[0]} → {step.pair[1]}"
    run = f"a new size for {crossing}" if first else f"another seed for {crossing}"
    return f"{_named(item)}: {run if step.kind == 'run' else f'{crossing} is not yet measured on both sides'}"


def _named(item: Option) -> str:
    return f"{item.depth} layers at N = {item.params:.3g}"


def _first(rows: pd.DataFrame, waiting: list[Option], able: list[Option], count: int) -> list[Choice]:
    """Choose what is missing of the first design, then its further rounds, then the cheapest options."""
    seeds_of: dict[Key, set[int]] = defaultdict(set)
    finite = rows[np.isfinite(rows["loss"].to_numpy(dtype=float))]
    for depth, params, seed in [*_cells(finite), *(item.cell for item in waiting)]:
        seeds_of[depth, params].add(seed)
    every = {*seeds_of, *(item.cell[:2] for item in able)}
    options: list[Option] = []
    rest = able
    places: tuple[float, ...] = ()
    for more, seeds in ROUNDS:
        places += more
        options += _missing(_spread(every, places), seeds_of, rest, seeds)
        taken = set(options)
        rest = [item for item in rest if item not in taken]
    return [
        Choice(item, math.nan, f"first design: {_named(item)}, seed {item.seed}")
        for item in [*options, *rest][:count]
    ]


def _spread(shapes: set[Key], places: Sequence[float]) -> list[Key]:
    """Return for every depth the shape nearest to each of the places, by depth.

    An excluded shape is neither an option nor measured, and the next one replaces it.
    """
    logs = [math.log(params) for _, params in shapes]
    low, high = min(logs), max(logs)
    wanted: list[Key] = []
    for depth in sorted({shape[0] for shape in shapes}):
        free = sorted(shape for shape in shapes if shape[0] == depth)
        for share in places[: len(free)]:
            place = low + share * (high - low)
            wanted.append(min(free, key=lambda shape: (abs(math.log(shape[1]) - place), shape[1])))
            free.remove(wanted[-1])
    return wanted


def _missing(
    wanted: list[Key], seeds_of: dict[Key, set[int]], able: list[Option], seeds: int
) -> list[Option]:
    """Return the options that give every wanted shape so many seeds, seed after seed, cheapest first.

    They are added to `seeds_of`.
    """
    by_shape: dict[Key, list[Option]] = defaultdict(list)
    for item in able:
        by_shape[item.depth, item.params].append(item)
    options: list[Option] = []
    for rank in range(seeds):
        added = []
        for shape in wanted:
            untrained = [item for item in by_shape[shape] if item.seed not in seeds_of[shape]]
            if untrained and len(seeds_of[shape]) <= rank:
                added.append(min(untrained, key=attrgetter("seed")))
                seeds_of[shape].add(added[-1].seed)
        options += _in_order(added)
    return options
