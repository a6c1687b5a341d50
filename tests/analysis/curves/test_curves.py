import numpy as np
import pandas as pd
import pytest

from analysis.curves.curves import build_curves
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4))
SHAPES = shapes_of(TRUTH.depths, np.geomspace(1e3, 1e5, 6))


def study(seeds=3, seed=0, truth=TRUTH):
    return simulate(truth, SHAPES, seeds, np.random.default_rng(seed))


def test_means_do_not_depend_on_the_order_of_rows(pilot_frame):
    frame = pilot_frame()
    frame["params"] = 12.0 * frame["depth"] * frame["width"] ** 2
    one, other = build_curves(frame), build_curves(frame.sample(frac=1, random_state=3))
    np.testing.assert_array_equal(one.mean, other.mean)
    assert one.noise == other.noise
    expected = frame[(frame["depth"] == 2) & (frame["width"] == 16)]["loss"].mean()
    assert one.mean[one.at(2)][2] == pytest.approx(expected)


def test_names_of_seeds_and_rows_of_one_run_twice_change_nothing():
    frame = study()
    renamed = frame.assign(seed=frame["seed"].map({0: 41, 1: 7, 2: 9}))
    doubled = pd.concat([renamed, renamed.iloc[:5]])
    one, other = build_curves(frame), build_curves(doubled)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-6, atol=1e-15)


def test_curves_never_extrapolate():
    curves = build_curves(study())
    high = curves.range(2)[1]
    assert curves.loss(2, np.array([high])).shape == (1,)
    for question in (curves.loss, curves.both):
        with pytest.raises(ValueError, match="depth 2 is measured on"):
            question(2, np.array([high + 0.1]))


@pytest.mark.slow
def test_the_covariance_is_that_of_curves_of_repeated_studies():
    # 250 studies: a variance is known to about 2·sqrt(2/250) = 18 % at two standard errors. The exponent is fitted, so
    # the covariance is of first order; that is what is tested.
    place = np.log(np.array([3e3, 3e4]))
    losses, said = [], []
    for seed in range(250):
        curves = build_curves(study(seed=seed))
        if curves.smooth.family != "power":
            continue
        jacobian = np.vstack([curves.both(1, place)[1], curves.both(4, place)[1]])
        said.append(jacobian @ curves.covariance @ jacobian.T)
        losses.append(np.concatenate([curves.loss(1, place), curves.loss(4, place)]))
    assert len(losses) > 200
    np.testing.assert_allclose(
        np.cov(np.array(losses), rowvar=False), np.mean(said, axis=0), rtol=0.25, atol=2e-6
    )


def test_losses_off_any_smooth_curve_widen_every_error():
    frame = study(seeds=5, truth=Truth(2.5, 0.3, (1, 2, 4), noise=0.002))
    generator = np.random.default_rng(1)
    bumps = {shape: 0.03 * generator.standard_normal() for shape in frame.groupby(["depth", "params"]).groups}
    bent = frame.assign(
        loss=frame["loss"] + [bumps[shape] for shape in zip(frame["depth"], frame["params"], strict=True)]
    )
    clean, rough = build_curves(frame), build_curves(bent)
    assert clean.misfit_rms < 0.002
    assert rough.misfit_rms == pytest.approx(0.03, rel=0.5)
    assert rough.misfit_p < 1e-6
    # Its own few degrees of freedom, points less parameters, replace those of the seeds.
    assert rough.dof < 12 < clean.dof
    place = np.log(np.array([1e4]))
    errors = [
        (jacobian := curves.both(2, place)[1]) @ curves.covariance @ jacobian.T for curves in (clean, rough)
    ]
    assert errors[1] > 20 * errors[0]


def test_one_seed_takes_the_scatter_for_noise():
    curves = build_curves(study(seeds=1, truth=Truth(2.5, 0.3, (1, 2, 4), noise=0.01)))
    assert curves.noise.source == "residuals"
    assert curves.noise.dof == len(curves.x) - curves.smooth.parameters - 1
    # 11 degrees of freedom: the estimate lies within a factor of 1.8 of the truth, 0.01·sqrt(0.7).
    assert 0.55 < curves.noise.summary()["sd_relative"] / (0.01 * 0.7**0.5) < 1.8


def test_two_sizes_a_depth_and_one_seed_say_nothing_about_noise():
    frame = study(seeds=1)
    few = frame[frame["budget"].isin(sorted(frame["budget"].unique())[1:3])]
    curves = build_curves(few)
    assert curves.noise.source == "none"
    assert np.isnan(curves.covariance).all()


def test_as_many_seeds_as_runs_pair_nothing_and_cost_little():
    frame = study(seeds=40)
    curves = build_curves(frame.assign(seed=range(len(frame))))
    assert curves.noise.correlation == 0
    assert curves.incidence.shape[1] == 1
    assert curves.count.tolist() == [40] * len(SHAPES)
