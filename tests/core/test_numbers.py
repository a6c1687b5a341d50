import numpy as np
import pytest

from core.numbers import duration, ends, human, human_range, is_count, is_number, prefixed, short, span


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
    assert human_range((900, 3900)) == "0.90–3.9 thousand"
    assert human_range((864, 2.5e6)) == "0.86 thousand–2.5 million"
    assert human_range((12, 864)) == "12–864"
    assert human_range((None, 3900)) == "below 3.9 thousand"
    assert human_range((3900, None)) == "above 3.9 thousand"
    assert span((None, None)) == "no limit"
    assert span((2700, 3900), short) == "2.7k–3.9k"
    assert span(None) == "none"
    assert (ends((None, 0.3)), ends((0.24, None))) == ("below 0.30", "above 0.24")
    assert ends((0.2, 0.312)) == "0.20 to 0.31"
    # Two different ends get digits until they differ.
    assert ends((0.1479, 0.1512)) == "0.148 to 0.151"
    assert ends((0.25, 0.25)) == "0.25 to 0.25"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4 s"),
        (7, "7.0 s"),
        (45, "45 s"),
        (99.4, "99 s"),
        (150, "2 min"),
        (5400, "90 min"),
        (8640, "2.4 h"),
        (31 * 86400, "31 days"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(12, "12"), (1600, "1.6k"), (2.5e9, "2.5G"), (5.31e21, "5.31Z")])
def test_decimal_prefixes(value, text):
    assert prefixed(value) == text


def test_numbers_of_python_and_numpy_are_told_from_text():
    assert all(map(is_number, (0.5, 1, np.float32(0.5), np.float64(0.5), np.int64(1))))
    assert not any(map(is_number, ("0.5", None, [0.5])))
    assert all(map(is_count, (1, np.int64(3))))
    assert not any(map(is_count, (0, -1, 1.0, 3.5, "3", None)))
