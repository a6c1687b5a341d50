"""Simulated studies with a known truth: to test intervals, and to plan a study before it is run.

Every depth is a power law with offset, loss_L(N) = E_L + A_L·N^-α, and neighbouring depths cross exactly on the
threshold law: where depth L is exp(a + b·L) wide. Beyond its crossing the gap of a pair rises towards E_L - E_(L+1),
below it the deeper model is the worse, as in trained studies.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.curves.noise import Floats
from analysis.errors import InputError


@dataclass(frozen=True)
class Truth:
    """A world in which the law holds exactly.

    Attributes:
        a, b: ln d = a + b·L at the crossings of neighbouring depths.
        depths: ascending.
        asymptote: loss of the shallowest depth at infinite width, nats a token.
        drop: loss of the shallowest depth above its asymptote at its first crossing, nats.
        exponent: α.
        slope: of every neighbours' gap at its crossing, nats for an e-fold of N.
        noise: standard deviation of one seed over the loss.
        shared: ρ, share of the variance common to the shapes of one seed.
        lack: standard deviation of the shapes about the curves, nats: the same for all seeds of a shape, as that of
            whole widths and of learning rates by a rule, so that no number of seeds averages it out.
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
    lack: float = 0.0

    def crossing(self, depth: int) -> float:
        """N at which the next deeper depth overtakes `depth`."""
        return 12 * depth * math.exp(2 * (self.a + self.b * depth))

    def loss(self, depth: int, params: Floats) -> Floats:
        """Expected loss of a depth of `self.depths` at N, nats a token."""
        rank = self.depths.index(depth)
        x = np.log(np.asarray(params, dtype=float))
        first = math.log(self.crossing(self.depths[0]))
        loss = self.asymptote + self.drop * np.exp(-self.exponent * (x - first))
        for shallow in self.depths[:rank]:
            past = self.exponent * (x - math.log(self.crossing(shallow)))
            loss = loss + self.slope / self.exponent * np.expm1(-past)
        return np.asarray(loss)


def shapes_of(
    depths: Iterable[int], budgets: Iterable[float], multiple: int = 2
) -> list[tuple[int, int, float]]:
    """(depth, width, budget) of every shape: for each budget the width nearest to sqrt(N/(12·L)), a whole multiple."""
    return [
        (depth, max(multiple, multiple * round(math.sqrt(budget / (12 * depth)) / multiple)), budget)
        for depth in depths
        for budget in budgets
    ]


def simulate(
    truth: Truth, shapes: Sequence[tuple[int, int, float]], seeds: int, generator: np.random.Generator
) -> pd.DataFrame:
    """Rows of one study: depth, width, params, budget, seed, loss.

    Args:
        truth: the world.
        shapes: (depth, width, budget).
        seeds: of every shape, shared by all.
        generator: of the noise.

    Raises:
        InputError: the world gives a shape a loss that is not positive.
    """
    common = generator.standard_normal(seeds)
    own = generator.standard_normal((len(shapes), seeds))
    stray = generator.standard_normal(len(shapes)) if truth.lack else np.zeros(len(shapes))
    return _rows(truth, shapes, common, own, stray)


def simulate_matched(
    truth: Truth, shapes: Sequence[tuple[int, int, float]], seeds: int, key: Sequence[int]
) -> pd.DataFrame:
    """`simulate` with noise that belongs to the shape and the seed: what two designs of one `key` share, they share.

    A shape in both designs has the same losses for the seeds in both, so that the designs are compared without most of
    the chance of either (common random numbers).

    Args:
        truth: the world.
        shapes: (depth, width, budget), each (depth, width) once.
        seeds: of every shape, shared by all.
        key: of the study, whole numbers that are not negative.
    """
    common = np.random.default_rng([*key]).standard_normal(seeds)
    draws = [
        np.random.default_rng([*key, depth, width]).standard_normal(1 + seeds) for depth, width, _ in shapes
    ]
    drawn = np.array(draws)
    return _rows(truth, shapes, common, drawn[:, 1:], drawn[:, 0])


def _rows(
    truth: Truth, shapes: Sequence[tuple[int, int, float]], common: Floats, own: Floats, stray: Floats
) -> pd.DataFrame:
    """Losses from standard normals: (seeds,) of the seeds, (shapes, seeds), and (shapes,) of the lack of fit."""
    depth = np.array([shape[0] for shape in shapes])
    width = np.array([shape[1] for shape in shapes])
    seeds = len(common)
    params = 12.0 * depth * width**2
    mean = np.empty(len(shapes))
    for value in set(depth.tolist()):
        mean[depth == value] = truth.loss(value, params[depth == value])
    mean = mean + truth.lack * stray
    if mean.min() <= 0:
        worst = int(mean.argmin())
        raise InputError(
            f"The assumed world gives {depth[worst]} layers of width {width[worst]} (N = {params[worst]:.3g}) a loss "
            f"of {mean[worst]:.3g} nats, and a loss is positive: assume a larger loss, or a smaller slope or lack."
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
