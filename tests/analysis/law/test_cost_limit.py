"""The best depth at a limit of cost: known losses and costs, and coverage in simulated worlds."""

import math

import numpy as np
import pytest

from analysis.fit.study import estimates_of
from analysis.law.answer_words import limit_sentence
from analysis.law.at_limit import COST_ERROR, CostKind, Limit
from analysis.law.cost_limit import ShapeCost, at_limit
from analysis.law.shape import buildable_width
from core.numbers import layers
from tests.simulated_study import Truth, shapes_of, simulate

DEPTHS = (1, 2, 4, 8)
SHAPES = shapes_of(DEPTHS, np.geomspace(2e3, 3e5, 8))
TRUTH = Truth(2.3, 0.25, DEPTHS, noise=0.002)
#: Milliseconds of every step, of each layer, and of each parameter.
STEP, LAYER, PARAMETER = 0.5, 0.1, 1e-5
#: The sizes of every depth have these costs.
LEAST, MOST = STEP + 8 * LAYER + 2.6e3 * PARAMETER, STEP + LAYER + 2.8e5 * PARAMETER


def costs_of(error=0.0, seed=0):
    """The measured cost of each shape, of this relative error."""
    generator = np.random.default_rng(seed)
    sizes = [(depth, 12 * depth * width**2) for depth, width, _ in SHAPES]
    return [
        ShapeCost(depth, params, (STEP + LAYER * depth + PARAMETER * params) * math.exp(error * noise))
        for (depth, params), noise in zip(sizes, generator.standard_normal(len(sizes)), strict=True)
    ]


def cost(value):
    return Limit(CostKind.LATENCY, value)


def size_at(depth, limit):
    return (limit - STEP - LAYER * depth) / PARAMETER


def losses_at(truth, limit):
    return {depth: float(truth.loss(depth, np.array([size_at(depth, limit)]))[0]) for depth in DEPTHS}


@pytest.fixture(scope="module")
def study():
    return estimates_of(simulate(TRUTH, SHAPES, 3, np.random.default_rng(0)))


@pytest.mark.parametrize("limit", [1.5, 2.0, 2.9])
def test_each_depth_is_taken_at_its_own_size(study, limit):
    assert LEAST < limit < MOST
    answer = at_limit(study.curves, study.crossings.quantile, costs_of(), cost(limit))
    assert [shape.depth for shape in answer.shapes] == [*DEPTHS]
    assert answer.missing == answer.excluded == ()
    true = losses_at(TRUTH, limit)
    for shape in answer.shapes:
        assert shape.params == pytest.approx(size_at(shape.depth, limit), rel=0.05)
        assert shape.width == pytest.approx(math.sqrt(shape.params / (12 * shape.depth)))
        assert shape.params_interval[0] < shape.params < shape.params_interval[1]
        assert shape.loss == pytest.approx(true[shape.depth], abs=0.01)
        assert shape.excess == pytest.approx(shape.loss - answer.best.loss)
    assert min(true, key=true.__getitem__) in answer.near
    low, high = answer.depth_interval
    assert (low or 1) <= answer.best.depth <= (high or 8)


def test_a_deeper_model_must_win_more_at_equal_cost_than_at_equal_size(study):
    """At equal cost the deeper model is smaller, so it is best from a larger size of the shallower one on."""
    cheap = [ShapeCost(depth, params, PARAMETER * params) for depth, params, _ in costs_of()]
    limits = np.geomspace(1.4, 2.9, 40)
    best = [
        [at_limit(study.curves, study.crossings.quantile, costs, cost(limit)).best.depth for limit in limits]
        for costs in (cheap, costs_of())
    ]
    # Costs in proportion to N are a comparison at equal N, of N = limit / PARAMETER.
    assert np.mean(best[1]) < np.mean(best[0])


def test_nothing_is_extrapolated(study):
    curves, quantile = study.curves, study.crossings.quantile
    costs = [item for item in costs_of() if item.depth != 4]
    below = at_limit(curves, quantile, costs, cost(STEP + 8 * LAYER - 0.1))
    assert 8 not in [shape.depth for shape in below.shapes]
    assert {*below.too_small, *below.excluded} == {8}
    assert below.too_large == (4,)
    above = at_limit(curves, quantile, costs, cost(50.0))
    assert (above.shapes, above.best, above.near) == ((), None, None)
    assert above.missing == DEPTHS
    assert above.depth_interval == (None, None)


def test_a_depth_too_costly_that_loses_at_its_smallest_size_is_excluded(study):
    """Eight layers of the smallest size are worse than one layer at any size that costs as much."""
    costs = [item._replace(cost=10 * item.cost) if item.depth == 8 else item for item in costs_of()]
    answer = at_limit(study.curves, study.crossings.quantile, costs, cost(2.0))
    assert answer.excluded == (8,)
    assert 8 not in answer.near
    assert answer.depth_interval[1] == 7 or answer.near[-1] < 4


def test_without_noise_nothing_is_excluded():
    one = simulate(TRUTH, shapes_of(DEPTHS, np.geomspace(2e3, 3e5, 2)), 1, np.random.default_rng(1))
    study = estimates_of(one)
    answer = at_limit(study.curves, math.nan, costs_of(), cost(2.0))
    assert answer.near is None
    assert answer.excluded == ()
    assert all(shape.excess_se is None for shape in answer.shapes)
    assert answer.depth_interval == (None, None)


def test_the_order_of_the_costs_and_repeated_measurements_change_nothing(study):
    costs = costs_of(0.02)
    curves, quantile = study.curves, study.crossings.quantile
    assert at_limit(curves, quantile, costs, cost(2.0)) == at_limit(
        curves, quantile, [*costs[::-1], *costs], cost(2.0)
    )


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.002, 0.005])
def test_the_depths_that_are_not_excluded_hold_the_best_one(noise):
    """In 95 % of simulated studies with costs of known error, at limits inside all costs; and a third are narrow."""
    truth, held, narrow, count = Truth(2.3, 0.25, DEPTHS, noise=noise), 0, 0, 0
    for seed in range(80):
        study = estimates_of(simulate(truth, SHAPES, 3, np.random.default_rng([seed, 1])))
        for limit in (1.45, 1.8, 2.3, 2.8):
            answer = at_limit(
                study.curves, study.crossings.quantile, costs_of(COST_ERROR, seed), cost(limit), COST_ERROR
            )
            true = losses_at(truth, limit)
            best = min(true, key=true.__getitem__)
            held += best in (*answer.near, *answer.missing)
            narrow += len(answer.near) <= 2
            count += 1
    assert held / count >= 0.95
    assert narrow / count > 0.33


def test_the_sentence_has_the_shapes_and_costs_of_the_answer(study):
    curves, quantile = study.curves, study.crossings.quantile
    answer = at_limit(curves, quantile, costs_of(), cost(2.0))
    sentence = limit_sentence(answer)
    assert sentence.startswith(f"At 2000 ms per token: {layers(answer.depth)} × {answer.width} wide")
    for shape in answer.shapes:
        if shape.depth != answer.depth:
            assert f"{shape.depth} × {buildable_width(shape.width)}" in sentence
    for limit, word in ((50.0, "less"), (1e-3, "more")):
        nothing = limit_sentence(at_limit(curves, quantile, costs_of(), cost(limit)))
        assert f"every measured shape costs {word}" in nothing
