import dataclasses

import numpy as np
import pytest

from analysis.curves.best_shapes import BestShape, DepthAt
from analysis.fit.document import Fit, fit
from analysis.fit.sentences import (
    best_sentence,
    count_phrase,
    crossing_sentence,
    disagreement_sentence,
    headlines,
    law_sentence,
    noise_sentence,
    surface_sentence,
)
from analysis.law.advice import Disagreement, DisagreementSpan
from analysis.law.crossings import NO_NOISE, Crossing
from analysis.law.threshold import ThresholdFit
from analysis.numbers import ends, human, human_range, short, short_range
from analysis.report.tables import projection_table
from analysis.runs.table import RunTable, read_runs
from analysis.runs.tokens import TokenRule
from tests.simulated_study import Truth, shapes_of, simulate
from tests.tables import one_size_a_depth

NO_LAW = ThresholdFit("log-linear", "insufficient", 0.95)
NO_TOKENS = TokenRule("unknown", None, (), "")


@pytest.mark.parametrize(
    ("value", "words", "letters"),
    [
        (3120, "3.1 thousand", "3.1k"),
        (999.6, "1.0 thousand", "1k"),
        (24576, "25 thousand", "25k"),
        (1.643e11, "164 billion", "164B"),
        (1e12, "1.0 trillion", "1T"),
        (42.4, "42", "42"),
        (0.0123, "0.012", "0.012"),
    ],
)
def test_numbers_in_words(value, words, letters):
    assert human(value) == words
    assert short(value) == letters


def test_open_ends_are_said():
    assert human_range((2700, 3900)) == "2.7–3.9 thousand"
    assert human_range((900, 3900)) == "900–3.9 thousand"
    assert human_range((None, 3900)) == "below 3.9 thousand"
    assert human_range((3900, None)) == "above 3.9 thousand"
    assert short_range((None, None)) == "open"
    assert short_range((2700, 3900)) == "2.7k–3.9k"
    assert short_range(None) == "none"


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


def test_what_is_settled_comes_first(pilot_frame):
    frame = pilot_frame()
    # Depth 1 is worse throughout, so 1 -> 2 has only a bound while 2 -> 4 crosses.
    frame.loc[frame["depth"] == 1, "loss"] += 0.5
    frame.loc[(frame["depth"] == 2) & (frame["width"] > 20), "loss"] += 0.05
    found = fit(RunTable.from_frame(frame))
    lines = headlines(found)
    assert lines[0].startswith("4 layers overtake 2 layers at N")
    assert lines[1].startswith("2 layers are ahead of 1 layer at every size measured")
    assert lines[2].startswith("Lowest loss measured")
    assert lines[3].startswith("No threshold law: a law needs two crossings")
    assert lines[4] == found.tokens.sentence


def test_an_interval_of_equal_numbers_gets_more_digits():
    assert ends((0.2, 0.312)) == "0.20 to 0.31"
    assert ends((0.1479, 0.1512)) == "0.148 to 0.151"
    assert ends((None, 0.3)) == "below 0.30"
    assert ends((0.24, None)) == "above 0.24"
    assert ends((None, None)) == "no limit"
    assert ends((0.25, 0.25)) == "0.25 to 0.25"


@pytest.fixture(scope="module")
def found(study):
    return fit(study)


def with_law(found, **fields):
    law = ThresholdFit("log-linear", "ok", 0.95, 2.5, 0.3, ((1, 0), (0, 1)), (2.4, 2.6), (0.25, 0.35))
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
    unknown = dataclasses.replace(found, noise={"known": False})
    assert "no noise estimate" in noise_sentence(unknown)


def test_many_pairs_are_counted_not_told(line_frame):
    frame = line_frame({d: (1 + d / 100, -0.1 - d / 300) for d in range(1, 9)}, sd=0.001)
    lines = headlines(fit(RunTable.from_frame(frame, count="table")))
    assert "3 more pairs of neighbouring depths are in the table of crossings." in lines
    assert sum("overtake" in line or "are ahead" in line for line in lines) <= 4


def test_where_rivals_part_for_good(found):
    params = (1e3, 1e4, 1e5, 1e6)

    def part(law, depths, *spans):
        return Disagreement(law, params, depths, spans, None)

    rivals = (
        part("log-linear", (1.0, 2.0, 3.0, 4.0)),
        # Apart at the smallest sizes, together, and apart again up to the end.
        part(
            "power",
            (9.0, 2.0, 9.0, 9.0),
            DisagreementSpan(1e3, 2e3, "shallower"),
            DisagreementSpan(4e4, 1e6, "deeper"),
        ),
        part("additive", (9.0, 2.0, 3.0, 4.0), DisagreementSpan(1e3, 2e3, "deeper")),
        part("response", (None,) * 4),
    )
    told = dataclasses.replace(with_law(found), disagreements=rivals)
    assert disagreement_sentence(told) == (
        "Against the threshold law, the power law is deeper by more than a factor of 1.25 from N ≈ 40 thousand on. "
        "The additive loss is within a factor of 1.25 of it at N ≈ 1.0 million. "
        "The response surface names no finite depth at N ≈ 1.0 million."
    )
    assert "Without a threshold law" in disagreement_sentence(dataclasses.replace(told, disagreements=()))


def test_the_counting_rule_is_said():
    assert "12·L·d²" in count_phrase("nonembedding")
    assert "table's own" in count_phrase("table")


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


def test_a_settled_pair_comes_before_the_response_surface(tmp_path):
    (tmp_path / "runs.csv").write_text(one_size_a_depth())
    found = fit(read_runs(tmp_path / "runs.csv"))
    bound = Crossing(1, 2, "left_censored", "the gap is positive at both ends", range=(1e3, 2e3))
    for item, leads in ((bound, False), (dataclasses.replace(bound, reason=NO_NOISE), True)):
        lines = headlines(dataclasses.replace(found, crossings=(item, *found.crossings)))
        assert lines[0].startswith("The additive surface" if leads else "2 layers are ahead of 1 layer"), (
            lines
        )


def test_with_a_law_the_response_surface_is_left_to_the_table(found):
    assert surface_sentence(found) == ""


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
    assert level.project(1e4).depth is not None
    assert projection_table(RunTable.from_frame(frame), level) is not None
    assert grown.law.a == pytest.approx(level.law.a)
    assert grown.project(1e9).reason == grown.tokens.no_projection
    assert projection_table(runs, grown) is None
    assert any("grow together" in line for line in headlines(grown))
    assert [item.status for item in grown.surfaces] == ["insufficient", level.surfaces[1].status]
    assert Fit.from_json(grown.to_json()).tokens.no_projection == grown.tokens.no_projection
