"""Estimates of a search against the fit of the same rows."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.design import objective as objectives
from analysis.design.objective import Objective, estimate_sentence, reached
from analysis.fit.document import fit
from analysis.law.reasons import Reason, has
from analysis.law.threshold_law import solve_depth
from analysis.runs.table import RunTable
from core.errors import InputError
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 3, 4, 5), noise=0.002)
SHAPES = shapes_of(TRUTH.depths, np.geomspace(2000, 400_000, 7))
#: The largest size.
AHEAD = 400_000.0


def estimate(rows, objective):
    return objectives.estimate(None if rows.empty else RunTable.from_frame(rows), objective)


@pytest.fixture(scope="module")
def rows():
    frame = simulate(TRUTH, SHAPES, 4, np.random.default_rng(0))
    return frame.assign(lr=0.01, lr_factor=1.0)


@pytest.fixture(scope="module")
def fitted(rows):
    return fit(RunTable.from_frame(rows))


def test_the_depth_is_that_of_the_fit_of_the_same_rows(rows, fitted):
    found = estimate(rows, Objective("depth", AHEAD))
    projected = fitted.predict(AHEAD, math.inf)
    assert found.value == pytest.approx(projected.depth_exact)
    assert (found.low, found.high) == pytest.approx(projected.depth_interval)
    assert found.halfwidth == pytest.approx((found.high - found.low) / (2 * found.value))
    assert found.low <= solve_depth(TRUTH.a, TRUTH.b, AHEAD) <= found.high
    assert "N = 4e+05" in estimate_sentence(found)
    assert f"{found.halfwidth:.0%}" in estimate_sentence(found)


def test_beyond_ten_times_the_largest_size_there_is_no_estimate(rows):
    found = estimate(rows, Objective("depth", 1e8))
    assert (found.value, found.low, found.high, found.halfwidth) == (None, None, None, math.inf)
    assert has(found.evidence.reasons, Reason.ABOVE_SIZES)
    assert "more than 10 times" in estimate_sentence(found)


def test_the_depth_of_a_rejected_law_is_as_uncertain_as_the_fit_says(rows):
    bent = rows.assign(loss=rows["loss"] - 0.02 * (rows["depth"] == 3))
    rejected = fit(RunTable.from_frame(bent))
    assert rejected.law.p_value < 0.05
    found, projected = estimate(bent, Objective("depth", AHEAD)), rejected.predict(AHEAD, math.inf)
    assert found.value == projected.depth_exact
    assert (found.low, found.high) == projected.depth_interval
    assert found.halfwidth == projected.halfwidth > 5 * estimate(rows, Objective("depth", AHEAD)).halfwidth


def test_the_crossings_have_the_half_width_of_the_least_certain(rows, fitted):
    found = estimate(rows, Objective("crossings"))
    halves = {
        item.params: math.log(item.params_interval[1] / item.params_interval[0]) / 2
        for item in fitted.crossings
    }
    assert found.halfwidth == pytest.approx(max(halves.values()))
    assert halves[found.value] == max(halves.values())
    assert f"N = {found.value:.3g} ({found.low:.3g} to {found.high:.3g}" in estimate_sentence(found)


def test_order_and_index_of_the_rows_do_not_matter(rows):
    mixed = rows.sample(frac=1, random_state=3)
    for objective in (Objective("depth", AHEAD), Objective("crossings")):
        assert estimate(mixed, objective) == estimate(rows, objective)


def test_too_few_rows_give_no_estimate_but_a_reason(rows):
    for few, why in (
        (rows[rows["depth"] == 1], "fewer than two depths"),
        (rows[rows["depth"] < 3], "need 4 depths"),
        (rows[:0], "fewer than two depths"),
    ):
        found = estimate(few, Objective("depth", AHEAD))
        assert (found.value, found.low, found.high, found.halfwidth) == (None, None, None, math.inf)
        assert why in estimate_sentence(found)


def test_a_diverged_shape_opens_its_crossing_and_a_failed_one_does_not(rows):
    lost = rows.iloc[[0]].assign(depth=4, width=50, params=12 * 4 * 50**2, loss=np.nan)
    diverged, failed = (pd.concat([rows, lost.assign(status=name)]) for name in ("diverged", "failed"))
    opened = estimate(diverged, Objective("crossings"))
    assert math.isinf(opened.halfwidth)
    assert estimate_sentence(opened).endswith(f"{opened.evidence.reason}.")
    assert estimate(failed, Objective("crossings")) == estimate(rows, Objective("crossings"))


def test_a_depth_needs_a_size(rows):
    with pytest.raises(InputError, match="give N"):
        estimate(rows, Objective("depth"))


def test_a_search_ends_on_two_narrow_estimates_in_succession(rows):
    narrow = estimate(rows, Objective("depth", AHEAD))
    wide = estimate(rows[rows["depth"] < 3], Objective("depth", AHEAD))
    asked = narrow.halfwidth
    assert reached([wide, narrow, narrow], asked)
    assert not reached([narrow, narrow], 0.99 * asked)
    assert not reached([narrow, wide, narrow], asked)
    assert not reached([narrow], asked)
    assert not reached([], asked)
