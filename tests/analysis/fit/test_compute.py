import itertools
import json
import math

import numpy as np
import pytest

from analysis.audit.recommend import recommend_at_compute, recommend_in_time, recommend_one
from analysis.fit.compute import compute_answer
from analysis.fit.document import Fit, fit
from analysis.fit.recommendation import NamedFit
from analysis.fit.study import study_of
from analysis.fit.words import compute_sentences, findings
from analysis.law.answer_words import COMPUTES, compute_sentence, use_sentence
from analysis.law.reading import Reading
from analysis.law.reasons import Reason
from analysis.law.shape import buildable_width
from analysis.report.figures.loss import loss_data
from analysis.report.tables import compute_table, crossings_table
from analysis.runs.table import RunTable
from analysis.units import minutes_text
from core.errors import InputError
from core.numbers import digits, scientific
from tests.isoflop import DEPTHS, crossing_budget, isoflop_table, least_loss, minutes, timed_table
from tests.simulated_study import Truth, shapes_of, simulate


def runs_of(seeds, key=0):
    return RunTable.from_frame(isoflop_table(seeds, key, budgets=7, least=1e15))


@pytest.fixture(scope="module")
def found():
    return fit(runs_of(1))


@pytest.mark.parametrize("key", range(3))
def test_crossings_are_those_in_compute(key):
    found = compute_answer(study_of(runs_of(2, key)))
    for item in found.crossings:
        low, high = item.params_interval
        assert (low or 0) < crossing_budget(item.shallow, item.deep) < (high or math.inf)
    assert any(item.status == "bracketed" for item in found.crossings)
    assert found.budgets == pytest.approx([1e15 * 5**step for step in range(7)])


def test_the_answer_at_a_compute_is_the_depth_of_least_loss_and_the_costs_are_true(found):
    for flops in (5e15, 2e17, 8e18):
        best = found.compute.at(flops)
        truth = {depth: least_loss(flops, depth) for depth in DEPTHS}
        least = min(value for _, value in truth.values())
        assert truth[best.depth][1] - least < 0.003
        assert best.depth in best.near
        assert (best.source, best.extrapolated, best.reason) == ("measured", False, None)
        low, high = best.depth_interval
        assert (low or 0) <= best.depth <= (high or math.inf)
        assert {best.depth, *(other.depth for other in best.others)} == set(DEPTHS)
        assert [other.excess for other in best.others] == sorted(other.excess for other in best.others)
        for shape in (best, *best.others):
            log_size, expected = truth[shape.depth]
            assert getattr(shape, "excess", 0) == pytest.approx(expected - truth[best.depth][1], abs=0.008)
            assert math.log(shape.params) == pytest.approx(log_size, abs=0.35)
            assert 6 * shape.params * shape.tokens == pytest.approx(flops)
            assert shape.width == buildable_width(math.sqrt(shape.params / (12 * shape.depth)), 8)


def test_outside_the_budgets_there_is_no_depth(found):
    for flops in (1e12, 1e22):
        shape = found.compute.at(flops)
        assert (shape.depth, shape.width, shape.source, shape.extrapolated) == (None, None, "none", True)
        assert shape.reasons[0].values[1] == found.compute.budgets[-1]
        with pytest.raises(InputError, match="add a budget of compute"):
            recommend_at_compute(NamedFit("iso", found), None, [flops])
    _, shapes = recommend_at_compute(NamedFit("iso", found), None, ["1e18", "1e22"])
    assert [shape.depth is None for shape in shapes] == [False, True]


def test_a_file_answers_as_the_data_did(found):
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    again = Fit.from_json(document)
    assert again.compute == found.compute
    assert again.compute.at(3e17) == found.compute.at(3e17)
    assert findings(again)[:2] == findings(found)[:2]


def test_the_sentences_at_equal_compute_come_first_and_agree_with_the_table(found):
    shape, use = compute_sentences(found.compute, found.level)
    assert findings(found)[:2] == [shape, use]
    best = found.compute.best[-1]
    assert f"{best.depth} layers × {best.width} wide" in shape
    for item in found.compute.reading.ranges[:-1]:
        assert scientific(item.high) in use
    assert "FLOPs" in use
    assert "parameters" not in use
    table = compute_table(found)
    assert [row["FLOPs"] for row in table.records()] == [scientific(item) for item in found.compute.budgets]
    assert table.records()[-1]["best depth"] == str(best.depth)
    assert "no law in the width" in table.note


def test_the_words_of_a_reading_are_those_of_its_axis():
    reading = Reading((1e16, 1e18), (2, 4), ((2.0, 2.1), (2.0, 2.1)), ((2, 4), (2, 4)), ((), ()))
    assert use_sentence(reading, 0.95, COMPUTES).startswith(
        "At every compute measured (1e16–1e18 FLOPs) use 2 layers"
    )


def test_other_tables_have_no_answer_at_a_compute():
    truth = Truth(2.5, 0.3, (1, 2, 4))
    frame = simulate(truth, shapes_of(truth.depths, np.geomspace(500, 6e5, 5)), 1, np.random.default_rng(0))
    for tokens in (1e9, frame["width"] ** 2 * frame["depth"] * 240.0):
        plain = fit(RunTable.from_frame(frame.assign(tokens=tokens)))
        assert plain.compute is None
        assert compute_table(plain) is None
        with pytest.raises(InputError, match="isoFLOP"):
            recommend_at_compute(NamedFit("plain", plain), None, [1e18])


def test_budgets_with_few_minima_leave_the_others_with_their_reasons():
    frame = isoflop_table(noise=0)
    # At the smallest budget the minimum of all depths but one is beyond the sizes.
    cut = (frame["flops"] == frame["flops"].min()) & (frame["params"] > 8e6) & (frame["depth"] > 2)
    found = compute_answer(study_of(RunTable.from_frame(frame[~cut])))
    assert len(found.left_out) == 3
    assert found.at(found.budgets[0]).depth is None
    assert found.at(found.budgets[1]).depth is not None
    assert len(found.best) == len(found.budgets) - 1


def test_a_depth_without_a_minimum_that_has_a_lower_loss_leaves_no_answer():
    frame = isoflop_table(noise=0, least=1e18)
    flops = frame["flops"].max()
    # The sizes of the best depth end below its minimum, but its loss there is the lowest of all.
    last = (frame["flops"] == flops) & (frame["depth"] == 16)
    least = math.exp(least_loss(flops, 16)[0])
    answer = fit(RunTable.from_frame(frame[~last | (frame["params"] < least)]))
    found = answer.compute
    assert [(one.depth, one.budget) for one in found.lowest] == [(16, pytest.approx(flops))]
    refused = found.at(flops)
    assert (refused.depth, refused.source) == (None, "none")
    assert (refused.reasons[0].reason, refused.reasons[0].values[0]) == (Reason.BETTER_AT_END, 16)
    assert found.at(found.budgets[-2]).depth == 16
    assert findings(answer)[0].startswith(compute_sentence(found.best[-1]))
    assert compute_sentence(refused) in findings(answer)
    assert Fit.from_json(json.loads(json.dumps(answer.to_json()))).compute.at(flops) == refused


def test_one_question_has_one_size_or_one_compute(found):
    named = NamedFit("iso", found)
    assert recommend_one(named, None, None, 1e17)[1] == found.compute.at(1e17)
    for params, flops in ((1e7, 1e17), (None, None)):
        with pytest.raises(InputError, match="not both"):
            recommend_one(named, None, params, flops)
    with pytest.raises(InputError, match="within"):
        recommend_one(named, None, None, 1e17, 0.01)
    for wrong in ("many", -1, math.nan, math.inf):
        with pytest.raises(InputError, match="FLOPs"):
            recommend_one(named, None, None, wrong)


def test_published_laws_with_tokens_answer_at_a_compute():
    source, (shape,) = recommend_at_compute(None, None, [1e20])
    assert recommend_at_compute(None, "liu2026", [1e20]) == (source, [shape])
    assert (shape.source, shape.depth) == ("published", 25)
    for law, flops, match in (
        ("levine2020", 1e20, "liu2026"),
        ("log3", 1e20, "liu2026"),
        (None, 1e28, "1e21"),
    ):
        with pytest.raises(InputError, match=match):
            recommend_at_compute(None, law, [flops])


# Equal training time


@pytest.fixture(scope="module")
def timed():
    return fit(RunTable.from_frame(timed_table()))


@pytest.mark.parametrize("key", range(3))
def test_crossings_at_equal_time_are_those_in_minutes_and_deeper_wins_later_than_at_equal_compute(key):
    answer = compute_answer(study_of(RunTable.from_frame(timed_table(key=key))))
    assert (answer.unit, answer.budgets) == ("minutes", tuple(1.5 * 4**power for power in range(5)))
    assert any(item.status == "bracketed" for item in answer.crossings)
    for item in answer.crossings:
        low, high = item.params_interval
        truth = crossing_budget(item.shallow, item.deep, minutes)
        assert (low or 0) < truth < (high or math.inf)
        # The FLOPs that the shallower one computes in the time of the crossing: at equal compute depth costs no time.
        params = math.exp(least_loss(truth, item.shallow, minutes)[0])
        tokens = truth / minutes(params, item.shallow)
        assert 6 * params * tokens > crossing_budget(item.shallow, item.deep)


def test_the_answer_in_a_time_is_the_depth_of_least_loss_with_the_tokens_that_each_depth_sees(timed):
    for time in (3.0, 40.0, 300.0):
        shape = timed.compute.at(time)
        truth = {depth: least_loss(time, depth, minutes) for depth in DEPTHS}
        assert truth[shape.depth][1] - min(value for _, value in truth.values()) < 0.003
        assert (shape.minutes, shape.flops, shape.budget_unit) == (time, None, "minutes")
        for other in (shape, *shape.others):
            assert math.log(other.params) == pytest.approx(truth[other.depth][0], abs=0.35)
            assert other.tokens == pytest.approx(time / minutes(other.params, other.depth), rel=0.05)


def test_a_sentence_about_a_time_has_the_share_of_the_tokens_that_another_depth_sees(timed):
    shape, use = compute_sentences(timed.compute, timed.level)
    best = timed.compute.best[-1]
    other = best.others[0]
    assert f"{minutes_text(best.minutes)} of training: {best.depth} layers × {best.width} wide" in shape
    assert f"with {digits(other.tokens / best.tokens)} times the tokens" in shape
    assert "FLOPs" not in shape + use
    for item in timed.compute.reading.ranges[:-1]:
        assert minutes_text(item.high) in use
    (first, *_) = compute_table(timed).records()
    assert first["training time"] == minutes_text(timed.compute.best[0].minutes)


def test_a_time_is_asked_as_a_time_and_not_as_flops(timed):
    named = NamedFit("timed", timed)
    assert recommend_in_time(named, 60 * 40.0) == timed.compute.at(40.0)
    with pytest.raises(InputError, match="train_time"):
        recommend_at_compute(named, None, ["1e18"])
    with pytest.raises(InputError, match=r"reach from 90 s to 6\.4 h"):
        recommend_in_time(named, 1.0)


def test_a_column_of_the_unit_alone_makes_times_of_budgets(timed):
    frame = timed_table()
    assert Fit.from_json(json.loads(json.dumps(timed.to_json()))).compute == timed.compute
    assert fit(RunTable.from_frame(frame.drop(columns="compute_unit"))).tokens.rule != "compute"
    half = ["minutes", "FLOPs"] * (len(frame) // 2)
    for unit in ("hours", "Minutes", None, half):
        with pytest.raises(InputError, match="must be `minutes` or all `FLOPs`"):
            fit(RunTable.from_frame(frame.assign(compute_unit=unit)))
    named = frame.rename(columns={"compute": "C", "compute_unit": "of"})
    table = RunTable.from_frame(named, columns={"compute": "C", "compute_unit": "of"})
    assert fit(table).compute == timed.compute


def test_what_a_table_at_equal_time_lacks_is_said():
    frame = timed_table()
    without = fit(RunTable.from_frame(frame.assign(tokens=math.nan)))
    assert "no row has training tokens" in " ".join(findings(without))
    one = fit(RunTable.from_frame(frame[frame["depth"] == 4]))
    assert "There is one depth only" in " ".join(findings(one))


def test_crossings_at_equal_time_are_in_the_table_of_crossings(timed):
    rows = crossings_table(timed).records()
    assert [row["pair"] for row in rows] == [f"{a} → {b}" for a, b in itertools.pairwise(DEPTHS)]
    (settled,) = (row for row in rows if row["status"] == "bracketed")
    (crossing,) = (item for item in timed.compute.crossings if item.status == "bracketed")
    assert settled["training time"] == minutes_text(crossing.params)


def test_losses_at_equal_time_are_drawn_as_they_were_measured(timed):
    points, lines = loss_data(timed)
    frame = timed_table()
    means = frame.groupby(["depth", "params", "compute"])["loss"].mean()
    np.testing.assert_allclose(sorted(points["loss"]), sorted(means))
    assert lines.groupby(["depth", "budget"]).size().eq(5).all()


@pytest.mark.extended
def test_intervals_of_crossings_at_equal_time_hold():
    """Of 60 studies of a world; `docs/coverage.md` has the figures."""
    crossings, inside = [], []
    for key in range(60):
        for item in compute_answer(study_of(RunTable.from_frame(timed_table(key=100 + key)))).crossings:
            low, high = item.params_interval
            truth = crossing_budget(item.shallow, item.deep, minutes)
            crossings.append((low or 0) < truth < (high or math.inf))
            if 1.5 < truth < 1.5 * 4**4:
                inside.append(item.status == "bracketed")
    print(
        f"{sum(crossings)} of {len(crossings)} held; of {len(inside)} inside the times {sum(inside)} bracketed"
    )
    assert sum(crossings) >= 0.92 * len(crossings)
    assert sum(inside) >= 0.8 * len(inside)
