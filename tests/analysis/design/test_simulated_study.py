import math

import numpy as np
import pytest
from scipy.optimize import brentq

from analysis.design.simulated_study import simulate_matched
from analysis.errors import InputError
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.0, 0.3, (1, 2, 4))
SHAPES = shapes_of(TRUTH.depths, np.geomspace(800, 60_000, 6))


def losses(frame):
    return frame.set_index(["depth", "width", "seed"])["loss"]


def test_neighbours_cross_on_the_law_with_the_given_slope():
    for shallow, deep in ((1, 2), (2, 4)):

        def gap(x, shallow=shallow, deep=deep):
            params = np.array([math.exp(x)])
            return float(TRUTH.loss(shallow, params)[0] - TRUTH.loss(deep, params)[0])

        x = brentq(gap, math.log(100), math.log(1e7))
        assert math.sqrt(math.exp(x) / (12 * shallow)) == pytest.approx(
            math.exp(2.0 + 0.3 * shallow), rel=1e-9
        )
        assert (gap(x + 1e-4) - gap(x - 1e-4)) / 2e-4 == pytest.approx(TRUTH.slope, rel=1e-6)
        assert gap(x - 1) < 0 < gap(x + 1)


@pytest.mark.parametrize("matched", [False, True])
def test_noise_has_the_given_size_and_share_by_seed(matched):
    seeds = 4000
    truth = Truth(2.0, 0.3, (1, 2, 4), noise=0.01, shared=0.4)
    frame = (
        simulate_matched(truth, SHAPES, seeds, (7, 0))
        if matched
        else simulate(truth, SHAPES, seeds, np.random.default_rng(7))
    )
    table = frame.pivot_table(index="seed", columns=["depth", "width"], values="loss")
    relative = table / table.mean() - 1
    assert relative.std().to_numpy() == pytest.approx(0.01, rel=0.06)
    correlation = np.corrcoef(relative.to_numpy().T)
    assert correlation[np.triu_indices(len(SHAPES), 1)] == pytest.approx(0.4, abs=0.07)
    for depth, width, _ in SHAPES:
        expected = float(truth.loss(depth, np.array([12.0 * depth * width**2]))[0])
        # The standard error of the mean of 4000 seeds is 0.016 % of the loss; four of these.
        assert table[depth, width].mean() == pytest.approx(expected, rel=4 * 0.01 / math.sqrt(seeds))


def test_matched_studies_share_the_noise_of_the_shapes_and_seeds_they_share():
    few, many = SHAPES[::2], [*SHAPES, (2, 500, 6e6)]
    a, b = losses(simulate_matched(TRUTH, few, 2, (1, 5))), losses(simulate_matched(TRUTH, many, 5, (1, 5)))
    assert b.loc[a.index].to_numpy() == pytest.approx(a.to_numpy(), rel=1e-15)
    other = losses(simulate_matched(TRUTH, few, 2, (1, 6)))
    assert np.all(np.abs(other - a) > 0)


def test_the_misfit_of_a_shape_is_common_to_its_seeds():
    truth = Truth(2.0, 0.3, (1, 2, 4), noise=1e-6, misfit_sd=0.02)
    shapes = [(depth, width, 0.0) for depth in (1, 2, 4) for width in range(8, 208)]
    for frame in (
        simulate(truth, shapes, 2, np.random.default_rng(0)),
        simulate_matched(truth, shapes, 2, (0, 0)),
    ):
        found = losses(frame).unstack("seed")
        assert found[0].to_numpy() == pytest.approx(found[1].to_numpy(), rel=1e-5)
        expected = [float(truth.loss(d, np.array([12.0 * d * w**2]))[0]) for d, w in found.index]
        # The standard error of a standard deviation of 600 shapes is 3 %.
        assert float(np.std(found[0] - expected)) == pytest.approx(0.02, rel=0.1)


def test_a_truth_with_a_loss_that_is_not_positive_is_refused():
    with pytest.raises(InputError, match=r"4 layers of width .* a loss is positive"):
        simulate(Truth(2.0, 0.3, (1, 2, 4), asymptote=0.1, drop=0.01), SHAPES, 1, np.random.default_rng(0))
