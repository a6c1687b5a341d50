import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from analysis.files import from_json, to_json
from analysis.law.crossings import Crossing, Crossings, Gap
from analysis.law.threshold import TWO_POINTS, ThresholdFit, _least_square, _Likelihood, fit_threshold

Z = float(norm.ppf(0.975))


def made(a, b, depths, sd, *, slope=0.05, reach=8.0, shift=(), rho=0.0):
    """Pairs whose gaps are straight lines through zero on ln d = a + b·L, and normal errors of ln d of size sd.

    A gap's error is the same all along (one parameter a pair), so T is exactly the square of generalised least squares.
    `shift` moves crossings in ln d; `reach` is half the range measured, in ln N about the law; `rho` correlates pairs.
    """
    count = len(depths) - 1
    sd = np.broadcast_to(sd, count)
    shift = np.array(shift) if len(shift) else np.zeros(count)
    matrix = np.full((count, count), rho) + (1 - rho) * np.eye(count)
    # An error of ln d by e is one of ln N by 2e, and of the gap by 2·e·slope.
    covariance = matrix * np.outer(2 * slope * sd, 2 * slope * sd)
    items, gaps = [], []
    for pair, (shallow, deep) in enumerate(itertools.pairwise(depths)):
        law = math.log(12 * shallow) + 2 * (a + b * shallow)
        zero = law + 2 * shift[pair]
        x = np.linspace(law - reach, law + reach, 201)
        jacobian = np.zeros((201, count))
        jacobian[:, pair] = 1
        gaps.append(Gap(x, slope * (x - zero), np.full(201, math.sqrt(covariance[pair, pair])), jacobian))
        inside = x[0] < zero < x[-1]
        outside = "left_censored" if zero < x[0] else "right_censored"
        params = math.exp(zero) if inside else None
        items.append(Crossing(shallow, deep, True, "bracketed" if inside else outside, params=params))
    return Crossings(tuple(items), tuple(gaps), covariance, Z, 0.95)


def reference(depths, log_widths, covariance):
    """Generalised least squares by statsmodels: (a, b), their covariance."""
    statsmodels = pytest.importorskip("statsmodels.api")
    design = np.column_stack([np.ones(len(depths)), depths])
    found = statsmodels.GLS(log_widths, design, sigma=covariance).fit()
    # statsmodels scales the covariance by the residuals; the errors here are known.
    return found.params, found.cov_params() / found.scale


@pytest.mark.parametrize("rho", [0.0, 0.6, -0.2])
def test_straight_gaps_give_generalised_least_squares_and_its_intervals(rho):
    depths, sd, shift = [1, 2, 4, 6, 8], np.array([0.03, 0.05, 0.08, 0.06]), [0.01, -0.015, 0.03, -0.005]
    crossings = made(2.0, 0.3, depths, sd, shift=shift, rho=rho)
    found = fit_threshold(crossings, "log-linear")
    shallow = np.array(depths[:-1])
    covariance = crossings.covariance / (2 * 0.05) ** 2
    law, error = reference(shallow, 2.0 + 0.3 * shallow + np.array(shift), covariance)
    assert found.scatter == 0
    assert (found.a, found.b) == (pytest.approx(law[0], abs=1e-4), pytest.approx(law[1], abs=1e-4))
    np.testing.assert_allclose(found.covariance, error, rtol=1e-6)
    for interval, centre, variance in zip(
        (found.a_interval, found.b_interval), law, np.diag(error), strict=True
    ):
        half = Z * math.sqrt(variance)
        # 240 directions: the extreme one is at most 0.75 degrees off, which is 0.01 % of the half-width.
        assert interval == pytest.approx((centre - half, centre + half), abs=0.01 * half)
    residual = np.array(shift) + 2 + 0.3 * shallow - law[0] - law[1] * shallow
    assert found.chi2 == pytest.approx(residual @ np.linalg.solve(covariance, residual), rel=1e-3)
    assert found.dof == 2


def test_two_crossings_give_a_law_that_says_it_tests_nothing():
    found = fit_threshold(made(2.0, 0.3, [1, 2, 4], 0.05), "log-linear")
    assert (found.status, found.note, found.chi2, found.dof) == ("ok", TWO_POINTS, None, None)
    assert found.widths == pytest.approx((math.exp(2.3), math.exp(2.6)))
    assert (found.scatter, found.leave_one_out) == (None, ())


def test_the_power_law_is_the_line_in_log_depth():
    found = fit_threshold(made(2.0, 0.3, [1, 2, 4], 0.05), "power")
    assert found.a == pytest.approx(2.3, abs=1e-5)
    assert found.b == pytest.approx(0.3 / math.log(2), abs=1e-5)


def test_crossings_that_stray_beyond_their_errors_show_a_scatter_and_widen_the_interval():
    depths = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    shift = 0.1 * np.array([1, -1, 1, -1, -1, 1, -1, 1])
    calm = fit_threshold(made(2.0, 0.3, depths, 0.01), "log-linear")
    rough = fit_threshold(made(2.0, 0.3, depths, 0.01, shift=shift), "log-linear")
    assert calm.scatter == 0
    assert rough.scatter == pytest.approx(0.1, rel=0.02)
    assert rough.p_value < 1e-6 < calm.p_value
    span = [fit.b_interval[1] - fit.b_interval[0] for fit in (calm, rough)]
    # Six crossings are free, and Student's t of six is 2.447.
    wider = math.hypot(0.01, rough.scatter) / 0.01 * 2.447 / Z
    assert span[1] == pytest.approx(span[0] * wider, rel=0.05)


def test_a_crossing_above_the_sizes_measured_bounds_the_law_from_below():
    # The third pair crosses 0.5 above its range in ln N: the line through the others must pass over that bound.
    depths, reach = [1, 2, 3, 4], 0.5
    free = made(2.0, 0.3, depths, [0.02, 0.3, 0.02], reach=reach)
    bound = made(2.0, 0.3, depths, [0.02, 0.3, 0.02], reach=reach, shift=[0, 0, 0.5])
    assert bound.items[2].status == "right_censored"
    found, other = fit_threshold(bound, "log-linear"), fit_threshold(free, "log-linear")
    assert (found.pairs, found.depths) == (3, (1, 2))
    # At depth 3 the range ends at ln d = 2.9 + 0.25; below it the shallow model's lead contradicts the law.
    assert min(a + 3 * b for a, b, _ in found.region) > 2.9 + 0.25 - 2 * Z * 0.02
    assert min(a + 3 * b for a, b, _ in other.region) < 2.9
    # The bound has no upper side, and the second pair is too loose to be one.
    assert other.status == "ok"
    assert (found.status, found.b_interval[1]) == ("open", None)
    assert found.b_interval[0] > 0.3


def test_a_law_bound_on_one_side_only_is_open():
    # The second crossing's error is larger than all its range, so nothing keeps the slope.
    found = fit_threshold(made(2.0, 0.3, [1, 2, 3], [0.02, 3.0], reach=1.0), "log-linear")
    assert found.status == "open"
    assert found.b_interval == (None, None)
    assert "on one side only" in found.note


def test_the_square_over_bounds_is_that_of_a_bounded_minimisation():
    generator = np.random.default_rng(3)
    for _ in range(60):
        count = int(generator.integers(2, 6))
        root = generator.standard_normal((count, count))
        matrix = root @ root.T + 0.1 * np.eye(count)
        gap, side = 2 * generator.standard_normal(count), generator.integers(-1, 2, count).astype(float)
        inverse = np.linalg.inv(matrix)
        bounds = [(0, 0) if s == 0 else (0, None) if s > 0 else (None, 0) for s in side]
        plain = minimize(
            lambda s, g=gap, i=inverse: (g - s) @ i @ (g - s),
            np.zeros(count),
            bounds=bounds,
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-12, "maxiter": 10_000},
        )
        ours = _least_square(gap[None], matrix[None], side[None])[0]
        assert ours == pytest.approx(plain.fun, rel=1e-3, abs=1e-6)


def test_many_laws_at_once_are_the_same_as_one_by_one():
    crossings = made(2.0, 0.3, [1, 2, 4, 6], 0.05, reach=1.0, rho=0.3)
    shallow = np.array([1.0, 2.0, 4.0])
    likelihood = _Likelihood(list(crossings.gaps), shallow, shallow, crossings.covariance)
    laws = np.array([2.0, 0.3]) + 0.3 * np.random.default_rng(1).standard_normal((40, 2))
    together = likelihood(laws, 0.1)
    np.testing.assert_allclose(together, [likelihood(law[None], 0.1)[0] for law in laws])
    np.testing.assert_allclose(together, [likelihood.one(law, 0.1) for law in laws])
    # What excludes laws without linear algebra must never exclude one that is accepted.
    least = likelihood.least(laws, 0.1)
    assert (least <= together * (1 + 1e-8) + 1e-9).all()
    assert (least > 0.1 * together).any()
    assert likelihood(np.array([[2.0, 0.3]]))[0] == pytest.approx(0, abs=1e-6)


def test_without_a_pair_the_others_foretell_it():
    shift = [0.0, 0.0, 0.2, 0.0]
    found = fit_threshold(made(2.0, 0.3, [1, 2, 3, 4, 5], 0.05, shift=shift), "log-linear")
    assert [(item.shallow, item.deep) for item in found.leave_one_out] == [(1, 2), (2, 3), (3, 4), (4, 5)]
    odd = found.leave_one_out[2]
    assert (odd.a, odd.b) == (pytest.approx(2.0, abs=1e-5), pytest.approx(0.3, abs=1e-5))
    assert (odd.width, odd.measured) == (pytest.approx(math.exp(2.9)), pytest.approx(math.exp(3.1)))
    # Predicted at L = 3 from 1, 2 and 4: variance 1/3 + (3 - 7/3)²/(14/3), beside its own.
    spread = math.hypot(found.scatter, 0.05)
    assert odd.z == pytest.approx(0.2 / (spread * math.sqrt(1 + 1 / 3 + (2 / 3) ** 2 / (14 / 3))), rel=1e-3)


def test_what_is_missing_is_said():
    crossings = made(2.0, 0.3, [1, 2, 4], 0.05)
    far = Crossing(1, 4, False, "bracketed", params=1e4)
    one = Crossings(
        (crossings.items[0], far, Crossing(2, 4, True, "right_censored")),
        (crossings.gaps[0], crossings.gaps[0], crossings.gaps[1]),
        crossings.covariance,
        Z,
        0.95,
    )
    found = fit_threshold(one, "log-linear")
    assert (found.status, found.a) == ("insufficient", None)
    assert "1 of 2 has one" in found.reason
    silent = replace(crossings, quantile=math.nan)
    assert "no noise estimate" in fit_threshold(silent, "log-linear").reason


def test_a_pair_contradicted_by_a_divergence_takes_no_part():
    crossings = made(2.0, 0.3, [1, 2, 3, 4], 0.05, shift=[0, 0.4, 0])
    items = list(crossings.items)
    items[1] = replace(items[1], status="ambiguous", contradicted=True)
    found = fit_threshold(replace(crossings, items=tuple(items)), "log-linear")
    assert (found.depths, found.pairs) == ((1, 3), 2)
    assert (found.a, found.b) == (pytest.approx(2.0, abs=1e-5), pytest.approx(0.3, abs=1e-5))
    assert "without 2 → 3, where a model diverged" in found.note


def test_an_optimiser_that_gives_up_is_told_apart(monkeypatch):
    from analysis.law import threshold

    class Stopped:
        success, message, x = False, "too many evaluations", np.zeros(2)

    monkeypatch.setattr(threshold, "minimize", lambda *_, **__: Stopped())
    found = fit_threshold(made(2.0, 0.3, [1, 2, 4], 0.05), "log-linear")
    assert (found.status, found.reason) == ("not_converged", "too many evaluations")


def test_json_round_trip():
    for crossings in (made(2.0, 0.3, [1, 2, 4, 6], 0.05), made(2.0, 0.3, [1, 2, 3], [0.02, 3.0], reach=1.0)):
        found = fit_threshold(crossings, "log-linear")
        assert from_json(ThresholdFit, to_json(found), "law") == found
