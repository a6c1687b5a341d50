import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import kurtosis, skew

from analysis.design import simulated_study
from core.errors import InputError
from tests.simulated_study import Truth, draw_curves, shapes_of, simulate, simulate_matched

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
        middle = math.sqrt(shallow * deep)
        assert math.sqrt(math.exp(x) / (12 * middle)) == pytest.approx(math.exp(2.0 + 0.3 * middle), rel=1e-9)
        assert (gap(x + 1e-4) - gap(x - 1e-4)) / 2e-4 == pytest.approx(TRUTH.slope, rel=1e-6)
        assert gap(x - 1) < 0 < gap(x + 1)


@pytest.mark.parametrize("matched", [False, True])
def test_noise_has_the_given_size_and_share_by_seed(matched):
    seeds = 4000
    truth = Truth(2.0, 0.3, (1, 2, 4), noise=0.01, shared=0.4)
    draw, key = (simulate_matched, (7, 0)) if matched else (simulate, np.random.default_rng(7))
    frame = draw(truth, SHAPES, seeds, key)
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
    assert a.equals(losses(simulated_study.simulate_matched(TRUTH, few, 2, (1, 5))))
    other = losses(simulate_matched(TRUTH, few, 2, (1, 6)))
    assert np.all(np.abs(other - a) > 0)


def test_the_misfit_of_a_shape_is_common_to_its_seeds():
    truth = Truth(2.0, 0.3, (1, 2, 4), noise=1e-6, misfit_sd=0.02)
    shapes = [(depth, width, 0.0) for depth in (1, 2, 4) for width in range(8, 208)]
    found = losses(simulate_matched(truth, shapes, 2, (0, 0))).unstack("seed")
    assert found[0].to_numpy() == pytest.approx(found[1].to_numpy(), rel=1e-5)
    expected = [float(truth.loss(d, np.array([12.0 * d * w**2]))[0]) for d, w in found.index]
    # The standard error of a standard deviation of 600 shapes is 3 %.
    assert float(np.std(found[0] - expected)) == pytest.approx(0.02, rel=0.1)


def test_a_truth_with_a_loss_that_is_not_positive_is_refused():
    with pytest.raises(InputError, match=r"4 layers of width .* a loss is positive"):
        simulate(Truth(2.0, 0.3, (1, 2, 4), asymptote=0.1, drop=0.01), SHAPES, 1, np.random.default_rng(0))


def test_a_depth_on_the_law_and_its_size_are_inverse():
    assert [TRUTH.best_depth(TRUTH.size_of(depth)) for depth in (1.5, 4, 60)] == pytest.approx([1.5, 4, 60])


def test_a_smooth_misfit_has_its_size_and_length_and_moves_the_crossings_of_its_study():
    truth = replace(TRUTH, misfit_sd=0.004, misfit_length=1.5)
    params = np.exp(7 + np.arange(5.0))
    drawn = [draw_curves(truth, (4, number)) for number in range(1000)]
    off = np.array([curves.loss(2, params) - TRUTH.loss(2, params) for curves in drawn])
    # The standard error of a standard deviation of 1000 draws is 2.2 %, that of a correlation at most 3 points.
    assert off.std(axis=0) == pytest.approx(0.004, rel=0.09)
    expected = np.exp(-((np.arange(5) / 1.5) ** 2) / 2)
    assert np.corrcoef(off.T)[0] == pytest.approx(expected, abs=0.12)
    places = [math.log(curves.last_crossing(1, 100, 1e6) / TRUTH.crossing(1)) for curves in drawn[:200]]
    # To first order the crossing moves by the difference of two misfits over the slope of the gap.
    assert np.std(places) == pytest.approx(math.sqrt(2) * 0.004 / TRUTH.slope, rel=0.2)
    losses = [
        simulate_matched(replace(truth, noise=1e-9), SHAPES[:1], 1, (4, n))["loss"][0] for n in range(5)
    ]
    own = [float(curves.loss(1, 12.0 * np.array([SHAPES[0][1] ** 2]))[0]) for curves in drawn[:5]]
    assert losses == pytest.approx(own, rel=1e-7)


def test_crossings_off_the_law_have_the_given_scatter_and_are_those_of_the_curves():
    truth = replace(TRUTH, scatter=0.2)
    drawn = [draw_curves(truth, (5, number)) for number in range(400)]
    places = np.log(
        [[curves.crossing(depth) / truth.crossing(depth) for depth in (1, 2)] for curves in drawn]
    )
    assert np.std(places, axis=0) / 2 == pytest.approx(0.2, rel=0.15)
    assert abs(np.corrcoef(places.T)[0, 1]) < 0.2
    for curves in drawn[:20]:
        assert curves.last_crossing(2, 10, 1e8) == pytest.approx(curves.crossing(2), rel=1e-9)


def test_curves_that_do_not_cross_have_no_crossing():
    curves = draw_curves(TRUTH, (0,))
    place = TRUTH.crossing(1)
    assert curves.last_crossing(1, place * 1.1, place * 9) == 0
    assert curves.last_crossing(1, place / 9, place / 1.1) == math.inf
    assert curves.last_crossing(1, place / 9, place * 9) == pytest.approx(place)


def relative_noise(**options):
    """(seeds, shapes): noise over its standard deviation, of 4000 seeds."""
    truth = replace(TRUTH, noise=0.001, shared=0.0, **options)
    frame = simulate_matched(truth, SHAPES, 4000, (9, 0))
    table = frame.pivot_table(index="seed", columns=["depth", "width"], values="loss")
    expected = [float(truth.loss(d, np.array([12.0 * d * w**2]))[0]) for d, w in table.columns]
    return (table.to_numpy() / expected - 1) / 0.001, [depth for depth, _ in table.columns]


def test_errors_common_to_a_depth_are_not_common_to_all():
    noise, depths = relative_noise(depth_shared=0.6)
    correlation = np.corrcoef(noise.T)
    same = np.equal.outer(depths, depths)
    assert correlation[same & ~np.eye(len(depths), dtype=bool)] == pytest.approx(0.6, abs=0.06)
    assert correlation[~same] == pytest.approx(0.0, abs=0.08)


def test_kinds_of_noise_have_their_tails():
    kinds = ("normal", "t3", "spikes", "log-normal")
    found = {kind: relative_noise(noise_kind=kind)[0].ravel() for kind in kinds}
    assert abs(kurtosis(found["normal"])) < 0.2
    # 5 % of Student's t with 3 degrees of freedom lie beyond 3.18.
    assert np.mean(np.abs(found["t3"]) > 3.182) == pytest.approx(0.05, abs=0.004)
    assert np.mean(found["spikes"] > 6) == pytest.approx(0.02, abs=0.003)
    assert skew(found["log-normal"]) > 1.5
    assert np.mean(found["log-normal"]) == pytest.approx(0, abs=0.03)


def test_a_deviation_belongs_to_the_expected_loss():
    truth = replace(TRUTH, deviations=(lambda depth, x: 0.01 * depth * np.ones_like(x),))
    assert truth.loss(4, np.array([1e4])) - TRUTH.loss(4, np.array([1e4])) == pytest.approx(0.04)
    assert draw_curves(truth, (0,)).last_crossing(1, 100, 1e6) > TRUTH.crossing(1)
