"""Simulated worlds on which the intervals are scored; `docs/coverage.md` shows the results.

A world is a truth with a grid of shapes. Where the truth is not in reach of `Truth` alone, `deviations` draws further
deviations of the loss for each study, and `change` alters its rows.
"""

import itertools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from analysis.curves.noise import Floats
from analysis.law.threshold_law import SOLVERS
from tests.simulated_study import DeviatingCurves, Deviation, Truth, draw_curves, shapes_of, simulate_matched

Group = Literal["noise", "misfit", "form", "own", "law"]
Generator = np.random.Generator
Depths, Deviations = tuple[int, ...], tuple[Deviation, ...]
#: Smallest and largest ln N.
Span = tuple[float, float]
DrawDeviations = Callable[[Depths, Span, Generator], Deviations]
ChangeRows = Callable[[pd.DataFrame, DeviatingCurves, Generator], pd.DataFrame]
#: Sizes beyond the measured ones, as a factor, in which the crossing of two curves is still searched.
BEYOND = 20.0


@dataclass(frozen=True)
class World:
    """A truth and the grid on which it is studied.

    Attributes:
        group: of the table: deviations of noise and grid, of the curves, of the law, worlds of our own. The worlds of
            `law` deviate in nothing.
        truth: see `Truth`.
        seeds, sizes: seeds of every shape, budgets of the grid.
        low, high: the budgets reach from the first crossing / low to the crossing of the depth `last` · high.
        last: index of that depth; -2 for the last crossing.
        multiple: of the widths.
        rates: learning rates of every shape, as factors of the rule's.
        deviations: of the losses that are measured and of their true crossings.
        error: as `deviations`, but an error of the measurement: the true crossings are those without it. It is also
            given the factor of the learning rate.
        change: of the rows.
        asks: what has a truth here: crossings, a and b of the law, the projected depth.
    """

    group: Group
    truth: Truth
    seeds: int = 3
    sizes: int = 8
    low: float = 4.0
    high: float = 4.0
    last: int = -2
    multiple: int = 2
    rates: tuple[float, ...] = (1.0,)
    deviations: DrawDeviations | None = None
    error: Callable[[Span, float], Deviation] | None = None
    change: ChangeRows | None = None
    asks: frozenset[str] = frozenset({"crossing", "b", "depth"})

    @property
    def shapes(self) -> list[tuple[int, int, float]]:
        depths = self.truth.depths
        ends = self.truth.crossing(depths[0]) / self.low, self.truth.crossing(depths[self.last]) * self.high
        found = shapes_of(depths, np.geomspace(*ends, self.sizes), self.multiple)
        return list({shape[:2]: shape for shape in found}.values())

    @property
    def span(self) -> Span:
        """Smallest and largest ln N."""
        params = [12.0 * depth * width**2 for depth, width, _ in self.shapes]
        return math.log(min(params)), math.log(max(params))

    def study(self, name: str, number: int) -> tuple[pd.DataFrame, DeviatingCurves]:
        """Simulate a study: its rows and the curves whose crossings are true."""
        key = (zlib.crc32(name.encode()), number)
        truth, span = self.truth, self.span
        generator = np.random.default_rng([*key, 0, 3])
        if self.deviations:
            truth = replace(truth, deviations=self.deviations(truth.depths, span, generator))
        curves = draw_curves(truth, key)
        frames = []
        for index, factor in enumerate(self.rates):
            measured = truth
            if self.error:
                measured = replace(truth, deviations=(*truth.deviations, self.error(span, factor)))
            # Each rate has noise of its own; only truths without random curves have several rates.
            rows = simulate_matched(measured, self.shapes, self.seeds, (*key, index) if index else key)
            frames.append(rows.assign(lr=factor, lr_factor=factor))
        rows = pd.concat(frames, ignore_index=True)
        return (self.change(rows, curves, generator) if self.change else rows), curves

    def reaches(self, shallow: int) -> bool:
        """Whether the crossing by the law lies between the smallest and the largest size."""
        low, high = self.span
        return low < math.log(self.truth.crossing(shallow)) < high

    def true_crossing(self, curves: DeviatingCurves, shallow: int) -> float:
        """Return N at the crossing of the study's own curves; 0 or infinite if it lies far outside the sizes."""
        low, high = self.span
        return curves.last_crossing(shallow, math.exp(low) / BEYOND, math.exp(high) * BEYOND)


@dataclass(frozen=True)
class RateOff:
    """Loss of a learning rate by a rule that does not fit: the best rate falls as L^-power, the rule's does not.

    `nats` is the loss at twice the best rate; it grows with the square of the logarithm.
    """

    nats: float
    factor: float = 1.0
    reference: int = 2
    power: float = 0.5

    def __call__(self, depth: int, x: Floats) -> Floats:
        off = self.power * math.log2(depth / self.reference) + math.log2(self.factor)
        return np.full_like(x, self.nats * off**2)


@dataclass(frozen=True)
class Undertrained:
    """Loss of depths beyond the shallowest where their sizes exceed a size: nats · log2(L / reference) · e-folds²."""

    nats: float
    start: float
    reference: int = 2

    def __call__(self, depth: int, x: Floats) -> Floats:
        return self.nats * math.log2(depth / self.reference) * np.maximum(x - self.start, 0) ** 2


def ripple(depths: Depths, span: Span, generator: Generator) -> Deviations:
    """Waves of 0.02 nats with a period of 3 e-folds, the phase of each depth at random."""
    phase = dict(zip(depths, generator.uniform(0, 2 * math.pi, len(depths)), strict=True))
    return (lambda depth, x: 0.02 * np.cos(2 * math.pi * x / 3 + phase[depth]),)


def broken(depths: Depths, span: Span, generator: Generator) -> Deviations:
    """A curve flattens by 0.02 nats per e-fold beyond a size of its own."""
    start = dict(zip(depths, generator.uniform(*span, len(depths)), strict=True))
    return (lambda depth, x: 0.02 * 0.3 * np.logaddexp(0, (x - start[depth]) / 0.3),)


def ability(depths: Depths, span: Span, generator: Generator) -> Deviations:
    """A fall of 0.05 nats at a size of each depth, at smaller sizes for deeper models."""
    middle = sum(span) / 2
    place = {L: middle - 0.5 * math.log(L / 5.66) + 0.5 * generator.standard_normal() for L in depths}
    return (lambda depth, x: -0.05 / (1 + np.exp(-(x - place[depth]) / 0.4)),)


def overfitted(depths: Depths, span: Span, generator: Generator) -> Deviations:
    """All depths lose the same from the middle of the sizes on."""
    middle = sum(span) / 2
    return (lambda depth, x: 0.01 * np.maximum(x - middle, 0) ** 2,)


UNLUCKY_NATS = 0.03


def _share_unlucky(depth: int) -> float:
    return 0.04 * math.log2(depth)


def unlucky_mean(depths: Depths, span: Span, generator: Generator) -> Deviations:
    """The mean loss of runs of which some end higher; `unlucky` then draws which."""
    return (lambda depth, x: np.full_like(x, UNLUCKY_NATS * _share_unlucky(depth)),)


def unlucky(rows: pd.DataFrame, curves: DeviatingCurves, generator: Generator) -> pd.DataFrame:
    """Runs end 0.03 nats higher with a probability that grows with the depth."""
    share = rows["depth"].map(_share_unlucky).to_numpy()
    hit = generator.random(len(rows)) < share
    return rows.assign(loss=rows["loss"] + UNLUCKY_NATS * (hit - share))


def noisy_depths(rows: pd.DataFrame, curves: DeviatingCurves, generator: Generator) -> pd.DataFrame:
    """The noise grows as sqrt(L), and one run in ten is missing."""
    mean = np.empty(len(rows))
    for depth in curves.truth.depths:
        at = (rows["depth"] == depth).to_numpy()
        mean[at] = curves.loss(depth, rows["params"].to_numpy()[at])
    noisy = mean + (rows["loss"] - mean) * np.sqrt(rows["depth"])
    return rows.assign(loss=noisy)[generator.random(len(rows)) >= 0.1].reset_index(drop=True)


@dataclass(frozen=True)
class Saturating(Truth):
    """The best depth is 24·u / (1 + u) with u = sqrt(N / e^15)."""

    def size_of(self, depth: float) -> float:
        return math.exp(15 + 2 * math.log(depth / (24 - depth)))

    def best_depth(self, params: float) -> float:
        u = math.sqrt(params / math.exp(15))
        return 24 * u / (1 + u)


@dataclass(frozen=True)
class PowerLaw(Truth):
    """The law is ln d = a + b·ln L."""

    def size_of(self, depth: float) -> float:
        return 12 * depth * math.exp(2 * (self.a + self.b * math.log(depth)))

    def best_depth(self, params: float) -> float:
        return SOLVERS["power"](self.a, self.b, params)


BASE = Truth(3, 0.15, (2, 4, 8, 16), noise=0.002)
NOISY = replace(BASE, noise=0.005)
PAPER = Truth(5.039, 0.0555, (6, 12, 18, 24, 30, 36, 48), noise=0.002)
SHORT = Truth(2.5, 0.3, (1, 2, 4))
LONG = Truth(3, 0.15, (2, 4, 6, 8, 10))
NO_LAW = frozenset({"crossing"})
NO_SLOPE = frozenset({"crossing", "depth"})


def _misfit(sd: float, length: float, sizes: int, seeds: int) -> tuple[str, World]:
    """A smooth misfit of the curves and its name."""
    grid = f"{_counted(length, 'e-fold')}, {sizes} sizes, {_counted(seeds, 'seed')}"
    world = World("misfit", replace(BASE, misfit_sd=sd, misfit_length=length), seeds=seeds, sizes=sizes)
    return f"smooth misfit {f'{sd:.3f}'.lstrip('0')} nats, {grid}", world


def _correlated(share: float, seeds: int) -> tuple[str, World]:
    """Noise of which this share is common to the sizes of a depth and seed, and its name."""
    name = f"losses correlated within a depth {f'{share:.1f}'.lstrip('0')}, {_counted(seeds, 'seed')}"
    return name, World("misfit", replace(NOISY, shared=0.0, depth_shared=share), seeds=seeds)


def _counted(count: float, what: str) -> str:
    return f"{count:g} {what}{'s' * (count > 1)}"


def _scattered(*depths: int) -> World:
    return World("form", replace(BASE, depths=depths, scatter=0.2))


def _rate_off(nats: float, rates: tuple[float, ...] = (1.0,)) -> World:
    return World("form", BASE, rates=rates, error=lambda span, factor: RateOff(nats, factor))


def _lawful(truth: Truth, seeds: int, sizes: int, **ends: float) -> World:
    """A world in which curves, law and noise have the form that is fitted."""
    return World("law", truth, seeds, sizes, asks=frozenset({"crossing", "a", "b", "depth"}), **ends)


WORLDS = {
    "Student's t, 3 degrees of freedom, 3 seeds": World("noise", replace(NOISY, noise_kind="t3")),
    "Student's t, 3 degrees of freedom, 1 seed": World("noise", replace(BASE, noise_kind="t3"), seeds=1),
    "Student's t, 2.1 degrees of freedom": World("noise", replace(BASE, noise_kind="t2.1")),
    "spikes of 8 standard deviations in one run of fifty": World("noise", replace(BASE, noise_kind="spikes")),
    "log-normal noise": World("noise", replace(NOISY, noise_kind="log-normal")),
    "crossings at the edges of the grid": World("noise", NOISY, low=1, high=1),
    "widths in multiples of 8": World("noise", replace(NOISY, a=4.5), multiple=8),
    "widths in multiples of 16": World("noise", replace(NOISY, a=4.5), multiple=16),
    "three sizes, 3 seeds": World("noise", BASE, sizes=3),
    "four sizes, 1 seed": World("noise", BASE, sizes=4, seeds=1),
    "8 depths, 25 sizes, 1 seed": World(
        "noise", replace(BASE, depths=(2, 3, 4, 6, 8, 10, 13, 16)), sizes=25, seeds=1
    ),
    "the paper's depths and law, noise 0.1 %": World("noise", replace(PAPER, noise=0.001)),
    "the paper's depths and law, noise 0.3 %": World("noise", replace(PAPER, noise=0.003)),
    "identical curves": World("noise", replace(BASE, slope=0.0), asks=frozenset()),
    **dict(itertools.starmap(_misfit, itertools.product((0.003, 0.01), (1, 2), (8, 16), (3, 1)))),
    **dict([_misfit(0.005, 1.5, 8, 3), _misfit(0.005, 1.5, 16, 1)]),
    **dict(itertools.starmap(_correlated, itertools.product((0.7, 0.8, 0.9), (3, 1)))),
    "two sizes": World("form", BASE, sizes=2),
    "learning rate off by depth": _rate_off(0.03),
    "learning rate off by depth, mild": _rate_off(0.0075),
    "learning rate off by depth, four rates around the best": _rate_off(0.03, (0.25, 0.5, 1, 2)),
    "deep models undertrained beyond a size": World(
        "form", BASE, error=lambda span, factor: Undertrained(0.005, sum(span) / 2)
    ),
    "power law in L, depths 2 to 24": World(
        "form", PowerLaw(2.6, 0.8, (2, 4, 8, 16, 24), noise=0.002), asks=NO_SLOPE
    ),
    "power law in L, depths 6 to 48": World(
        "form", PowerLaw(3.5, 0.8, PAPER.depths, noise=0.002), asks=NO_SLOPE
    ),
    "scatter 0.2 of ln d, 3 depths": _scattered(2, 4, 8),
    "scatter 0.2 of ln d, 4 depths": _scattered(2, 4, 8, 16),
    "scatter 0.2 of ln d, 6 depths": _scattered(2, 4, 6, 8, 12, 16),
    "ripple of .02 nats, period 3 e-folds": World("form", BASE, sizes=16, deviations=ripple),
    "broken curves": World("own", BASE, deviations=broken, asks=NO_LAW),
    "best depth saturates": World("own", Saturating(0, 0, (2, 4, 8, 16), noise=0.002), asks=NO_SLOPE),
    "unlucky runs": World("own", BASE, deviations=unlucky_mean, change=unlucky),
    "an ability appears": World("own", BASE, deviations=ability),
    "noise grows with depth, runs are missing": World("own", replace(BASE, noise=0.001), change=noisy_depths),
    "overfitted": World("own", BASE, deviations=overfitted),
    "3 depths, 3 seeds, 0.5 %": _lawful(SHORT, 3, 6),
    "3 depths, 5 seeds, 2 %": _lawful(replace(SHORT, noise=0.02, slope=0.08), 5, 8),
    "4 depths, 1 seed, 0.2 %": _lawful(replace(SHORT, depths=(1, 2, 4, 6), noise=0.002), 1, 7),
    "4 depths, 4 seeds, 0.5 %, steep, much shared": _lawful(
        replace(SHORT, depths=(1, 2, 4, 6), slope=0.02, exponent=0.6, shared=0.7), 4, 6
    ),
    "5 depths, 2 seeds, 1 %": _lawful(replace(LONG, noise=0.01), 2, 7),
    "5 depths, 3 seeds, 0.5 %, the last crossing outside": _lawful(LONG, 3, 7, high=1.7, last=2),
    "5 depths, 3 seeds, 0.5 %, the first crossing outside": _lawful(LONG, 3, 7, low=1 / 1.6),
    "7 depths of the paper, 1 seed, 0.2 %": _lawful(PAPER, 1, 8),
    "7 depths of the paper, 3 seeds, 1 %, slow": _lawful(replace(PAPER, noise=0.01, exponent=0.1), 3, 8),
}
