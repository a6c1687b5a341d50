"""Epochs of a run table: the range of the rows compared, and the warning from the second pass on."""

import pandas as pd
import pytest

from analysis.fit.words import epochs_sentence
from analysis.runs.epochs import epochs_of, repeat_warning
from analysis.runs.table import RunTable

ROWS = pd.DataFrame({"depth": [1, 2, 4], "width": [8, 8, 8], "loss": [2.0, 1.9, 1.8]})


def epochs(values, **columns):
    return epochs_of(RunTable.from_frame(ROWS.assign(passes=values), {"epochs": "passes"}, **columns).used)


def test_the_range_of_the_rows_and_what_is_unknown():
    assert epochs_of(RunTable.from_frame(ROWS).used) is None
    assert epochs([None, "unknown", None]) is None
    found = epochs([0.5, "2.25", None])
    assert (found.low, found.high, found.unknown) == (0.5, 2.25, 1)
    assert "0.500 to 2.25 epochs" in epochs_sentence(found)


@pytest.mark.parametrize(
    ("values", "about"), [([1, 1, 1], None), ([0.2, 0.9, 1.01], "up to 1.01 "), ([2, 2, 2], "data 2.00 ")]
)
def test_there_is_a_warning_from_the_second_pass_on(values, about):
    warning = epochs(values).warning
    assert about in warning if about else not warning
    assert "at least 3.00 times" in repeat_warning(3, "at least ")
