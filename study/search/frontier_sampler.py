"""A sampler of Optuna for the best depth of each budget, which learns from the studies of all budgets.

The loss at a budget N is close to a parabola in ln L, whose minimum moves slowly with ln N. The model is a Gaussian
process with that mean: at each budget a level of its own, a slope and a curvature in ln L that change linearly with
ln N, and a smooth misfit in (ln L, ln N), with the noise of the losses. Its scales are averaged over a grid, weighted
by their marginal likelihood. The next depth at a budget is the one that, once measured, lowers the expected loss of the
best measured depth the most: the knowledge gradient (Frazier, Powell and Dayanik 2009, doi 10.1287/ijoc.1080.0314)
among the measured depths.
"""

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState
from scipy.linalg import cho_factor, cho_solve

from analysis.curves.noise import Floats

#: The parameter of a trial, and the attribute of a study with its budget.
DEPTH, BUDGET = "depth", "budget"
#: Prior standard deviations over the scale of the losses: of slope and curvature in ln L, of the change of both per
#: e-fold of N, and of the level of a budget.
SHAPE, CHANGE, LEVEL = 2.0, 0.5, 10.0
#: The grid of the other scales: of the misfit and of the noise, over the scale of the losses.
MISFITS, NOISES = (0.01, 0.1, 0.4), (0.01, 0.05, 0.2)
#: Lengths of the misfit in ln L and ln N.
LENGTHS = (0.7, 2.0)
#: Scale of the losses in nats before a budget has two.
UNKNOWN_SCALE = 0.03
#: Depths that must have a loss at other budgets before they predict the best one.
LEAST_DEPTHS = 3
#: Nodes and weights of the expectation over the loss to be measured.
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)


class FrontierSampler(RandomSampler):
    """Chooses the depth of a trial by the losses of all budgets.

    Other parameters than `depth` are chosen at random. Each study has its budget N as the attribute `budget`.
    """

    def __init__(self, studies: Callable[[], Sequence[optuna.Study]], seed: int = 0) -> None:
        """Learn from `studies`, those of all budgets; `seed` is of the other parameters."""
        super().__init__(seed)
        self._studies = studies

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the depth of most value; other parameters are random."""
        if param_name != DEPTH or not isinstance(param_distribution, IntDistribution):
            return super().sample_independent(study, trial, param_name, param_distribution)
        budget = float(study.user_attrs[BUDGET])
        ended, running, tried = [], [], set()
        for optuna_study in self._studies():
            place = float(optuna_study.user_attrs[BUDGET])
            for other in optuna_study.get_trials(deepcopy=False):
                if DEPTH not in other.params:
                    continue
                depth = other.params[DEPTH]
                if other.state == TrialState.COMPLETE:
                    ended.append((place, depth, other.value))
                elif other.state == TrialState.RUNNING:
                    running.append((place, depth))
                if place == budget:
                    tried.add(depth)
        depths = range(param_distribution.low, param_distribution.high + 1)
        return next_depth(ended, running, budget, depths, tried)


def next_depth(
    ended: Sequence[tuple[float, int, float]],
    running: Sequence[tuple[float, int]],
    budget: float,
    depths: Sequence[int],
    tried: Collection[int],
) -> int:
    """Return the depth to measure next at a budget.

    Args:
        ended: budget, depth and loss of what is measured.
        running: budget and depth of what is being measured.
        budget: where to measure.
        depths: to choose among.
        tried: those measured there, running or failed; if all are, the best of them is returned.
    """
    free = [depth for depth in depths if depth not in tried]
    measured = {depth for _, depth, _ in ended}
    if len(measured) < LEAST_DEPTHS and budget not in {place for place, *_ in ended}:
        # Nothing predicts where the best depth is.
        middle = math.sqrt(depths[0] * depths[-1])
        return min(free or depths, key=lambda depth: abs(math.log(depth / middle)))
    mean, covariance, noise = posterior(ended, running, budget, depths)
    depths_of_budget = {depth for place, depth, *_ in (*ended, *running) if place == budget}
    chosen = [place for place, depth in enumerate(depths) if depth in depths_of_budget]
    best = depths[int(np.argmin(mean))]
    if not free or not chosen:
        # Without a loss at this budget, no depth has more value than the best one of the prediction.
        return min(free or [best], key=lambda depth: abs(math.log(depth / best)))
    gains = [_gain(mean, covariance, noise, chosen, depths.index(depth)) for depth in free]
    return free[int(np.argmax(gains))]


def _gain(mean: Floats, covariance: Floats, noise: float, chosen: Sequence[int], place: int) -> float:
    """Expected decrease of the least mean among the measured depths by measuring one more, in nats."""
    change = covariance[:, place] / math.sqrt(covariance[place, place] + noise)
    after = [*chosen, place]
    least = np.min(mean[after, None] + change[after, None] * NODES, axis=0)
    return float(mean[list(chosen)].min() - least @ WEIGHTS / WEIGHTS.sum())


def posterior(
    ended: Sequence[tuple[float, int, float]],
    running: Sequence[tuple[float, int]],
    budget: float,
    depths: Sequence[int],
) -> tuple[Floats, Floats, float]:
    """Return mean and covariance of the losses of some depths at a budget, and the variance of the noise.

    `known` and `running` are as in `next_depth`; what runs counts as measured, with the loss that is expected. The mean
    is relative to the mean loss of its budget.
    """
    rows = [*((place, depth) for place, depth, _ in ended), *running, *((budget, depth) for depth in depths)]
    count, end = len(ended), len(ended) + len(running)
    place, z = np.log([place for place, _ in rows]), np.log([depth for _, depth in rows])
    x, z = place - place.mean(), z - z.mean()
    alike = np.equal.outer(place, place).astype(float)
    loss = np.array([value for *_, value in ended])
    measured = alike[:count, :count]
    residual = loss - measured @ loss / measured.sum(axis=1)
    several = measured.sum(axis=1) > 1
    # From budgets with two losses or more.
    scale = float(np.sqrt(np.mean(residual[several] ** 2))) if several.any() else 0.0
    scale = scale or UNKNOWN_SCALE

    shape = SHAPE**2 * (1 + CHANGE**2 * np.outer(x, x))
    prior = LEVEL**2 * alike + shape * (np.outer(z, z) + np.outer(z**2, z**2))
    near = np.exp(
        -0.5 * sum((np.subtract.outer(v, v) / length) ** 2 for v, length in zip((z, x), LENGTHS, strict=True))
    )
    models = []
    for misfit, noise in itertools.product(MISFITS, NOISES):
        kernel = prior + misfit**2 * near
        factor = cho_factor(kernel[:count, :count] + noise**2 * np.eye(count), lower=True)
        solved = cho_solve(factor, residual / scale)
        mean = kernel[:, :count] @ solved
        covariance = kernel - kernel[:, :count] @ cho_solve(factor, kernel[:count])
        unseen = covariance[count:end, count:end] + noise**2 * np.eye(end - count)
        covariance = covariance - covariance[:, count:end] @ np.linalg.solve(unseen, covariance[count:end])
        likelihood = -0.5 * float(residual @ solved) / scale - float(np.log(np.diag(factor[0])).sum())
        models.append((likelihood, mean[end:], covariance[end:, end:], noise**2))
    likelihoods, means, covariances, noises = (np.array(values) for values in zip(*models, strict=True))
    weights = np.exp(likelihoods - likelihoods.max())
    weights /= weights.sum()
    mean = weights @ means
    between = (means - mean).T @ (weights[:, None] * (means - mean))
    covariance = np.tensordot(weights, covariances, 1) + between
    return scale * mean, scale**2 * covariance, scale**2 * float(weights @ noises)
