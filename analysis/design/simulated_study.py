"""Simulated studies with a known truth, to test intervals and to plan studies.

Each depth follows a power law with offset, loss_L(N) = E_L + A_L·N^-α. Neighbouring depths cross exactly on the
threshold law, where depth L has the width exp(a + b·L). Above the crossing the gap of a pair rises towards
E_L - E_(L+1); below it the deeper model has the higher loss, as in trained studies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.curves.noise import Floats
from analysis.errors import InputError

#: (depth, width, budget).
Shape = tuple[int, int, float]


@dataclass(frozen=True)
class Truth:
    """True values of a simulated study, in which the law holds exactly.

    Attributes:
        a, b: ln d = a + b·L at the crossings of neighbouring depths.
        depths: ascending.
        asymptote: loss of the shallowest depth at infinite width, nats per token.
        drop: loss of the shallowest depth above its asymptote at its first crossing, nats.
        exponent: α.
        slope: slope of the gap of neighbours at their crossing, nats per e-fold of N.
        noise: standard deviation of one seed over the loss.
        shared: ρ, share of the variance common to the shapes of one seed.
        misfit_sd: standard deviation of the shapes about the curves, nats. It is common to all seeds of a shape, so
            more seeds do not average it out; whole widths and learning rates by a rule cause such deviations.
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

    def crossing(self, depth: int) -> float:
        """Return N at which the next deeper depth overtakes `depth`."""
        return 12 * depth * math.exp(2 * (self.a + self.b * depth))

    def loss(self, depth: int, params: Floats) -> Floats:
        """Return the expected loss of a depth of `self.depths` at N, nats per token."""
        rank = self.depths.index(depth)
        x = np.log(np.asarray(params, dtype=float))
        first = math.log(self.crossing(self.depths[0]))
        loss = self.asymptote + self.drop * np.exp(-self.exponent * (x - first))
        for shallow in self.depths[:rank]:
            past = self.exponent * (x - math.log(self.crossing(shallow)))
            loss = loss + self.slope / self.exponent * np.expm1(-past)
        return np.asarray(loss)


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
    return study_rows(truth, shapes, common, drawn[:, 1:], drawn[:, 0])


def study_rows(
    truth: Truth, shapes: Sequence[Shape], common: Floats, own: Floats, misfit: Floats
) -> pd.DataFrame:
    """Compute losses from standard normals: (seeds,), (shapes, seeds), and (shapes,) for the lack of fit."""
    depth = np.array([shape[0] for shape in shapes])
    width = np.array([shape[1] for shape in shapes])
    seeds = len(common)
    params = 12.0 * depth * width**2
    mean = np.empty(len(shapes))
    for value in set(depth.tolist()):
        mean[depth == value] = truth.loss(value, params[depth == value])
    mean = mean + truth.misfit_sd * misfit
    if mean.min() <= 0:
        worst = int(mean.argmin())
        raise InputError(
            f"The assumed truth gives {depth[worst]} layers of width {width[worst]} (N = {params[worst]:.3g}) a loss "
            f"of {mean[worst]:.3g} nats, and a loss is positive. Assume a larger loss, or a smaller slope or misfit_sd."
        )
    noise = math.sqrt(truth.shared) * common + math.sqrt(1 - truth.shared) * own
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
