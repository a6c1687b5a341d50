"""Simulated studies with a known truth, to plan studies and to test intervals.

Each depth follows a power law with offset, loss_L(N) = E_L + A_L·N^-α. Neighbouring depths cross on the threshold law,
where the depth L = sqrt(L1·L2) has the width exp(a + b·L), or off it by a scatter that is drawn for each study. Above
the crossing the gap of a pair rises towards E_L - E_(L+1); below it the deeper model has the higher loss, as in trained
studies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.curves.noise import Floats
from analysis.intervals import LAYER_WEIGHTS, between
from analysis.law.threshold_law import solve_depth
from core.errors import InputError

#: (depth, width, budget).
Shape = tuple[int, int, float]


@dataclass(frozen=True)
class Truth:
    """True values of a simulated study; by default the law holds exactly.

    Attributes:
        a, b: ln d = a + b·L at the crossings of neighbouring depths, with N = `layer_weights`·L·d² there and for the
            depth between the two.
        depths: ascending.
        asymptote: loss of the shallowest depth at infinite width, nats per token.
        drop: loss of the shallowest depth above its asymptote at its first crossing, nats.
        exponent: α.
        slope: slope of the gap of neighbours at their crossing, nats per e-fold of N; 0 for identical curves.
        noise: standard deviation of one seed over the loss.
        shared: ρ, share of the variance common to the shapes of one seed.
        misfit_sd: standard deviation of the shapes about the curves, nats. It is common to all seeds of a shape, so
            more seeds do not average it out; whole widths and learning rates by a rule cause such deviations.
        scatter: standard deviation of ln d of the crossings about the law.
        layer_weights: N over L·d².
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
    scatter: float = 0.0
    layer_weights: float = LAYER_WEIGHTS

    def size_of(self, depth: float) -> float:
        """Return N at which a depth, whole or not, lies on the law."""
        return self.layer_weights * depth * math.exp(2 * (self.a + self.b * depth))

    def best_depth(self, params: float) -> float:
        """Return the depth that lies on the law at N, the inverse of `size_of`."""
        return solve_depth(self.a, self.b, params * LAYER_WEIGHTS / self.layer_weights)

    def crossing(self, depth: int) -> float:
        """Return N at which the next deeper depth overtakes `depth` by the law; of the deepest, N of the law."""
        later = self.depths[self.depths.index(depth) + 1 :]
        return self.size_of(between(depth, later[0] if later else depth))

    def loss(self, depth: int, params: Floats) -> Floats:
        """Return the loss of a depth at N with all crossings on the law, nats per token."""
        return LossCurves(self, np.zeros(len(self.depths) - 1)).loss(depth, params)


@dataclass(frozen=True)
class LossCurves:
    """The expected losses of one study.

    Attributes:
        truth: what they were drawn from.
        off_law: (pairs of neighbours,) deviation of ln N of each crossing from the law.
    """

    truth: Truth
    off_law: Floats

    def loss(self, depth: int, params: Floats) -> Floats:
        """Return the expected loss of a depth of `truth.depths` at N, nats per token."""
        truth = self.truth
        x = np.log(np.asarray(params, dtype=float))
        first = math.log(truth.crossing(truth.depths[0]))
        loss = truth.asymptote + truth.drop * np.exp(-truth.exponent * (x - first))
        shallower = truth.depths[: truth.depths.index(depth)]
        for shallow, off in zip(shallower, self.off_law, strict=False):
            past = truth.exponent * (x - math.log(truth.crossing(shallow)) - off)
            loss = loss + truth.slope / truth.exponent * np.expm1(-past)
        return np.asarray(loss)

    def crossing(self, shallow: int) -> float:
        """Return N at which the next deeper depth overtakes `shallow` in this study."""
        truth = self.truth
        return truth.crossing(shallow) * math.exp(self.off_law[truth.depths.index(shallow)])


def draw_curves(truth: Truth, key: Sequence[int]) -> LossCurves:
    """Draw the crossings of the study of this key off the law."""
    # No shape has the depth 0, so the stream is none of `draw_noise`.
    generator = np.random.default_rng([*key, 0, 1])
    return LossCurves(truth, 2 * truth.scatter * generator.standard_normal(len(truth.depths) - 1))


def draw_noise(shapes: Sequence[Shape], seeds: int, key: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """Draw standard normals: (seeds,) of each seed, (shapes, seeds) of each run, (shapes,) of each shape.

    They depend only on `key`, shape and seed (common random numbers). A shape in two designs has the same losses for
    the seeds in both, which removes most of the chance from comparing the designs.
    """
    common = np.random.default_rng([*key]).standard_normal(seeds)
    drawn = np.array(
        [np.random.default_rng([*key, depth, width]).standard_normal(1 + seeds) for depth, width, _ in shapes]
    )
    return common, drawn[:, 1:], drawn[:, 0]


def simulate_matched(truth: Truth, shapes: Sequence[Shape], seeds: int, key: Sequence[int]) -> pd.DataFrame:
    """Simulate the rows of the study of a key, see `study_rows`, with the noise of `draw_noise`.

    Args:
        truth: true values.
        shapes: each (depth, width) once.
        seeds: number of seeds, the same for all shapes.
        key: non-negative integers that identify the study.

    Raises:
        InputError: the truth gives a shape a loss that is not positive.
    """
    return study_rows(draw_curves(truth, key), shapes, *draw_noise(shapes, seeds, key))


def study_rows(
    curves: LossCurves, shapes: Sequence[Shape], common: Floats, independent: Floats, misfit: Floats
) -> pd.DataFrame:
    """Compute the rows of a study (depth, width, params, budget, seed, loss) from its curves and standard normals.

    Args:
        curves: the expected losses.
        shapes: each (depth, width) once.
        common: (seeds,).
        independent: (shapes, seeds).
        misfit: (shapes,), of the shapes about the curves.

    Raises:
        InputError: a shape has an expected loss that is not positive.
    """
    truth, seeds = curves.truth, independent.shape[1]
    table = pd.DataFrame(shapes, columns=["depth", "width", "budget"])
    table.insert(2, "params", truth.layer_weights * table["depth"] * table["width"] ** 2)
    mean = truth.misfit_sd * misfit
    for depth in set(table["depth"].tolist()):
        at = (table["depth"] == depth).to_numpy()
        mean[at] += curves.loss(depth, table["params"].to_numpy()[at])
    if mean.min() <= 0:
        worst = table.iloc[int(mean.argmin())]
        raise InputError(
            f"The assumed truth gives {worst.depth:g} layers of width {worst.width:g} (N = {worst.params:.3g}) a loss "
            f"of {mean.min():.3g} nats, and a loss is positive. Assume a larger loss, or a smaller slope or misfit_sd."
        )
    noise = math.sqrt(truth.shared) * common + math.sqrt(1 - truth.shared) * independent
    rows = table.loc[table.index.repeat(seeds)].reset_index(drop=True)
    losses = mean[:, None] * (1 + truth.noise * noise)
    return rows.assign(seed=np.tile(np.arange(seeds), len(shapes)), loss=losses.ravel())
