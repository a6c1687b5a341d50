"""Options of a search, and the shapes that it excludes."""

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
        lr_factor: multiple of the rule's learning rate, the same for all options.
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
    """Sort options: cheapest first, low seeds before high ones."""
    return sorted(options, key=attrgetter("cost", "depth", "params", "seed"))


def ended(rows: pd.DataFrame) -> list[tuple[int, float, int]]:
    """Return (depth, N, seed) of every row."""
    columns = (rows[name].tolist() for name in ("depth", "params", "seed"))
    return [(int(depth), float(params), int(seed)) for depth, params, seed in zip(*columns, strict=True)]


def diverged(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Mark rows without a loss, except those whose column `status` names another reason than divergence."""
    missing = ~np.isfinite(rows["loss"].to_numpy(dtype=float))
    return np.asarray(
        missing if "status" not in rows else missing & (rows["status"] == "diverged"), dtype=bool
    )


def lost_shapes(rows: pd.DataFrame) -> set[Key]:
    """Return the shapes that are excluded: `LOST_RUNS` of their cells diverged, and none has a loss.

    One cell may diverge by its seed, and one that failed for another reason is no evidence: with a trainer that fails
    every third cell, excluding shapes at once lost most of the small ones.
    """
    finite = np.isfinite(rows["loss"].to_numpy(dtype=float))
    alive = {cell[:2] for cell in ended(rows[finite])}
    gone = Counter(cell[:2] for cell in ended(rows[diverged(rows)]))
    return {shape for shape, runs in gone.items() if runs >= LOST_RUNS and shape not in alive}
