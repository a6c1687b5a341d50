import dataclasses
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.curves.noise import NoiseSummary
from analysis.fit.document import Fit, fit
from analysis.fit.next_runs import next_depth
from analysis.fit.recommendation import NamedFit, shapes_by
from analysis.fit.words import (
    best_sentence,
    beyond_sentence,
    count_phrase,
    crossing_sentence,
    findings,
    headlines,
    law_sentence,
    laws_sentence,
    next_steps,
    noise_sentence,
    reason_counts,
    used_sentence,
)
from analysis.law.answer_words import shape_sentence, use_sentence
from analysis.law.crossings import Crossing
from analysis.law.decision import GapLaws
from analysis.law.reading import AtSize, DepthAt, Reading
from analysis.law.reasons import Because, Reason
from analysis.law.threshold_law import ThresholdLaw
from analysis.law.words import WORDS
from analysis.runs.remarks import About
from analysis.runs.table import RunTable, read_runs
from analysis.runs.tokens import TokenRule
from analysis.runs.words import qualified
from core.errors import InputError
from core.numbers import human
from tests.simulated_study import Truth, shapes_of, simulate
from tests.tables import one_size_a_depth

NO_LAW = ThresholdLaw("log-linear", "insufficient", 0.95)
NO_GAP_LAWS = GapLaws((), None, (), None)
NO_TOKENS = TokenRule("unknown", None, (), (), None)


def test_each_status_has_its_sentence():
    bracketed = Crossing(1, 2, "bracketed", (), 3100, (2700, 3600))
    assert crossing_sentence(bracketed, 0.95) == (
        "2 layers overtake 1 layer at N ≈ 3.1 thousand (95 %: 2.7–3.6 thousand), where the shallower model is 16 wide."
    )
    right = Crossing(2, 4, "right_censored", (Because(Reason.DEEP_BEHIND),), range=(1e3, 24e3))
    assert crossing_sentence(right, 0.95).startswith(
        "4 layers do not overtake 2 layers up to N ≈ 24 thousand"
    )
    left = Crossing(2, 4, "left_censored", (Because(Reason.DEEP_AHEAD),), range=(1e3, 24e3))
    assert "ahead of 2 layers at every size measured, from N ≈ 1.0 thousand" in crossing_sentence(left, 0.95)
    doubt = Crossing(2, 4, "ambiguous", (Because(Reason.MAY_CROSS),))
    assert f"not settled: {doubt.reason}." in crossing_sentence(doubt, 0.95)
    assert "near N ≈ 5.0 thousand is not settled" in crossing_sentence(replace(doubt, params=5e3), 0.95)


@pytest.mark.parametrize("status", ["left_censored", "right_censored"])
def test_a_lead_without_a_noise_estimate_is_said_as_one_whatever_the_words(status, monkeypatch):
    silent = Crossing(2, 4, status, (Because(Reason.NO_NOISE),), range=(1e3, 24e3))
    tested = replace(silent, reasons=(Because(Reason.DEEP_AHEAD),))
    monkeypatch.setitem(WORDS, Reason.NO_NOISE, "nothing is known of the scatter")
    assert crossing_sentence(silent, 0.95).endswith("(nothing is known of the scatter).")
    assert "(" not in crossing_sentence(tested, 0.95)
    assert (silent.settled, tested.settled) == (False, True)


def reading_of(*places):
    """Sizes a factor ten apart; each place is the best depth of 2, 4 and 8, the near ones, and the missing ones."""
    depths = (2, 4, 8)
    losses = tuple(
        tuple(None if depth in missing else 2.0 + 0.01 * (depth != best) for best, _, missing in places)
        for depth in depths
    )
    params = tuple(10.0 ** (3 + at) for at in range(len(places)))
    return Reading(
        params, depths, losses, tuple(item[1] for item in places), tuple(item[2] for item in places)
    )


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        (
            [(2, (2,), ()), (2, (2, 4), ()), (4, (2, 4), ()), (8, (8,), ())],
            "Up to 32 thousand parameters (95 %: 10–100 thousand) use at most 2 layers (2 was the shallowest tried), "
            "up to 316 thousand (316–316 thousand) 4 layers (2 layers are not excluded), "
            "above that at least 8 layers (8 was the deepest tried).",
        ),
        (
            [(2, (2, 4), ()), (4, (4,), ()), (4, (4,), (8,))],
            "Up to 3.2 thousand parameters (95 %: up to 3.2 thousand) use 2 layers (4 layers are not excluded; 2 was "
            "the shallowest tried), up to 10 thousand 4 layers (beyond that size 8 layers were not measured).",
        ),
        (
            # Below the sizes 2 layers may be the best.
            [(4, (4,), ()), (8, (8,), ())],
            "From 1.0 thousand to 3.2 thousand parameters (95 %: 3.2–3.2 thousand) use 4 layers, above that at least "
            "8 layers (8 was the deepest tried).",
        ),
        (
            [(4, (2, 4), ()), (2, (2, 4), ())],
            "At every size measured (1.0–10 thousand parameters) use 2 or 4 layers (the runs do not decide; 2 was the "
            "shallowest tried).",
        ),
        (
            [(4, (2, 4, 8), ()), (2, (2, 4, 8), ()), (8, (2, 4, 8), ()), (2, (2, 4, 8), ())],
            "At every size measured",
        ),
        (
            [(4, (2, 4, 8), ()), (2, (2, 4, 8), ())],
            "At every size measured (1.0–10 thousand parameters) use 2 or 4 layers (the runs do not decide; 8 "
            "layers are not excluded either; 2 was the shallowest tried).",
        ),
        ([(4, (4,), (8,)), (4, (4,), (8,))], ""),
        ([], ""),
    ],
)
def test_the_answer_is_one_sentence_with_the_edge_of_the_grid(places, sentence):
    found = use_sentence(reading_of(*places), 0.95)
    assert found == sentence if not sentence.endswith("measured") else found.startswith(sentence)


def test_the_first_sentence_says_how_many_rows_are_used_if_they_are_few(pilot_frame):
    frame = pilot_frame().assign(tokens=2e6)
    early = [frame.assign(tokens=tokens, loss=frame["loss"] + 0.1) for tokens in (5e5, 1e6)]
    result = fit(RunTable.from_frame(pd.concat([frame, *early], ignore_index=True)))
    assert findings(result)[0] == used_sentence(result) != ""
    assert f"{len(frame)} of {3 * len(frame)} rows" in used_sentence(result)
    # Reasons that differ in their numbers are one.
    odd = frame.assign(depth="many", tokens=np.arange(len(frame)))
    result = fit(RunTable.from_frame(pd.concat([frame, odd.assign(depth=lambda rows: rows.index + 0.5)])))
    ((reason, count),) = reason_counts(result)
    assert count == len(frame)
    assert "not a positive whole number" in reason
    # The rates of a parabola are in the loss that is compared.
    rates = [
        frame.assign(lr=rate, loss=frame["loss"] + more) for rate, more in ((1, 0.02), (2, 0), (4, 0.02))
    ]
    result = fit(RunTable.from_frame(pd.concat(rates, ignore_index=True)))
    assert (result.used, result.merged, used_sentence(result)) == (len(frame), 2 * len(frame), "")
    assert not used_sentence(fit(RunTable.from_frame(frame)))


def test_rows_that_check_the_learning_rate_are_not_counted_as_left_out(pilot_frame):
    main = pilot_frame().assign(lr=1.0, purpose="")
    checks = [main.assign(lr=rate, purpose="sensitivity") for rate in (0.5, 2.0)]
    result = fit(RunTable.from_frame(pd.concat([main, *checks], ignore_index=True)))
    assert (len(result.left_out), used_sentence(result)) == (2 * len(main), "")
    half = main.assign(status=np.where(np.arange(len(main)) % 2, "done", "failed"))
    result = fit(RunTable.from_frame(pd.concat([half, *checks], ignore_index=True)))
    assert used_sentence(result).startswith(f"{len(main) // 2} of {len(main)} rows")
    assert "sensitivity" not in used_sentence(result)


def test_a_table_whose_depths_never_meet_says_that():
    shapes = [(6, 512), (8, 768), (11, 1024), (16, 1536)]
    frame = pd.DataFrame(shapes, columns=["depth", "width"]).assign(loss=[3.5, 3.2, 3.0, 2.8], tokens=1e9)
    lines = findings(fit(RunTable.from_frame(frame)))
    assert "No two depths (6, 8, 11 and 16 layers) meet" in lines[0]
    assert not any("one depth only" in line for line in lines)


def test_depths_of_one_size_meet_but_need_a_second_one():
    shapes = [(2, 1000), (4, 704), (7, 536), (12, 408)]
    frame = pd.DataFrame(shapes, columns=["depth", "width"]).assign(loss=[3.0, 2.9, 2.8, 2.9], tokens=1e9)
    first = findings(fit(RunTable.from_frame(frame)))[0]
    assert "24 million parameters" in first
    assert "second size of each depth" in first
    assert "No two depths" not in first


def test_unequal_tokens_are_said_first(pilot_frame):
    frame = pilot_frame().assign(tokens=lambda rows: 1e6 * rows["depth"])
    result = fit(RunTable.from_frame(frame))
    assert findings(result)[0] == result.tokens.sentence
    one = fit(RunTable.from_frame(frame[frame["seed"] == 0]))
    assert one.noise.source == "residuals"
    assert findings(one) == [one.tokens.sentence]
    # The crossings of such losses are those of the tokens.
    assert {item.status for item in result.crossings} == {"insufficient"}
    assert all("tokens" in item.reason and item.params is None for item in result.crossings)
    assert (result.gap_laws.laws, result.law.status) == ((), "insufficient")
    assert result.reading.ranges == result.best == ()
    # Nothing else compares depths, also not by another measure.
    assert headlines(result) == [line for line in headlines(result) if "tokens" in line or "noise" in line]
    single = fit(RunTable.from_frame(frame[frame["seed"] == 0]))
    assert "no noise estimate" in noise_sentence(single)
    assert not any("residuals" in text for text in (*headlines(single), *single.warnings))
    scored = fit(RunTable.from_frame(frame.assign(accuracy=0.5)))
    assert findings(scored) == findings(result)
    with pytest.raises(InputError, match="have different training tokens"):
        shapes_by(NamedFit("unequal", result), [12 * 2 * 12**2])


def test_pairs_that_cannot_be_compared_have_their_reason(pilot_frame):
    frame = pilot_frame()
    one_size = frame[(frame["depth"] < 4) | (frame["width"] == 6)]
    result = fit(RunTable.from_frame(one_size))
    (item,) = (item for item in result.crossings if item.status == "insufficient")
    (line,) = (line for line in headlines(result) if "cannot be compared" in line)
    assert line.startswith("1 of 2 pairs")
    assert item.reason in line


def test_the_costs_of_other_shapes_are_shares_of_the_loss():
    shapes = tuple(
        DepthAt(depth, width, 2 + excess, excess)
        for depth, width, excess in ((1, 56.0, 0.13), (2, 40.2, 0.04), (4, 27.7, 0.0), (8, 19.8, 0.004))
    )
    best = AtSize(37632, 4, 27.7, 2.0, (4, 8), shapes, width_step=2)
    assert shape_sentence(best) == (
        "At 38 thousand parameters: 4 layers × 28 wide; 8 × 20 costs +0.20 %, 2 × 40 +2.0 %, 1 × 56 +6.5 %; the "
        "losses of 4 and 8 layers do not differ significantly."
    )
    incomplete = shape_sentence(dataclasses.replace(best, near=(4,), missing=(16,)))
    assert incomplete.endswith("; 16 layers are not measured there.")


def test_one_layer_that_is_not_excluded_has_a_verb_in_the_singular():
    near = ((1, 2), (1, 2))
    found = Reading((1e3, 1e4), (1, 2), ((2.0, 2.0), (1.9, 1.9)), near, ((), ()))
    assert "(1 layer is not excluded;" in use_sentence(found, 0.95)


def test_the_next_depth_costs_what_the_deepest_one_did(found, line_frame):
    rows = line_frame({2: (1.0, -0.1), 4: (0.95, -0.11)})
    decided = fit(RunTable.from_frame(rows.assign(tokens=1e6), count="table"))
    runs, deepest = decided.estimated_runs.depth, rows[rows["depth"] == 4]
    assert (decided.next_depth, runs.runs) == (8, len(deepest))
    assert runs.flops == pytest.approx(6e6 * deepest["params"].sum())
    # At the largest size four layers are the best of the pilot, but two are not excluded.
    assert (found.best[-1].depth, found.best[-1].near, found.next_depth) == (4, (2, 4), None)
    assert next_depth(decided.study.rows.query("depth < 4"), decided.best) is None


def test_what_is_settled_comes_first(pilot_frame):
    frame = pilot_frame()
    # Depth 1 is worse throughout, so 1 -> 2 has only a bound while 2 -> 4 crosses.
    frame.loc[frame["depth"] == 1, "loss"] += 0.5
    frame.loc[(frame["depth"] == 2) & (frame["width"] > 20), "loss"] += 0.05
    found = fit(RunTable.from_frame(frame))
    lines = headlines(found)
    # One layer is the best nowhere, so two are the answer from the smallest size on.
    ranges = found.reading.ranges
    assert [item.depths for item in ranges] == [(2,), (4,)]
    assert (ranges[0].low, ranges[1].high) == (found.reading.params[0], found.reading.params[-1])
    assert ranges[0].high == pytest.approx(found.crossings[1].params)
    assert ranges[0].high_interval == pytest.approx(found.crossings[1].params_interval)
    assert lines[0] == use_sentence(found.reading, 0.95)
    assert lines[1] == shape_sentence(found.best[-1])
    assert lines[-2] == beyond_sentence(found)
    assert lines[-1] == found.tokens.sentence


@pytest.fixture(scope="module")
def found(study):
    return fit(study)


def with_law(found, **fields):
    law = ThresholdLaw("log-linear", "ok", 0.95, 2.5, 0.3, ((1, 0), (0, 1)), (2.4, 2.6), (0.25, 0.35))
    return dataclasses.replace(found, law=dataclasses.replace(law, **fields))


def test_each_status_of_the_law_has_its_sentence(found):
    three = {"depths": (1, 2, 4)}
    assert (
        law_sentence(with_law(found, **three))
        == "Threshold law: ln d = 2.50 + 0.3·L, slope 95 %: 0.25 to 0.35."
    )
    flat = law_sentence(with_law(found, b_interval=(-0.05, 0.65), **three))
    assert "-0.050 to 0.65; the slope is compatible with zero" in flat
    assert "with zero" in law_sentence(with_law(found, status="open", b_interval=(None, 0.1), **three))
    opened = with_law(found, status="open", b_interval=(0.24, None), **three)
    assert "slope 95 %: above 0.24" in law_sentence(opened)
    assert "one side only" in law_sentence(opened)
    rejected = with_law(found, p_value=1e-6, **three)
    assert "reject its form (p = 1e-06)" in law_sentence(rejected)
    two = with_law(
        found, status="open", b_interval=(None, None), depths=(1, 2), notes=(Because(Reason.TWO_POINTS),)
    )
    assert law_sentence(two).endswith(f"({two.law.note}).")
    assert "slope" not in law_sentence(two)
    stopped = with_law(
        found,
        status="not_converged",
        reasons=(Because(Reason.NOT_CONVERGED, ("too many steps",)),),
    )
    assert "did not converge (too many steps): do not use it" in law_sentence(stopped)
    assert "ln d = 2.50 − 0.3·L" in law_sentence(with_law(found, b=-0.3, **three))


def test_the_noise_says_where_it_comes_from(found, pilot_frame):
    assert noise_sentence(found).startswith("The noise of one seed is ±0.0")
    single = fit(RunTable.from_frame(pilot_frame(seeds=1)))
    sentence = noise_sentence(single)
    assert "estimated from the residuals" in sentence
    assert sentence in headlines(single)
    assert noise_sentence(found) not in headlines(found)
    assert "12·L·d²" in count_phrase(found)
    assert "table's own" in count_phrase(dataclasses.replace(found, count="table"))
    alone = dataclasses.replace(found, reading=dataclasses.replace(found.reading, layer_weights=4.0))
    assert " 4·L·d²" in count_phrase(alone)
    unknown = dataclasses.replace(found, noise=NoiseSummary())
    assert "no noise estimate" in noise_sentence(unknown)


@pytest.mark.slow
def test_many_undecided_pairs_are_no_list(line_frame):
    frame = line_frame(dict.fromkeys(range(1, 9), (1.0, -0.1)), sd=0.02)
    found = fit(RunTable.from_frame(frame, count="table"))
    assert sum(item.status == "ambiguous" for item in found.crossings) > 2
    assert not any("is not settled" in line for line in headlines(found))
    assert "the runs do not decide" in headlines(found)[0]


def test_with_one_size_a_depth_the_laws_through_all_losses_answer(tmp_path):
    (tmp_path / "runs.csv").write_text(one_size_a_depth())
    found = fit(read_runs(tmp_path / "runs.csv"))
    assert found.law.a is None
    lines = headlines(found)
    # No pair has two depths in common sizes: what all losses say together comes first.
    assert lines[0] == laws_sentence(found) != ""
    assert len(set(lines)) == len(lines)
    # The truth of the table is additive: 30·d^-0.9 + 2·L^-1.1 has its best depths at 16, 32 and 62 layers.
    for size, depth in ((1e7, 16), (1e8, 32), (1e9, 62)):
        shape = found.predict(size)
        assert shape.depth == pytest.approx(depth, rel=0.2)
        assert shape.depth_interval[0] <= depth <= shape.depth_interval[1]
    (lowest,) = (line for line in lines if line.startswith(("Lowest loss", "No budget has two depths")))
    assert "measured: " not in lowest


def test_depths_that_lose_next_to_nothing_stand_beside_the_best():
    def best(params, *excess):
        shapes = tuple(DepthAt(depth, 8.0, 2 + value, value) for depth, value in excess)
        winner = min(shapes, key=lambda shape: shape.excess)
        return AtSize(params, winner.depth, 8.0, 2.0, None, shapes)

    near = [best(size, (1, 0.02), (2, 0.0), (4, 0.004)) for size in (1e4, 2e4)]
    found = Fit(
        (), NO_LAW, (), NO_GAP_LAWS, NO_TOKENS, 0, (), 0.95, best=(*near, best(4e4, (2, 0.006), (4, 0.0)))
    )
    assert best_sentence(found) == (
        "Lowest loss measured: 2 layers at N ≈ 10–20 thousand (4 within 0.005 nats), 4 layers at N ≈ 40 "
        "thousand."
    )


def test_a_table_whose_size_and_tokens_grow_together_is_projected_nowhere():
    """Tokens grow faster than N: there is an answer inside the sizes, and the reason is among the first sentences."""
    truth = Truth(2.5, 0.3, (1, 2, 4, 6))
    frame = simulate(truth, shapes_of(truth.depths, np.geomspace(500, 6e5, 9)), 3, np.random.default_rng(2))
    params = 12 * frame["depth"] * frame["width"] ** 2
    runs = RunTable.from_frame(frame.assign(tokens=params**1.2))
    grown, level = (fit(table) for table in (runs, RunTable.from_frame(frame.assign(tokens=1e9))))
    assert level.predict(1e6, math.inf).depth is not None
    assert grown.law.a == pytest.approx(level.law.a)
    assert grown.predict(1e9).reason == grown.tokens.no_extrapolation
    assert any("grow together" in line for line in headlines(grown))
    assert grown.tokens.refusal.about is About.CORRELATED
    assert Fit.from_json(grown.to_json()).tokens == grown.tokens


def test_one_number_of_tokens_per_parameter_is_projected_along_its_line():
    truth = Truth(2.5, 0.3, (1, 2, 4, 6))
    frame = simulate(truth, shapes_of(truth.depths, np.geomspace(500, 6e5, 9)), 3, np.random.default_rng(2))
    params = 12 * frame["depth"] * frame["width"] ** 2
    line, level = (fit(RunTable.from_frame(frame.assign(tokens=tokens))) for tokens in (20 * params, 1e9))
    assert line.tokens.refusal is None
    # What is said of sizes holds at this number of tokens per parameter only.
    at, found = "at 20 tokens per parameter", headlines(line)
    assert found[0] == qualified(use_sentence(line.reading, line.level), line.tokens.ratio)
    assert found[0].endswith(f", {at}.")
    assert sum(at in text for text in found[1:]) == sum(
        text == f"{beyond_sentence(line)[:-1]}, {at}." for text in found
    )
    (shape,) = shapes_by(NamedFit("line", line), [line.best[0].params])
    assert shape.law.endswith(f", {at}")
    assert not any(at in text for text in headlines(level))
    assert line.predict(2e6, math.inf).depth == level.predict(2e6, math.inf).depth is not None


def test_the_next_step_is_the_sizes_at_which_a_depth_is_missing():
    truth = Truth(3, 0.15, (2, 4, 8, 16), noise=0.002)
    sizes = np.geomspace(truth.crossing(2) / 4, truth.crossing(8) / 2, 7)
    frame = simulate(truth, shapes_of(truth.depths, sizes), 3, np.random.default_rng(4))
    found = fit(RunTable.from_frame(frame[(frame["depth"] < 16) | (frame["budget"] < sizes[4])]))
    last = found.reading.ranges[-1]
    assert last.missing == (16,)
    assert f"train 16 layers at the sizes above {human(last.high)} too" in next_steps(found)[0]
