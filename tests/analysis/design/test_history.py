"""History of simulated searches."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.curves.curves import build_curves
from analysis.design.history import _simulated, grid_steps, history, rows_in_order, search_data
from analysis.design.objective import Objective, compared, estimate
from analysis.report.extras.search import search_sentence
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


def test_without_an_order_there_is_no_history():
    runs = RunTable.from_frame(searched.searched().drop(columns="order"))
    assert rows_in_order(runs) is None
    assert search_data(runs, searched.search()) is None


def test_sensitivity_runs_are_left_out_and_a_diverged_cell_has_no_loss():
    frame = searched.with_sensitivity_runs(searched.searched())
    frame.loc[4, ["status", "loss"]] = ["diverged", np.nan]
    found = rows_in_order(RunTable.from_frame(frame))
    assert len(found) == (frame["purpose"] == "").sum()
    assert np.flatnonzero(found["loss"].isna()).tolist() == [4]


def test_flops_come_from_the_table_or_are_computed():
    frame = searched.searched()
    own = rows_in_order(RunTable.from_frame(frame.assign(flops=7.0)))
    assert set(own["flops"]) == {7.0}
    counted = rows_in_order(RunTable.from_frame(frame.drop(columns="flops")))
    assert counted["flops"].to_numpy() == pytest.approx(frame["flops"].to_numpy())


def test_a_cell_that_was_stopped_cost_what_it_trained():
    frame = searched.searched().assign(loss_se=np.nan, trained_share=np.nan)
    frame.loc[2, ["status", "loss_se", "trained_share"]] = ["stopped", 0.01, 0.4]
    found = rows_in_order(RunTable.from_frame(frame))
    ratio = found["flops"] / frame["flops"]
    assert ratio.tolist() == pytest.approx([0.4 if place == 2 else 1.0 for place in range(len(frame))])


def test_a_history_has_the_estimates_of_the_rows_so_far_and_ends_with_all(rows):
    steps = history(rows, searched.AIM, points=5)
    assert [step.cells for step in steps] == [1, 16, 32, 48, 63]
    assert steps[-1].flops == pytest.approx(rows["flops"].sum())
    for step in steps:
        assert step.estimate == estimate(rows.iloc[: step.cells], searched.AIM)
    assert steps[0].estimate.value is None
    assert steps[-1].estimate.halfwidth < steps[2].estimate.halfwidth
    assert [step.cells for step in history(rows.iloc[:3], searched.AIM)] == [1, 2, 3]
    assert history(rows.iloc[:0], searched.AIM) == []


def test_a_simulated_grid_agrees_with_drawn_ones(rows):
    """The expected half-width is near the median of grids drawn from the true values."""
    expected = grid_steps(rows, searched.grid(), searched.AIM, most_seeds=4)
    assert [step.seeds for step in expected] == [1, 2, 3, 4]
    cost = searched.grid()["flops"].sum()
    assert [step.flops for step in expected] == pytest.approx([cost, 2 * cost, 3 * cost, 4 * cost])
    drawn = [
        estimate(searched.searched(seeds=4, seed=seed), searched.AIM).halfwidth for seed in range(20, 25)
    ]
    assert 0.6 < expected[3].halfwidth / np.median(drawn) < 1.6
    assert grid_steps(rows, searched.grid(), searched.AIM, most_seeds=4) == expected


def test_a_grid_far_beyond_the_search_has_losses(rows):
    """A curve extrapolated to sizes a million times as large may fall below zero, which no loss does."""
    used, _ = compared(
        rows.assign(loss=0.8 - 0.1 * np.log(rows["params"] / 1e3) + 0.1 * (rows["loss"] - 2.9))
    )
    far = searched.grid().assign(params=lambda table: table["params"] * 1e6)
    curves = build_curves(used)
    assert min(curves.smooth.loss(1, np.log(far["params"].to_numpy()))) < 0
    losses = _simulated(curves, far, 3, np.random.default_rng(0))["loss"]
    assert (losses > 0).all()
    assert grid_steps(rows, searched.grid().iloc[:0], searched.AIM) == []


def test_no_grid_is_simulated_without_noise_or_a_curve(rows):
    one = rows[rows["seed"] == 0].iloc[:6]
    assert grid_steps(one[one["depth"] == 1], searched.grid(), searched.AIM) == []
    assert grid_steps(rows[rows["depth"] < 4], searched.grid(), searched.AIM) == []


@pytest.fixture(scope="module")
def data():
    frame = searched.with_sensitivity_runs(searched.searched())
    frame.loc[4, ["status", "loss"]] = ["diverged", np.nan]
    return search_data(searched.table(frame), searched.search(), points=10)


def test_the_table_of_the_figure_has_cells_steps_and_grid(data):
    table = data.table()
    assert set(table["what"]) == {"cell", "step", "grid"}
    assert len(data.cells) == 63
    assert data.cells["outcome"].value_counts().to_dict() == {"done": 62, "diverged": 1}
    assert not np.isinf(data.steps["halfwidth"]).any()
    assert data.steps["flops"].is_monotonic_increasing


def test_the_sentence_compares_the_search_with_the_grid(data):
    text = search_sentence(data, "the certainty asked for was reached.")
    spent = data.cells["flops"].iloc[-1]
    assert text.startswith(f"The search trained 63 cells for {spent / 1e12:.0f}e12 training FLOPs")
    assert ". The certainty asked for was reached." in text
    # The grid is compared at the half-width asked for, although the search reached a narrower one.
    assert data.steps["halfwidth"].iloc[-1] < data.stop_when == 0.3
    seeds = data.grid[data.grid["halfwidth"] <= 0.3]["seeds"].iloc[0]
    assert f"is expected to need {seeds} seed" in text
    assert "the target of 0.30" in text
    own = search_sentence(replace(data, stop_when=None), "")
    seeds = data.grid[data.grid["halfwidth"] <= data.steps["halfwidth"].iloc[-1]]["seeds"].iloc[0]
    assert f"is expected to need {seeds} seeds for that, " in own


def test_a_search_without_an_estimate():
    few = searched.searched().iloc[:4]
    found = search_data(searched.table(few), searched.search())
    assert "has no closed interval yet" in search_sentence(found, "")
    assert math.isnan(found.steps["halfwidth"].iloc[-1])


@pytest.mark.parametrize("objective", [Objective("b"), Objective("depth", 6e5)])
def test_every_objective_has_a_history(rows, objective):
    last = history(rows, objective, points=2)[-1].estimate
    assert last.value > 0
