import numpy as np
import pytest

from analysis.curves.curves import build_curves
from analysis.curves.smooth import fit_family
from analysis.curves.smooth_misfit import _combine, _Model, _Waves, fit_misfit
from tests.coverage.worlds import WORLDS
from tests.simulated_study import Truth, shapes_of, simulate

DEPTHS, X = (1, 2, 4), np.linspace(7, 11, 12)


def matern(x, y, length):
    scaled = np.sqrt(3) * np.abs(x[:, None] - y) / length
    return (1 + scaled) * np.exp(-scaled)


def points(tau, noise, seed, length=1.0):
    """Straight lines with deviations: depth, ln N, loss and noise of the points of three depths."""
    generator = np.random.default_rng(seed)
    depth, x = np.repeat(DEPTHS, len(X)), np.tile(X, len(DEPTHS))
    root = np.linalg.cholesky(matern(X, X, length) + 1e-12 * np.eye(len(X)))
    bent = [tau * root @ generator.standard_normal(len(X)) for _ in DEPTHS]
    exact = 4 - 0.1 * x - 0.02 * depth + np.concatenate(bent)
    return depth, x, exact, exact + noise * generator.standard_normal(len(x))


def fitted(depth, x, loss, noise):
    smooth = fit_family("power", depth, x, loss, np.full(len(x), noise**-2))
    own = np.full(len(x), noise**2)
    misfit = max(float(np.mean((loss - smooth.fitted(depth, x)) ** 2)) - noise**2, 0.0)
    return smooth, fit_misfit(smooth, depth, x, loss, own, own, misfit)


def test_the_cosines_have_the_covariance_they_stand_for():
    waves = _Waves(0, 24, 6.0, 6.0)
    table = waves.functions(X)
    found = (table * waves.variances(1.0)) @ table.T
    # Without the constant, the level of a curve; differences of two places do not have it.
    apart = np.diag(found)[:, None] + np.diag(found) - 2 * found
    np.testing.assert_allclose(apart, 2 - 2 * matern(X, X, 1.0), atol=0.05, rtol=0.15)


def test_a_combination_is_solved_by_generalised_least_squares():
    # The best linear predictor in its usual form, with the covariance of the losses inverted.
    generator = np.random.default_rng(0)
    design = generator.standard_normal((15, 9))
    prior, variance = generator.uniform(0.5, 2, 6), generator.uniform(0.1, 1, 15)
    family, waves = design[:, :3], design[:, 3:] * prior
    total = np.linalg.inv(np.diag(variance) + waves @ waves.T)
    beta = np.linalg.inv(family.T @ total @ family) @ family.T @ total
    moves = (prior[:, None] * waves.T) @ total @ (np.eye(15) - family @ beta)
    solve, covariance = _Model(0.0, variance, prior, 1.0, 1.0).solve(design)
    np.testing.assert_allclose(solve, np.vstack([beta, moves]), atol=1e-8)
    np.testing.assert_allclose(covariance[:3, :3], np.linalg.inv(family.T @ total @ family), atol=1e-8)


@pytest.mark.parametrize("waves", [6, 30], ids=["fewer cosines than points", "more"])
def test_the_weights_of_combinations_are_their_restricted_likelihoods(waves):
    generator = np.random.default_rng(0)
    design, residual = generator.standard_normal((15, 3 + waves)), generator.standard_normal(15)
    prior, variance = generator.uniform(0.5, 2, waves), generator.uniform(0.1, 1, 15)
    squares = np.array([0.01, 0.1, 1.0])
    _, *found = _combine(design, residual, [prior], variance, squares, known=True)
    family, cosines = design[:, :3], design[:, 3:] * prior
    expected = []
    for square in squares:
        covariance = np.diag(variance) + square * cosines @ cosines.T
        inverse = np.linalg.inv(covariance)
        information = family.T @ inverse @ family
        rest = residual - family @ np.linalg.solve(information, family.T @ inverse @ residual)
        terms = rest @ inverse @ rest, *(np.linalg.slogdet(one)[1] for one in (covariance, information))
        expected.append(-sum(terms) / 2)
    np.testing.assert_allclose(np.diff([model.log_weight for model in found]), np.diff(expected), rtol=1e-9)


def test_the_size_of_deviations_is_found_and_its_absence_too():
    found = {tau: [] for tau in (0.01, 0.0)}
    for tau, values in found.items():
        for seed in range(20):
            depth, x, _, loss = points(tau, 0.002, seed)
            values.append(fitted(depth, x, loss, 0.002)[1].tau)
    assert 0.006 < np.median(found[0.01]) < 0.02
    assert np.median(found[0.0]) < 0.002


def test_curves_with_deviations_come_nearer_the_truth_and_know_their_error():
    between = np.linspace(7.3, 10.7, 40)
    plain, bent, scaled = [], [], []
    for seed in range(40):
        depth, x, exact, loss = points(0.01, 0.002, seed)
        smooth, misfit = fitted(depth, x, loss, 0.002)
        for value in DEPTHS:
            there = x[depth == value]
            truth = exact[depth == value]
            value_there, jacobian = misfit.both(smooth, value, there)
            plain.append(np.mean((smooth.loss(value, there) - truth) ** 2))
            bent.append(np.mean((value_there - truth) ** 2))
            error = np.sqrt(np.vecdot(jacobian @ misfit.covariance, jacobian))
            scaled.append((value_there - truth) / error)
            assert misfit.both(smooth, value, between)[0].shape == between.shape
    assert np.mean(bent) < 0.2 * np.mean(plain)
    assert np.std(scaled) == pytest.approx(1.0, abs=0.15)


def test_a_depth_of_two_sizes_and_points_on_their_curves_have_no_deviation():
    truth = Truth(2.5, 0.3, (1, 2, 4))
    frame = simulate(truth, shapes_of(truth.depths, np.geomspace(1e3, 1e5, 8)), 3, np.random.default_rng(0))
    few = build_curves(frame[(frame["depth"] > 1) | (frame["budget"] < 2e3)])
    assert set(few.misfit.waves) == {2, 4}
    # Errors of the seeds, which are independent, leave curves where the family puts them, to within those errors.
    curves = build_curves(frame)
    moved = [curves.loss(depth, X[2:-2]) - curves.smooth.loss(depth, X[2:-2]) for depth in truth.depths]
    assert np.abs(moved).max() < 2 * curves.se.mean()


def test_deviations_are_found_where_lapack_has_no_singular_values():
    """`numpy.linalg.svd` of the cosines of this study did not converge."""
    rows, _ = WORLDS["power law in L, depths 6 to 48"].study("power law in L, depths 6 to 48", 4)
    assert np.isfinite(build_curves(rows).covariance).all()
