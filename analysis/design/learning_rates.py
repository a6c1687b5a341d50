"""Estimate of the best learning rate of every shape, for choosing cells where several rates are searched.

All shapes share one parabola in z, the logarithm of the factor on the rule's rate; its minimum moves with width and
depth:

    loss = best loss of shape and seed + curvature · (z - o0 - o1·ln d - o2·ln L)².

It only guides the choice of cells. The fit has a separate parabola for each shape with three rates
(`analysis.runs.learning_rates`), and uses other shapes at the rate they have.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.noise import Floats
from analysis.design.candidates import Key, Option, ended, in_order
from analysis.runs.learning_rates import BOTTOM, LEAST_RATES

#: Prior loss increase at twice the best rate, as a share of the loss; its standard deviation is as large. In the pilot
#: it was 2 to 8 %.
TWICE = 0.03
#: Prior standard deviations of the logarithm of the best factor, and of its change per e-fold of width or depth.
PLACE, MOVE = 0.5, 0.2

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
#: (shape, factor) -> the seeds it was trained with, pending ones included.
_Seeds = dict[tuple[Key, float], set[int]]


@dataclass(frozen=True)
class Rates:
    """The common parabola.

    Attributes:
        curvature: nats per token for an e-fold of the rate, squared.
        bottom: o0, o1 and o2, relative to the `centre` (ln d, ln L).
        covariance: of `bottom`.
    """

    curvature: float
    bottom: Floats
    covariance: Floats
    centre: tuple[float, float]

    def best(self, depth: Floats, params: Floats) -> tuple[Floats, Floats]:
        """Return the logarithm of the best factor of each shape, and its standard deviation."""
        design = _design(depth, params, self.centre)
        variance = np.einsum("ki,ij,kj->k", design, self.covariance, design)
        return design @ self.bottom, np.sqrt(variance)

    def excess(self, depth: Floats, params: Floats, factor: Floats) -> Floats:
        """Return the expected loss increase of shapes trained at these factors over their best, nats per token."""
        place, error = self.best(depth, params)
        return np.asarray(self.curvature * ((np.log(factor) - place) ** 2 + error**2))


def common_rates(rows: pd.DataFrame, sd: float) -> Rates:
    """Fit the parabola to all cells that differ only in their rate.

    Args:
        rows: with a finite loss: depth, params, lr_factor, seed, loss.
        sd: noise of one cell without the part shared by its seed, nats per token.
    """
    rows = rows.sort_values(["depth", "params", "seed", "lr_factor"], kind="stable").reset_index(drop=True)
    depth, params = (rows[name].to_numpy(dtype=float) for name in ("depth", "params"))
    width = (np.log(params) - np.log(12 * depth)) / 2
    centre = (float(width.mean()), float(np.log(depth).mean()))
    level = float(rows["loss"].median())
    usual = TWICE * level / math.log(2) ** 2
    near = _near_best(rows)
    z, loss = np.log(rows["lr_factor"].to_numpy(dtype=float)), rows["loss"].to_numpy(dtype=float)
    shape = _design(depth, params, centre)
    columns = np.column_stack([z**2, -z[:, None] * shape])[near]
    numbers = rows[near].groupby(["depth", "params", "seed"], sort=True).ngroup()
    group: Integers = np.asarray(numbers, dtype=np.int64)
    columns, target = _within(columns, group), _within(loss[near][:, None], group)[:, 0]
    prior = np.array([usual, *(2 * usual * np.array([PLACE, MOVE, MOVE]))])
    information = columns.T @ columns / sd**2 + np.diag(1 / prior**2)
    covariance = np.linalg.inv(information)
    found = covariance @ (columns.T @ target / sd**2 + np.array([1 / usual, 0, 0, 0]))
    curvature = max(float(found[0]), 0.1 * usual)
    bottom = found[1:] / (2 * curvature)
    spread = covariance[1:, 1:] / (2 * curvature) ** 2
    spread = spread + np.outer(bottom, bottom) * float(covariance[0, 0]) / curvature**2
    return Rates(curvature, bottom, spread, centre)


def _near_best(rows: pd.DataFrame) -> Flags:
    """Mark cells, sorted by rate, near the lowest loss (as in `analysis.runs.learning_rates`) or next to it."""
    keys = ["depth", "params", "seed"]
    group = rows.groupby(keys, sort=True)
    lowest = group["loss"].transform("min")
    place = group.cumcount()
    best = place.where(rows["loss"] == lowest).groupby([rows[key] for key in keys]).transform("min")
    near = (rows["loss"] <= lowest * (1 + BOTTOM)) | ((place - best).abs() <= 1)
    return np.asarray(near, dtype=bool)


def _design(depth: Floats, params: Floats, centre: tuple[float, float]) -> Floats:
    width = (np.log(params) - np.log(12 * depth)) / 2
    return np.column_stack([np.ones(len(depth)), width - centre[0], np.log(depth) - centre[1]])


def _within(values: Floats, group: Integers) -> Floats:
    """Subtract the mean of each group."""
    count = np.bincount(group)
    means = np.column_stack([np.bincount(group, weights=column) / count for column in values.T])
    return np.asarray(values - means[group])


@dataclass(frozen=True)
class RatePlan:
    """Rates of the shapes, and the cells that would determine their best rates.

    Attributes:
        single: (options,), whether an option is a new seed of its shape at the rate of its other cells.
        excess: (shapes,), loss by which a shape may miss its best, nats per token; 0 where it has a parabola, or where
            rates are not searched.
        probes: shape -> the options that complete its parabola, all of one seed.
    """

    single: Flags
    excess: Floats
    probes: dict[int, tuple[int, ...]]


def plan_rates(
    rows: pd.DataFrame, waiting: list[Option], able: list[Option], shapes: list[Key], sd: float
) -> RatePlan:
    """Determine how the learning rate enters the choice of cells.

    Args:
        rows: every ended cell.
        waiting: cells that are running.
        able: the options.
        shapes: (depth, N) of all of these.
        sd: noise of one cell without the part shared by its seed, nats per token.
    """
    frame = rows[np.isfinite(rows["loss"].to_numpy(dtype=float))]
    seeds, both = _seeds(frame, []), _seeds(frame, waiting)
    factors = sorted({factor for _, factor in both} | {item.lr_factor for item in able})
    if len(factors) == 1:
        return RatePlan(np.ones(len(able), dtype=bool), np.zeros(len(shapes)), {})
    rates = common_rates(frame, sd)
    depth, params = (np.array(values, dtype=float) for values in zip(*shapes, strict=True))
    place, _ = rates.best(depth, params)
    at: dict[tuple[Key, float, int], int] = {
        ((item.depth, item.params), item.lr_factor, item.seed): i for i, item in enumerate(able)
    }
    main: dict[Key, float] = {}
    excess = np.zeros(len(shapes))
    probes: dict[int, tuple[int, ...]] = {}
    for i, shape in enumerate(shapes):
        near = sorted(factors, key=lambda factor: (round(abs(math.log(factor) - place[i]), 9), factor))
        main[shape] = max(near, key=lambda factor: len(seeds.get((shape, factor), ())))
        window = _window(factors, main[shape], float(place[i]))
        rates_of = [
            sum(seed in both.get((shape, f), ()) for f in factors) for seed in _all(both, shape, factors)
        ]
        if rates_of and max(rates_of) >= LEAST_RATES:
            continue
        excess[i] = float(rates.excess(depth[i : i + 1], params[i : i + 1], np.array([main[shape]]))[0])
        # Only for measured shapes: one that has merely begun may become irrelevant.
        cells = _completing(shape, window, both, at) if _all(seeds, shape, factors) else ()
        if cells:
            probes[i] = cells
    single = np.array([item.lr_factor == main[item.depth, item.params] for item in able])
    free = np.array([item.seed not in _all(both, (item.depth, item.params), factors) for item in able])
    return RatePlan(single & free, excess, probes)


def corner_rates(
    rows: pd.DataFrame, waiting: list[Option], able: list[Option], corners: list[Key]
) -> list[Option]:
    """Return the options missing for three rates of one seed in each of these shapes, which locate the best rate."""
    seeds = _seeds(rows[np.isfinite(rows["loss"].to_numpy(dtype=float))], waiting)
    factors = sorted({factor for _, factor in seeds} | {item.lr_factor for item in able})
    if len(factors) == 1:
        return []
    rule = min(factors, key=lambda factor: (abs(math.log(factor)), factor))
    window = _window(factors, rule, 0.0)
    at = {((o.depth, o.params), o.lr_factor, o.seed): i for i, o in enumerate(able)}
    return in_order(able[i] for shape in corners for i in _completing(shape, window, seeds, at))


def _seeds(frame: pd.DataFrame, waiting: list[Option]) -> _Seeds:
    seeds: _Seeds = defaultdict(set)
    for depth, params, factor, seed in ended(frame):
        seeds[(depth, params), factor].add(seed)
    for item in waiting:
        seeds[(item.depth, item.params), item.lr_factor].add(item.seed)
    return dict(seeds)


def _all(seeds: _Seeds, shape: Key, factors: list[float]) -> set[int]:
    return set().union(*(seeds.get((shape, factor), set()) for factor in factors))


def _window(factors: list[float], main: float, place: float) -> list[float]:
    """Return three neighbouring factors that include the main one, the middle one nearest to the best; or all."""
    index = factors.index(main)
    starts = range(max(0, index - LEAST_RATES + 1), min(index, max(0, len(factors) - LEAST_RATES)) + 1)
    begin = min(starts, key=lambda k: (abs(math.log(factors[min(k + 1, len(factors) - 1)]) - place), k))
    return factors[begin : begin + LEAST_RATES]


def _completing(
    shape: Key, window: list[float], seeds: _Seeds, at: dict[tuple[Key, float, int], int]
) -> tuple[int, ...]:
    """Return the options that give one seed of a shape all rates of the window; none if that is done or impossible."""
    known = {
        seed: sum(seed in seeds.get((shape, f), ()) for f in window) for seed in _all(seeds, shape, window)
    }
    for seed in sorted(known, key=lambda seed: (-known[seed], seed)):
        missing = [factor for factor in window if seed not in seeds.get((shape, factor), ())]
        if not missing:
            return ()
        if all((shape, factor, seed) in at for factor in missing):
            return tuple(at[shape, factor, seed] for factor in missing)
    return ()
