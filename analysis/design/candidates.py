"""Options of a search, and the shapes that it excludes."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import pandas as pd

#: Depth and N of a shape.
Key = tuple[int, float]
#: Number of diverged cells after which a shape is excluded.
LOST_RUNS = 2


@dataclass(frozen=True)
class Option:
    """A cell that could be trained next.

    Attributes:
        depth, width: of the shape.
        params: N = 12·L·d².
        lr_factor: multiple of the rule's learning rate; 1 where rates are not searched.
        seed: of the cell.
        cost: training FLOPs.
    """

    depth: int
    width: int
    params: float
    lr_factor: float
    seed: int
    cost: float


def in_order(options: Iterable[Option]) -> list[Option]:
    """Sort options: cheapest first, the rule's own rate before others, low seeds before high ones."""

    def order(item: Option) -> tuple[float, ...]:
        factor = item.lr_factor
        return item.cost, item.depth, item.params, abs(math.log(factor)), factor, item.seed

    options = list(options)
    # There are thousands of options, mostly with one factor: `attrgetter` is a faster key.
    same = all(item.lr_factor == options[0].lr_factor for item in options)
    return sorted(options, key=attrgetter("cost", "depth", "params", "seed") if same else order)


def ended(rows: pd.DataFrame) -> list[tuple[int, float, float, int]]:
    """Return (depth, N, factor, seed) of every row."""
    columns = (rows[name].tolist() for name in ("depth", "params", "lr_factor", "seed"))
    return [
        (int(depth), float(params), float(factor), int(seed))
        for depth, params, factor, seed in zip(*columns, strict=True)
    ]


def diverged(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Mark rows without a loss, except those whose column `status` names another reason than divergence."""
    missing = ~np.isfinite(rows["loss"].to_numpy(dtype=float))
    return np.asarray(
        missing if "status" not in rows else missing & (rows["status"] == "diverged"), dtype=bool
    )


def lost_shapes(rows: pd.DataFrame) -> dict[Key, float]:
    """Return shape -> the smallest learning-rate factor at which it is excluded.

    A shape is excluded once `LOST_RUNS` of its cells diverged and none has a loss. One cell may diverge by its seed,
    and one that failed for another reason is no evidence: with a trainer that fails every third cell, excluding
        shapes at once lost most of the small ones.
    """
    finite = np.isfinite(rows["loss"].to_numpy(dtype=float))
    alive = {cell[:3] for cell in ended(rows[finite])}
    gone = Counter(cell[:3] for cell in ended(rows[diverged(rows)]))
    found: dict[Key, float] = {}
    for (depth, params, factor), runs in gone.items():
        if runs >= LOST_RUNS and (depth, params, factor) not in alive:
            found[depth, params] = min(factor, found.get((depth, params), math.inf))
    return found


def is_lost(item: Option, lost: dict[Key, float]) -> bool:
    """Return whether the shape is excluded at this rate or a lower one."""
    return item.lr_factor >= lost.get((item.depth, item.params), math.inf)
