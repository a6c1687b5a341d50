import dataclasses

import numpy as np
import pandas as pd
import pytest

from analysis.curves.best_shapes import BestShape, DepthAt
from analysis.fit.answer import depth_ranges, next_depth, shape_sentence, use_sentence
from analysis.fit.document import Fit, fit
from analysis.fit.sentences import (
    best_sentence,
    beyond_sentence,
    count_phrase,
    crossing_sentence,
    findings,
    headlines,
    law_sentence,
    noise_sentence,
    reason_counts,
    surface_sentence,
    used_sentence,
)
from analysis.law.crossings import NO_NOISE, Crossing
from analysis.law.threshold_law import ThresholdLaw
from analysis.runs.table import RunTable, read_runs
from analysis.runs.tokens import TokenRule
from tests.simulated_study import Truth, shapes_of, simulate
from tests.tables import one_size_a_depth

NO_LAW = ThresholdLaw("log-linear", "insufficient", 0.95)
NO_TOKENS = TokenRule("unknown", None, (), "")


def test_each_status_has_its_sentence():
    bracketed = Crossing(1, 2, "bracketed", None, 3100, (2700, 3600))
    assert crossing_sentence(bracketed, 0.95) == (
        "2 layers overtake 1 layer at N ≈ 3.1 thousand (95 %: 2.7–3.6 thousand), where the shallower model is 16 wide."
    )
    right = Crossing(2, 4, "right_censored", "x", range=(1e3, 24e3))
    assert crossing_sentence(right, 0.95).startswith(
        "4 layers do not overtake 2 layers up to N ≈ 24 thousand"
    )
    left = Crossing(2, 4, "left_censored", "x", range=(1e3, 24e3))
    assert "ahead of 2 layers at every size measured, from N ≈ 1.0 thousand" in crossing_sentence(left, 0.95)
    assert "not settled: too noisy" in crossing_sentence(Crossing(2, 4, "ambiguous", "too noisy"), 0.95)
    assert "near N ≈ 5.0 thousand is not settled" in crossing_sentence(
        Crossing(2, 4, "ambiguous", "too noisy", params=5e3), 0.95
    )


BRACKETED = Crossing(1, 2, "bracketed", None, 3000, (2300, 4000), (1700, 38e3))
HIGHER = Crossing(2, 4, "bracketed", None, 6400, (4200, 14e3), (1700, 38e3))
NEVER = Crossing(2, 4, "right_censored", "x", None, (38e3, None), (1700, 38e3))
OPEN = Crossing(2, 4, "ambiguous", "too noisy", 9e3, None, (1700, 38e3))
ALWAYS = Crossing(2, 4, "left_censored", "x", None, (None, 1700), (1700, 38e3))
LATER = Crossing(4, 8, "bracketed", None, 9e3, (8e3, 1e4), (1700, 38e3))


@pytest.mark.parametrize(
    ("crossings", "ranges"),
    [
        ((BRACKETED, HIGHER), [((1,), None, 3000), ((2,), 3000, 6400), ((4,), 6400, None)]),
        ((BRACKETED, NEVER), [((1,), None, 3000), ((2,), 3000, None)]),
        ((BRACKETED, OPEN), [((1,), None, 3000), ((2, 4), 3000, None)]),
        ((BRACKETED, OPEN, LATER), [((1,), None, 3000), ((2, 4), 3000, 9e3), ((8,), 9e3, None)]),
        ((OPEN,), [((2, 4), None, None)]),
        ((ALWAYS, LATER), [((4,), None, 9e3), ((8,), 9e3, None)]),
        # Four layers are better than two wherever two are better than one: whether than one as well, nothing says.
        ((BRACKETED, ALWAYS), []),
        ((dataclasses.replace(ALWAYS, reason=NO_NOISE),), [((2, 4), None, None)]),
        ((), []),
    ],
)
def test_the_ranges_of_each_depth_follow_from_the_crossings(crossings, ranges):
    assert [(item.depths, item.low, item.high) for item in depth_ranges(crossings)] == ranges


def test_the_answer_is_one_sentence_with_the_edge_of_the_grid():
    assert use_sentence((BRACKETED, HIGHER), 0.95) == (
        "Up to 3.0 thousand parameters (95 %: 2.3–4.0 thousand) use 1 layer, up to 6.4 thousand (4.2–14 thousand) "
        "2 layers, above that at least 4 layers (4 was the deepest tried)."
    )
    assert "at most 2 layers (2 was the shallowest tried)" in use_sentence((NEVER,), 0.95)
    assert "2 or 4 layers (the runs do not decide; 4 was the deepest tried)" in use_sentence(
        (BRACKETED, OPEN), 0.95
    )
    assert use_sentence((OPEN,), 0.95) == use_sentence((), 0.95) == ""


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


def test_a_table_whose_depths_never_meet_says_that():
    shapes = [(6, 512), (8, 768), (11, 1024), (16, 1536)]
    frame = pd.DataFrame(shapes, columns=["depth", "width"]).assign(loss=[3.5, 3.2, 3.0, 2.8], tokens=1e9)
    lines = findings(fit(RunTable.from_frame(frame)))
    assert "No two depths (6, 8, 11 and 16 layers) meet" in lines[0]
    assert not any("one depth only" in line for line in lines)


def test_unequal_tokens_are_said_first(pilot_frame):
    frame = pilot_frame().assign(tokens=lambda rows: 1e6 * rows["depth"])
    result = fit(RunTable.from_frame(frame))
    assert findings(result)[0] == result.tokens.sentence


def test_the_costs_of_other_shapes_are_shares_of_the_loss():
    shapes = tuple(
        DepthAt(depth, width, 2 + excess, 0.01, excess, excess / 0.01)
        for depth, width, excess in ((1, 56.0, 0.13), (2, 40.2, 0.04), (4, 27.7, 0.0), (8, 19.8, 0.004))
    )
    best = BestShape(37e3, 37632, 4, 27.7, 2.0, (4, 8), shapes, width_step=2)
    assert shape_sentence(best) == (
        "At 38 thousand parameters: 4 layers × 28 wide; 8 × 20 costs +0.20 %, 2 × 40 +2.0 %, 1 × 56 +6.5 %; the "
        "losses of 4 and 8 layers do not differ significantly."
    )


def test_the_next_depth_costs_what_the_deepest_one_did(found, study):
    used = found.study.rows.assign(tokens=1e6)
    best = found.best
    assert best[-1].depth == max(used["depth"])
    following = next_depth(used, best)
    own = used[used["depth"] == 4]
    assert (following.depth, following.runs) == (8, len(own))
    assert following.flops == pytest.approx(6e6 * own["params"].sum())
    assert next_depth(used[used["depth"] < 4], best) is None
    assert found.next_depth.flops == next_depth(found.study.rows, best).flops


def test_what_is_settled_comes_first(pilot_frame):
    frame = pilot_frame()
    # Depth 1 is worse throughout, so 1 -> 2 has only a bound while 2 -> 4 crosses.
    frame.loc[frame["depth"] == 1, "loss"] += 0.5
    frame.loc[(frame["depth"] == 2) & (frame["width"] > 20), "loss"] += 0.05
    found = fit(RunTable.from_frame(frame))
    lines = headlines(found)
    # One layer is the best nowhere, so two are the answer from the smallest size on.
    ranges = depth_ranges(found.crossings)
    assert [item.depths for item in ranges] == [(2,), (4,)]
    assert (ranges[0].low, ranges[1].high) == (None, None)
    assert ranges[0].high == ranges[1].low == found.crossings[1].params
    assert lines[0] == use_sentence(found.crossings, 0.95)
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
    assert surface_sentence(found) == "", "with a law the response surface is left to the table"
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
    two = with_law(found, status="open", b_interval=(None, None), depths=(1, 2), note="two crossings")
    assert law_sentence(two).endswith("(two crossings).")
    assert "slope" not in law_sentence(two)
    stopped = with_law(found, status="not_converged", reason="maximum number of evaluations")
    assert "did not converge (maximum number of evaluations): do not use it" in law_sentence(stopped)
    assert "ln d = 2.50 − 0.3·L" in law_sentence(with_law(found, b=-0.3, **three))


def test_the_noise_says_where_it_comes_from(found, pilot_frame):
    assert noise_sentence(found).startswith("The noise of one seed is ±0.0")
    single = fit(RunTable.from_frame(pilot_frame(seeds=1)))
    sentence = noise_sentence(single)
    assert "estimated from the residuals" in sentence
    assert sentence in headlines(single)
    assert noise_sentence(found) not in headlines(found)
    assert "12·L·d²" in count_phrase("nonembedding")
    assert "table's own" in count_phrase("table")
    unknown = dataclasses.replace(found, noise={"known": False})
    assert "no noise estimate" in noise_sentence(unknown)


@pytest.mark.slow
def test_few_of_many_undecided_pairs_are_listed(line_frame):
    frame = line_frame(dict.fromkeys(range(1, 9), (1.0, -0.1)), sd=0.02)
    found = fit(RunTable.from_frame(frame, count="table"))
    assert sum(item.status == "ambiguous" for item in found.crossings) > 2
    lines = headlines(found)
    assert sum("is not settled" in line for line in lines) == 2


def test_without_a_law_the_loss_surfaces_are_told(tmp_path):
    (tmp_path / "runs.csv").write_text(one_size_a_depth())
    found = fit(read_runs(tmp_path / "runs.csv"))
    assert found.law.a is None
    lines = headlines(found)
    # No pair has two depths in common sizes: what all losses say together comes first.
    assert lines[0] == surface_sentence(found)
    assert len(set(lines)) == len(lines)
    # The truth of the table is additive: 30·d^-0.9 + 2·L^-1.1 has its best depths at 16, 32 and 62 layers.
    (said,) = (line for line in lines if line.startswith("The additive surface"))
    assert "16 at N ≈ 10 million (" in said
    assert "32 at N ≈ 100 million (" in said
    assert "62 at N ≈ 1.0 billion (" in said
    assert said.count("within 0.005 nats") == 3
    assert said.count("outside the data") == 1
    (lowest,) = (line for line in lines if line.startswith(("Lowest loss", "No budget has two depths")))
    assert "measured: " not in lowest


def test_depths_that_lose_next_to_nothing_stand_beside_the_best():
    def best(params, *excess):
        shapes = tuple(DepthAt(depth, 8.0, 2 + value, None, value, None) for depth, value in excess)
        winner = min(shapes, key=lambda shape: shape.excess)
        return BestShape(params, params, winner.depth, 8.0, 2.0, None, shapes)

    near = [best(size, (1, 0.02), (2, 0.0), (4, 0.004)) for size in (1e4, 2e4)]
    found = Fit((), NO_LAW, (), (), NO_TOKENS, 0, (), 0.95, best=(*near, best(4e4, (2, 0.006), (4, 0.0))))
    assert best_sentence(found) == (
        "Lowest loss measured: 2 layers at N ≈ 10–20 thousand (4 within 0.005 nats), 4 layers at N ≈ 40 "
        "thousand."
    )


def test_a_table_whose_size_and_tokens_grow_together_is_projected_nowhere():
    """Twenty tokens per parameter: the answer inside the sizes stays, and the reason stands in the first sentences."""
    truth = Truth(2.5, 0.3, (1, 2, 4, 6))
    frame = simulate(truth, shapes_of(truth.depths, np.geomspace(500, 6e5, 9)), 3, np.random.default_rng(2))
    params = 12 * frame["depth"] * frame["width"] ** 2
    runs = RunTable.from_frame(frame.assign(tokens=20 * params))
    grown, level = (fit(table) for table in (runs, RunTable.from_frame(frame.assign(tokens=1e9))))
    assert level.predict(1e4).depth is not None
    assert grown.law.a == pytest.approx(level.law.a)
    assert grown.predict(1e9).reason == grown.tokens.no_extrapolation
    assert any("grow together" in line for line in headlines(grown))
    assert [item.status for item in grown.surfaces] == ["insufficient", level.surfaces[1].status]
    assert Fit.from_json(grown.to_json()).tokens.no_extrapolation == grown.tokens.no_extrapolation
