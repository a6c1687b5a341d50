"""Simulated studies for tests: their shapes, rows from one stream of noise, and truths outside the fitted family."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.stats import norm
from scipy.stats import t as student

from analysis.curves.noise import Floats
from analysis.design import simulated_study
from analysis.design.simulated_study import LossCurves, Shape, draw_noise, study_rows

#: Nats per token added to the expected loss of a depth at ln N.
Deviation = Callable[[int, Floats], Floats]
#: Frequencies of a smooth misfit: its covariance then is that of the Gaussian process up to 16 lengths.
_WAVES = 32
#: Steps of ln N in which the crossing of two curves is searched.
_STEPS = 500


@dataclass(frozen=True)
class Truth(simulated_study.Truth):
    """A truth that may deviate from what is fitted.

    Attributes:
        misfit_length: e-folds of N over which the misfit of a depth is correlated (a Gaussian process with the
            covariance misfit_sd²·exp(-(Δ ln N / misfit_length)² / 2)); 0 for independent shapes.
        depth_shared: share of the variance of the noise common to the shapes of one seed and depth.
        noise_kind: distribution of a run's own noise: `normal`; `t3` or `t2.1`, Student's t with so many degrees of
            freedom; `spikes`, normal with one run in fifty higher by eight standard deviations; or `log-normal`.
        deviations: of the expected loss.
    """

    misfit_length: float = 0.0
    depth_shared: float = 0.0
    noise_kind: str = "normal"
    deviations: tuple[Deviation, ...] = ()

    def loss(self, depth: int, params: Floats) -> Floats:
        return DeviatingCurves(self, np.zeros(len(self.depths) - 1), self.deviations).loss(depth, params)

    def own_noise(self, shapes: Sequence[Shape], own: Floats, by_depth: Floats) -> Floats:
        """The part of the noise that shapes of one seed do not share, from normals of runs and of (depths, seeds)."""
        if self.noise_kind == "spikes":
            own = np.where(own > norm.ppf(0.98), own + 8, own)
        elif self.noise_kind == "log-normal":
            own = (np.exp(0.75 * own) - math.exp(0.75**2 / 2)) / 0.75
        elif self.noise_kind != "normal":
            own = student.ppf(norm.cdf(own), float(self.noise_kind[1:]))
        rank = np.searchsorted(self.depths, [shape[0] for shape in shapes])
        share = self.depth_shared / (1 - self.shared)
        return np.asarray(math.sqrt(1 - share) * own + math.sqrt(share) * by_depth[rank])


@dataclass(frozen=True)
class DeviatingCurves(LossCurves):
    """The expected losses of one study, with deviations."""

    deviations: tuple[Deviation, ...] = ()

    def loss(self, depth: int, params: Floats) -> Floats:
        x = np.log(np.asarray(params, dtype=float))
        return np.asarray(super().loss(depth, params) + sum(item(depth, x) for item in self.deviations))

    def last_crossing(self, shallow: int, low: float, high: float) -> float:
        """Return the last N in [low, high] at which the next deeper depth overtakes `shallow`.

        It is 0 where the deeper one is better at every size, infinite where it is not better at the largest.
        """
        deep = self.truth.depths[self.truth.depths.index(shallow) + 1]

        def gap(x: Floats) -> Floats:
            return self.loss(shallow, np.exp(x)) - self.loss(deep, np.exp(x))

        x = np.linspace(math.log(low), math.log(high), _STEPS + 1)
        behind = np.flatnonzero(gap(x) <= 0)
        if not len(behind):
            return 0.0
        if behind[-1] == _STEPS:
            return math.inf
        left, right = x[behind[-1]], x[behind[-1] + 1]
        return math.exp(brentq(lambda at: float(gap(np.array([at]))[0]), left, right))


def draw_curves(truth: Truth, key: Sequence[int]) -> DeviatingCurves:
    """Draw the expected losses of the study of this key: its crossings off the law and its smooth misfit."""
    off_law = simulated_study.draw_curves(truth, key).off_law
    if not truth.misfit_sd or not truth.misfit_length:
        return DeviatingCurves(truth, off_law, truth.deviations)
    generator = np.random.default_rng([*key, 0, 1])
    generator.standard_normal(len(off_law))
    waves = generator.standard_normal((len(truth.depths), 2, _WAVES)) * truth.misfit_sd / math.sqrt(_WAVES)
    frequencies = norm.ppf((1 + (np.arange(_WAVES) + 0.5) / _WAVES) / 2) / truth.misfit_length

    def smooth(depth: int, x: Floats) -> Floats:
        turns, (even, odd) = frequencies * x[..., None], waves[truth.depths.index(depth)]
        return np.asarray(np.cos(turns) @ even + np.sin(turns) @ odd)

    return DeviatingCurves(truth, off_law, (smooth, *truth.deviations))


def simulate_matched(truth: Truth, shapes: Sequence[Shape], seeds: int, key: Sequence[int]) -> pd.DataFrame:
    """As `analysis.design.simulated_study.simulate_matched`, with the deviations of the truth."""
    common, own, misfit = draw_noise(shapes, seeds, key)
    by_depth = np.array(
        [np.random.default_rng([*key, 0, 2, depth]).standard_normal(seeds) for depth in truth.depths]
    )
    own = truth.own_noise(shapes, own, by_depth)
    return study_rows(draw_curves(truth, key), shapes, common, own, misfit * (not truth.misfit_length))


def shapes_of(depths, budgets, multiple=2):
    """Return (depth, width, budget) per depth and budget, the width being the multiple nearest to sqrt(N/(12·L))."""
    return [
        (depth, max(multiple, multiple * round(math.sqrt(budget / (12 * depth)) / multiple)), budget)
        for depth in depths
        for budget in budgets
    ]


def simulate(truth, shapes, seeds, generator):
    """Simulate the rows of one study: depth, width, params, budget, seed, loss."""
    common = generator.standard_normal(seeds)
    own = generator.standard_normal((len(shapes), seeds))
    misfit = generator.standard_normal(len(shapes)) if truth.misfit_sd else np.zeros(len(shapes))
    drawn = truth.scatter or truth.misfit_length
    curves = draw_curves(truth, [int(generator.integers(2**32))] if drawn else [0])
    by_depth = np.zeros((len(truth.depths), seeds))
    if truth.depth_shared:
        by_depth = generator.standard_normal(by_depth.shape)
    own = truth.own_noise(shapes, own, by_depth)
    return study_rows(curves, shapes, common, own, misfit * (not truth.misfit_length))
