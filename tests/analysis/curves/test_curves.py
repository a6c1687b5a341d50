import numpy as np
import pandas as pd
import pytest

from analysis.curves import posterior as module
from analysis.curves.curves import build_curves
from analysis.curves.posterior import common_exponent, designs
from analysis.curves.shape_means import shape_means
from analysis.law.crossings import find_crossings
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4))
SHAPES = shapes_of(TRUTH.depths, np.geomspace(1e3, 1e5, 6))


def study(seeds=3, seed=0, truth=TRUTH):
    return simulate(truth, SHAPES, seeds, np.random.default_rng(seed))


def test_the_order_and_repeats_of_rows_and_the_names_of_seeds_change_nothing(pilot_frame):
    frame = pilot_frame()
    frame["params"] = 12.0 * frame["depth"] * frame["width"] ** 2
    one, other = build_curves(frame), build_curves(frame.sample(frac=1, random_state=3))
    np.testing.assert_array_equal(one.mean, other.mean)
    assert one.noise == other.noise
    expected = frame[(frame["depth"] == 2) & (frame["width"] == 16)]["loss"].mean()
    assert one.mean[one.at(2)][2] == pytest.approx(expected)
    renamed = frame.assign(seed=frame["seed"].map({0: 41, 1: 7, 2: 9}))
    doubled = build_curves(pd.concat([renamed, renamed.iloc[:5]]))
    np.testing.assert_allclose(one.mean, doubled.mean, rtol=1e-12)
    np.testing.assert_allclose(one.covariance, doubled.covariance, rtol=1e-6, atol=1e-15)


def test_curves_never_extrapolate():
    curves = build_curves(study())
    high = curves.range(2)[1]
    assert curves.loss(2, np.array([high])).shape == (1,)
    for question in (curves.loss, curves.rows):
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
        rows = np.vstack([curves.rows(1, place), curves.rows(4, place)])
        said.append(rows @ curves.covariance @ rows.T)
        losses.append(np.concatenate([curves.loss(1, place), curves.loss(4, place)]))
    np.testing.assert_allclose(
        np.cov(np.array(losses), rowvar=False), np.mean(said, axis=0), rtol=0.25, atol=2e-6
    )


def test_losses_off_any_smooth_curve_widen_every_error():
    frame = study(seeds=5, truth=Truth(2.5, 0.3, (1, 2, 4), noise=0.002))
    generator = np.random.default_rng(1)
    bumps = 0.03 * generator.standard_normal(len(SHAPES))
    bent = frame.assign(loss=frame["loss"] + bumps[frame.groupby(["depth", "params"]).ngroup()])
    clean, rough = build_curves(frame), build_curves(bent)
    assert clean.misfit_rms < 0.002
    assert rough.misfit_rms == pytest.approx(0.03, rel=0.5)
    assert rough.misfit_p < 1e-6
    # Its own few degrees of freedom, points less parameters, replace those of the seeds.
    assert rough.dof < 12 < clean.dof
    place = np.log(np.array([1e4]))
    errors = [(rows := curves.rows(2, place)) @ curves.covariance @ rows.T for curves in (clean, rough)]
    assert errors[1] > 20 * errors[0]


def test_one_seed_takes_the_scatter_for_noise():
    curves = build_curves(study(seeds=1, truth=Truth(2.5, 0.3, (1, 2, 4), noise=0.01)))
    assert curves.noise.source == "residuals"
    assert curves.noise.dof == len(curves.x) - curves.parameters
    # 11 degrees of freedom: the estimate lies within a factor of 1.8 of the truth, 0.01·sqrt(0.7).
    assert 0.55 < curves.noise.summary().sd_relative / (0.01 * 0.7**0.5) < 1.8


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


def matern(x, y, length):
    scaled = np.sqrt(3) * np.abs(x[:, None] - y) / length
    return (1 + scaled) * np.exp(-scaled)


def small_fit(tau2=4e-4, nugget=1e-4):
    """One combination for a small study: everything that `posterior` takes, and what a plain calculation needs."""
    means = shape_means(study(truth=Truth(2.5, 0.3, (1, 2, 4), shared=0.4, depth_shared=0.3)))
    points, grid = module.points_of(means), np.linspace(6.9, 11.5, 7)
    places = np.repeat(np.arange(3), 7), np.tile(grid, 3)
    design, wide = designs(points.rank, points.x, points.loss, 1 / points.independent, 0.2, places)
    kernel = module.kernel_of(points.rank, points.x, points, 1.5)
    item = module.combine(points, design, kernel, module.Prior(0, tau2, nugget))
    across, along = module.kernel_of(*places, points, 1.5), matern(grid, grid, 1.5)
    return points, places, design, wide, kernel, item, across, along


def test_the_posterior_of_one_combination_is_a_plain_gaussian_conditioning():
    """Coefficients with a prior so wide that it is flat, the process, and the seeds' errors, given the points."""
    points, places, design, wide, kernel, item, across, along = small_fit()
    mean, joint, _ = module.posterior(points, wide, [across], [along], [item], np.ones(1))
    causes, vague = points.shared.shape[1], 100.0
    same = places[0][:, None] == places[0]
    state = np.zeros((len(wide) + causes, len(wide) + causes))
    state[: len(wide), : len(wide)] = vague * wide @ wide.T + 4e-4 * same * matern(places[1], places[1], 1.5)
    state[len(wide) :, len(wide) :] = np.eye(causes)
    towards = np.vstack([vague * wide @ design.T + 4e-4 * across, points.shared.T])
    noise = points.shared @ points.shared.T + np.diag(
        points.independent + 1e-4 * points.single / points.single.mean()
    )
    gain = towards @ np.linalg.inv(vague * design @ design.T + 4e-4 * kernel + noise)
    np.testing.assert_allclose(mean, (gain @ points.loss)[: len(wide)], atol=1e-5)
    np.testing.assert_allclose(joint, state - gain @ towards.T, atol=1e-6)
    assert joint[: len(wide), len(wide) :].std() > 1e-3, "seeds are correlated with the curves"


def test_several_combinations_give_the_mean_and_the_covariance_of_their_mixture():
    points, _, design, wide, kernel, item, across, along = small_fit()
    other = module.combine(points, design, kernel, module.Prior(0, 1e-2))
    plain = module.combine(points, design, None, module.Prior())
    items, weight = [item, other, plain], np.array([0.5, 0.3, 0.2])
    alone = [module.posterior(points, wide, [across], [along], [one], np.ones(1)) for one in items]
    mean, joint, _ = module.posterior(points, wide, [across], [along], items, weight)
    means, covariances = (np.array([one[part] for one in alone]) for part in (0, 1))
    np.testing.assert_allclose(mean, weight @ means)
    expected, size = np.tensordot(weight, covariances, 1), len(mean)
    expected[:size, :size] += (weight * (means - mean).T) @ (means - mean)
    np.testing.assert_allclose(joint, expected, atol=1e-14)


def test_the_weights_of_combinations_are_their_restricted_likelihoods():
    points, _, design, _, kernel, _, _, _ = small_fit()
    found, expected = [], []
    for tau2, nugget in ((0.0, 0.0), (1e-4, 0.0), (1e-3, 1e-3)):
        found.append(module.combine(points, design, kernel, module.Prior(0, tau2, nugget)).log_weight)
        own = points.independent + nugget * points.single / points.single.mean()
        covariance = points.shared @ points.shared.T + np.diag(own) + tau2 * kernel
        inverse = np.linalg.inv(covariance)
        information = design.T @ inverse @ design
        rest = points.loss - design @ np.linalg.solve(information, design.T @ inverse @ points.loss)
        terms = rest @ inverse @ rest, *(np.linalg.slogdet(one)[1] for one in (covariance, information))
        expected.append(-sum(terms) / 2)
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-7)


def bent_study(tau, noise, key):
    """Straight lines with smooth deviations, three seeds, and the exact losses: a frame and (depths, sizes)."""
    generator, x = np.random.default_rng(key), np.linspace(7, 11, 12)
    root = np.linalg.cholesky(matern(x, x, 1.0) + 1e-12 * np.eye(len(x)))
    waves = [tau * root @ generator.standard_normal(12) for _ in range(3)]
    exact = 4 - 0.1 * x - 0.02 * np.array([[1], [2], [4]]) + waves
    depth, params, seed = (
        item.ravel() for item in np.meshgrid((1, 2, 4), np.exp(x), range(3), indexing="ij")
    )
    loss = exact.repeat(3) + noise * generator.standard_normal(len(seed))
    return pd.DataFrame({"depth": depth, "params": params, "seed": seed, "loss": loss}), x, exact


def plain_power_law(x, loss):
    """A power law with an offset through the losses of one depth, by least squares."""
    rank, weight = np.zeros(len(x), dtype=np.int64), np.ones(len(x))
    alpha = common_exponent(rank, x, loss, weight, np.empty((len(x), 0)))
    design = designs(rank, x, loss, weight, alpha, (rank, x))[0][:, :2]
    return design @ np.linalg.lstsq(design, loss, rcond=1e-10)[0]


def test_smooth_deviations_are_found_with_their_error_and_their_absence_too():
    found, scaled, plain, bent = {0.01: [], 0.0: []}, [], [], []
    for tau, values in found.items():
        for key in range(25):
            frame, x, exact = bent_study(tau, 0.0035, key)
            curves = build_curves(frame)
            values.append(curves.tau)
            for depth, truth in zip((1, 2, 4), exact, strict=True) if tau else ():
                rows = curves.rows(depth, x)
                error = np.sqrt(np.vecdot(rows @ curves.covariance, rows))
                scaled.append((curves.loss(depth, x) - truth) / error)
                fitted = plain_power_law(x, curves.mean[curves.at(depth)])
                plain.append(np.mean((fitted - truth) ** 2))
                bent.append(np.mean((curves.loss(depth, x) - truth) ** 2))
    assert 0.006 < np.median(found[0.01]) < 0.02
    assert np.median(found[0.0]) < 0.002
    assert np.mean(bent) < 0.2 * np.mean(plain)
    assert np.std(scaled) == pytest.approx(1.0, abs=0.15)


def test_the_grid_has_the_ends_of_every_depth_and_values_between_are_interpolated():
    curves = build_curves(study().query("depth > 1 or budget > 2000"))
    for depth in curves.depths:
        assert min(np.abs(curves.grid - curves.range(depth)[0])) < 2e-5
        rows = curves.rows(depth, curves.grid[curves.inside(depth)])
        np.testing.assert_allclose(
            rows @ curves.values.ravel(), curves.values[curves.depths.index(depth)][curves.inside(depth)]
        )
    x = np.linspace(*curves.range(2), 50)
    weights = curves.rows(2, x)
    # A cubic is interpolated exactly.
    np.testing.assert_allclose(weights[:, curves.index(2)] @ (curves.grid**3), x**3, rtol=1e-9)


def test_neighbours_of_a_large_table_are_averaged_first(monkeypatch):
    sizes = np.geomspace(1e3, 1e5, 60)
    frame = simulate(
        TRUTH, [(depth, 1, size) for depth in TRUTH.depths for size in sizes], 2, np.random.default_rng(0)
    )
    exact = np.concatenate([TRUTH.loss(depth, sizes) for depth in TRUTH.depths]).repeat(2)
    noisy = exact * (1 + 0.01 * np.random.default_rng(1).standard_normal(len(exact)))
    frame = frame.assign(params=frame["budget"], loss=noisy)
    whole = build_curves(frame)
    monkeypatch.setattr(module, "MOST_POINTS", 45)
    merged = build_curves(frame)
    assert len(module.points_of(shape_means(frame)).x) == 45
    assert len(merged.x) == 180
    error = np.sqrt(np.diag(whole.covariance)).reshape(whole.values.shape)
    assert np.abs(merged.values - whole.values).max() < 1.5 * error.max()
    assert np.diag(merged.covariance).mean() == pytest.approx(np.diag(whole.covariance).mean(), rel=0.5)


def grouped(seeds, seed=0, sizes=6):
    """Losses in two groups of each size, whose levels have nothing to do with the size."""
    shapes = shapes_of(TRUTH.depths, np.geomspace(1e3, 1e5, sizes))
    generator = np.random.default_rng(seed)
    parts = []
    for number in (0, 1):
        frame = simulate(TRUTH, shapes, seeds, generator)
        size = np.searchsorted(np.geomspace(1e3, 1e5, sizes) * 1.3, frame["params"])
        level = generator.normal(0, 0.2, sizes)[size]
        parts.append(frame.assign(token_group=2 * size + number, loss=frame["loss"] + level))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_levels_of_groups_change_no_gap_and_no_noise(seeds):
    frame = grouped(seeds)
    level = np.random.default_rng(5).normal(0, 0.1, 12)[frame["token_group"]]
    one, other = build_curves(frame), build_curves(frame.assign(loss=frame["loss"] + level))
    assert one.sizes(2) == 6
    assert len(one.at(2)) == 12
    assert one.noise.source == ("seeds" if seeds > 1 else "residuals")
    assert one.noise.summary().sd_relative == pytest.approx(TRUTH.noise, rel=0.4)
    gaps = [find_crossings(curves).gaps for curves in (one, other)]
    for left, right in zip(*gaps, strict=True):
        # The noise follows the loss, so that levels of a twentieth of it change the weights a little.
        assert np.abs((left.value - right.value) / left.se).max() < 0.3
        np.testing.assert_allclose(left.se, right.se, rtol=0.3)
    # Without the groups the levels are taken for noise.
    mixed = build_curves(grouped(1).drop(columns="token_group").drop_duplicates(["depth", "params"]))
    assert mixed.noise.summary().sd_relative > 5 * TRUTH.noise


def test_depths_that_share_no_group_have_no_known_gap():
    frame = grouped(3)
    apart = frame[(frame["depth"] == 4) | (frame["token_group"] % 2 == 0)]
    apart = apart[(apart["depth"] != 4) | (apart["token_group"] % 2 == 1)]
    near, far = find_crossings(build_curves(apart)).gaps
    assert near.se.max() < 0.1
    assert far.se.min() > 1.0
