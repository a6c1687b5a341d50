"""History of simulated searches."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.design.objective import Objective, estimate, history, rows_in_order, search_data
from analysis.report.figures.search import search_sentence
from analysis.runs.table import RunTable
from tests.analysis import searched


@pytest.fixture(scope="module")
def rows():
    return rows_in_order(searched.table(searched.searched()))


def test_rows_come_in_the_order_they_ended_whatever_that_of_the_table():
    frame = searched.searched()
    mixed = rows_in_order(RunTable.from_frame(frame.sample(frac=1, random_state=2)))
    pd.testing.assert_frame_equal(mixed, rows_in_order(RunTable.from_frame(frame)))
    assert mixed["order"].tolist() == list(range(1, len(frame) + 1))
    assert mixed["flops"].tolist() == frame["flops"].tolist()
    unordered = RunTable.from_frame(frame.drop(columns="order"))
    assert rows_in_order(unordered) is search_data(unordered, searched.search()) is None


def test_a_history_has_the_estimates_of_the_rows_so_far_and_ends_with_all(rows):
    steps = history(rows, searched.AIM, points=5)
    assert steps["cells"].tolist() == [1, 16, 32, 48, 63]
    assert steps["flops"].iloc[-1] == pytest.approx(rows["flops"].sum())
    for step in steps.itertuples():
        known = estimate(rows.iloc[: step.cells], searched.AIM)
        for name in ("value", "low", "high", "halfwidth"):
            found, expected = getattr(step, name), getattr(known, name)
            assert found == expected or (math.isnan(found) and expected in (None, math.inf))
    assert math.isnan(steps["value"].iloc[0])
    assert steps["halfwidth"].iloc[-1] < steps["halfwidth"].iloc[2]
    assert history(rows.iloc[:3], searched.AIM)["cells"].tolist() == [1, 2, 3]


@pytest.fixture(scope="module")
def disturbed():
    """With sensitivity runs and a cell that diverged."""
    frame = searched.with_sensitivity_runs(searched.searched())
    frame.loc[4, ["status", "loss"]] = ["diverged", np.nan]
    return RunTable.from_frame(frame)


@pytest.fixture(scope="module")
def data(disturbed):
    return search_data(disturbed, searched.search(ended="the certainty asked for was reached."), points=10)


def test_the_table_of_the_figure_has_cells_without_sensitivity_runs_and_steps(data, disturbed):
    found = rows_in_order(disturbed)
    assert len(found) == len(data.cells)
    assert np.flatnonzero(found["loss"].isna()).tolist() == [4]
    table = data.table()
    assert set(table["what"]) == {"cell", "step"}
    assert data.cells["outcome"].value_counts().to_dict() == {"done": 62, "diverged": 1}
    assert not np.isinf(data.steps["halfwidth"]).any()
    assert data.steps["flops"].is_monotonic_increasing


def test_the_sentence_has_the_work_and_the_certainty(data):
    text = search_sentence(data)
    spent = data.cells["flops"].iloc[-1]
    assert text.startswith(f"The search trained 63 cells for {spent / 1e12:.0f}e12 training FLOPs")
    assert text.endswith(". The certainty asked for was reached.")


def test_a_search_without_an_estimate():
    few = searched.searched().iloc[:4]
    found = search_data(searched.table(few), searched.search())
    assert "has no closed interval yet" in search_sentence(found)
    assert math.isnan(found.steps["halfwidth"].iloc[-1])


@pytest.mark.parametrize("objective", [Objective("b"), Objective("depth", 6e5)])
def test_every_objective_has_a_history(rows, objective):
    last = history(rows, objective, points=2).iloc[-1]
    # Three depths settle no projected depth, but bound it.
    assert last["value" if objective.kind == "b" else "low"] > 0
    assert math.isnan(last["halfwidth"])
