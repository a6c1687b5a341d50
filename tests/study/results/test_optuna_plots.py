"""Optuna's own plots, from a study that is built again from a run table."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from optuna.trial import TrialState

from analysis.report.study_page import MORE
from analysis.runs.table import RunTable
from study.results.optuna_plots import optuna_figures, optuna_study


def table(factors=(1.0,), seeds=2):
    """A searched study of two depths; its third cell diverged."""
    rows = [
        {"depth": depth, "width": width, "seed": seed, "lr_factor": factor, "lr": 0.01 * factor}
        for seed in range(seeds)
        for width in (8, 16, 32)
        for depth in (1, 2)
        for factor in factors
    ]
    frame = pd.DataFrame(rows)
    generator = np.random.default_rng(0)
    frame = frame.assign(
        loss=3 - 0.1 * np.log(frame["width"]) + 0.01 * generator.standard_normal(len(frame)),
        status="done",
        order=generator.permutation(len(frame)) + 1,
        flops=1e9,
    )
    frame.loc[frame["order"] == 3, ["status", "loss"]] = ["diverged", np.nan]
    return frame


def test_trials_are_the_cells_in_the_order_they_ended():
    frame = table()
    study = optuna_study(RunTable.from_frame(frame))
    ordered = frame.sort_values("order")
    assert [trial.params["depth"] for trial in study.trials] == ordered["depth"].tolist()
    assert [trial.params["N"] for trial in study.trials] == [
        12 * row.depth * row.width**2 for row in ordered.itertuples()
    ]
    assert study.trials[2].state == TrialState.FAIL
    values = [trial.value for trial in study.trials if trial.state == TrialState.COMPLETE]
    assert values == pytest.approx(ordered["loss"].dropna().tolist())


@pytest.mark.parametrize(
    ("factors", "seeds", "names"),
    [
        ((1.0,), 2, {"depth", "N", "seed"}),
        ((0.5, 1.0), 1, {"depth", "N", "lr_factor"}),
        ((0.5, 1.0), 2, {"depth", "N", "lr_factor", "seed"}),
    ],
)
def test_a_parameter_that_does_not_vary_is_none(factors, seeds, names):
    study = optuna_study(RunTable.from_frame(table(factors, seeds)))
    assert set(study.trials[0].params) == names


def test_the_three_plots_are_drawn_and_leave_matplotlib_as_it_was():
    before = dict(mpl.rcParams)
    figures = optuna_figures(RunTable.from_frame(table()))
    assert tuple(figure.name for figure in figures) == MORE
    for figure in figures:
        svg, png = figure.render()
        assert b"</svg>" in svg
        assert png.startswith(b"\x89PNG")
        assert len(figure.data.table()) == 12
    assert figures[0].render() == figures[0].render(), "equal data give equal files"
    assert dict(mpl.rcParams) == before
    from matplotlib import pyplot

    assert pyplot.get_fignums() == []


def test_a_grid_or_a_single_loss_has_no_plots():
    assert optuna_figures(RunTable.from_frame(table().drop(columns="order"))) == []
    one = table()
    assert optuna_figures(RunTable.from_frame(one[one["order"] < 2])) == []
