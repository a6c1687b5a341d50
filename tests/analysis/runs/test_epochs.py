"""Epochs of a run table: the range of the rows compared, and the warning from the second pass on."""

import pandas as pd
import pytest

from analysis.runs.epochs import epochs_of, repeat_warning
from analysis.runs.table import RunTable

ROWS = pd.DataFrame({"depth": [1, 2, 4], "width": [8, 8, 8], "loss": [2.0, 1.9, 1.8]})


def epochs(values, **columns):
    return epochs_of(RunTable.from_frame(ROWS.assign(passes=values), {"epochs": "passes"}, **columns).used)


def test_a_table_without_the_column_has_no_epochs():
    assert epochs_of(RunTable.from_frame(ROWS).used) is None
    assert epochs([None, "unknown", None]) is None


def test_the_range_of_the_rows_and_what_is_unknown():
    found = epochs([0.5, "2.25", None])
    assert (found.low, found.high, found.unknown) == (0.5, 2.25, 1)
    assert "0.500 to 2.25 epochs" in found.sentence


@pytest.mark.parametrize(("values", "warned"), [([1, 1, 1], False), ([0.2, 0.9, 1.01], True)])
def test_there_is_a_warning_from_the_second_pass_on(values, warned):
    assert bool(epochs(values).warning) == warned


def test_one_number_for_all_rows_is_no_range():
    assert "up to" in epochs([1, 2, 3]).warning
    assert "up to" not in epochs([2, 2, 2]).warning
    assert "at least 3.00 times" in repeat_warning(3, "at least ")
