"""Epochs of a run table: the range of the rows compared, and the remark from the second pass on."""

import pandas as pd
import pytest

from analysis.fit.words import epochs_sentence
from analysis.runs.epochs import epochs_of, repeated
from analysis.runs.remarks import About, Remark
from analysis.runs.table import RunTable
from analysis.runs.words import texts_of

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
    ("values", "remark"),
    [([1, 1, 1], None), ([0.2, 0.9, 1.01], (1.01, "up to ")), ([2, 2, 2], (2.0, ""))],
)
def test_there_is_a_remark_from_the_second_pass_on(values, remark):
    assert epochs(values).repeated == ((Remark(About.REPEATED_DATA, remark),) if remark else ())
    (text,) = texts_of(repeated(3, "at least "))
    assert "at least 3.00 times" in text
