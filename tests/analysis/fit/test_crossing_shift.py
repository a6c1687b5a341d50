"""The same shapes after a change, and two studies side by side, in worlds in which the shift of a crossing is known."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq

from analysis.curves.curves import build_curves
from analysis.fit.compared_studies import shift_sentence, shifted
from analysis.fit.crossing_shift import shift_between, shift_by
from analysis.law.crossings import Crossing, find_crossings
from tests.simulated_study import Truth, shapes_of, simulate

KEY = "training.parametrisation"
TRUTH = Truth(a=2.5, b=0.3, depths=(1, 2, 4), noise=0.004)
BUDGETS = np.geomspace(1.5e3, 6e4, 7)
SHAPES = shapes_of(TRUTH.depths, BUDGETS)
WIDE = shapes_of(TRUTH.depths, np.geomspace(1.5e3, 1.5e5, 8))
#: Standard error of the change of a gap, nats.
ERROR = 0.0008


def crossing(shallow, deep, change=0.0):
    """ln N where the true gap plus a change is zero."""

    def gap(x):
        params = np.array([np.exp(x)])
        return float((TRUTH.loss(shallow, params) - TRUTH.loss(deep, params))[0]) + change

    return brentq(gap, np.log(100), np.log(1e7))


def shift_of(crossings, pair, change, quantile=None):
    """The shift of the crossing at an index under a change of its gap."""
    quantile = crossings.quantile if quantile is None else quantile
    return shift_by(crossings.items[pair], crossings.gaps[pair], change, ERROR**2, quantile)


@pytest.fixture(scope="module")
def crossings():
    return find_crossings(build_curves(simulate(TRUTH, SHAPES, 3, np.random.default_rng(3))))


@pytest.mark.parametrize(("pair", "change"), [(0, -0.011), (0, 0.014), (1, -0.008), (1, 0.0)])
def test_a_known_shift_is_found(crossings, pair, change):
    shallow, deep = ((1, 2), (2, 4))[pair]
    item = shift_of(crossings, pair, change)
    true = crossing(shallow, deep, change) - crossing(shallow, deep)
    low, high = item.shift_interval
    assert low < true < high
    assert low < item.shift < high
    assert item.changed_params == pytest.approx(item.params * np.exp(item.shift))
    below, above = item.changed_interval
    assert below < np.exp(crossing(shallow, deep, change)) < above
    # Harm to the deeper model moves the crossing to larger N, and to the shallower one to smaller.
    assert item.significant == (change != 0)
    assert np.sign(item.shift) == -np.sign(change)


@pytest.mark.extended
def test_the_intervals_of_shifts_hold_what_they_say():
    inside = total = 0
    for study in range(60):
        generator = np.random.default_rng([7, study])
        found = find_crossings(build_curves(simulate(TRUTH, SHAPES, 3, generator)))
        for pair, (shallow, deep) in enumerate(((1, 2), (2, 4))):
            if found.items[pair].params is None:
                continue
            for change in (-0.008, 0.006):
                item = shift_of(found, pair, change + ERROR * generator.standard_normal())
                if item.shift is None or item.shift_interval is None:
                    continue
                true = crossing(shallow, deep, change) - crossing(shallow, deep)
                low, high = item.shift_interval
                holds = (low is None or low <= true) and (high is None or true <= high)
                inside, total = inside + holds, total + 1
    assert total > 150
    # 160 intervals of 95 %, four to a study: three standard errors of their share.
    assert inside / total > 0.9


@pytest.mark.parametrize(("change", "side"), [(-0.5, "above"), (0.5, "below")])
def test_a_crossing_that_leaves_the_sizes_says_where(crossings, change, side):
    item = shift_of(crossings, 0, change)
    assert item.shift is None
    assert [because.reason for because in item.reasons] == [f"moved_{side}"]
    # How far beyond is not known, but that it moves is.
    low, high = item.shift_interval
    assert (low > 0 and high is None) if side == "above" else (low is None and high < 0)
    assert item.significant
    assert item.changed_status == ("right_censored" if side == "above" else "left_censored")


def test_a_gap_that_hardly_rises_bounds_no_shift(crossings):
    # Within the noise the depths have one loss at every size: where they cross, and how far that moves, is chance.
    gap = crossings.gaps[0]
    flat = replace(gap, value=0.02 * gap.value)
    item = shift_by(
        replace(crossings.items[0], params=math.exp(gap.x[len(gap.x) // 2])), flat, 1e-4, ERROR**2, 2.0
    )
    assert item.shift_interval is None or None in item.shift_interval
    assert not item.significant


def test_without_a_noise_estimate_a_shift_has_no_interval(crossings):
    item = shift_of(crossings, 0, -0.005, quantile=math.nan)
    assert item.shift > 0
    assert item.shift_interval is None
    assert not item.significant


def part_of_fit(truth, seed, shapes=WIDE):
    """The part of a fit that is compared; the rest takes ten times as long."""
    rows = simulate(truth, shapes, 3, np.random.default_rng(seed))
    return SimpleNamespace(crossings=find_crossings(build_curves(rows)).items)


@pytest.fixture(scope="module")
def own():
    return part_of_fit(TRUTH, 0)


@pytest.fixture(scope="module")
def again():
    """The same world with other noise."""
    return part_of_fit(TRUTH, 1)


def test_the_same_world_shows_no_difference(own, again):
    found = shifted(own, again, "sp", "mup")
    assert [(item.shallow, item.deep) for item in found.pairs] == [(1, 2), (2, 4)]
    assert not any(item.significant for item in found.pairs)
    assert "is excluded" in shift_sentence(KEY, [found], 0.95)


def test_a_shifted_world_is_told_by_its_factor(own):
    # Every crossing at e^0.8 times the N: a moves by half of it.
    found = shifted(own, part_of_fit(replace(TRUTH, a=TRUTH.a + 0.4), 1), "sp", "completep")
    for item in found.pairs:
        low, high = item.shift_interval
        assert low < 0.8 < high
        assert item.significant
    words = shift_sentence(KEY, [found], 0.95)
    assert "2 of 2 crossings move" in words
    assert "1 → 2 at completep to 2." in words


@pytest.mark.extended
def test_the_intervals_of_differences_hold_what_they_say():
    inside = total = 0
    for seed in range(40):
        other = replace(TRUTH, a=TRUTH.a + 0.2)
        ours, theirs = (part_of_fit(world, [seed, rank]) for rank, world in enumerate((TRUTH, other)))
        for pair in shifted(ours, theirs, "sp", "mup").pairs:
            low, high = pair.shift_interval
            if low is not None and high is not None:
                inside, total = inside + (low <= 0.4 <= high), total + 1
    assert total > 70
    # 80 intervals of 95 %: three standard errors of their share.
    assert inside / total > 0.875


def test_differences_of_numbers_with_equal_errors_are_those_of_the_textbook():
    def crossing(x, ends):
        params, *ends = (None if value is None else math.exp(value) for value in (x, *ends))
        return Crossing(1, 2, "bracketed", (), params, tuple(ends))

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
    found = shifted(own, part_of_fit(replace(TRUTH, a=TRUTH.a - 2.5), 1), "sp", "mup")
    pair = found.pairs[0]
    assert pair.changed_status == "left_censored"
    assert pair.shift is None
    assert pair.shift_interval[0] is None
    assert pair.shift_interval[1] < 0
    assert pair.significant
    assert "(95 %: below 0." in shift_sentence(KEY, [found], 0.95)


def test_nothing_to_compare_says_nothing(own):
    one = Truth(a=2.5, b=0.3, depths=(1,))
    found = shifted(own, part_of_fit(one, 0, shapes_of((1,), (2e3, 4e3, 8e3))), "sp", "mup")
    assert found.pairs == ()
    assert shift_sentence(KEY, [found], 0.95) == ""
