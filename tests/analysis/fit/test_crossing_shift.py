"""Sensitivity runs, and two parametrisations side by side, in worlds in which the shift of each crossing is known."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from analysis.curves.curves import build_curves
from analysis.fit.crossing_shift import (
    LEARNING_RATE,
    ChangedStudy,
    moved,
    paired_shifts,
    shift_between,
    split_sensitivity_runs,
)
from analysis.fit.document import Fit, fit
from analysis.fit.sentences import factor_phrase, shift_sentence
from analysis.fit.series import compare_fits
from analysis.law.crossings import Crossing, find_crossings
from analysis.law.threshold import fit_threshold
from analysis.runs.comparison import compare
from analysis.runs.table import RunTable
from tests.simulated_study import Truth, shapes_of, simulate

KEY = "training.parametrisation"
TRUTH = Truth(a=2.5, b=0.3, depths=(1, 2, 4), noise=0.004)
BUDGETS = np.geomspace(1.5e3, 6e4, 7)
SHAPES = shapes_of(TRUTH.depths, BUDGETS)
WIDE = shapes_of(TRUTH.depths, np.geomspace(1.5e3, 1.5e5, 8))
#: (factor, depth) -> nats that the rate adds to the loss of a depth, at every size.
HARM = {(0.5, 1): 0.001, (0.5, 2): 0.012, (0.5, 4): 0.012, (2.0, 1): 0.02, (2.0, 2): 0.006, (2.0, 4): 0.006}


def crossing(shallow, deep, factor=None):
    """ln N where the true gap, moved by the harm of the factor, is zero."""
    added = 0.0 if factor is None else HARM[factor, shallow] - HARM[factor, deep]

    def gap(x):
        params = np.array([np.exp(x)])
        return float((TRUTH.loss(shallow, params) - TRUTH.loss(deep, params))[0]) + added

    return brentq(gap, np.log(100), np.log(1e7))


def shifts_of(frame):
    """(shallow, deep, factor) -> shift, without the rest of a fit, which takes a hundred times as long."""
    main, again = split_sensitivity_runs(RunTable.from_frame(frame))
    rows = compare(main).rows
    curves = build_curves(rows)
    return by_pair(paired_shifts(again, rows, curves, find_crossings(curves)))


def by_pair(studies):
    return {(item.shallow, item.deep, study.value): item for study in studies for item in study.pairs}


def study_of(*pairs):
    return [ChangedStudy(LEARNING_RATE, 1.0, 0.5, pairs, 0.95, 12)]


def trained_again(rows, places, changes, generator, noise=0.002):
    """`rows` and both depths at the sizes below and above each crossing (ln N) at other rates, with a known change."""
    rows, again = rows.assign(lr=0.01, purpose=""), []
    for pair, place in zip(((1, 2), (2, 4)), places, strict=True):
        for depth in pair:
            own = rows[rows["depth"] == depth]
            sizes = np.sort(own["params"].unique())
            right = int(np.searchsorted(sizes, np.exp(place)))
            near = own[own["params"].isin(sizes[max(0, right - 1) : right + 1])]
            for (factor, of), change in changes.items():
                if of == depth:
                    loss = near["loss"] + change + noise * generator.standard_normal(len(near))
                    again.append(near.assign(loss=loss, lr=0.01 * factor, purpose="sensitivity"))
    again = pd.concat(again).drop_duplicates(["depth", "params", "seed", "lr"])
    return pd.concat([rows, again], ignore_index=True)


def with_sensitivity_runs(generator):
    """A study, and the shapes next to 1 -> 2 and 2 -> 4 again at other rates."""
    places = (crossing(1, 2), crossing(2, 4))
    return trained_again(simulate(TRUTH, SHAPES, 3, generator), places, HARM, generator)


@pytest.fixture(scope="module")
def frame():
    return with_sensitivity_runs(np.random.default_rng(3))


@pytest.fixture(scope="module")
def found(frame):
    return fit(RunTable.from_frame(frame))


def test_sensitivity_runs_change_nothing_in_the_study_itself(frame, found):
    alone = fit(RunTable.from_frame(frame[frame["purpose"] == ""].drop(columns="purpose")))
    assert found.study.crossings.items == alone.study.crossings.items == alone.crossings
    assert found.law == alone.law
    assert found.used == alone.used
    assert alone.shifts == ()
    assert all("sensitivity run" in item["reason"] for item in found.left_out)
    assert len(found.left_out) == (frame["purpose"] != "").sum()


def test_a_known_shift_is_found(found):
    shifts = by_pair(found.shifts)
    assert set(shifts) == {(s, d, f) for s, d in ((1, 2), (2, 4)) for f in (0.5, 2.0)}
    for (shallow, deep, factor), item in shifts.items():
        true = crossing(shallow, deep, factor) - crossing(shallow, deep)
        low, high = item.shift_interval
        assert low < true < high
        assert low < item.shift < high
        assert item.changed_params == pytest.approx(item.params * np.exp(item.shift))
        below, above = item.changed_interval
        assert below < np.exp(crossing(shallow, deep, factor)) < above
        assert item.runs == 12
    # Harm to the deeper model moves the crossing to larger N, and to the shallower one to smaller.
    assert shifts[1, 2, 0.5].significant
    assert shifts[1, 2, 0.5].shift > 0
    assert shifts[1, 2, 2.0].shift < 0
    # What harms both alike moves nothing.
    assert not shifts[2, 4, 0.5].significant


@pytest.mark.extended
def test_the_intervals_of_shifts_hold_what_they_say():
    inside = total = 0
    for study in range(40):
        frame = with_sensitivity_runs(np.random.default_rng([7, study]))
        for (shallow, deep, factor), item in shifts_of(frame).items():
            if item.shift is None or item.shift_interval is None:
                continue
            true = crossing(shallow, deep, factor) - crossing(shallow, deep)
            low, high = item.shift_interval
            holds = (low is None or low <= true) and (high is None or true <= high)
            inside, total = inside + holds, total + 1
    assert total > 150
    # 160 intervals of 95 %, four to a study: three standard errors of their share.
    assert inside / total > 0.9


def test_one_seed_takes_two_runs_for_independent(frame):
    one = frame[frame["seed"] == 0]
    item = shifts_of(one)[1, 2, 0.5]
    # The next size below and above of each depth, and one alone where the crossing lies beside both.
    assert 2 <= item.runs <= 4
    assert item.shift_interval is not None


def test_diverged_sensitivity_runs_give_a_reason(frame):
    dead = (frame["purpose"] != "") & (frame["lr"] > 0.015) & (frame["depth"] == 2)
    lost = frame.assign(status=np.where(dead, "diverged", "done"), loss=frame["loss"].mask(dead, np.nan))
    found = shifts_of(lost)
    double = [item for (_, _, factor), item in found.items() if factor == 2]
    assert all(item.shift is None and item.diverged for item in double)
    assert double[0].reason == "depth 2 has no row at 2 times its rate: all its rows diverged"
    assert all(item.shift is not None for (_, _, factor), item in found.items() if factor == 0.5)


def test_a_crossing_that_leaves_the_sizes_says_where(frame):
    far = frame.assign(loss=frame["loss"] + 0.5 * ((frame["purpose"] != "") & (frame["depth"] == 2)))
    item = shifts_of(far)[1, 2, 0.5]
    assert item.shift is None
    assert item.reason == "the crossing moves above the sizes at which both depths were measured"
    # How far beyond is not known, but that it moves is.
    low, high = item.shift_interval
    assert low > 0
    assert high is None
    assert item.significant
    assert item.changed_status == "right_censored"
    assert item.reason in shift_sentence(study_of(item))
    back = frame.assign(loss=frame["loss"] + 0.5 * ((frame["purpose"] != "") & (frame["depth"] == 1)))
    other = shifts_of(back)[1, 2, 0.5]
    assert other.shift_interval[0] is None
    assert other.shift_interval[1] < 0
    assert other.significant
    assert "(95 %: below 0." in factor_phrase(other, 0.95)


def test_a_gap_that_hardly_rises_bounds_no_shift(frame):
    # Within the noise the depths have one loss at every size: where they cross, and how far that moves, is chance.
    again = frame["purpose"] != ""
    stray = np.random.default_rng(4).normal(0, 0.004, len(frame)) * ~again
    rise = 0.001 * frame["depth"] * np.log(frame["params"] / 1e4)
    found = shifts_of(frame.assign(loss=10 * frame["params"] ** -0.2 - rise + stray + 0.002 * again))
    assert any(item.shift is not None for item in found.values())
    assert all(None in (item.shift_interval or (None, None)) for item in found.values())
    assert not any(item.significant for item in found.values())


def test_many_comparisons_are_taken_together(found):
    (study, largest), *_ = moved(found.shifts)
    assert (largest.deep, study.value) == (2, 2.0)
    assert "1 → 2 at double the learning rate" in shift_sentence(found.shifts)
    one = by_pair(found.shifts)[1, 2, 0.5]
    # One of ten that would be significant alone.
    nothing = [replace(one, p_value=p) for p in (0.02, *np.linspace(0.1, 0.9, 9))]
    assert nothing[0].significant
    assert moved(study_of(*nothing)) == []
    assert [pair for _, pair in moved(study_of(nothing[0]))] == nothing[:1]
    assert "No crossing moves" in shift_sentence(study_of(*nothing))
    sure = replace(one, p_value=1e-6)
    assert [pair for _, pair in moved(study_of(*nothing, sure))] == [sure]


def test_without_a_noise_estimate_a_shift_has_no_verdict(found):
    alone = replace(by_pair(found.shifts)[1, 2, 0.5], shift_interval=None, p_value=None)
    assert moved(study_of(alone)) == []
    assert "no noise estimate" in shift_sentence(study_of(alone))


def test_the_order_of_rows_changes_nothing(frame, found):
    mixed = shifts_of(frame.sample(frac=1, random_state=1).reset_index(drop=True))
    for place, one in by_pair(found.shifts).items():
        assert mixed[place].shift == pytest.approx(one.shift, abs=1e-9)


def test_the_fit_file_keeps_the_shifts(found):
    assert Fit.from_json(found.to_json()).shifts == found.shifts


def part_of_fit(truth, seed, shapes=WIDE):
    """The part of a fit that is compared; the rest takes ten times as long."""
    rows = simulate(truth, shapes, 3, np.random.default_rng(seed))
    found = find_crossings(build_curves(rows))
    law = fit_threshold(found, "log-linear")
    return SimpleNamespace(crossings=found.items, law=law, used=len(rows), level=0.95)


@pytest.fixture(scope="module")
def own():
    return part_of_fit(TRUTH, 0)


@pytest.fixture(scope="module")
def again():
    """The same world with other noise."""
    return part_of_fit(TRUTH, 1)


def test_the_same_world_shows_no_difference(own, again):
    found = compare_fits(own, again, KEY, "sp", "mup")
    assert [(item.shallow, item.deep) for item in found.pairs] == [(1, 2), (2, 4)]
    assert not any(item.significant for item in found.pairs)
    assert "is excluded" in shift_sentence([found])


def test_a_shifted_world_is_told_by_its_factor(own):
    # Every crossing at e^0.8 times the N: a moves by half of it.
    found = compare_fits(own, part_of_fit(replace(TRUTH, a=TRUTH.a + 0.4), 1), KEY, "sp", "completep")
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
        ours, theirs = (part_of_fit(world, [seed, rank]) for rank, world in enumerate((TRUTH, other)))
        for pair in compare_fits(ours, theirs, KEY, "sp", "mup").pairs:
            low, high = pair.shift_interval
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
    found = compare_fits(own, part_of_fit(replace(TRUTH, a=TRUTH.a - 2.5), 1), KEY, "sp", "mup")
    pair = found.pairs[0]
    assert pair.changed_status == "left_censored"
    assert pair.shift is None
    assert pair.shift_interval[0] is None
    assert pair.shift_interval[1] < 0
    assert pair.significant
    assert "(95 %: below 0." in shift_sentence([found])


def test_nothing_to_compare_says_so(own):
    one = Truth(a=2.5, b=0.3, depths=(1,))
    found = compare_fits(own, part_of_fit(one, 0, shapes_of((1,), (2e3, 4e3, 8e3))), KEY, "sp", "mup")
    assert found.pairs == ()
    assert "unknown" in shift_sentence([found])


def test_the_fit_file_keeps_a_comparison(own, again):
    found = compare_fits(own, again, KEY, "sp", "mup")
    rows = simulate(TRUTH, WIDE[:3], 2, np.random.default_rng(0))
    both = replace(fit(RunTable.from_frame(rows)), shifts=(found,))
    assert Fit.from_json(json.loads(json.dumps(both.to_json()))).shifts == (found,)
