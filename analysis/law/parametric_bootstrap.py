"""Parametric bootstrap: repeat the whole pipeline on studies simulated from a study's own curves and noise.

The bootstrap of `analysis.law.crossings` moves the fitted curves within their covariance, which takes half a second.
Here each draw is a table of new losses, and every step is repeated: the choice of the family, exponents, noise, misfit,
crossings, scatter and law. Each draw costs a fit, so it is made on request only.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.curves.curves import Curves, build_curves
from analysis.intervals import Interval, params_of
from analysis.law.crossings import find_crossings, percentiles
from analysis.law.threshold import fit_threshold

#: Draws of the inner bootstrap, of which nothing is kept.
_INNER = 100


@dataclass(frozen=True)
class ParametricBootstrap:
    """Percentiles: of a and b over the simulated studies with a law, and of N at the crossing of each pair, as `1-2`.

    An end is None if the crossing lay outside the sizes.
    """

    count: int
    with_law: int
    a_interval: Interval | None
    b_interval: Interval | None
    crossings: dict[str, Interval]


def run_bootstrap(
    curves: Curves, count: int, *, level: float = 0.95, seed: int = 0
) -> ParametricBootstrap | None:
    """Simulate studies from the curves and fit each from its losses; None without a noise estimate."""
    if not curves.noise.known or count < 1:
        return None
    generator = np.random.default_rng(seed)
    laws: list[tuple[float, float]] = []
    places: dict[str, list[float]] = {}
    for _ in range(count):
        simulated = build_curves(resample(curves, generator))
        found = find_crossings(simulated, level=level, draws=_INNER, delta=None)
        for item in found.items:
            if item.params is not None:
                x = float(np.log(item.params))
            else:
                x = -np.inf if item.status == "left_censored" or (item.gap_large or 0.0) > 0 else np.inf
            places.setdefault(f"{item.shallow}-{item.deep}", []).append(x)
        law = fit_threshold(found, "log-linear")
        if law.a is not None and law.b is not None:
            laws.append((law.a, law.b))
    a = b = None
    if laws:
        low, high = np.quantile(np.array(laws), [(1 - level) / 2, (1 + level) / 2], axis=0)
        a, b = (float(low[0]), float(high[0])), (float(low[1]), float(high[1]))
    ends = {pair: percentiles(np.array(values), level) for pair, values in places.items()}
    crossings = {pair: (params_of(low), params_of(high)) for pair, (low, high) in ends.items()}
    return ParametricBootstrap(count, len(laws), a, b, crossings)


def resample(curves: Curves, generator: np.random.Generator) -> pd.DataFrame:
    """Simulate the losses of another study of the same shapes and seeds: depth, params, seed, loss."""
    noise = curves.noise
    fitted = curves.mean - curves.residual
    sd = noise.sd_at(curves.mean)
    white = np.zeros(len(fitted)) if curves.misfit is None else np.sqrt(curves.misfit.white)
    centre = fitted + white * generator.standard_normal(len(fitted))
    seeds = max(curves.incidence.shape[1], int(curves.count.max()))
    common = generator.standard_normal(seeds)
    of_depth = generator.standard_normal((len(curves.depths), seeds))
    # Not used: without it the same seed would give other draws.
    generator.standard_normal(len(fitted))
    point = np.repeat(np.arange(len(fitted)), curves.count)
    # Numbered within each point if seeds are not paired.
    paired = curves.incidence.shape[1] > 1
    seed = np.nonzero(curves.incidence)[1] if paired else np.concatenate([np.arange(n) for n in curves.count])
    own = generator.standard_normal(len(point))
    error = np.sqrt(noise.correlation) * common[seed] + np.sqrt(noise.independent) * own
    error += np.sqrt(noise.within) * of_depth[np.searchsorted(curves.depths, curves.depth[point]), seed]
    return pd.DataFrame(
        {
            "depth": curves.depth[point],
            "params": np.exp(curves.x[point]),
            "seed": seed,
            "loss": centre[point] + sd[point] * error,
        }
    )
