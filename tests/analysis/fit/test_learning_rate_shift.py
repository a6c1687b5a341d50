"""The sensitivity arm against worlds in which the shift of a crossing is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from analysis.curves.curves import build_curves
from analysis.design.simulated_study import Truth, shapes_of, simulate
from analysis.fit.document import Fit, fit
from analysis.fit.learning_rate_shift import outstanding, shifts, split
from analysis.law.crossings import find_crossings
from analysis.report.extras.shifts import sensitivity_sentence, shift_sentence
from analysis.runs.comparison import compare
from analysis.runs.table import RunTable

TRUTH = Truth(a=2.5, b=0.3, depths=(1, 2, 4), noise=0.004)
BUDGETS = np.geomspace(1.5e3, 6e4, 7)
SHAPES = shapes_of(TRUTH.depths, BUDGETS)
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
    """The arm alone: a whole fit also holds out budgets and fits the rivals, which takes a hundred times as long."""
    main, arm = split(RunTable.from_frame(frame))
    rows = compare(main).rows
    curves = build_curves(rows)
    return shifts(arm, rows, curves, find_crossings(curves, draws=100).items, 0.95)


def with_arm(generator, seeds=3, noise=0.002, factors=(0.5, 2.0), near=2):
    """A study, and the `near` sizes below and above 1 -> 2 and 2 -> 4 again at other rates."""
    rows = simulate(TRUTH, SHAPES, seeds, generator).assign(lr=0.01, arm="")
    again = []
    for shallow, deep in ((1, 2), (2, 4)):
        where = np.exp(crossing(shallow, deep))
        for depth in (shallow, deep):
            own = rows[rows["depth"] == depth]
            sizes = np.sort(own["params"].unique())
            right = int(np.searchsorted(sizes, where))
            part = own[own["params"].isin(sizes[max(0, right - near // 2) : right + near // 2])]
            for factor in factors:
                stray = noise * generator.standard_normal(len(part))
                again.append(
                    part.assign(
                        loss=part["loss"] + HARM[factor, depth] + stray, lr=0.01 * factor, arm="sensitivity"
                    )
                )
    arm = pd.concat(again).drop_duplicates(["depth", "params", "seed", "lr"])
    return pd.concat([rows, arm], ignore_index=True)


@pytest.fixture(scope="module")
def frame():
    return with_arm(np.random.default_rng(3))


@pytest.fixture(scope="module")
def found(frame):
    return fit(RunTable.from_frame(frame), draws=200)


def test_the_arm_changes_nothing_in_the_study_itself(frame, found):
    alone = fit(RunTable.from_frame(frame[frame["arm"] == ""].drop(columns="arm")), draws=200)
    assert found.crossings == alone.crossings
    assert found.law == alone.law
    assert found.used == alone.used
    assert alone.sensitivity == ()
    reasons = {item["reason"] for item in found.left_out}
    assert reasons == {"of the sensitivity arm, with another learning rate on purpose; it enters no crossing"}
    assert len(found.left_out) == (frame["arm"] != "").sum()


def test_a_known_shift_is_found(found):
    shifts = {(item.shallow, item.deep, item.factor): item for item in found.sensitivity}
    assert set(shifts) == {(s, d, f) for s, d in ((1, 2), (2, 4)) for f in (0.5, 2.0)}
    for (shallow, deep, factor), item in shifts.items():
        true = crossing(shallow, deep, factor) - crossing(shallow, deep)
        low, high = item.shift_interval
        assert low < true < high
        assert low < item.shift < high
        assert item.runs == 12
        change = HARM[factor, shallow] - HARM[factor, deep]
        assert abs(item.gap_change - change) < 4 * item.gap_change_se
    # Harm to the deeper model moves the crossing to larger N, and to the shallower one to smaller.
    assert shifts[1, 2, 0.5].significant
    assert shifts[1, 2, 0.5].shift > 0
    assert shifts[1, 2, 2.0].shift < 0
    # What harms both alike moves nothing.
    assert not shifts[2, 4, 0.5].significant


@pytest.mark.slow
def test_the_intervals_of_shifts_hold_what_they_say():
    inside = total = 0
    for study in range(40):
        frame = with_arm(np.random.default_rng([7, study]))
        for item in shifts_of(frame):
            if item.shift is None or item.shift_interval is None:
                continue
            true = crossing(item.shallow, item.deep, item.factor) - crossing(item.shallow, item.deep)
            low, high = item.shift_interval
            holds = (low is None or low <= true) and (high is None or true <= high)
            inside, total = inside + holds, total + 1
    assert total > 150
    # 160 intervals of 95 %, four to a study: three standard errors of their share.
    assert inside / total > 0.9


def test_one_seed_takes_two_runs_for_independent(frame):
    one = frame[frame["seed"] == 0]
    item = next(item for item in shifts_of(one) if (item.shallow, item.factor) == (1, 0.5))
    # The next size below and above of each depth, and one alone where the crossing lies beside both.
    assert 2 <= item.runs <= 4
    assert item.gap_change_se > 0
    assert item.shift_interval is not None


def test_an_arm_that_diverged_says_so(frame):
    dead = (frame["arm"] != "") & (frame["lr"] > 0.015) & (frame["depth"] == 2)
    lost = frame.assign(status=np.where(dead, "diverged", "done"), loss=frame["loss"].mask(dead, np.nan))
    found = shifts_of(lost)
    double = [item for item in found if item.factor == 2]
    assert all(item.shift is None and item.diverged for item in double)
    assert double[0].reason == "depth 2 has no run at 2 times its rate: all its runs diverged"
    assert all(item.shift is not None for item in found if item.factor == 0.5)


def test_a_crossing_that_leaves_the_sizes_says_where(frame):
    far = frame.assign(loss=frame["loss"] + 0.5 * ((frame["arm"] != "") & (frame["depth"] == 2)))
    item = next(item for item in shifts_of(far) if (item.shallow, item.factor) == (1, 0.5))
    assert item.shift is None
    assert item.reason == "the crossing moves above the sizes at which both depths were measured"
    # How far beyond is not known, but that it moves is.
    low, high = item.shift_interval
    assert low > 0
    assert high is None
    assert item.significant
    words = sensitivity_sentence([item], 0.95)
    assert words == f"Another learning rate moves 1 → 2: {item.reason}."
    back = frame.assign(loss=frame["loss"] + 0.5 * ((frame["arm"] != "") & (frame["depth"] == 1)))
    other = next(item for item in shifts_of(back) if (item.shallow, item.factor) == (1, 0.5))
    assert other.shift_interval[0] is None
    assert other.shift_interval[1] < 0
    assert other.significant
    assert "(95 %: below 0." in shift_sentence(other, 0.95)


def test_a_gap_that_does_not_rise_gives_no_shift(frame, monkeypatch):
    # At the end of the range an ambiguous crossing may have it so; an error of nothing would look like a certainty.
    monkeypatch.setattr("analysis.fit.learning_rate_shift._slope", lambda *_: (-0.01, 0.001))
    for item in shifts_of(frame):
        assert item.shift is None
        assert item.shift_interval is None
        assert not item.significant
        assert "does not rise" in item.reason


def test_many_comparisons_are_taken_together(found):
    shifts = found.sensitivity
    moved = outstanding(shifts, 0.95)
    assert (moved[0].deep, moved[0].factor) == (2, 2.0)
    assert sensitivity_sentence(shifts, 0.95).startswith(
        f"Another learning rate moves {len({i.deep for i in moved})}"
    )
    # One of ten that would stand out alone.
    nothing = [replace(shifts[0], p_value=p) for p in (0.02, *np.linspace(0.1, 0.9, 9))]
    assert nothing[0].significant
    assert outstanding(nothing, 0.95) == []
    assert outstanding(nothing[:1], 0.95) == nothing[:1]
    assert "No crossing moves" in sensitivity_sentence(nothing, 0.95)
    sure = replace(shifts[0], p_value=1e-6)
    assert outstanding([*nothing, sure], 0.95) == [sure]
    assert outstanding([replace(sure, p_value=None)], 0.95) == []


def test_the_order_of_rows_changes_nothing(frame, found):
    mixed = frame.sample(frac=1, random_state=1).reset_index(drop=True)
    for one, other in zip(found.sensitivity, shifts_of(mixed), strict=True):
        assert other.shift == pytest.approx(one.shift, abs=1e-9)


def test_the_fit_file_keeps_the_shifts(found):
    assert Fit.from_json(found.to_json()).sensitivity == found.sensitivity
