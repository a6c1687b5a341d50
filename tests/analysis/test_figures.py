import re

import numpy as np
import pandas as pd
import pytest

from analysis import palette
from analysis.errors import InputError
from analysis.figure_data import gap_data, health_data, loss_data, spread, training_data, transition_data
from analysis.figures import inline_svg, make_figures
from analysis.fit import fit
from analysis.projection import LEVINE2020
from analysis.runs import RunTable


def test_loss_data_are_the_means_and_ranges(study):
    table = loss_data(study, floor=0.7365).table()
    rows = study.used[(study.used["depth"] == 2) & (study.used["width"] == 12)]
    row = table[(table["depth"] == 2) & (table["width"] == 12)].iloc[0]
    assert row["loss"] == pytest.approx(rows["loss"].mean())
    assert (row["low"], row["high"], row["seeds"]) == (rows["loss"].min(), rows["loss"].max(), 3)
    assert (table["floor"] == 0.7365).all()
    assert len(table) == 15


def test_gap_data_put_neighbours_first_and_agree_with_the_crossing(study):
    data = gap_data(study, fit(study))
    pairs = [(panel.crossing.shallow, panel.crossing.deep) for panel in data.panels]
    assert pairs == [(1, 2), (2, 4), (1, 4)]
    knots, crossing = data.panels[0].knots, data.panels[0].crossing
    at = np.interp(np.log(crossing.params), np.log(knots["params"]), knots["gap"])
    assert at == pytest.approx(0, abs=1e-12)


def test_transition_data_hold_our_line_and_the_published_one(study):
    found = fit(study)
    data = transition_data(found)
    line = data.line
    np.testing.assert_allclose(np.log(line["width"]), found.law.a + found.law.b * line["depth"])
    np.testing.assert_allclose(np.log(line["published"]), LEVINE2020.a + LEVINE2020.b * line["depth"])
    assert (line["low"] < line["width"]).all()
    assert (line["width"] < line["high"]).all()
    assert list(data.points["status"]) == ["bracketed", "bracketed"]


def test_health_counts_every_row(pilot_frame):
    frame = pilot_frame()
    frame.loc[[0, 1], "status"] = "diverged"
    frame.loc[20, "loss"] = np.nan
    table = health_data(RunTable.from_frame(frame)).status
    counts = {(row["depth"], row["outcome"]): row["count"] for row in table.to_dict("records")}
    assert counts == {
        (1, "diverged"): 2,
        (1, "used"): 13,
        (2, "left out"): 1,
        (2, "used"): 14,
        (4, "used"): 15,
    }


def test_training_curves_keep_used_cells_and_refuse_other_tables(study):
    cell = study.used["cell"].iloc[0]
    curves = pd.DataFrame({"cell": [cell, cell, "unknown"], "step": [1, 2, 1], "loss": [2.0, np.nan, 2.0]})
    assert training_data(study, curves).rows[["cell", "step", "depth"]].to_numpy().tolist() == [[cell, 1, 1]]
    with pytest.raises(InputError, match="lack the column loss"):
        training_data(study, curves.drop(columns="loss"))


def test_spread_keeps_order_and_distance():
    assert spread([0.0, 5.0, 10.0], 1.0) == [0.0, 5.0, 10.0]
    assert spread([5.0, 5.0], 2.0) == [4.0, 6.0]
    placed = spread([0.30, 0.31, 0.0, 0.32], 0.1)
    assert placed == pytest.approx([0.21, 0.31, 0.0, 0.41])


def test_every_figure_is_drawn_and_the_same_bytes_each_time(study):
    curves = pd.DataFrame(
        [{"cell": cell, "step": step, "loss": 2 / step} for cell in study.used["cell"] for step in (1, 2, 3)]
    )
    figures = make_figures(study, fit(study), floor=0.7365, curves=curves)
    assert [figure.name for figure in figures] == [
        "loss",
        "gaps",
        "depth_profile",
        "transition",
        "training",
        "health",
    ]
    svg, png = figures[0].render()
    assert figures[0].render() == (svg, png)
    assert png.startswith(b"\x89PNG")
    assert len(figures[0].data.table()) == 15
    assert "45 runs, 3 seeds, 1.2 million training tokens" in figures[0].caption


@pytest.mark.parametrize("case", ["one seed", "one depth", "censored"])
def test_poor_data_still_draw(pilot_frame, line_frame, case):
    frame = {
        "one seed": lambda: pilot_frame(seeds=1),
        "one depth": lambda: pilot_frame()[lambda rows: rows["depth"] == 1],
        "censored": lambda: line_frame({1: (1.1, -0.1), 2: (1.0, -0.1), 4: (1.2, -0.1)}),
    }[case]()
    runs = RunTable.from_frame(frame)
    for figure in make_figures(runs, fit(runs)):
        svg, _ = figure.render()
        assert b"</svg>" in svg


def test_inlined_drawings_follow_the_page(study):
    figure = make_figures(study, fit(study))[0]
    colours = palette.variables(3, 5)
    text = inline_svg(figure.render()[0], 'a "<b>" label', colours)
    assert text.startswith('<svg role="img" aria-label="a &quot;&lt;b>&quot; label"')
    assert "viewBox" in text[:400]
    assert not re.search(r'<svg[^>]*\swidth="', text)
    for name in ("ink", "grid", "depth-0", "depth-2"):
        assert f"var(--{name})" in text
        assert colours[name][0] not in text


def test_colours_are_distinct_variables():
    table = palette.variables(12, 9)
    light = [pair[0] for pair in table.values()]
    assert len(set(light)) == len(light)
