import math

import numpy as np
import optuna
import pytest
from optuna.distributions import IntDistribution

from study.search.frontier_sampler import BUDGET, DEPTH, FrontierSampler, next_depth, posterior

DEPTHS = list(range(1, 13))
BUDGETS = [float(value) for value in np.geomspace(2e3, 4e4, 4)]
NOISE = 0.003


def parabola(budget, depth):
    """Best at 2 layers at 2,000 parameters, at 4.5 at 40,000."""
    best = math.log(2) + 0.27 * math.log(budget / 2e3)
    return 2 - 0.1 * math.log(budget) + 0.02 * (math.log(depth) - best) ** 2


def least_depth(budget, depth):
    """A least depth that the data need, and a slow rise above it: no parabola."""
    least = math.log(1.5) + 0.25 * math.log(budget / 2e3)
    return 2 + 0.04 / (1 + math.exp(6 * (math.log(depth) - least))) + 0.01 * math.log(depth) ** 2


def regret(loss, sampler_of, candidates, seed):
    """Mean excess loss of the best measured depths of all budgets, in nats."""
    rng = np.random.default_rng(seed)
    noisy = {(n, depth): loss(n, depth) + rng.normal(0, NOISE) for n in BUDGETS for depth in DEPTHS}
    studies = []
    for place, budget in enumerate(BUDGETS):
        study = optuna.create_study()
        study.set_user_attr(BUDGET, budget)
        study.sampler = sampler_of(lambda: studies, seed + place)
        studies.append(study)
    for _ in range(candidates):
        for study in studies:
            trial = study.ask({DEPTH: IntDistribution(1, 12, log=True)})
            study.tell(trial, noisy[study.user_attrs[BUDGET], trial.params[DEPTH]])
    found = []
    for study in studies:
        budget = study.user_attrs[BUDGET]
        best = loss(budget, study.best_params[DEPTH])
        found.append(best - min(loss(budget, depth) for depth in DEPTHS))
    return float(np.mean(found))


@pytest.mark.parametrize("loss", [parabola, least_depth])
def test_four_of_twelve_depths_find_a_depth_as_good_as_the_whole_grid_does(loss):
    """Random depths lose several times as much, in a world of the model and in one that is not."""
    studies = range(12)
    ours = np.mean([regret(loss, lambda all_of, seed: FrontierSampler(all_of), 4, seed) for seed in studies])
    random = np.mean(
        [regret(loss, lambda _, seed: optuna.samplers.RandomSampler(seed=seed), 4, seed) for seed in studies]
    )
    assert ours < 0.0015
    assert ours < random / 2


def test_the_posterior_recovers_a_parabola_and_its_minimum():
    known = [(n, depth, parabola(n, depth)) for n in BUDGETS for depth in (1, 3, 8, 12)]
    for budget in BUDGETS:
        mean, covariance, _ = posterior(known, [], budget, DEPTHS)
        truth = np.array([parabola(budget, depth) for depth in DEPTHS])
        assert np.ptp(mean - truth) < 0.001
        assert np.all(np.linalg.eigvalsh(covariance) > -1e-9)
        assert np.argmin(mean) == np.argmin(truth)


def test_a_new_budget_begins_at_the_depth_that_the_others_predict():
    known = [(n, depth, parabola(n, depth)) for n in BUDGETS[:3] for depth in (1, 3, 8, 12)]
    truth = [parabola(BUDGETS[3], depth) for depth in DEPTHS]
    assert next_depth(known, [], BUDGETS[3], DEPTHS, set()) == DEPTHS[int(np.argmin(truth))]


def test_the_first_depth_of_all_is_in_the_middle_and_none_is_chosen_twice():
    assert next_depth([], [], 2e3, DEPTHS, set()) == 3
    assert next_depth([], [(2e3, 3)], 2e3, DEPTHS, {3}) == 4
    known = [(2e3, depth, parabola(2e3, depth)) for depth in DEPTHS[1:]]
    assert next_depth(known, [], 2e3, DEPTHS, set(DEPTHS[1:])) == 1
    assert next_depth([*known, (2e3, 1, parabola(2e3, 1))], [], 2e3, DEPTHS, set(DEPTHS)) == 2


def test_what_runs_is_not_chosen_and_narrows_the_posterior():
    known = [(2e3, depth, parabola(2e3, depth)) for depth in (2, 4)]
    _, free, _ = posterior(known, [], 2e3, DEPTHS)
    _, running, _ = posterior(known, [(2e3, 10)], 2e3, DEPTHS)
    assert running[9, 9] < 0.2 * free[9, 9]
    assert next_depth(known, [(2e3, 10)], 2e3, DEPTHS, {2, 4, 10}) not in {2, 4, 10}
