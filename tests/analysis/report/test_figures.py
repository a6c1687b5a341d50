import html
import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.fit.document import fit
from analysis.law.decision import GapLaw
from analysis.law.threshold_law import ThresholdLaw
from analysis.report.figures import best_depth, excess, gaps, loss, palette, transition
from analysis.report.figures.best_depth import (
    best_depths,
    law_line,
    measured_sizes,
)
from analysis.report.figures.canvas import MOST_POINTS, MOST_VALUES, new_canvas, plot_values
from analysis.report.figures.diagnostics import draw_training, training_data
from analysis.report.figures.figure import Context, Figure, inline_svg
from analysis.report.figures.gaps import gap_data
from analysis.report.figures.loss import loss_data
from analysis.report.figures.transition import crossing_widths, law_widths
from analysis.runs.table import RunTable
from core.errors import InputError
from core.numbers import layers, short
from tests.isoflop import isoflop_table
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4, 6))


def figures_of(runs, result, **known):
    """The drawn figures by name."""
    made = [
        figure(Context(runs, result, **known))
        for figure in (excess.figure, best_depth.figure, loss.figure, transition.figure, gaps.figure)
    ]
    return {figure.name: figure for figure in made if figure is not None}


def simulated():
    low, high = TRUTH.crossing(1) / 3, TRUTH.crossing(4) * 4
    shapes = shapes_of(TRUTH.depths, np.geomspace(low, high, 7))
    return simulate(TRUTH, shapes, 3, np.random.default_rng(0)).assign(tokens=1.2e6)


@pytest.fixture(scope="module")
def runs():
    """Four depths that cross on a known law; one shape of 6 layers lost two seeds, one of 12 layers all."""
    frame = simulated()
    narrow = frame.index[
        (frame["depth"] == 6) & (frame["width"] == frame.loc[frame["depth"] == 6, "width"].min())
    ]
    frame.loc[narrow[:2], ["status", "loss"]] = ["diverged", np.nan]
    lost = frame.iloc[:3].assign(depth=12, width=8, params=12.0 * 12 * 64, status="diverged", loss=np.nan)
    return RunTable.from_frame(pd.concat([frame, lost], ignore_index=True))


@pytest.fixture(scope="module")
def found(runs):
    return fit(runs)


@pytest.fixture(scope="module")
def pilot_fit(study):
    return fit(study)


def test_loss_data_are_the_means_and_ranges_and_the_curves(study, pilot_fit):
    shapes, lines = loss_data(pilot_fit)
    rows = study.used[(study.used["depth"] == 2) & (study.used["width"] == 12)]
    row = shapes[(shapes["depth"] == 2) & (shapes["width"] == 12)].iloc[0]
    assert row["loss"] == pytest.approx(rows["loss"].mean())
    assert (row["low"], row["high"], row["seeds"]) == (rows["loss"].min(), rows["loss"].max(), 3)
    assert len(shapes) == 15
    # A line begins and ends at a measured size, and its loss there is the point's less its residual.
    for depth, line in lines.groupby("depth"):
        points = shapes[shapes["depth"] == depth]
        assert line["params"].iloc[0] == pytest.approx(points["params"].min())
        assert line["params"].iloc[-1] == pytest.approx(points["params"].max())
        expected = (points["loss"] - points["residual"]).iloc[[0, -1]]
        assert line["loss"].iloc[[0, -1]].to_numpy() == pytest.approx(expected.to_numpy())
    table = loss.figure(Context(study, pilot_fit)).table
    assert table["what"].value_counts().to_dict() == {"curve": len(lines), "point": 15}


def test_losses_of_several_groups_of_tokens_are_drawn_at_their_curves():
    found = fit(RunTable.from_frame(isoflop_table(2)))
    assert found.tokens.rule == "groups"
    shapes, lines = loss_data(found)
    for row in shapes.to_dict("records"):
        line = lines[lines["depth"] == row["depth"]]
        curve = np.interp(np.log(row["params"]), np.log(line["params"]), line["loss"])
        # The losses themselves differ from the curves by .3 nats, and here by the noise of .003.
        assert row["loss"] == pytest.approx(curve, abs=0.015)
        assert row["low"] <= row["loss"] <= row["high"] < row["low"] + 0.02
    # Inside a group differences between depths are those of the losses.
    curves, level = found.study.curves, found.study.curves.mean - shapes["loss"].to_numpy()
    for group in np.unique(curves.group):
        assert np.ptp(level[curves.group == group]) < 1e-9


def test_no_gap_is_drawn_at_different_tokens(pilot_frame):
    found = fit(RunTable.from_frame(pilot_frame().assign(tokens=lambda rows: 1e6 * rows["depth"])))
    assert found.tokens.rule == "unequal"
    assert gap_data(found) == []


def test_gap_data_agree_with_the_crossings(found):
    panels, quantile = gap_data(found), found.study.crossings.quantile
    pairs = [(item.shallow, item.deep) for item, _, _ in panels]
    assert pairs == [(1, 2), (2, 4), (4, 6)]
    for item, line, sizes in panels:
        x = np.log(line["params"])
        at = {
            name: np.interp(np.log([item.params, *item.params_interval]), x, line[name])
            for name in ("gap", "se")
        }
        assert at["gap"][0] == pytest.approx(0, abs=1e-9)
        # At the ends of the interval zero is on the edge of the ribbon.
        edge = np.abs(at["gap"][1:3]) / (quantile * at["se"][1:3])
        assert edge == pytest.approx([1, 1], abs=0.01)
        assert (sizes >= line["params"].min() * 0.999).all()
        assert (sizes <= line["params"].max() * 1.001).all()


def test_the_panels_of_the_gaps_show_the_whole_range_of_every_pair(line_frame):
    # The first pair meets on a tenth of the range of the others.
    frame = line_frame({1: (1.0, -0.05), 2: (0.99, -0.1), 4: (0.95, -0.2)}, sizes=(1e3, 1.1e3, 1e4, 3e4))
    frame = frame[(frame["depth"] > 1) | (frame["params"] < 2e3)]
    runs = RunTable.from_frame(frame, count="table")
    result = fit(runs)
    assert [line["params"].max() for _, line, _ in gap_data(result)] == pytest.approx([1.1e3, 3e4])
    for axes in gaps.figure(Context(runs, result)).draw().axes:
        low, high = axes.get_xlim()
        assert low < 1e3
        assert high > 3e4


def test_an_open_end_of_the_region_is_no_end():
    region = ((1.0, 0.1, False), (1.0, 0.3, True), (1.2, 0.2, False))
    law = ThresholdLaw("log-linear", "ok", 0.95, 1.1, 0.2, ((1, 0), (0, 1)), region=region)
    low, high = law_widths(law, 1.0, 5.0).iloc[[0, -1]][["low", "high"]].to_numpy().T
    assert low == pytest.approx(np.exp([1.1, 1.5]))
    # At one layer the closed point is the highest, at five the open one.
    assert high[0] == pytest.approx(math.exp(1.4))
    assert math.isnan(high[1])


def test_training_curves_keep_used_cells_and_refuse_other_tables(study):
    cell = study.used["cell"].iloc[0]
    curves = pd.DataFrame({"cell": [cell, cell, "unknown"], "step": [1, 2, 1], "loss": [2.0, np.nan, 2.0]})
    assert training_data(study, curves)[["cell", "step", "depth"]].to_numpy().tolist() == [[cell, 1, 1]]
    with pytest.raises(InputError, match="lack the column loss"):
        training_data(study, curves.drop(columns="loss"))


def test_the_best_depth_is_measured_and_by_the_law_up_to_ten_times_the_data(found):
    best, line = best_depths(found), law_line(found)
    assert best["depth"].tolist() == [item.depth for item in found.best]
    rows = found.study.rows["params"]
    low, high = measured_sizes(found)
    assert (low, high) == (rows.min(), rows.max())
    assert high < line["params"].max() <= 10 * high * (1 + 1e-9)
    # The solid and the dashed line meet at the largest size.
    assert (line["params"] == high).sum() == 1
    for row in line.dropna().iloc[[0, -1]].to_dict("records"):
        projected = found.predict(row["params"], math.inf)
        assert row["depth"] == projected.depth_exact
        ends = [math.nan if end is None else end for end in projected.depth_interval]
        assert [row["low"], row["high"]] == pytest.approx(ends, nan_ok=True)


def test_transition_data_hold_the_crossings_and_the_law(found):
    rows = crossing_widths(found)
    line = law_widths(found.law, 0.5, 6)
    np.testing.assert_allclose(np.log(line["width"]), found.law.a + found.law.b * line["depth"])
    assert list(rows["status"]) == ["bracketed"] * 3
    np.testing.assert_allclose(rows["depth"], np.sqrt(rows["shallow"] * rows["deep"]))
    truth = np.exp(TRUTH.a + TRUTH.b * rows["depth"])
    assert (rows["low"] < truth).all()
    assert (truth < rows["high"]).all()
    points = [(a, b) for a, b, _ in found.law.region] + [(found.law.a, found.law.b)]
    for row in line.iloc[[0, 30, 60]].to_dict("records"):
        values = [math.exp(a + b * row["depth"]) for a, b in points]
        assert (row["low"], row["high"]) == pytest.approx((min(values), max(values)))


def test_each_mark_has_its_values(study, pilot_fit):
    """The titles of the SVG are those of the points, in number and in value."""
    figures = figures_of(study, pilot_fit)
    drawn = {name: figure.render()[0].decode() for name, figure in figures.items()}
    titles = {
        name: list(map(html.unescape, re.findall(r"<use [^>]*><title>(.*?)</title></use>", svg)))
        for name, svg in drawn.items()
    }
    points, _ = loss_data(pilot_fit)
    crossed = [item for item in pilot_fit.crossings if item.params is not None]
    assert crossed
    assert len(titles["loss"]) == len(points) + len(crossed)
    assert f"N = {short(crossed[0].params)}" in titles["loss"][-len(crossed)]
    for row in points.to_dict("records"):
        shape = f"{layers(int(row['depth']))} × {row['width']:.0f} wide, N = {short(row['params'])}"
        assert f"{shape}: {row['loss']:.4f} ({row['low']:.4f} to {row['high']:.4f})" in titles["loss"]
    assert len(titles["best_depth"]) == len(pilot_fit.best)
    assert "values:" not in drawn["loss"]


def test_a_mark_without_a_value_has_no_title_and_words_are_escaped():
    def draw():
        canvas, axes = new_canvas(2)
        plot_values(axes, [1, 2, 3], [1.0, math.nan, 3.0], ['<a> & "b"', "none", "it's"], marker="o")
        return canvas

    svg = Figure("x", "", "", pd.DataFrame(), draw).render()[0].decode()
    assert re.findall("<title>(.*?)</title>", svg) == ["&lt;a&gt; &amp; &quot;b&quot;", "it&#x27;s"]


def test_a_very_large_table_has_a_drawing_of_bounded_size():
    steps = MOST_POINTS + 1
    table = pd.DataFrame({"cell": "a", "depth": 1, "step": range(steps), "loss": np.linspace(1, 2, steps)})
    figure = Figure("training", "", "", table, lambda: draw_training(table, {1: "#123456"}))
    page = inline_svg(figure.render()[0], "", {})
    assert len(page) < 200_000
    assert "data:image/png;base64" in page
    axes = new_canvas(2)[1]
    plot_values(axes, range(MOST_VALUES + 1), range(MOST_VALUES + 1), [""] * (MOST_VALUES + 1))
    assert axes.lines[0].get_gid() is None


POOR = {
    "one seed": lambda pilot, lines: pilot(seeds=1),
    "one depth": lambda pilot, lines: pilot()[lambda rows: rows["depth"] == 1],
    "two points": lambda pilot, lines: pilot()[lambda rows: rows["width"] == 8],
    "one size a depth": lambda pilot, lines: pilot().groupby("depth").head(3),
    "censored": lambda pilot, lines: lines({1: (1.1, -0.1), 2: (1.0, -0.1), 4: (1.2, -0.1)}),
}


@pytest.mark.parametrize("case", POOR)
def test_no_figure_of_poor_data_is_empty(pilot_frame, line_frame, case):
    # The lines have sizes that no width gives.
    count = "table" if case == "censored" else "nonembedding"
    runs = RunTable.from_frame(POOR[case](pilot_frame, line_frame), count=count)
    drawn = figures_of(runs, fit(runs))
    assert "loss" in drawn
    assert "transition" not in drawn
    assert ("best_depth" in drawn) == (case not in ("one depth", "two points"))
    assert ("excess" in drawn) == (case in ("one seed", "censored"))
    for figure in drawn.values():
        assert len(figure.table)
        assert b"</svg>" in figure.render()[0]


def test_inlined_drawings_follow_the_page(study, pilot_fit):
    named = ("loss", "excess", "gaps")
    figures = figures_of(study, pilot_fit)
    drawn = {name: figures[name].render()[0] for name in named}
    colours = palette.variables(depth=3)
    text = inline_svg(drawn["loss"], 'a "<b>" label', colours)
    assert text.startswith('<svg role="img" aria-label="a &quot;&lt;b&gt;&quot; label"')
    assert "viewBox" in text[:400]
    assert not re.search(r'<svg[^>]*\swidth="', text)
    for name in ("ink", "grid", "depth-0", "depth-2"):
        assert f"var(--{name})" in text
        assert colours[name][0] not in text
    # Several drawings share one page.
    ids = [set(re.findall(r'\bid="([^"]+)"', inline_svg(svg, "", colours))) for svg in drawn.values()]
    assert all(ids)
    assert not any(one & other for one, other in itertools.combinations(ids, 2))
    # What is referred to is still there.
    for svg in drawn.values():
        page = inline_svg(svg, "", colours)
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(re.findall(r'\bid="([^"]+)"', page))


def test_captions_name_what_is_drawn(study, pilot_fit):
    rejected = GapLaw("additive", "rejected")
    without = replace(pilot_fit, gap_laws=replace(pilot_fit.gap_laws, laws=(rejected,)))
    assert law_line(without).empty
    assert "No line" in best_depth.figure(Context(study, without)).caption
    # An entropy of zero is one.
    contexts = [Context(study, pilot_fit, entropy) for entropy in (None, 0.0, 0.7)]
    assert ["dotted line" in loss.figure(context).caption for context in contexts] == [False, True, True]


def contrast(one, other):
    """The contrast of two colours by WCAG 2."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("edition", [0, 1])
def test_text_and_lines_can_be_told_from_the_paper(edition):
    table = {name: pair[edition] for name, pair in (palette.variables(depth=12, value=12)).items()}
    paper = table["paper"]
    # The backgrounds of style.css.j2: --page and --tint.
    page, tint = (("#f6f7f8", "#fbf1ec"), ("#0f1215", "#2a1f1a"))[edition]
    for name in ("ink", "muted", "accent", "good"):
        assert contrast(table[name], paper) >= 4.5, name
    assert contrast(table["muted"], page) >= 4.5
    assert contrast(table["ink"], tint) >= 4.5
    for name, colour in table.items():
        if name.startswith(("depth-", "value-")):
            assert contrast(colour, paper) >= 3, name
    own = [colour for name, colour in table.items() if not name.startswith("value-")]
    assert len(set(own)) == len(own)
