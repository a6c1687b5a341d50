"""Which depth is best at each measured size: the one reading of the curves and crossings.

The places are the sizes ln N of the curves at which two depths or more are measured. At a place a depth is excluded if
the joint posterior puts another depth there below it by more than t standard errors of their gap, unless the place lies
in the interval of the crossing of these two neighbours, which also holds the error of the learning rate. The other
depths are `near`; the one of lowest loss is the best. A depth of two sizes excludes none and is not excluded except at
its sizes, because two do not show how its curve bends.

A tried depth that has no size at a place is `missing` there, unless the data show that it is not the best: deeper
models overtake with size, so a depth that was excluded at its largest size by a deeper one stays excluded, as one that
was excluded at its smallest size by a shallower one is at smaller sizes.

The first sentence of the answer, the best shapes of the budgets, the answer at any measured size, the verdict on a
model by a fit and the figures all read this, so that they agree.
"""

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.budgets import budgets, width_step
from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.intervals import LAYER_WEIGHTS, Interval, ends_of, params_of, width_of
from analysis.law.crossings import LEAST_SIZES, NEAR_END, Crossing
from analysis.units import LOSS

#: Depths, first and last place.
_Run = tuple[tuple[int, ...], int, int]
Booleans = npt.NDArray[np.bool_]

#: Most measured sizes that become places; a larger table has the places of the curves only.
MOST_SIZES = 300
#: Nats per token that a depth may lose on average over sizes between two of its ranges, so that they become one.
NEGLIGIBLE = 0.0005
#: Most ranges of the answer: with more, neighbours whose border is known worst share one.
MOST_RANGES = 5


@dataclass(frozen=True)
class DepthAt:
    """One depth at one size: the loss on its curve and the excess over that of the best depth, nats per token."""

    depth: int
    width: float
    loss: float = field(metadata=LOSS)
    excess: float = field(metadata=LOSS)


@dataclass(frozen=True)
class AtSize:
    """What is known at one measured size.

    Attributes:
        params: N at which the losses are compared.
        depth, width, loss: of the depth with the lowest loss.
        near: all depths that are not excluded, the best included; None if the noise is not known.
        shapes: every depth measured there, ascending.
        missing: tried depths that are not measured there and may be the best.
        budget: as planned, or the geometric mean of a group of sizes; None at any other size.
        width_step: what all widths of the study are multiples of, at most 64; widths at N are not multiples of it.
    """

    params: float
    depth: int
    width: float
    loss: float = field(metadata=LOSS)
    near: tuple[int, ...] | None
    shapes: tuple[DepthAt, ...]
    missing: tuple[int, ...] = ()
    budget: float | None = None
    width_step: int | None = None

    @property
    def depth_interval(self) -> Interval:
        """The whole depths between the next shallower and the next deeper excluded one; an end is None without it."""
        if self.near is None:
            return None, None
        measured = [shape.depth for shape in self.shapes]
        shallower = [depth for depth in measured if depth < self.near[0]]
        deeper = [depth for depth in measured if depth > self.near[-1]]
        return (shallower[-1] + 1 if shallower else None), (deeper[0] - 1 if deeper else None)

    def within(self, nats: float) -> tuple[DepthAt, ...]:
        """The measured depths whose loss exceeds the lowest by at most `nats` per token."""
        return tuple(shape for shape in self.shapes if shape.excess <= nats)


@dataclass(frozen=True)
class Range:
    """Sizes with one best depth, or with several between which the runs do not decide.

    Attributes:
        depths: ascending.
        low, high: smallest and largest N.
        high_interval: of a border to another range: the sizes at which the depths on both sides are near; None at the
            end of the sizes that are compared.
        rivals: other depths that are near at every size of the range.
        missing: depths that are not measured beyond `high`, where the comparison ends before the sizes do.
    """

    depths: tuple[int, ...]
    low: float
    high: float
    high_interval: Interval | None = None
    rivals: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reading:
    """The best depth at every measured size.

    Attributes:
        params: N of the places, ascending.
        depths: all tried, ascending.
        losses: by depth, its loss at each place, nats per token; None where it is not measured.
        near: by place; None if the noise is not known.
        missing: by place.
        width_step: see `AtSize`.
        layer_weights: N over L·d².
    """

    params: tuple[float, ...] = ()
    depths: tuple[int, ...] = ()
    losses: tuple[tuple[float | None, ...], ...] = field(default=(), metadata=LOSS)
    near: tuple[tuple[int, ...], ...] | None = None
    missing: tuple[tuple[int, ...], ...] = ()
    width_step: int | None = None
    layer_weights: float = LAYER_WEIGHTS

    def __post_init__(self) -> None:
        """Raise a ValueError if the fields are not of one table, as in a file edited by hand."""
        places = len(self.params)
        by_place = (*self.losses, *([] if self.near is None else [self.near]), self.missing)
        if len(self.losses) != len(self.depths) or any(len(line) != places for line in by_place):
            raise ValueError("the losses, near and missing depths of a reading need one value per size")
        if min((*self.params, *self.depths), default=1) <= 0 or sorted(self.params) != [*self.params]:
            raise ValueError("the sizes and depths of a reading must be positive, and the sizes ascending")

    @cached_property
    def _x(self) -> list[float]:
        return [math.log(params) for params in self.params]

    def at(self, params: float, budget: float | None = None) -> AtSize | None:
        """What is known at N = `params`; None where no two depths are measured.

        Between two places losses are straight in ln N, and what is near or missing at one of them counts.
        """
        x = self._x
        if not x or not x[0] - NEAR_END <= math.log(params) <= x[-1] + NEAR_END:
            return None
        place = min(max(math.log(params), x[0]), x[-1])
        right = min(bisect.bisect_left(x, place - 1e-9), len(x) - 1)
        left = right if abs(x[right] - place) < 1e-9 else right - 1
        share = 0.0 if left == right else (place - x[left]) / (x[right] - x[left])
        losses = {}
        for depth, line in zip(self.depths, self.losses, strict=True):
            first, second = line[left], line[right]
            if first is not None and second is not None:
                losses[depth] = first + share * (second - first)
        if len(losses) < 2:
            return None
        best = min(losses, key=lambda depth: (losses[depth], depth))
        near = None
        if self.near is not None:
            near = tuple(sorted(losses.keys() & {best, *self.near[left], *self.near[right]}))
        missing = tuple(sorted({*self.missing[left], *self.missing[right]} - losses.keys()))
        shapes = tuple(
            DepthAt(depth, width_of(params, depth, self.layer_weights), loss, loss - losses[best])
            for depth, loss in losses.items()
        )
        width = width_of(params, best, self.layer_weights)
        return AtSize(params, best, width, losses[best], near, shapes, missing, budget, self.width_step)

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        """The ranges of sizes by best depth, ascending, where no depth is missing; none without a noise estimate."""
        if self.near is None:
            return ()
        ranges: list[Range] = []
        for is_whole, places in itertools.groupby(range(len(self.params)), lambda at: not self.missing[at]):
            part = list(places)
            if is_whole and len(part) > 1:
                ranges += self._ranges_of(part)
        return tuple(ranges)

    @cached_property
    def _best(self) -> list[int]:
        lines = np.array([[math.inf if loss is None else loss for loss in line] for line in self.losses])
        return [self.depths[int(rank)] for rank in lines.argmin(axis=0)]

    def _ranges_of(self, places: list[int]) -> list[Range]:
        """The ranges of consecutive places without a missing depth."""
        runs: list[_Run] = [
            ((depth,), *_ends(list(part)))
            for depth, part in itertools.groupby(places, lambda at: self._best[at])
        ]
        runs = self._without_returns(runs)
        while True:
            borders = [
                self._border(first_run, next_run, places) for first_run, next_run in itertools.pairwise(runs)
            ]
            # A border that no size bounds is between depths that the runs do not decide between at any size.
            widest = max(borders, key=lambda border: border[1], default=None)
            if widest is None or (math.isfinite(widest[1]) and len(runs) <= MOST_RANGES):
                break
            at = borders.index(widest)
            runs[at : at + 2] = [_joined(runs[at : at + 2])]
        after = places[-1] + 1
        ranges: list[Range] = []
        for index, (depths, first, last) in enumerate(runs):
            high, _, interval = borders[index] if index < len(borders) else (self.params[last], 0.0, None)
            low = ranges[-1].high if ranges else self.params[first]
            always = set.intersection(*(set(self._near(at)) for at in range(first, last + 1)))
            ranges.append(Range(depths, low, high, interval, tuple(sorted(always - set(depths)))))
        if after < len(self.params):
            ranges[-1] = replace(ranges[-1], missing=self.missing[after])
        return ranges

    def _near(self, at: int) -> tuple[int, ...]:
        assert self.near is not None
        return self.near[at]

    def _without_returns(self, runs: list[_Run]) -> list[_Run]:
        """Join the runs between two of one depth, if it is near at all places there and loses next to nothing."""
        for first, (depths, start, _) in enumerate(runs):
            for second in range(len(runs) - 1, first + 1, -1):
                span = range(start, runs[second][2] + 1)
                again = set(depths) & set(runs[second][0])
                if any(self._loses_nothing(depth, span) for depth in again):
                    return self._without_returns(
                        [*runs[:first], _joined(runs[first : second + 1]), *runs[second + 1 :]]
                    )
        return runs

    def _loses_nothing(self, depth: int, places: range) -> bool:
        """Whether a depth is near at all places and loses at most `NEGLIGIBLE` on average."""
        lines = dict(zip(self.depths, self.losses, strict=True))
        lost = [(lines[depth][at] or 0.0) - (lines[self._best[at]][at] or 0.0) for at in places]
        return all(depth in self._near(at) for at in places) and float(np.mean(lost)) <= NEGLIGIBLE

    def _border(self, left: _Run, right: _Run, places: list[int]) -> tuple[float, float, Interval]:
        """N at the border of two runs, the length of its interval in ln N, and that interval.

        The interval has the sizes around the border at which the depths on both sides are near; an end is None where
        that is so up to the end of the places, and the length is infinite where both are.
        """
        at, x = left[2], self._x
        before, after = self._best[at], self._best[at + 1]
        left_losses, right_losses = (self.losses[self.depths.index(depth)] for depth in (before, after))
        # A depth that is not measured at the other place ends, or begins, at its own.
        border = x[at] if left_losses[at + 1] is None else x[at + 1]
        if left_losses[at + 1] is not None and right_losses[at] is not None:
            gaps = (
                (right_losses[at] or 0.0) - (left_losses[at] or 0.0),
                (left_losses[at + 1] or 0.0) - (right_losses[at + 1] or 0.0),
            )
            if sum(gaps) > 0:
                border = x[at] + (x[at + 1] - x[at]) * gaps[0] / sum(gaps)
        low, high = at + 1, at
        while low > places[0] and after in self._near(low - 1):
            low -= 1
        while high < places[-1] and before in self._near(high + 1):
            high += 1
        ends = (
            -math.inf if low == places[0] else min(x[low], border),
            math.inf if high == places[-1] else max(x[high], border),
        )
        length = (
            math.inf
            if ends == (-math.inf, math.inf)
            else min(ends[1], x[places[-1]]) - max(ends[0], x[places[0]])
        )
        return math.exp(border), length, (params_of(ends[0]), params_of(ends[1]))


def _ends(places: list[int]) -> tuple[int, int]:
    return places[0], places[-1]


def _joined(runs: Sequence[_Run]) -> _Run:
    """One run of several: all their depths, from the first place to the last."""
    depths = sorted({depth for run in runs for depth in run[0]})
    return tuple(depths), runs[0][1], runs[-1][2]


def read_curves(
    rows: pd.DataFrame,
    curves: Curves,
    crossings: Sequence[Crossing],
    quantile: float,
    diverged: Sequence[tuple[int, float, int]] = (),
) -> Reading:
    """Read the best depths off the curves and the crossings of `rows`.

    Args:
        rows: the losses compared.
        curves: of them.
        crossings: of neighbouring depths, with the intervals that the answer states.
        quantile: of Student's t, as for the crossings; NaN if the noise is not known.
        diverged: (depth, N, runs) of shapes whose runs all diverged; a depth is worse there, and not missing.
    """
    x = _places(curves, crossings)
    depths = curves.depths
    sizes = {depth: curves.x[curves.at(depth)] for depth in depths}
    inside = np.array([_measured(sizes[depth], curves.x, x) for depth in depths])
    compared = (inside.sum(axis=0) > 1) & ~_by_chance(list(sizes.values()), inside, x)
    x, inside = x[compared], inside[:, compared]
    step = width_step(rows)
    if not len(x):
        return Reading(depths=tuple(depths), losses=((),) * len(depths), width_step=step)
    losses = np.array([np.interp(x, curves.grid, line) for line in curves.values])
    out = np.zeros(inside.shape, dtype=bool)
    if math.isfinite(quantile):
        out = _excluded(curves, crossings, quantile, x, inside, sizes)
    best = np.where(inside, losses, np.inf).argmin(axis=0)
    near = [
        tuple(
            depth
            for rank, depth in enumerate(depths)
            if inside[rank, at] and (not out[rank, at] or rank == best[at])
        )
        for at in range(len(x))
    ]
    reach = {
        depth: [*sizes[depth][[0, -1]], *(math.log(n) for lost, n, _ in diverged if lost == depth)]
        for depth in depths
    }
    missing = [
        tuple(
            depth
            for rank, depth in enumerate(depths)
            if len(sizes[depth]) > 1
            and not inside[rank, at]
            and _may_win(rank, int(best[at]), float(x[at]), reach[depth], inside[rank], out[rank])
        )
        for at in range(len(x))
    ]
    return Reading(
        tuple(float(size) for size in np.exp(x)),
        tuple(depths),
        tuple(
            tuple(float(loss) if is_in else None for loss, is_in in zip(line, is_inside, strict=True))
            for line, is_inside in zip(losses, inside, strict=True)
        ),
        tuple(near) if math.isfinite(quantile) else None,
        tuple(missing),
        step,
    )


def best_shapes(rows: pd.DataFrame, curves: Curves, reading: Reading) -> tuple[AtSize, ...]:
    """What is known at every budget of `rows` where two depths or more are measured.

    Widths are whole numbers, so the depths of a budget have slightly different sizes. They are compared at the N next
    to the budget that lies inside the sizes of all of them.
    """
    shapes = []
    for budget, depths in budgets(rows):
        ends = [curves.range(depth) for depth in depths]
        low, high = max(low for low, _ in ends), min(high for _, high in ends)
        x = math.log(budget) if low > high else min(max(math.log(budget), low), high)
        shapes.append(reading.at(math.exp(x), budget))
    return tuple(item for item in shapes if item is not None)


def _places(curves: Curves, crossings: Sequence[Crossing]) -> Floats:
    """The grid of the curves, the sizes, and the crossings with the ends of their intervals, inside the sizes."""
    sizes = np.unique(curves.x)
    named = [end for item in crossings for end in (item.params, *(item.params_interval or ())) if end]
    extra = [*(sizes if len(sizes) <= MOST_SIZES else ()), *(math.log(end) for end in named)]
    # Rounded, because the ln of a size, computed in two ways, may differ in the last digits.
    x = np.unique(np.round(np.concatenate([curves.grid, extra]), 9))
    return np.asarray(x[(x >= sizes[0] - 1e-8) & (x <= sizes[-1] + 1e-8)])


def _measured(sizes: Floats, others: Floats, x: Floats) -> Booleans:
    """Whether a depth of these sizes is measured at each place.

    It is between them, and if it has two also up to the sizes of other depths next to its ends: widths are whole
    numbers, so the depths of a budget have slightly different sizes.
    """
    margin = NEAR_END if len(sizes) > 1 else 0.0
    low = others[(others >= sizes[0] - margin) & (others <= sizes[0])].min()
    high = others[(others <= sizes[-1] + margin) & (others >= sizes[-1])].max()
    return np.asarray((x >= low - 1e-8) & (x <= high + 1e-8))


def _by_chance(sizes: list[Floats], inside: Booleans, x: Floats) -> Booleans:
    """Whether all depths compared at a place have one size each, and another has a size near it that is not compared.

    In a table of one size for each depth two may have the same N by chance, and the others next to it are no worse.
    """
    several = np.array([len(of_depth) > 1 for of_depth in sizes])
    near = np.array([np.abs(x[:, None] - of_depth).min(axis=1) <= NEAR_END for of_depth in sizes])
    return np.asarray(~(inside & several[:, None]).any(axis=0) & (near & ~inside).any(axis=0))


def _excluded(
    curves: Curves,
    crossings: Sequence[Crossing],
    quantile: float,
    x: Floats,
    inside: Booleans,
    sizes: dict[int, Floats],
) -> Booleans:
    """(depths, places): whether another depth is significantly better."""
    depths, grid = curves.depths, curves.grid
    count = len(depths), len(grid)
    covariance = np.einsum("igjg->ijg", curves.covariance.reshape(*count, *count))
    certain = np.array(
        [
            (len(sizes[depth]) >= LEAST_SIZES) | (np.abs(x[:, None] - sizes[depth]).min(axis=1) <= NEAR_END)
            for depth in depths
        ]
    )
    undecided = {
        (item.shallow, item.deep): _within(item, x)
        for item in crossings
        if item.status in ("bracketed", "ambiguous")
        and min(len(sizes[item.shallow]), len(sizes[item.deep])) >= LEAST_SIZES
    }
    out = np.zeros(inside.shape, dtype=bool)
    for first, second in itertools.combinations(range(len(depths)), 2):
        both = inside[first] & inside[second] & certain[first] & certain[second]
        both &= ~undecided.get((depths[first], depths[second]), np.zeros(len(x), dtype=bool))
        if not both.any():
            continue
        variance = covariance[first, first] + covariance[second, second] - 2 * covariance[first, second]
        gap, se = curves.values[first] - curves.values[second], np.sqrt(np.maximum(variance, 0))
        z = np.divide(gap, se, out=np.sign(gap) * 1e9, where=se > 0)
        # Straight between the places of the grid, as the test of a crossing is.
        z = np.interp(x, grid, z)
        out[first] |= both & (z > quantile)
        out[second] |= both & (z < -quantile)
    return out


def _within(item: Crossing, x: Floats) -> Booleans:
    """Whether each place lies in the interval of a crossing; its ends belong to it."""
    low, high = ends_of(item.params_interval)
    return np.asarray((np.exp(x) >= low * (1 - 1e-8)) & (np.exp(x) <= high * (1 + 1e-8)))


def _may_win(
    rank: int, best: int, place: float, reach: Sequence[float], inside: Booleans, out: Booleans
) -> bool:
    """Whether a depth without a size at a place may be the best there, see the module."""
    low, high = min(reach), max(reach)
    if low <= place <= high:
        # It diverged there.
        return False
    at = np.flatnonzero(inside)
    if not len(at):
        return True
    if place > high:
        return not (rank < best and bool(out[at[-1]]))
    return not (rank > best and bool(out[at[0]]))
