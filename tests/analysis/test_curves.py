import numpy as np
import pandas as pd
import pytest

from analysis.curves import build_curves, learning_rate_choice


def test_means_do_not_depend_on_the_order_of_rows(pilot_frame):
    frame = pilot_frame()
    frame["params"] = 12.0 * frame["depth"] * frame["width"] ** 2
    one, other = build_curves(frame), build_curves(frame.sample(frac=1, random_state=3))
    np.testing.assert_array_equal(one.mean, other.mean)
    assert one.noise == other.noise
    expected = frame[(frame["depth"] == 2) & (frame["width"] == 16)]["loss"].mean()
    assert one.mean[one.at(2)][2] == pytest.approx(expected)


def test_interpolation_is_linear_in_log_n_and_never_extrapolates(line_frame):
    curves = build_curves(line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}, sd=0, seeds=1))
    x = np.log(np.array([1e3, 5e3, 32e3]))
    loss = curves.weights(2, x) @ curves.mean
    np.testing.assert_allclose(loss, 1.0 - 0.2 * (x - np.log(6e3)), atol=1e-12)
    with pytest.raises(ValueError, match="depth 2 is measured on"):
        curves.weights(2, np.log(np.array([40e3])))


def test_pooled_noise_recovers_its_size_trend_and_sharing(line_frame):
    # 60 sizes, 2 depths, 6 seeds: 600 degrees of freedom, so sd within 3/sqrt(2·600) = 9 % and, as the shared
    # part rests on 5 degrees of freedom only, a wide range for the correlation.
    sizes = tuple(np.geomspace(1e3, 32e3, 60))
    frame = line_frame(
        {1: (1, -0.1), 2: (1, -0.2)}, seed=1, seeds=6, sd=0.02, trend=-0.5, shared=0.4, sizes=sizes
    )
    noise = build_curves(frame).noise
    assert noise.dof == 119 * 5 + 4
    own = noise.sd_at(np.log(np.array([6e3])))[0] * np.sqrt(1 - noise.correlation)
    assert own == pytest.approx(0.02 * np.sqrt(0.6), rel=0.09)
    assert noise.slope == pytest.approx(-0.5, abs=0.1)
    assert 0.1 < noise.correlation < 0.8


def test_one_seed_has_no_noise_and_equal_seeds_have_none_either(line_frame):
    single = build_curves(line_frame({1: (1, -0.1)}, seeds=1)).noise
    assert not single.known
    equal = build_curves(line_frame({1: (1, -0.1)}, seeds=3, sd=0)).noise
    assert not equal.known
    curves = build_curves(line_frame({1: (1, -0.1)}, seeds=1))
    assert np.isnan(curves.se).all()
    with pytest.raises(ValueError, match="no noise estimate"):
        curves.draws(10, np.random.default_rng(0))


def test_draws_have_the_covariance_they_claim(line_frame):
    frame = line_frame({1: (1, -0.1), 2: (1, -0.2)}, seed=2, seeds=4, shared=0.5)
    # A shape with fewer seeds than the rest, to see that pairing counts only what is shared.
    frame = frame[~((frame["depth"] == 2) & (frame["seed"] > 1) & (frame["params"] > 20e3))]
    curves = build_curves(frame)
    drawn = curves.draws(60_000, np.random.default_rng(0))
    dof = curves.noise.dof
    # The scale is drawn too, which widens the variance by dof/(dof-2).
    np.testing.assert_allclose(
        np.cov(drawn, rowvar=False), curves.covariance * dof / (dof - 2), atol=0.05 * curves.covariance.max()
    )
    np.testing.assert_allclose(drawn.mean(axis=0), curves.mean, atol=5 * curves.se.max() / np.sqrt(60_000))


def test_one_learning_rate_a_shape_and_a_reason_for_the_others():
    rows = [
        # Rate 0.2 has the lowest single loss but fewer seeds than the rest.
        *({"depth": 1, "params": 10.0, "seed": s, "lr": 0.01, "loss": 2.0} for s in (0, 1)),
        *({"depth": 1, "params": 10.0, "seed": s, "lr": 0.04, "loss": 1.5} for s in (0, 1)),
        {"depth": 1, "params": 10.0, "seed": 0, "lr": 0.2, "loss": 1.0},
        {"depth": 1, "params": 20.0, "seed": 0, "lr": 0.01, "loss": 1.2},
    ]
    frame = pd.DataFrame(rows, index=range(1, 7))
    kept, dropped = learning_rate_choice(frame)
    assert list(kept.index) == [3, 4, 6]
    assert set(dropped) == {1, 2, 5}
    assert "0.04, was chosen" in dropped[5]
