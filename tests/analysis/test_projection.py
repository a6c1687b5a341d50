import dataclasses
import math

import numpy as np
import pytest

from analysis.errors import InputError
from analysis.projection import LEVINE2020, Law, law_of, n_transition, recommend, solve_depth
from analysis.threshold import ThresholdFit

# (trained depth, trained width) -> real depth and width of the paper's table, recomputed from its a and b.
TABLE = [
    ((12, 768), 23.04, 554.7),
    ((24, 1024), 31.62, 886.8),
    ((24, 2048), 41.63, 1548),
    ((32, 2560), 47.12, 2112),
    ((32, 4096), 54.31, 3153),
    ((40, 5140), 59.58, 4197),
    ((96, 12288), 80.46, 13461),
]


@pytest.mark.parametrize(("trained", "depth", "width"), TABLE)
def test_the_published_table(trained, depth, width):
    (row,) = recommend(LEVINE2020, [12 * trained[0] * trained[1] ** 2], draws=100)
    assert row["depth_exact"] == pytest.approx(depth, abs=0.006)
    assert row["depth"] == round(depth)
    assert row["width"] == pytest.approx(width, abs=0.51)


def test_golden_values_of_the_published_law():
    assert LEVINE2020.width(70) == pytest.approx(7510.07, abs=0.005)
    assert LEVINE2020.width(95) == pytest.approx(30077, abs=1)
    for depth, params in ((70, 4.74e10), (80, 1.643e11), (95, 1.031e12), (96, 1.164e12)):
        assert n_transition(LEVINE2020, depth).params == pytest.approx(params, rel=6e-4)
    assert n_transition(LEVINE2020, 96).relative_error == pytest.approx(0.194, abs=5e-4)
    assert n_transition(LEVINE2020, 80).relative_error == pytest.approx(0.153, abs=5e-4)
    assert n_transition(LEVINE2020, 100).relative_error == pytest.approx(0.205, abs=5e-4)


def test_without_the_covariance_the_error_would_be_wrong():
    (va, _), (_, vb) = LEVINE2020.covariance
    diagonal = dataclasses.replace(LEVINE2020, covariance=((va, 0.0), (0.0, vb)))
    # 25.7 % with the rounded standard errors 0.030 and 1.3e-3, 25.8 % with those of the covariance.
    assert n_transition(diagonal, 96).relative_error == pytest.approx(0.2577, abs=5e-4)


def test_the_band_is_the_known_monte_carlo():
    # 80.49 ± 1.24 layers at 1.74e11 parameters.
    (row,) = recommend(LEVINE2020, [12 * 96 * 12288**2])
    low, high = row["depth_interval"]
    assert (low, high) == (
        pytest.approx(80.49 - 1.96 * 1.24, abs=0.15),
        pytest.approx(80.49 + 1.96 * 1.24, abs=0.15),
    )
    narrow, wide = row["width_interval"]
    assert narrow < row["width_exact"] < wide
    assert 12 * high * narrow**2 == pytest.approx(row["params"])


def test_the_solution_solves_the_equation_also_where_naive_code_overflows():
    a, b = np.array([5.0, -300.0, 5.0, 2.4]), np.array([0.05, 1.0, 1e-12, 0.4])
    for params in (1e3, 1e12):
        depth = solve_depth(a, b, params)
        # In logarithms, because the equation itself overflows.
        np.testing.assert_allclose(
            np.log(12 * depth) + 2 * (a + b * depth), math.log(params), rtol=1e-9, atol=1e-9
        )


def test_a_slope_that_is_not_positive_has_no_finite_depth():
    assert np.isposinf(solve_depth(np.array([5.0, 5.0]), np.array([0.0, -0.1]), 1e6)).all()


def test_draws_without_a_limit_are_counted_and_open_the_band():
    # b = 0.1 ± 0.1: P(b <= 0) = 15.9 %, so the upper end of a 95 % band is open; 3 standard errors of 20,000
    # draws.
    law = Law(2.0, 0.1, ((1e-4, 0.0), (0.0, 0.01)), "a toy", (1, 2))
    (row,) = recommend(law, [1e4])
    assert row["unbounded_share"] == pytest.approx(0.1587, abs=0.0078)
    assert row["depth_interval"][1] is None
    assert row["width_interval"][0] is None
    assert row["depth_interval"][0] > 0


def test_extrapolation_is_flagged_by_depth():
    law = Law(2.0, 0.4, ((1e-4, 0.0), (0.0, 1e-4)), "a toy", (1, 2))
    inside, outside = recommend(law, [12 * 1.5 * law.width(1.5) ** 2, 12 * 3 * law.width(3) ** 2])
    assert not inside["extrapolated"]
    assert outside["extrapolated"]


def test_depth_is_never_below_one_layer():
    (row,) = recommend(LEVINE2020, [1e3])
    assert row["depth"] == 1
    assert row["width"] == round(math.sqrt(1e3 / 12))
    assert row["extrapolated"]


@pytest.mark.parametrize("params", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_must_be_positive(params):
    with pytest.raises(InputError, match="must be a positive number"):
        recommend(LEVINE2020, [params])


def test_a_falling_law_is_refused_with_a_way_out():
    with pytest.raises(InputError, match="levine2020"):
        recommend(dataclasses.replace(LEVINE2020, b=-0.1), [1e6])


def test_law_of_a_fit():
    fit = ThresholdFit("log-linear", "ok", 0.95, 2.0, 0.3, ((1.0, 0.0), (0.0, 1.0)), depths=(1, 2))
    assert law_of(fit).depth_range == (1, 2)
    assert law_of(dataclasses.replace(fit, form="power")) is None
    assert law_of(ThresholdFit("log-linear", "insufficient", 0.95, reason="few")) is None
