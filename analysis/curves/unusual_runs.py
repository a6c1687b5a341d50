"""Single runs whose loss lies far off the other losses, such as a run that diverged in part.

A run is compared with the power laws of `analysis.curves.posterior` through all other runs, each a point of its own,
and with the other seeds of its shape. Errors are relative to the loss, because noise and misfit are largest where
models are small.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.noise import Floats
from analysis.curves.posterior import Ranks, common_exponent, designs
from analysis.units import LOSS

#: A run is unusual beyond this many robust standard deviations.
UNUSUAL = 6.0
#: A run is checked by the others if its difference from their prediction has at most this multiple of its own variance.
CHECKABLE = 50.0
#: Fewest residuals of a standard deviation, and fewest runs beyond the coefficients.
FEWEST = 4
#: Least standard deviation over the loss: smaller errors are of rounding.
ROUNDING = 1e-9
#: Runs of two depths are of one size if their N differ by at most this factor.
ONE_SIZE = 1.35
#: In larger tables no run moves the common exponent, and it is estimated once.
MOST_RUNS = 1000
#: A run deviates as another one does if it is off to the same side by at least this share.
ALIKE = 0.5

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class UnusualRun:
    """A run whose loss lies far off the other losses.

    Attributes:
        row: its label in the index of the rows.
        depth, width, params, seed: layers, width, N, seed.
        loss: nats per token.
        above: loss less the curve without the unusual runs (or less the other seeds, if it is farther from them), nats
            per token; negative below it.
        deviations: `above` in robust standard deviations.
    """

    row: Any
    depth: int
    width: int
    params: float
    seed: int
    loss: float = field(metadata=LOSS)
    above: float = field(metadata=LOSS)
    deviations: float


class _Runs(NamedTuple):
    """Rank of the depth, ln N and loss of each run, and the number of its shape."""

    rank: Ranks
    x: Floats
    loss: Floats
    shape: Ranks


class _Fit(NamedTuple):
    """Curves through the runs `kept`, at all runs.

    `error` is the loss above them over the loss. `base` (runs, coefficients) is the matrix of the fit in a base in
    which its columns are orthonormal over the runs kept.
    """

    kept: Mask
    error: Floats
    base: Floats
    alpha: float

    @property
    def leverage(self) -> Floats:
        """The variance of the curve at each run over that of one run."""
        return np.asarray(np.sum(self.base**2, axis=1))

    def scaled(self) -> Floats:
        """Errors in units in which each has the standard deviation of one run; 0 where they cannot be checked."""
        variance = np.where(self.kept, 1 - self.leverage, 1 + self.leverage)
        checked = np.where(self.kept, variance > 1 / CHECKABLE, variance < CHECKABLE) & self.base.any(axis=1)
        return np.asarray(np.where(checked, self.error / np.sqrt(np.where(checked, variance, 1.0)), 0.0))

    def sd(self, depth: Mask) -> float:
        """Robust standard deviation of one run, or that of the runs of a depth if larger; infinite if not known."""
        checked = self.kept & (self.leverage < 1 - 1 / CHECKABLE)
        if checked.sum() < FEWEST:
            return math.inf
        size = np.abs(self.scaled())
        medians = [
            float(np.median(size[runs])) for runs in (checked, checked & depth) if runs.sum() >= FEWEST
        ]
        return max(_factor(float(np.sum(1 - self.leverage[checked]))) * max(medians), ROUNDING)


def unusual_runs(rows: pd.DataFrame) -> tuple[UnusualRun, ...]:
    """The unusual runs, farthest first.

    The most unusual run is left out and the curves are fitted again, until no run is unusual: two such runs can hide
    each other, and one can move the common exponent. A run is not unusual if most other seeds of its shape, or most
    other depths at its size, deviate as it does.

    Args:
        rows: the losses compared, one row per depth, N and seed (columns depth, width, params, seed, loss).
    """
    depth, params = rows["depth"].to_numpy(dtype=np.int64), rows["params"].to_numpy(dtype=float)
    rank = np.unique(depth, return_inverse=True)[1]
    shape = np.unique(np.column_stack([depth, params]), axis=0, return_inverse=True)[1]
    runs = _Runs(rank, np.log(params), rows["loss"].to_numpy(dtype=float), shape)
    kept = np.ones(len(rows), dtype=bool)
    while (worst := _most_unusual(runs, kept)) is not None:
        kept[worst] = False
    curves = _curves(runs, kept)
    off = {
        run: (float(curves.error[run]), float(curves.scaled()[run] / curves.sd(rank == rank[run])))
        for run in np.flatnonzero(~kept).tolist()
    }
    off |= _off_other_seeds(runs, kept)
    unusual = [
        UnusualRun(
            row=rows.index[run],
            depth=int(depth[run]),
            width=int(rows["width"].iloc[run]),
            params=float(params[run]),
            seed=int(rows["seed"].iloc[run]),
            loss=float(runs.loss[run]),
            above=error * float(runs.loss[run]),
            deviations=deviations,
        )
        for run, (error, deviations) in off.items()
        # One that was left out early may be in line with the last curves.
        if abs(deviations) > UNUSUAL
    ]
    return tuple(sorted(unusual, key=lambda run: -abs(run.deviations)))


def _most_unusual(runs: _Runs, kept: Mask) -> int | None:
    """The run to leave out of the curves next; None without an unusual one."""
    fit = _curves(runs, kept)
    alpha = fit.alpha if kept.sum() > MOST_RUNS else None
    for run in _worst(runs, fit, kept):
        others = _curves(runs, _less(kept, run), alpha)
        if _unusual(runs, others, run):
            return run
        # It may hide another one of its depth.
        for second in _worst(runs, others, others.kept & (runs.rank == runs.rank[run])):
            if _unusual(runs, _curves(runs, _less(others.kept, second), alpha), second):
                return second
    return None


def _less(kept: Mask, run: int) -> Mask:
    return np.asarray(kept & (np.arange(len(kept)) != run))


def _worst(runs: _Runs, fit: _Fit, among: Mask) -> list[int]:
    """The run of each depth that deviates most, farthest first."""
    scaled = np.where(among, np.abs(fit.scaled()), 0.0)
    order = np.argsort(-scaled, kind="stable")
    order = order[scaled[order] > 0]
    first = np.unique(runs.rank[order], return_index=True)[1]
    return [int(run) for run in order[np.sort(first)]]


def _unusual(runs: _Runs, fit: _Fit, run: int) -> bool:
    """Whether a run that the fit leaves out deviates alone, whichever other run of its depth is left out too.

    Of three sizes of one depth the curve shows that one is unusual and not which. The standard deviation is that of all
    other runs, or of the others of this depth if that is larger: the curve of one depth may be no power law.
    """
    depth = runs.rank == runs.rank[run]
    if fit.kept.sum() - fit.base.shape[1] < FEWEST or not fit.base[run].any():
        return False
    also = np.flatnonzero(depth & fit.kept)
    # Without a run through which the curve must go, it is not known: the leverage is then immense.
    common, alone = fit.base[also] @ fit.base[run], np.maximum(1 - fit.leverage[also], 1e-9)
    error = np.append(fit.error[run] + common * fit.error[also] / alone, fit.error[run])
    leverage = np.append(common**2 / alone, 0.0) + fit.leverage[run]
    sd = fit.sd(depth)
    if leverage.max() > CHECKABLE - 1 or not np.all(np.abs(error) > UNUSUAL * sd * np.sqrt(1 + leverage)):
        return False
    same = runs.shape == runs.shape[run]
    size = ~depth & (np.abs(runs.x - runs.x[run]) <= math.log(ONE_SIZE))
    off = np.where(fit.kept, fit.error / np.maximum(1 - fit.leverage, 1 / CHECKABLE), 0.0)
    alike = off * np.sign(fit.error[run]) >= ALIKE * abs(fit.error[run])
    return not any(2 * np.sum(alike & peers) > np.sum(peers & fit.kept) for peers in (same, size))


def _curves(runs: _Runs, kept: Mask, alpha: float | None = None) -> _Fit:
    """Least squares of power laws with a common exponent, to first order in it."""
    rank = np.unique(runs.rank[kept], return_inverse=True)[1]
    power = rank, runs.x[kept], runs.loss[kept], runs.loss[kept] ** -2.0
    alpha = common_exponent(*power, np.zeros((len(rank), 0))) if alpha is None else alpha
    design = designs(*power, alpha, (runs.rank, runs.x))[1] / runs.loss[:, None]
    unit = np.sqrt(np.sum(design[kept] ** 2, axis=0))
    design = design / np.where(unit > 0, unit, 1.0)
    size, turn = np.linalg.eigh(design[kept].T @ design[kept])
    live = size > 1e-10 * size[-1]
    base = design @ (turn[:, live] / np.sqrt(size[live]))
    return _Fit(kept, 1 - base @ base[kept].sum(axis=0), base, alpha)


def _off_other_seeds(runs: _Runs, kept: Mask) -> dict[int, tuple[float, float]]:
    """Distance over the loss, and in robust standard deviations, of unusual runs to the others of their shape.

    They show a run where the curves are no power laws. Only of three runs is one the odd one.
    """
    order = np.lexsort((runs.loss, runs.shape))
    order = order[kept[order]]
    groups = np.split(order, np.flatnonzero(np.diff(runs.shape[order])) + 1)
    groups = [group for group in groups if len(group) > 2]
    if not groups:
        return {}
    every = np.concatenate(groups)
    scaled = np.concatenate(
        [
            np.abs(runs.loss[group] / runs.loss[group].mean() - 1) / math.sqrt(1 - 1 / len(group))
            for group in groups
        ]
    )
    factor = _factor(len(every) - len(groups))
    medians = {
        rank: max(
            factor * float(np.median(scaled[runs.rank[every] == rank])), factor * float(np.median(scaled))
        )
        for rank in np.unique(runs.rank[every]).tolist()
    }
    off = {}
    for group in groups:
        sd = max(medians[int(runs.rank[group[0]])], ROUNDING)
        while len(group) > 2:
            low, high = (group[0], group[1:]), (group[-1], group[:-1])
            run, others = max((low, high), key=lambda item: abs(_distance(runs, *item)))
            distance = _distance(runs, run, others)
            deviations = distance / (sd * math.sqrt(1 + 1 / len(others)))
            if abs(deviations) <= UNUSUAL:
                break
            off[int(run)] = distance, deviations
            group = others
    return off


def _distance(runs: _Runs, run: int, others: Ranks) -> float:
    """Loss above the median of other runs, over the loss."""
    return float(1 - np.median(runs.loss[others]) / runs.loss[run])


def _factor(freedom: float) -> float:
    """Standard deviation over the median of absolute values (Rousseeuw and Leroy 1987, with few degrees of freedom)."""
    return 1.4826 * (1 + 5 / freedom)
