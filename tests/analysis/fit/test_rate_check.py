"""The check of the learning rate, in worlds whose best rates are known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from analysis.curves.curves import build_curves
from analysis.fit.document import Fit, fit
from analysis.fit.next_words import rate_sentence
from analysis.fit.rate_check import check_rates, split_sensitivity_runs, widened
from analysis.fit.words import answers
from analysis.law.crossings import find_crossings
from analysis.law.reasons import Because, Reason
from analysis.runs.comparison import compare
from analysis.runs.table import RunTable
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(a=2.5, b=0.3, depths=(1, 2, 4), noise=0.004)
SHAPES = shapes_of(TRUTH.depths, np.geomspace(1.5e3, 6e4, 7))
#: Nats of a rate off by a factor of two.
CURVATURE = 0.03 / np.log(2) ** 2
#: ln of the best multiple of the rule's rate by depth.
RIGHT = {1: 0.0, 2: 0.0, 4: 0.0}
OFF = {1: 0.0, 2: 0.35, 4: 0.69}


def gap(shallow, deep, best=RIGHT):
    """The true gap of two depths at the rule's rates as a function of ln N."""
    added = CURVATURE * (best[shallow] ** 2 - best[deep] ** 2)

    def value(x):
        params = np.array([np.exp(x)])
        return float((TRUTH.loss(shallow, params) - TRUTH.loss(deep, params))[0]) + added

    return value


def crossing(shallow, deep, best=RIGHT):
    return brentq(gap(shallow, deep, best), np.log(100), np.log(1e7))


def study(best, generator, factors=(0.5, 2.0), noise=0.002):
    """A study at the rule's rates, and both depths of each crossing again at multiples of them."""
    rows = simulate(TRUTH, SHAPES, 3, generator)
    rows["loss"] += CURVATURE * rows["depth"].map(best) ** 2
    places = (crossing(1, 2, best), crossing(2, 4, best))
    changes = {
        (factor, depth): CURVATURE * ((np.log(factor) - best[depth]) ** 2 - best[depth] ** 2)
        for depth in best
        for factor in factors
    }
    return trained_again(rows, places, changes, generator, noise)


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


def checked(frame):
    """Crossings of neighbouring depths at the rule's rates, with the check included, and the check."""
    main, again = split_sensitivity_runs(RunTable.from_frame(frame))
    comparison = compare(main)
    curves = build_curves(comparison.rows)
    found = find_crossings(curves)
    check = check_rates(again, comparison, curves, found)
    return found.items, widened(found.items, check), check


def holds(item, params):
    low, high = item.params_interval
    return (low is None or low <= params) and (high is None or params <= high)


@pytest.mark.slow
@pytest.mark.parametrize(("best", "own_at_most", "longer"), [(RIGHT, 1.0, 1.1), (OFF, 0.6, 4.0)])
def test_intervals_hold_the_crossings_at_the_best_rates(best, own_at_most, longer):
    own, with_check, lengths = [], [], []
    for number in range(18):
        items, wider, _ = checked(study(best, np.random.default_rng([15, number])))
        for before, after in zip(items, wider, strict=True):
            if before.params is None:
                continue
            true = np.exp(crossing(before.shallow, before.deep))
            own.append(holds(before, true))
            with_check.append(holds(after, true))
            if None not in (*before.params_interval, *after.params_interval):
                lengths.append(
                    np.log(after.params_interval[1] / after.params_interval[0])
                    / np.log(before.params_interval[1] / before.params_interval[0])
                )
    assert len(own) >= 30
    assert np.mean(with_check) >= 0.87, "of 32 intervals of 95 %, within two standard errors"
    assert np.mean(own) <= own_at_most
    assert np.median(lengths) <= longer


@pytest.fixture(scope="module")
def frame():
    return study(OFF, np.random.default_rng(1))


@pytest.fixture(scope="module")
def found(frame):
    return fit(RunTable.from_frame(frame))


def test_the_shift_to_the_best_rates_is_part_of_the_interval(found):
    own = {(item.shallow, item.deep): item for item in found.study.crossings.items}
    for pair in found.learning_rate.pairs:
        before = own[pair.shallow, pair.deep]
        (after,) = (c for c in found.crossings if (c.shallow, c.deep) == (pair.shallow, pair.deep))
        true = crossing(pair.shallow, pair.deep) - crossing(pair.shallow, pair.deep, OFF)
        low, high = pair.shift.shift_interval
        assert low < true < high
        # Deeper models gain more at their best rates, so the crossing moves to smaller N.
        assert pair.shift.shift < 0
        assert after.params == before.params
        assert after.params_interval[0] < before.params_interval[0]
        assert after.params_interval[1] == before.params_interval[1]
        assert after.params_interval[0] == pair.shift.changed_interval[0]
        assert holds(after, np.exp(crossing(pair.shallow, pair.deep)))


def test_sensitivity_runs_change_nothing_in_the_study_itself(frame, found):
    alone = fit(RunTable.from_frame(frame[frame["purpose"] == ""].drop(columns="purpose")))
    assert found.study.crossings.items == alone.study.crossings.items == alone.crossings
    assert found.law == alone.law
    assert found.used == alone.used
    assert all("sensitivity run" in item["reason"] for item in found.left_out)
    assert len(found.left_out) == (frame["purpose"] != "").sum()


def test_the_order_of_rows_changes_nothing(frame, found):
    mixed = checked(frame.sample(frac=1, random_state=1).reset_index(drop=True))[2]
    for one, own in zip(mixed.pairs, found.learning_rate.pairs, strict=True):
        assert one.shift.shift == pytest.approx(own.shift.shift, abs=1e-9)


def test_one_seed_takes_two_runs_for_independent(frame):
    shift = checked(frame[frame["seed"] == 0])[2].pairs[0].shift
    # Two rates at the next size below and above of each depth, or at one alone where the crossing lies beside both.
    assert 4 <= shift.runs <= 8
    assert shift.shift_interval is not None


def test_the_runs_of_a_shift_are_counted_and_those_that_diverged(frame):
    dead = (frame["purpose"] != "") & (frame["lr"] > 0.015) & (frame["depth"] == 2)
    lost = frame.assign(status=np.where(dead, "diverged", "done"), loss=frame["loss"].mask(dead, np.nan))
    for pair, own in zip(checked(lost)[2].pairs, checked(frame)[2].pairs, strict=True):
        assert own.shift.diverged == 0
        assert pair.shift.diverged == dead.sum()
        assert pair.shift.runs < own.shift.runs


def test_the_fit_file_and_the_answers_state_the_check(found):
    assert Fit.from_json(found.to_json()).learning_rate == found.learning_rate
    assert rate_sentence(found.learning_rate, None) in answers(found)


def test_without_the_check_its_runs_are_counted(frame):
    alone = frame[frame["purpose"] == ""].drop(columns="purpose")
    items, same, check = checked(alone)
    runs = fit(RunTable.from_frame(alone)).estimated_runs.rates
    assert same == items
    assert not check.checked
    # As many as the sensitivity runs of this study.
    assert runs.runs == (frame["purpose"] != "").sum()
    assert f"{runs.runs} runs" in rate_sentence(check, runs)


def test_a_best_rate_beyond_those_tried_is_not_checked(frame):
    check = checked(study({1: 0.9, 2: 0.9, 4: 0.9}, np.random.default_rng(2)))[2]
    assert all(f"depth {pair.shallow}" in pair.reason for pair in check.pairs)
    # Its best rate is twice the rule's, which is left out here.
    check = checked(frame[(frame["depth"] != 4) | (frame["lr"] < 0.015)])[2]
    reasons = {(pair.shallow, pair.deep): pair.reason for pair in check.pairs}
    assert reasons[1, 2] is None
    assert "depth 4" in reasons[2, 4]
    assert "2 → 4" in rate_sentence(check, None)
    assert "1 → 2" not in rate_sentence(check, None)


def test_one_other_rate_is_no_check():
    check = checked(study(RIGHT, np.random.default_rng(3), factors=(0.5,)))[2]
    assert not check.checked


def test_a_rate_that_diverges_brackets_the_best_one_too():
    frame = study(RIGHT, np.random.default_rng(4))
    dead = (frame["purpose"] != "") & (frame["lr"] > 0.015)
    lost = frame.assign(status=np.where(dead, "diverged", "done"), loss=frame["loss"].mask(dead, np.nan))
    assert checked(lost)[2].checked
    assert not checked(frame[~dead])[2].checked


def test_rates_of_equal_loss_need_no_others():
    """Within the noise the lowest rate is the best: nothing suggests a better one beyond it."""
    frame = study(RIGHT, np.random.default_rng(5))
    again = frame["purpose"] != ""
    flat = frame.assign(loss=frame["loss"] - CURVATURE * np.log(2) ** 2 * again - 1e-4 * (frame["lr"] < 0.01))
    assert checked(flat)[2].checked


def rates_in_the_study(best, factors, seeds=2):
    """A study in which every shape has all rates."""
    generator = np.random.default_rng(6)
    parts = []
    for factor in factors:
        rows = simulate(TRUTH, SHAPES, seeds, generator).assign(lr=0.01 * factor)
        rows["loss"] += CURVATURE * (np.log(factor) - rows["depth"].map(best)) ** 2
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)


def test_three_rates_that_bracket_the_best_one_are_a_check():
    items, same, check = checked(rates_in_the_study(OFF, (0.5, 1.0, 2.0, 3.5)))
    assert check.checked
    assert same == items, "the losses compared are those at the best rates already"
    for factors in ((1.0, 2.5), (0.1, 0.2, 0.4)):
        missing = checked(rates_in_the_study(OFF, factors))[2]
        assert not missing.checked
        assert {pair.reasons for pair in missing.pairs} == {(Because(Reason.NO_RATES),)}


def test_a_crossing_that_may_leave_the_sizes_is_no_longer_bracketed(found):
    (item, *_) = (c for c in found.study.crossings.items if c.status == "bracketed")
    (pair,) = (p for p in found.learning_rate.pairs if (p.shallow, p.deep) == (item.shallow, item.deep))
    low, high = item.params_interval
    for interval, whole in (((None, low), (None, high)), ((None, None), (None, None))):
        far = replace(pair.shift, changed_interval=interval)
        (after,) = widened([item], replace(found.learning_rate, pairs=(replace(pair, shift=far),)))
        assert (after.status, after.params_interval) == ("ambiguous", whole)
        assert after.reasons == (Because(Reason.BEST_RATES_OUTSIDE),)


def test_depths_without_a_crossing_need_all_shapes_again(frame):
    apart = frame[(frame["purpose"] == "") & (frame["depth"] < 4)].drop(columns="purpose")
    apart = apart.assign(loss=apart["loss"] - 0.5 * (apart["depth"] == 2))
    check = checked(apart)[2]
    assert [pair.reasons for pair in check.pairs] == [(Because(Reason.NO_RATES),)]
    assert fit(RunTable.from_frame(apart)).estimated_runs.rates.runs == 2 * len(apart)


def test_one_depth_has_nothing_to_check(frame):
    one = frame[(frame["purpose"] == "") & (frame["depth"] == 1)]
    assert fit(RunTable.from_frame(one)).learning_rate is None
