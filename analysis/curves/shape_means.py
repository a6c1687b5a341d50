"""The mean losses of the shapes of a study over their seeds."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.noise import Floats, Noise, from_seeds
from analysis.runs.columns import TOKEN_GROUP

#: Standard deviation of the level of a group, over the mean loss: so large that levels are as good as unknown. The
#: second is in units of the noise, where that is estimated from residuals.
LEVEL_SD, LEVEL_SD_OVER_NOISE = 1.0, 1000.0
#: Most seeds of a study that are treated as paired between shapes; with more, every run has its own seed.
MOST_SEEDS = 200


@dataclass(frozen=True)
class ShapeMeans:
    """The mean losses of all shapes of a study, ordered by depth, then N, then group.

    A shape that was trained on several numbers of tokens is one point in each group of equal N and equal tokens. A
    group has an unknown level, the same for all depths, so that only differences inside groups count.

    Attributes:
        depth, x, mean, count: arrays over the points: layers, ln N, mean loss over seeds, number of seeds.
        group: (points,), the number of the group; all 0 where there is one.
        incidence: (points, seeds), 1/count where the point has that seed, else 0.
        seeds: the seed of each column; empty if they are not paired between shapes.
    """

    depth: npt.NDArray[np.int64]
    x: Floats
    mean: Floats
    count: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    incidence: Floats
    seeds: tuple[Any, ...]
    noise: Noise

    @cached_property
    def depths(self) -> list[int]:
        """The depths, ascending."""
        return sorted({int(value) for value in self.depth})

    @cached_property
    def se(self) -> Floats:
        """Standard error of each point's mean from the seeds, nats per token."""
        return np.asarray(self.noise.sd_at(self.mean) / np.sqrt(self.count))

    @cached_property
    def errors(self) -> tuple[Floats, Floats]:
        """Standard deviations of the points' means by independent cause, nats per token; NaN if the noise is not known.

        Returns:
            (points, causes): the errors that each seed adds to all its shapes, and to those of each depth, and the
            levels of groups; (points,): each point's own.
        """
        noise, each = self.noise, self.noise.sd_at(self.mean)[:, None] * self.incidence
        of_depth = np.hstack([each * (self.depth == value)[:, None] for value in self.depths])
        shared = [np.sqrt(noise.correlation) * each, np.sqrt(noise.within) * of_depth]
        if self.groups.size:
            shared.append(LEVEL_SD * float(self.mean.mean()) * self.groups)
        return np.hstack(shared), np.sqrt(noise.independent * noise.sd_at(self.mean) ** 2 / self.count)

    @cached_property
    def groups(self) -> Floats:
        """(points, groups), 1 where a point is of the group; no columns with one group."""
        numbers = np.unique(self.group)
        return (
            (self.group[:, None] == numbers).astype(float) if len(numbers) > 1 else np.zeros((len(self.x), 0))
        )

    @cached_property
    def compared(self) -> Floats:
        """The mean losses less the level of their group about a straight line in ln N through all groups."""
        if not self.groups.size:
            return self.mean
        share = self.groups / self.groups.sum(axis=0)
        level, size = share.T @ self.mean, share.T @ self.x
        slope = np.polyfit(size - size.mean(), level, 1)[0] if np.ptp(size) > 0 else 0.0
        return np.asarray(self.mean - self.groups @ (level - level.mean() - slope * (size - size.mean())))

    def sizes(self, depth: int) -> int:
        """Number of different N of a depth."""
        return len(np.unique(self.x[self.at(depth)]))

    def at(self, depth: int) -> npt.NDArray[np.int64]:
        """Indices of the points of one depth, in order of N."""
        return np.flatnonzero(self.depth == depth)

    def range(self, depth: int) -> tuple[float, float]:
        """Smallest and largest ln N of a depth."""
        x = self.x[self.at(depth)]
        return float(x[0]), float(x[-1])


def shape_means(rows: pd.DataFrame) -> ShapeMeans:
    """Average rows of each depth, N and group (columns depth, params, seed (numbers), loss, if any token_group)."""
    losses, depth, params, group, seeds = _by_seed(rows)
    paired = len(seeds) > 0
    present = np.isfinite(losses)
    count = present.sum(axis=1)
    mean = np.where(present, losses, 0).sum(axis=1) / np.maximum(count, 1)
    # In C order: the order of a sum decides its last digit.
    noise = from_seeds(np.ascontiguousarray(losses), depth)
    return ShapeMeans(
        depth=depth,
        x=np.log(params),
        mean=mean,
        count=count,
        group=group,
        incidence=present / np.maximum(count, 1)[:, None] if paired else np.zeros((len(count), 1)),
        seeds=seeds,
        noise=noise if paired else replace(noise, correlation=0.0, within=0.0),
    )


def _by_seed(
    rows: pd.DataFrame,
) -> tuple[Floats, npt.NDArray[np.int64], Floats, npt.NDArray[np.int64], tuple[Any, ...]]:
    """Tabulate losses by shape and seed.

    Returns:
        (shapes, seeds): losses, NaN where absent; layers, N and group of the shapes, in that order; the seed
        of each column, none with more than `MOST_SEEDS` of them: columns then only count the runs of a shape.
    """
    depth, params = rows["depth"].to_numpy(dtype=np.int64), rows["params"].to_numpy(dtype=float)
    loss = rows["loss"].to_numpy(dtype=float)
    seeds, label = np.unique(rows["seed"].to_numpy(), return_inverse=True)
    # Sorted by loss as well, so that means do not depend on the order of the rows.
    group = rows[TOKEN_GROUP].to_numpy(dtype=np.int64) if TOKEN_GROUP in rows else np.zeros_like(depth)
    order = np.lexsort((loss, label, group, params, depth))
    depth, params, group, label = depth[order], params[order], group[order], label[order]
    new_shape = np.r_[True, (np.diff(depth) != 0) | (np.diff(params) != 0) | (np.diff(group) != 0)]
    new_cell = new_shape | np.r_[True, np.diff(label) != 0]
    first = np.flatnonzero(new_cell)
    shape = np.cumsum(new_shape)[first] - 1
    shapes = np.flatnonzero(new_shape)
    paired = len(seeds) <= MOST_SEEDS
    cells = np.arange(len(first))
    column = label[first] if paired else cells - cells[np.searchsorted(shape, shape)]
    losses = np.full((len(shapes), int(column.max()) + 1), np.nan)
    losses[shape, column] = _means(loss[order], first)
    # Columns in the order of their losses: sums over seeds then have the same last digit whatever the seeds' names,
    # with which an optimiser would end elsewhere within its tolerance.
    sorted_columns = np.lexsort(np.nan_to_num(losses[::-1], nan=np.inf))
    names = tuple(seeds[sorted_columns].tolist()) if paired else ()
    return losses[:, sorted_columns], depth[shapes], params[shapes], group[shapes], names


def _means(values: Floats, first: npt.NDArray[np.int64]) -> Floats:
    """Means of groups of rows that begin at `first`."""
    if len(first) == len(values):
        return values
    return np.asarray(np.add.reduceat(values, first) / np.diff(first, append=len(values)))
