"""Two parametrisations side by side, against worlds whose crossings are known."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from analysis.curves.curves import build_curves
from analysis.fit.crossing_shift import shift_between
from analysis.fit.document import Fit, fit
from analysis.fit.series import compare_fits
from analysis.law.crossings import Crossing, find_crossings
from analysis.law.threshold import fit_threshold
from analysis.report.answers import shift_sentence
from analysis.runs.table import RunTable
from tests.simulated_study import Truth, shapes_of, simulate

KEY = "training.parametrisation"
TRUTH = Truth(a=2.5, b=0.3, depths=(1, 2, 4), noise=0.004)
SHAPES = shapes_of(TRUTH.depths, np.geomspace(1.5e3, 1.5e5, 8))


def study(truth, seed, shapes=SHAPES):
    """The part of a fit that is compared; the rest takes ten times as long."""
    rows = simulate(truth, shapes, 3, np.random.default_rng(seed))
    found = find_crossings(build_curves(rows))
    law = fit_threshold(found, "log-linear")
    return SimpleNamespace(crossings=found.items, law=law, used=len(rows), level=0.95)


def crossings(truth, seed):
    curves = build_curves(simulate(truth, SHAPES, 3, np.random.default_rng(seed)))
    return {(item.shallow, item.deep): item for item in find_crossings(curves).items}


@pytest.fixture(scope="module")
def own():
    return study(TRUTH, 0)


@pytest.fixture(scope="module")
def again():
    """The same world with other noise."""
    return study(TRUTH, 1)


def test_the_same_world_shows_no_difference(own, again):
    found = compare_fits(own, again, KEY, "sp", "mup")
    assert [(item.shallow, item.deep) for item in found.pairs] == [(1, 2), (2, 4)]
    assert not any(item.significant for item in found.pairs)
    assert "is excluded" in shift_sentence([found])


def test_a_shifted_world_is_told_by_its_factor(own):
    # Every crossing at e^0.8 times the N: a moves by half of it.
    found = compare_fits(own, study(replace(TRUTH, a=TRUTH.a + 0.4), 1), KEY, "sp", "completep")
    for item in found.pairs:
        low, high = item.shift_interval
        assert low < 0.8 < high
        assert item.significant
    words = shift_sentence([found])
    assert "in 2 of 2 comparisons" in words
    assert "1 → 2 at training.parametrisation completep to 2." in words


@pytest.mark.extended
def test_the_intervals_of_differences_hold_what_they_say():
    inside = total = 0
    for seed in range(40):
        other = replace(TRUTH, a=TRUTH.a + 0.2)
        ours, theirs = (crossings(world, [seed, rank]) for rank, world in enumerate((TRUTH, other)))
        for pair in ((1, 2), (2, 4)):
            low, high = shift_between(ours[pair], theirs[pair]).shift_interval
            if low is not None and high is not None:
                inside, total = inside + (low <= 0.4 <= high), total + 1
    assert total > 70
    # 80 intervals of 95 %: three standard errors of their share.
    assert inside / total > 0.875


def test_differences_of_numbers_with_equal_errors_are_those_of_the_textbook():
    def crossing(x, ends):
        params, *ends = (None if value is None else math.exp(value) for value in (x, *ends))
        return Crossing(1, 2, "bracketed", None, params, tuple(ends))

    def interval(first, of_first, second, of_second):
        return shift_between(crossing(second, of_second), crossing(first, of_first)).shift_interval

    low, high = interval(3.0, (2.0, 4.0), 1.0, (0.0, 2.0))
    assert (low, high) == pytest.approx((2 - math.sqrt(2), 2 + math.sqrt(2)))
    assert interval(3.0, (None, 4.0), 1.0, (0.0, 2.0)) == pytest.approx((None, 2 + math.sqrt(2)))
    # Only bounds are known: the ends themselves are subtracted.
    assert interval(None, (None, 4.0), 1.0, (0.5, 2.0)) == pytest.approx((None, 3.5))
    assert (
        shift_between(Crossing(1, 2, "insufficient"), Crossing(1, 2, "insufficient")).shift_interval is None
    )


def test_a_censored_crossing_bounds_the_difference(own):
    # The deeper models of the other are ahead everywhere.
    found = compare_fits(own, study(replace(TRUTH, a=TRUTH.a - 2.5), 1), KEY, "sp", "mup")
    pair = found.pairs[0]
    assert pair.changed_status == "left_censored"
    assert pair.shift is None
    assert pair.shift_interval[0] is None
    assert pair.shift_interval[1] < 0
    assert pair.significant
    assert "(95 %: below 0." in shift_sentence([found])


def test_nothing_to_compare_says_so(own):
    one = Truth(a=2.5, b=0.3, depths=(1,))
    found = compare_fits(own, study(one, 0, shapes_of((1,), (2e3, 4e3, 8e3))), KEY, "sp", "mup")
    assert found.pairs == ()
    assert "unknown" in shift_sentence([found])


def test_the_fit_file_keeps_a_comparison(own, again):
    found = compare_fits(own, again, KEY, "sp", "mup")
    rows = simulate(TRUTH, SHAPES[:3], 2, np.random.default_rng(0))
    both = replace(fit(RunTable.from_frame(rows)), shifts=(found,))
    assert Fit.from_json(json.loads(json.dumps(both.to_json()))).shifts == (found,)
