import pytest

from analysis.crossings import Crossing
from analysis.fit import fit
from analysis.runs import RunTable
from analysis.wording import crossing_sentence, headlines, human, human_range, short, short_range


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
    bracketed = Crossing(1, 2, True, "bracketed", None, 3100, (2700, 3600), 16.1, (15.0, 17.3))
    assert crossing_sentence(bracketed, 0.95) == (
        "Depth 2 overtakes depth 1 at N ≈ 3.1 thousand (95 %: 2.7–3.6 thousand), where the shallower net is 16 wide."
    )
    right = Crossing(2, 4, True, "right_censored", "x", range=(1e3, 24e3))
    assert crossing_sentence(right, 0.95).startswith(
        "Depth 4 does not overtake depth 2 up to N ≈ 24 thousand"
    )
    left = Crossing(2, 4, True, "left_censored", "x", range=(1e3, 24e3))
    assert "ahead of depth 2 at every size measured, from N ≈ 1.0 thousand" in crossing_sentence(left, 0.95)
    assert "not settled: too noisy" in crossing_sentence(Crossing(2, 4, True, "ambiguous", "too noisy"), 0.95)
    assert "near N ≈ 5.0 thousand, but" in crossing_sentence(
        Crossing(2, 4, True, "ambiguous", "too noisy", params=5e3), 0.95
    )


def test_what_is_settled_comes_first(pilot_frame):
    frame = pilot_frame()
    # Depth 1 is worse throughout, so 1 -> 2 has only a bound while 2 -> 4 crosses.
    frame.loc[frame["depth"] == 1, "loss"] += 0.5
    lines = headlines(fit(RunTable.from_frame(frame)))
    assert lines[0].startswith("Depth 4 overtakes depth 2 at N")
    assert lines[1].startswith("Depth 2 is ahead of depth 1 at every size measured")
    assert lines[2].startswith("Lowest loss measured")
    assert lines[3].startswith("No threshold law: a law needs two bracketed crossings")
