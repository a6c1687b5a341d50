import itertools
import json
import math

import numpy as np
import pytest

from analysis.crossings import Crossing, Crossings
from analysis.threshold import TWO_POINTS, ThresholdFit, fit_threshold


def made(a, b, depths, sd, seed=0, draws=4000, **changes):
    """Bracketed crossings exactly on ln d = a + b·L with independent normal errors of ln d."""
    generator = np.random.default_rng(seed)
    items, columns = [], []
    for shallow, deep in itertools.pairwise(depths):
        log_params = math.log(12 * shallow) + 2 * (a + b * shallow)
        columns.append(log_params + 2 * sd * generator.standard_normal(draws))
        items.append(Crossing(shallow, deep, True, "bracketed", params=math.exp(log_params), **changes))
    return Crossings(tuple(items), np.column_stack(columns))


def test_the_law_is_recovered_with_the_textbook_covariance():
    depths, sd = [1, 2, 4, 6, 8], 0.05
    found = fit_threshold(made(2.0, 0.3, depths, sd), "log-linear")
    assert (found.status, found.note, found.dof) == ("ok", None, 2)
    assert (found.a, found.b) == (pytest.approx(2.0, abs=1e-9), pytest.approx(0.3, abs=1e-9))
    assert found.chi2 == pytest.approx(0, abs=1e-9)
    x = np.column_stack([np.ones(4), depths[:-1]])
    # 4000 draws: a variance is known to about 2·sqrt(2/4000) = 4.5 %, times two for two standard errors.
    np.testing.assert_allclose(found.covariance, sd**2 * np.linalg.inv(x.T @ x), rtol=0.12)
    half = 1.96 * math.sqrt(found.covariance[1][1])
    assert found.b_interval == pytest.approx((0.3 - half, 0.3 + half), abs=0.05 * half)


def test_two_crossings_give_a_law_that_says_it_tests_nothing():
    found = fit_threshold(made(2.0, 0.3, [1, 2, 4], 0.05), "log-linear")
    assert (found.status, found.note, found.chi2, found.dof) == ("ok", TWO_POINTS, None, None)
    assert found.widths == pytest.approx((math.exp(2.3), math.exp(2.6)))


def test_the_power_law_is_the_line_in_log_depth():
    found = fit_threshold(made(2.0, 0.3, [1, 2, 4], 0.05), "power")
    assert found.a == pytest.approx(2.3)
    assert found.b == pytest.approx(0.3 / math.log(2))


def test_a_sharper_crossing_weighs_more():
    crossings = made(2.0, 0.3, [1, 2, 3, 4], 0.02)
    bent = Crossings(
        (*crossings.items[:2], Crossing(3, 4, True, "bracketed", params=crossings.items[2].params * math.e)),
        np.column_stack([crossings.draws[:, :2], crossings.draws[:, 2:] * 1.0 + 1]),
    )
    loose = Crossings(
        bent.items,
        np.column_stack([bent.draws[:, :2], 20 * (bent.draws[:, 2:] - bent.draws[:, 2:].mean())]),
    )
    truth = 0.3
    assert abs(fit_threshold(loose, "log-linear").b - truth) < 0.2 * abs(
        fit_threshold(bent, "log-linear").b - truth
    )


def test_only_bracketed_neighbours_count():
    crossings = made(2.0, 0.3, [1, 2, 4], 0.05)
    far = Crossing(1, 4, False, "bracketed", params=1e4)
    open_ended = Crossing(2, 4, True, "right_censored")
    found = fit_threshold(Crossings((crossings.items[0], far, open_ended), np.zeros((100, 3))), "log-linear")
    assert found.status == "insufficient"
    assert "1 of 2 are bracketed" in found.reason
    assert found.a is None


def test_draws_without_a_crossing_are_left_out_and_counted():
    crossings = made(2.0, 0.3, [1, 2, 4], 0.05)
    crossings.draws[:100, 1] = np.inf
    found = fit_threshold(crossings, "log-linear")
    assert found.draws_used == pytest.approx(0.975)
    assert all(math.isfinite(value) for row in found.covariance for value in row)


def test_json_round_trip():
    found = fit_threshold(made(2.0, 0.3, [1, 2, 4], 0.05), "log-linear")
    assert ThresholdFit.from_json(json.loads(json.dumps(found.to_json()))) == found
