"""Simulated studies with a known truth, to test intervals and to plan studies.

Each depth follows a power law with offset, loss_L(N) = E_L + A_L·N^-α. Neighbouring depths cross exactly on the
threshold law, where the depth L = sqrt(L1·L2) has the width exp(a + b·L). Above the crossing the gap of a pair rises
towards E_L - E_(L+1); below it the deeper model has the higher loss, as in trained studies.

`Truth` also has truths outside the fitted family: smooth misfit of each depth, crossings off the law, a power law in L,
errors common to a depth, noise with heavy tails, and any deviation of the loss that is given as a function. What of it
is random is drawn once for each study (`draw_curves`), so the crossings of a study are those of its own `LossCurves`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.stats import norm
from scipy.stats import t as student

from analysis.curves.noise import Floats
from analysis.errors import InputError
from analysis.intervals import between
from analysis.law.advice import SOLVERS
from analysis.law.threshold import REGRESSORS, Form

#: (depth, width, budget).
Shape = tuple[int, int, float]
#: Nats per token added to the expected loss of a depth at ln N.
Deviation = Callable[[int, Floats], Floats]
#: Noise of a run before it is scaled: normal, Student's t with 3 or 2.1 degrees of freedom, normal with one run in
#: fifty higher by eight standard deviations, or log-normal.
NoiseKind = Literal["normal", "t3", "t2.1", "spikes", "log-normal"]

#: Frequencies of a smooth misfit: its covariance then is that of the Gaussian process up to 16 lengths.
_WAVES = 32
#: Steps of ln N in which the crossing of two curves is searched.
_STEPS = 500


@dataclass(frozen=True)
class Truth:
    """True values of a simulated study; by default the law holds exactly.

    Attributes:
        a, b: ln d = a + b·L at the crossings of neighbouring depths, with 12·L·d² = N there and for the depth between
            the two; or as `form` says.
        depths: ascending.
        asymptote: loss of the shallowest depth at infinite width, nats per token.
        drop: loss of the shallowest depth above its asymptote at its first crossing, nats.
        exponent: α.
        slope: slope of the gap of neighbours at their crossing, nats per e-fold of N; 0 for identical curves.
        noise: standard deviation of one seed over the loss.
        shared: ρ, share of the variance common to the shapes of one seed.
        misfit_sd: standard deviation of the shapes about the curves, nats. It is common to all seeds of a shape, so
            more seeds do not average it out; whole widths and learning rates by a rule cause such deviations.
        misfit_length: e-folds of N over which the misfit of a depth is correlated (a Gaussian process with the
            covariance misfit_sd²·exp(-(Δ ln N / misfit_length)² / 2)); 0 for independent shapes.
        form: of the law.
        scatter: standard deviation of ln d of the crossings about the law.
        depth_shared: share of the variance of the noise common to the shapes of one seed and depth.
        noise_kind: distribution of a run's own noise.
        deviations: further deviations of the expected loss.
    """

    a: float
    b: float
    depths: tuple[int, ...]
    asymptote: float = 2.4
    drop: float = 0.5
    exponent: float = 0.3
    slope: float = 0.04
    noise: float = 0.005
    shared: float = 0.3
    misfit_sd: float = 0.0
    misfit_length: float = 0.0
    form: Form = "log-linear"
    scatter: float = 0.0
    depth_shared: float = 0.0
    noise_kind: NoiseKind = "normal"
    deviations: tuple[Deviation, ...] = ()

    def size_of(self, depth: float) -> float:
        """Return N at which a depth, whole or not, lies on the law."""
        regressor = float(REGRESSORS[self.form](np.asarray(float(depth))))
        return 12 * depth * math.exp(2 * (self.a + self.b * regressor))

    def best_depth(self, params: float) -> float:
        """Return the depth that lies on the law at N, the inverse of `size_of`."""
        return SOLVERS[self.form](self.a, self.b, params)

    def crossing(self, depth: int) -> float:
        """Return N at which the next deeper depth overtakes `depth` by the law; of the deepest, N of the law."""
        later = self.depths[self.depths.index(depth) + 1 :]
        return self.size_of(between(depth, later[0] if later else depth))

    def loss(self, depth: int, params: Floats) -> Floats:
        """Return the loss of a depth of `self.depths` at N by the law and the deviations, nats per token."""
        return self._curves.loss(depth, params)

    @cached_property
    def _curves(self) -> "LossCurves":
        return LossCurves(self, (0.0,) * (len(self.depths) - 1))


@dataclass(frozen=True)
class LossCurves:
    """The expected losses of one study.

    Attributes:
        truth: what they were drawn from.
        off_law: deviation from the law of ln N of each crossing of neighbours.
        frequencies, waves: (waves,) per e-fold, (depths, 2, waves) nats: cosines and sines of the smooth misfit.
    """

    truth: Truth
    off_law: tuple[float, ...]
    frequencies: Floats | None = None
    waves: Floats | None = None

    def loss(self, depth: int, params: Floats) -> Floats:
        """Return the expected loss of a depth at N, nats per token."""
        truth = self.truth
        rank = truth.depths.index(depth)
        x = np.log(np.asarray(params, dtype=float))
        first = math.log(truth.crossing(truth.depths[0]))
        loss = truth.asymptote + truth.drop * np.exp(-truth.exponent * (x - first))
        for shallow, off in zip(truth.depths[:rank], self.off_law, strict=False):
            past = truth.exponent * (x - math.log(truth.crossing(shallow)) - off)
            loss = loss + truth.slope / truth.exponent * np.expm1(-past)
        if self.frequencies is not None and self.waves is not None:
            turns = self.frequencies * x[..., None]
            loss = loss + np.cos(turns) @ self.waves[rank, 0] + np.sin(turns) @ self.waves[rank, 1]
        for deviation in truth.deviations:
            loss = loss + deviation(depth, x)
        return np.asarray(loss)

    def crossing(self, shallow: int, low: float, high: float) -> float:
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


def draw_curves(truth: Truth, key: Sequence[int]) -> LossCurves:
    """Draw the expected losses of the study of this key: its crossings off the law and its smooth misfit."""
    # No shape has the depth 0, so the stream is none of `simulate_matched`.
    generator = np.random.default_rng([*key, 0, 1])
    off_law = 2 * truth.scatter * generator.standard_normal(len(truth.depths) - 1)
    curves = LossCurves(truth, tuple(off_law.tolist()))
    if not truth.misfit_sd or not truth.misfit_length:
        return curves
    quantiles = (1 + (np.arange(_WAVES) + 0.5) / _WAVES) / 2
    waves = generator.standard_normal((len(truth.depths), 2, _WAVES)) * truth.misfit_sd / math.sqrt(_WAVES)
    return LossCurves(truth, curves.off_law, norm.ppf(quantiles) / truth.misfit_length, waves)


def simulate_matched(truth: Truth, shapes: Sequence[Shape], seeds: int, key: Sequence[int]) -> pd.DataFrame:
    """Simulate the rows of one study: depth, width, params, budget, seed, loss.

    The noise depends only on `key`, shape and seed (common random numbers). A shape in two designs has the same losses
    for the seeds in both, which removes most of the chance from comparing the designs.

    Args:
        truth: true values.
        shapes: each (depth, width) once.
        seeds: number of seeds, the same for all shapes.
        key: non-negative integers that identify the study.

    Raises:
        InputError: the truth gives a shape a loss that is not positive.
    """
    common = np.random.default_rng([*key]).standard_normal(seeds)
    draws = [
        np.random.default_rng([*key, depth, width]).standard_normal(1 + seeds) for depth, width, _ in shapes
    ]
    drawn = np.array(draws)
    by_depth = np.zeros((len(truth.depths), seeds))
    if truth.depth_shared:
        for rank, depth in enumerate(truth.depths):
            by_depth[rank] = np.random.default_rng([*key, 0, 2, depth]).standard_normal(seeds)
    return study_rows(draw_curves(truth, key), shapes, common, drawn[:, 1:], drawn[:, 0], by_depth)


def study_rows(
    curves: LossCurves, shapes: Sequence[Shape], common: Floats, own: Floats, misfit: Floats, by_depth: Floats
) -> pd.DataFrame:
    """Compute the rows of a study from its curves and standard normals.

    Args:
        curves: the expected losses.
        shapes: each (depth, width) once.
        common: (seeds,).
        own: (shapes, seeds).
        misfit: (shapes,), of the shapes about the curves.
        by_depth: (depths, seeds).
    """
    truth = curves.truth
    depth = np.array([shape[0] for shape in shapes])
    width = np.array([shape[1] for shape in shapes])
    seeds = len(common)
    params = 12.0 * depth * width**2
    mean = np.empty(len(shapes))
    for value in set(depth.tolist()):
        mean[depth == value] = curves.loss(value, params[depth == value])
    if not truth.misfit_length:
        mean = mean + truth.misfit_sd * misfit
    if mean.min() <= 0:
        worst = int(mean.argmin())
        raise InputError(
            f"The assumed truth gives {depth[worst]} layers of width {width[worst]} (N = {params[worst]:.3g}) a loss "
            f"of {mean[worst]:.3g} nats, and a loss is positive. Assume a larger loss, or a smaller slope or misfit_sd."
        )
    rank = np.searchsorted(truth.depths, depth)
    noise = math.sqrt(truth.shared) * common + math.sqrt(truth.depth_shared) * by_depth[rank]
    noise = noise + math.sqrt(1 - truth.shared - truth.depth_shared) * _noise(own, truth.noise_kind)
    losses = mean[:, None] * (1 + truth.noise * noise)
    return pd.DataFrame(
        {
            "depth": np.repeat(depth, seeds),
            "width": np.repeat(width, seeds),
            "params": np.repeat(params, seeds),
            "budget": np.repeat(np.array([shape[2] for shape in shapes]), seeds),
            "seed": np.tile(np.arange(seeds), len(shapes)),
            "loss": losses.ravel(),
        }
    )


def _noise(normal: Floats, kind: NoiseKind) -> Floats:
    """Noise of a kind from standard normals; a kind of other variance has that of Student's t or of its spikes."""
    if kind == "normal":
        return normal
    if kind == "spikes":
        return np.where(normal > norm.ppf(0.98), normal + 8, normal)
    if kind == "log-normal":
        return np.asarray((np.exp(0.75 * normal) - math.exp(0.75**2 / 2)) / 0.75)
    return np.asarray(student.ppf(norm.cdf(normal), float(kind[1:])))
