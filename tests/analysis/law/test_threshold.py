import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import chi2, norm
from scipy.stats import f as fisher
from scipy.stats import t as student

from analysis.intervals import between
from analysis.law.crossings import Crossing, Crossings, Gap
from analysis.law.reasons import Because, Reason, has
from analysis.law.threshold import PRIOR_SCATTER, _least_square, _Likelihood, fit_threshold

Z = float(norm.ppf(0.975))


def made(a, b, depths, sd, *, slope=0.05, reach=8.0, shift=(), rho=0.0):
    """Pairs whose gaps are straight lines through zero on ln d = a + b·L, and normal errors of ln d of size sd.

    L is the depth between the two, sqrt(L1·L2).

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
        law = math.log(12 * between(shallow, deep)) + 2 * (a + b * between(shallow, deep))
        zero = law + 2 * shift[pair]
        x = np.linspace(law - reach, law + reach, 201)
        gaps.append(Gap(x, slope * (x - zero), np.full((201, 201), covariance[pair, pair])))
        inside = x[0] < zero < x[-1]
        outside = "left_censored" if zero < x[0] else "right_censored"
        params = math.exp(zero) if inside else None
        items.append(Crossing(shallow, deep, "bracketed" if inside else outside, params=params))
    return Crossings(tuple(items), tuple(gaps), np.kron(covariance, np.ones((201, 201))), Z, 0.95)


def middles(depths):
    """The depth of each pair of neighbours."""
    return np.array([between(*pair) for pair in itertools.pairwise(depths)])


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
    middle = middles(depths)
    covariance = crossings.covariance[::201, ::201] / (2 * 0.05) ** 2
    law, error = reference(middle, 2.0 + 0.3 * middle + np.array(shift), covariance)
    assert (found.scatter, found.scatter_dof) == (0, None)
    assert (found.a, found.b) == (pytest.approx(law[0], abs=1e-4), pytest.approx(law[1], abs=1e-4))
    np.testing.assert_allclose(found.covariance, error, rtol=1e-6)
    halves = Z * np.sqrt(np.diag(error))
    for interval, centre, half in zip((found.a_interval, found.b_interval), law, halves, strict=True):
        # 240 directions: the extreme one is at most 0.75 degrees off, which is 0.01 % of the half-width.
        assert interval == pytest.approx((centre - half, centre + half), abs=0.01 * half)
    residual = np.array(shift) + 2 + 0.3 * middle - law[0] - law[1] * middle
    assert found.chi2 == pytest.approx(residual @ np.linalg.solve(covariance, residual), rel=1e-3)
    assert found.dof == 2


def test_two_crossings_give_a_law_without_test_and_without_an_interval_of_its_slope():
    found = fit_threshold(made(2.0, 0.3, [1, 2, 4], 0.05), "log-linear")
    assert (found.status, found.chi2, found.dof, found.p_value) == ("open", None, None, None)
    assert has(found.notes, Reason.TWO_POINTS)
    assert found.depths == pytest.approx((math.sqrt(2), math.sqrt(8)))
    assert found.widths == pytest.approx(tuple(np.exp(2 + 0.3 * np.array(found.depths))))
    assert (found.scatter, found.scatter_dof) == (PRIOR_SCATTER, 1)
    assert (found.a_interval, found.b_interval) == ((None, None), (None, None))
    # The region serves the band of a projection: at each crossing the error with the prior scatter.
    half = math.hypot(Z * 0.05, float(student.ppf(0.975, 1)) * PRIOR_SCATTER)
    for depth in found.depths:
        law = 2 + 0.3 * depth
        reach = [a + b * depth - law for a, b, _ in found.region]
        assert (min(reach), max(reach)) == pytest.approx((-half, half), rel=0.01)


def test_the_prior_of_the_scatter_is_that_of_the_published_crossings():
    # R² = 0.998 of the published line through six crossings, slope 0.0555 (recalled; shared facts on the paper).
    depths = np.array([6, 12, 18, 24, 30, 36])
    regression = 0.0555**2 * np.sum((depths - depths.mean()) ** 2)
    assert pytest.approx(math.sqrt(regression * (1 / 0.998 - 1) / 4), rel=0.1) == PRIOR_SCATTER


@pytest.mark.parametrize(("shift", "estimate"), [([0, 0, 0], 0.0), ([0.1, -0.2, 0.1], 0.2 / math.sqrt(2))])
def test_three_crossings_have_the_larger_of_the_prior_and_their_own_scatter(shift, estimate):
    crossings = made(2.0, 0.3, [1, 2, 4, 8], 0.001, shift=shift)
    found = fit_threshold(crossings, "log-linear")
    middle = middles([1, 2, 4, 8])
    assert found.scatter == pytest.approx(max(estimate, PRIOR_SCATTER), rel=0.05)
    assert found.scatter_dof == 1
    # Student's t of one degree of freedom, not of two.
    half = float(student.ppf(0.975, 1)) * found.scatter / math.sqrt(np.sum((middle - middle.mean()) ** 2))
    assert found.b_interval == pytest.approx((found.b - half, found.b + half), rel=0.02)
    assert Because(Reason.ASSUMED_SCATTER, (PRIOR_SCATTER,)) in found.notes


def test_the_test_of_the_form_counts_the_freedom_of_the_noise():
    crossings = made(2.0, 0.3, [1, 2, 4, 6, 8], 0.05, shift=[0.1, -0.1, 0.05, -0.05])
    sure = fit_threshold(crossings, "log-linear")
    unsure = fit_threshold(replace(crossings, dof=4.0), "log-linear")
    assert sure.p_value == pytest.approx(chi2.sf(sure.chi2, sure.dof), rel=1e-6)
    assert unsure.p_value == pytest.approx(fisher.sf(sure.chi2 / sure.dof, sure.dof, 4), rel=1e-6)
    assert unsure.p_value > 1.5 * sure.p_value


def test_the_power_law_is_the_line_in_log_depth():
    found = fit_threshold(made(2.0, 0.3, [1, 2, 4], 0.05), "power")
    # Through the crossings at sqrt(2) and 2·sqrt(2).
    slope = 0.3 * math.sqrt(2) / math.log(2)
    assert found.b == pytest.approx(slope, abs=1e-5)
    assert found.a == pytest.approx(2 + 0.3 * math.sqrt(2) - slope * math.log(2) / 2, abs=1e-5)


def test_crossings_that_deviate_by_more_than_their_errors_show_a_scatter_and_widen_the_interval():
    depths = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    shift = 0.1 * np.array([1, -1, 1, -1, -1, 1, -1, 1])
    calm = fit_threshold(made(2.0, 0.3, depths, 0.01), "log-linear")
    rough = fit_threshold(made(2.0, 0.3, depths, 0.01, shift=shift), "log-linear")
    assert calm.scatter == 0
    assert rough.scatter == pytest.approx(0.1, rel=0.02)
    assert rough.scatter_dof == 6
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
    assert found.pairs == 3
    assert found.depths == pytest.approx((math.sqrt(2), math.sqrt(6)))
    # The range of the third pair ends 0.25 above the law in ln d; below it the shallow model's lead contradicts a law,
    # up to its own error and the scatter that two crossings may have.
    last = between(3, 4)
    half = math.hypot(Z * 0.02, float(student.ppf(0.975, 1)) * PRIOR_SCATTER)
    lowest = min(a + last * b for a, b, _ in found.region) - (2 + 0.3 * last)
    assert 0.25 - 1.5 * half < lowest < 0.25
    assert lowest > min(a + last * b for a, b, _ in other.region) - (2 + 0.3 * last)
    # The bound has no upper side, and the second pair is too loose to be one.
    assert found.status == "open"


def test_a_law_bound_on_one_side_only_is_open():
    # The second crossing's error is larger than all its range, so nothing keeps the slope.
    found = fit_threshold(made(2.0, 0.3, [1, 2, 3], [0.02, 3.0], reach=1.0), "log-linear")
    assert found.status == "open"
    assert found.b_interval == (None, None)
    assert has(found.notes, Reason.ONE_SIDED)
    assert any(is_open for _, _, is_open in found.region)


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
    depth = middles([1, 2, 4, 6])
    likelihood = _Likelihood(list(crossings.gaps), depth, depth, crossings.covariance)
    laws = np.array([2.0, 0.3]) + 0.3 * np.random.default_rng(1).standard_normal((40, 2))
    together = likelihood(laws, 0.1)
    np.testing.assert_allclose(together, [likelihood(law[None], 0.1)[0] for law in laws])
    assert likelihood(np.array([[2.0, 0.3]]))[0] == pytest.approx(0, abs=1e-6)


def test_what_is_missing_is_said():
    crossings = made(2.0, 0.3, [1, 2, 4], 0.05)
    one = replace(crossings, items=(crossings.items[0], Crossing(2, 4, "right_censored")))
    found = fit_threshold(one, "log-linear")
    assert (found.status, found.a) == ("insufficient", None)
    assert found.reasons == (Because(Reason.FEW_CROSSINGS, (1, 2)),)
    silent = replace(crossings, quantile=math.nan)
    assert fit_threshold(silent, "log-linear").reasons == (Because(Reason.NO_ERRORS),)


def test_a_pair_contradicted_by_a_divergence_takes_no_part():
    crossings = made(2.0, 0.3, [1, 2, 3, 4], 0.05, shift=[0, 0.4, 0])
    items = list(crossings.items)
    items[1] = replace(items[1], status="ambiguous", contradicted=True)
    found = fit_threshold(replace(crossings, items=tuple(items)), "log-linear")
    assert found.depths == pytest.approx((between(1, 2), between(3, 4)))
    assert found.pairs == 2
    assert (found.a, found.b) == (pytest.approx(2.0, abs=1e-5), pytest.approx(0.3, abs=1e-5))
    assert Because(Reason.WITHOUT_DIVERGED, ("2 → 3",)) in found.notes


def test_an_optimiser_that_gives_up_is_told_apart(monkeypatch):
    from analysis.law import threshold

    class Stopped:
        success, message, x = False, "too many evaluations", np.zeros(2)

    monkeypatch.setattr(threshold, "minimize", lambda *_, **__: Stopped())
    found = fit_threshold(made(2.0, 0.3, [1, 2, 4], 0.05), "log-linear")
    assert (found.status, found.reason) == ("not_converged", "too many evaluations")
