"""The cells a search may choose among, and those it has."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import pandas as pd

#: Depth and N of a shape.
Key = tuple[int, float]
#: Runs that must have diverged before a shape is given up.
LOST_RUNS = 2


@dataclass(frozen=True)
class Option:
    """A cell that could be trained next.

    Attributes:
        depth, width: of the shape.
        params: N = 12·L·d².
        lr_factor: multiple of the rule's learning rate; 1 where rates are not searched.
        seed: of the run.
        cost: training FLOPs.
    """

    depth: int
    width: int
    params: float
    lr_factor: float
    seed: int
    cost: float


def in_order(options: Iterable[Option]) -> list[Option]:
    """Cheapest first, the rule's own rate before others, low seeds before high ones."""

    def order(item: Option) -> tuple[float, ...]:
        factor = item.lr_factor
        return item.cost, item.depth, item.params, abs(math.log(factor)), factor, item.seed

    options = list(options)
    # Thousands of options, mostly of one factor: a key that needs no call of Python then.
    same = all(item.lr_factor == options[0].lr_factor for item in options)
    return sorted(options, key=attrgetter("cost", "depth", "params", "seed") if same else order)


def ended(rows: pd.DataFrame) -> list[tuple[int, float, float, int]]:
    """(depth, N, factor, seed) of every row."""
    columns = (rows[name].tolist() for name in ("depth", "params", "lr_factor", "seed"))
    return [
        (int(depth), float(params), float(factor), int(seed))
        for depth, params, factor, seed in zip(*columns, strict=True)
    ]


def lost_shapes(rows: pd.DataFrame) -> dict[Key, float]:
    """Shape -> the smallest factor of the rate at which it is given up: several runs diverged and none has a loss.

    One run may diverge by its seed, and one that failed for another reason (a column `status` says so) says nothing of
    its shape: in a trainer that loses every third cell, shapes given up at once were most of the small ones.
    """
    finite = np.isfinite(rows["loss"].to_numpy(dtype=float))
    diverged = ~finite if "status" not in rows else ~finite & (rows["status"] == "diverged").to_numpy()
    alive = {cell[:3] for cell in ended(rows[finite])}
    gone = Counter(cell[:3] for cell in ended(rows[diverged]))
    found: dict[Key, float] = {}
    for (depth, params, factor), runs in gone.items():
        if runs >= LOST_RUNS and (depth, params, factor) not in alive:
            found[depth, params] = min(factor, found.get((depth, params), math.inf))
    return found


def is_lost(item: Option, lost: dict[Key, float]) -> bool:
    """Whether a shape was given up at this rate or a lower one."""
    return item.lr_factor >= lost.get((item.depth, item.params), math.inf)
