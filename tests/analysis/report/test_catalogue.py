import dataclasses
import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest

from analysis.curves.budgets import enclosed
from analysis.errors import InputError
from analysis.fit.document import Fit, fit
from analysis.law.projection import LEVINE2020, Law, solve_depth
from analysis.report.catalogue import FIGURES, NAMES, make_figures
from analysis.report.figures import frontier_map, loss, palette
from analysis.report.figures.canvas import MOST_POINTS
from analysis.report.figures.depth_profile import profile_data
from analysis.report.figures.figure import Absent, Context, Figure, inline_svg
from analysis.report.figures.frames import drawn_law, width_interval
from analysis.report.figures.frontier_map import BOUNDS, excess_bounds, frontier_data, strips
from analysis.report.figures.gaps import draw_gaps, gap_data
from analysis.report.figures.loss import loss_data
from analysis.report.figures.rivals import rivals_data
from analysis.report.figures.run_health import draw_health, health_data, training_data
from analysis.report.figures.transition import transition_data
from analysis.runs.table import RunTable
from tests.simulated_study import Truth, shapes_of, simulate

#: Figures of every study.
USUAL = [
    name
    for section in ("pictures", "law", "laws", "size", "runs")
    for name in FIGURES[section]
    if "accuracy" not in name
]
TRUTH = Truth(2.5, 0.3, (1, 2, 4, 6))


def figures_of(runs, result, **known):
    """The drawn figures and the reasons of the absent ones, by name."""
    items = [item for items in make_figures(Context(runs, result, **known)).values() for item in items]
    drawn = {item.name: item for item in items if isinstance(item, Figure)}
    return drawn, {item.name: item.reason for item in items if isinstance(item, Absent)}


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
    data = loss_data(pilot_fit, entropy=0.7365)
    rows = study.used[(study.used["depth"] == 2) & (study.used["width"] == 12)]
    row = data.points[(data.points["depth"] == 2) & (data.points["width"] == 12)].iloc[0]
    assert row["loss"] == pytest.approx(rows["loss"].mean())
    assert (row["low"], row["high"], row["seeds"]) == (rows["loss"].min(), rows["loss"].max(), 3)
    assert len(data.points) == 15
    # A line begins and ends at a measured size, and its loss there is the point's less its residual.
    for depth, line in data.lines.groupby("depth"):
        points = data.points[data.points["depth"] == depth]
        assert line["params"].iloc[0] == pytest.approx(points["params"].min())
        assert line["params"].iloc[-1] == pytest.approx(points["params"].max())
        expected = (points["loss"] - points["residual"]).iloc[[0, -1]]
        assert line["loss"].iloc[[0, -1]].to_numpy() == pytest.approx(expected.to_numpy())
    table = loss.figure(Context(study, pilot_fit, 0.7365)).table
    assert (table["entropy"] == 0.7365).all()
    assert table["what"].value_counts().to_dict() == {"curve": len(data.lines), "point": 15}


def test_gap_data_agree_with_the_crossings(found):
    panels, quantile = gap_data(found), found.study.crossings.quantile
    pairs = [(panel.crossing.shallow, panel.crossing.deep) for panel in panels]
    assert pairs == [(1, 2), (2, 4), (4, 6)]
    for panel in panels:
        item, line = panel.crossing, panel.line
        x = np.log(line["params"])
        at = {name: np.interp(np.log([item.params, *item.params_interval]), x, line[name]) for name in line}
        assert at["gap"][0] == pytest.approx(0, abs=1e-9)
        # At the ends of the interval zero is on the edge of the ribbon.
        edge = np.abs(at["gap"][1:3]) / (quantile * at["se"][1:3])
        assert edge == pytest.approx([1, 1], abs=0.01)
        assert (panel.sizes >= line["params"].min() * 0.999).all()
        assert (panel.sizes <= line["params"].max() * 1.001).all()


def test_the_panels_of_the_gaps_show_the_whole_range_of_every_pair(line_frame):
    # The first pair meets on a tenth of the range of the others.
    frame = line_frame({1: (1.0, -0.05), 2: (0.99, -0.1), 4: (0.95, -0.2)}, sizes=(1e3, 1.1e3, 1e4, 3e4))
    frame = frame[(frame["depth"] > 1) | (frame["params"] < 2e3)]
    runs = RunTable.from_frame(frame, count="table")
    panels = gap_data(fit(runs))
    assert [panel.line["params"].max() for panel in panels] == pytest.approx([1.1e3, 3e4])
    for axes in draw_gaps(panels, 2.0).axes:
        low, high = axes.get_xlim()
        assert low < 1e3
        assert high > 3e4


def test_profile_marks_the_near_optimal_set(found):
    rows = profile_data(found)
    for params, group in rows.groupby("params"):
        best = next(item for item in found.best if item.params == params)
        assert group.loc[group["loss"].idxmin(), "depth"] == best.depth
        assert set(group.loc[group["near"], "depth"]) == set(best.near)
        assert group["best"].sum() == 1


def test_the_map_is_zero_at_the_best_depth_of_each_size(found):
    data = frontier_data(found)
    curves = found.study.curves
    for part in (data.shapes, data.cells):
        compared = part[part["excess"].notna()]
        assert (compared["excess"] >= 0).all()
        assert ((compared["excess"] == 0) == (compared["depth"] == compared["best_depth"])).all()
    shape = data.shapes[(data.shapes["depth"] == 1)].iloc[-2]
    x = np.log([shape["params"]])
    there = [depth for depth in curves.depths if depth == 1 or enclosed(curves, depth, x).all()]
    losses = {depth: float(curves.loss(depth, x)[0]) for depth in there}
    assert shape["best_depth"] == min(losses, key=losses.get)
    assert shape["excess"] == pytest.approx(losses[1] - min(losses.values()))
    # On the simulated truth a model of one layer is far too shallow at the largest sizes.
    assert shape["excess"] > 0.05
    cells = data.cells
    np.testing.assert_allclose(
        cells["params"], 12 * cells["depth"] * cells["width_low"] * cells["width_high"], rtol=1e-9
    )


def test_the_map_has_the_law_and_what_diverged(runs, found):
    data = frontier_data(found)
    np.testing.assert_allclose(np.log(data.line["width"]), found.law.a + found.law.b * data.line["depth"])
    lost = data.diverged.set_index("depth")
    assert (lost.at[12, "width"], lost.at[12, "diverged"], lost.at[12, "of"]) == (8, 3, 3)
    assert (lost.at[6, "diverged"], lost.at[6, "of"]) == (2, 3)
    table = frontier_map.figure(Context(runs, found)).table
    assert set(table["what"]) == {"shape", "cell", "law", "diverged"}


def test_best_shapes_of_the_map_follow_the_law(found):
    # The line goes through the shapes that the law recommends.
    law = drawn_law(found)
    for params in (2e4, 1e5):
        depth = solve_depth(law.a, law.b, params)
        assert math.log(math.sqrt(params / (12 * depth))) == pytest.approx(law.a + law.b * depth)


@pytest.mark.parametrize("worst", [0.0004, 0.0011, 0.03, 0.19, 0.4, 3.0, 40.0])
def test_classes_of_excess_hold_the_worst(worst):
    bounds = excess_bounds(worst)
    assert bounds[0] == 0
    assert bounds == sorted(set(bounds))
    assert bounds[-2] < worst <= bounds[-1]
    assert set(bounds[1:-1]) <= set(BOUNDS)


def test_strips_join_cells_of_one_class_and_no_others():
    cells = pd.DataFrame(
        {
            "depth": [1, 1, 1, 1, 2],
            "width_low": [1.0, 2.0, 3.0, 5.0, 6.0],
            "width_high": [2.0, 3.0, 4.0, 6.0, 7.0],
            "excess": [0.0, 0.001, 0.03, 0.03, 0.03],
        }
    )
    found = strips(cells, [0.0, 0.01, 0.1])[["depth", "low", "high", "which"]]
    assert found.to_numpy().tolist() == [
        [1, 1.0, 3.0, 0],
        [1, 3.0, 4.0, 1],
        [1, 5.0, 6.0, 1],  # Between 4 and 5 nothing was compared.
        [2, 6.0, 7.0, 1],
    ]


def test_transition_data_hold_our_line_its_rival_and_the_published_one(found):
    data = transition_data(found)
    line, power = data.line, found.rivals[0]
    np.testing.assert_allclose(np.log(line["width"]), found.law.a + found.law.b * line["depth"])
    # The law gives N at the shallower depth of a pair with the mean ratio of neighbours.
    depths = sorted({*data.points["shallow"], *data.points["deep"]})
    shallow = line["depth"] / (depths[-1] / depths[0]) ** (0.5 / (len(depths) - 1))
    params = 12 * shallow * np.exp(2 * (LEVINE2020.a + LEVINE2020.b * shallow))
    np.testing.assert_allclose(12 * line["depth"] * line["published"] ** 2, params)
    np.testing.assert_allclose(np.log(line["power"]), power.a + power.b * np.log(line["depth"]))
    assert list(data.points["status"]) == ["bracketed"] * 3
    assert data.points["in_law"].all()
    np.testing.assert_allclose(data.points["depth"], np.sqrt(data.points["shallow"] * data.points["deep"]))
    truth = np.exp(TRUTH.a + TRUTH.b * data.points["depth"])
    assert (data.points["low"] < truth).all()
    assert (truth < data.points["high"]).all()


def test_the_band_is_the_range_over_the_region(found):
    data = transition_data(found)
    points = [(a, b) for a, b, _ in found.law.region] + [(found.law.a, found.law.b)]
    for row in data.line.iloc[[0, 30, 60]].to_dict("records"):
        values = [math.exp(a + b * row["depth"]) for a, b in points]
        assert (row["low"], row["high"]) == pytest.approx((min(values), max(values)))
    # That of the depth is the projection's own.
    for row in rivals_data(found).interval.iloc[[20, 60]].to_dict("records"):
        ends = [math.nan if end is None else end for end in found.project(row["params"]).interval]
        assert [row["low"], row["high"]] == pytest.approx(ends, nan_ok=True)


def test_an_open_end_of_the_region_is_no_end():
    region = ((1.0, 0.1, False), (1.0, 0.3, True), (1.2, 0.2, False))
    law = Law(1.1, 0.2, ((1, 0), (0, 1)), "test", (1, 4), region=region)
    low, high = width_interval(law, np.array([1.0, 5.0]))
    assert low == pytest.approx(np.exp([1.1, 1.5]))
    # At one layer the closed point is the highest, at five the open one.
    assert high[0] == pytest.approx(math.exp(1.4))
    assert math.isnan(high[1])


def test_an_open_law_is_drawn_with_its_line(pilot_fit):
    assert pilot_fit.law.status == "open"
    line = transition_data(pilot_fit).line
    assert line["width"].notna().all()
    assert line["high"].isna().any()


def test_rivals_are_the_advices_of_the_fit(found):
    data = rivals_data(found)
    assert set(data.lines["law"]) == set(found.advices())
    for name, advice in found.advices().items():
        line = data.lines[data.lines["law"] == name]
        for row in line.iloc[[0, -1]].to_dict("records"):
            depth = advice(row["params"])
            assert row["depth"] == pytest.approx(depth) if depth else math.isnan(row["depth"])
    assert data.lines["params"].max() == pytest.approx(1e13)
    rows = found.study.rows["params"]
    assert data.measured == (rows.min(), rows.max())
    assert data.best["depth"].tolist() == [item.depth for item in found.best]


def test_health_counts_every_row(pilot_frame):
    frame = pilot_frame()
    frame.loc[[0, 1], "status"] = "diverged"
    frame.loc[20, "loss"] = np.nan
    frame.loc[25, "width"] = 0
    runs = RunTable.from_frame(frame)
    status, _ = health_data(runs, fit(runs))
    counts = {(row["depth"], row["outcome"]): row["count"] for row in status.to_dict("records")}
    assert counts == {
        (1, "diverged"): 2,
        (1, "used"): 13,
        (2, "diverged"): 1,
        (2, "left out"): 1,
        (2, "used"): 13,
        (4, "used"): 15,
    }


def test_checkpoints_that_are_not_compared_are_left_out_of_the_health_too(pilot_frame):
    frame = pilot_frame()
    early = frame.assign(tokens=frame["tokens"] / 2, loss=frame["loss"] + 0.1, cell="")
    runs = RunTable.from_frame(pd.concat([frame.assign(cell=""), early], ignore_index=True))
    status, _ = health_data(runs, fit(runs))
    assert status.groupby("outcome")["count"].sum().to_dict() == {"used": 45, "left out": 45}


def test_training_curves_keep_used_cells_and_refuse_other_tables(study):
    cell = study.used["cell"].iloc[0]
    curves = pd.DataFrame({"cell": [cell, cell, "unknown"], "step": [1, 2, 1], "loss": [2.0, np.nan, 2.0]})
    assert training_data(study, curves)[["cell", "step", "depth"]].to_numpy().tolist() == [[cell, 1, 1]]
    with pytest.raises(InputError, match="lack the column loss"):
        training_data(study, curves.drop(columns="loss"))


def test_a_transition_is_drawn_only_where_something_is_known(study, pilot_fit):
    unknown = dataclasses.replace(
        pilot_fit,
        law=dataclasses.replace(
            pilot_fit.law, a=None, b=None, status="insufficient", depths=(), reason="none"
        ),
        crossings=tuple(
            dataclasses.replace(item, status="ambiguous", reason="too noisy") for item in pilot_fit.crossings
        ),
    )
    assert all(item.params_interval for item in unknown.crossings)
    assert transition_data(unknown) is None
    assert figures_of(study, unknown)[1]["transition"].startswith("there is no law, and no pair")
    # A bound is something, and so is a law.
    first = dataclasses.replace(unknown.crossings[0], status="left_censored")
    assert (
        transition_data(dataclasses.replace(unknown, crossings=(first, *unknown.crossings[1:]))) is not None
    )
    assert transition_data(dataclasses.replace(unknown, law=pilot_fit.law)) is not None


def test_every_figure_is_made_with_its_words(runs, found):
    used = runs.frame[runs.frame["status"] == "done"].assign(
        cell=lambda rows: [f"c{i}" for i in range(len(rows))]
    )
    named = RunTable.from_frame(used)
    curves = pd.DataFrame(
        [{"cell": cell, "step": step, "loss": 2 / step} for cell in named.used["cell"] for step in (1, 2, 3)]
    )
    drawn, absent = figures_of(named, found, entropy=0.7365, curves=curves)
    assert list(drawn) == [*USUAL, "training"]
    assert absent == {}
    assert all(len(figure.table) for figure in drawn.values())
    captions = {name: figure.caption for name, figure in drawn.items()}
    assert "power laws with an offset" in captions["loss"]
    assert re.search(r"lack of fit, p = |seed noise \(p = ", captions["loss"])
    assert "diverged" in captions["frontier"]


def test_the_catalogue_names_each_figure_as_it_names_itself(runs, found):
    made = make_figures(Context(runs, found))
    for section, items in made.items():
        assert {item.name for item in items} <= set(FIGURES[section])
    assert len(set(NAMES)) == len(NAMES)


def test_a_figure_has_the_same_bytes_each_time(study):
    first, again = (figures_of(study, fit(study))[0] for _ in range(2))
    for name in ("frontier", "transition"):
        svg, png = first[name].render()
        assert again[name].render() == (svg, png)
        assert png.startswith(b"\x89PNG")


def test_a_very_large_table_has_a_drawing_of_bounded_size():
    rows = MOST_POINTS + 1
    seconds = pd.DataFrame(
        {
            "depth": 1,
            "params": np.geomspace(1e3, 1e6, rows),
            "seed": 0,
            "train_seconds": np.linspace(1, 9, rows),
        }
    )
    status = pd.DataFrame({"depth": [1.0], "outcome": ["used"], "count": [rows]})
    figure = Figure("health", "", "", status, lambda: draw_health(status, seconds, {1: "#123456"}))
    page = inline_svg(figure.render()[0], "", {})
    assert len(page) < 200_000
    assert "data:image/png;base64" in page


def test_a_fit_from_a_file_cannot_be_drawn(runs, found):
    with pytest.raises(ValueError, match="read from a file"):
        make_figures(Context(runs, Fit.from_json(found.to_json())))


POOR = {
    "one seed": lambda pilot, lines: pilot(seeds=1),
    "one depth": lambda pilot, lines: pilot()[lambda rows: rows["depth"] == 1],
    "two points": lambda pilot, lines: pilot()[lambda rows: rows["width"] == 8],
    "one size a depth": lambda pilot, lines: pilot().groupby("depth").head(3),
    "censored": lambda pilot, lines: lines({1: (1.1, -0.1), 2: (1.0, -0.1), 4: (1.2, -0.1)}),
}


@pytest.mark.parametrize("case", POOR)
def test_poor_data_still_draw_or_say_why_not(pilot_frame, line_frame, case):
    # The lines have sizes that no width gives.
    count = "table" if case == "censored" else "nonembedding"
    runs = RunTable.from_frame(POOR[case](pilot_frame, line_frame), count=count)
    result = fit(runs)
    drawn, absent = figures_of(runs, result)
    for figure in drawn.values():
        assert b"</svg>" in figure.render()[0]
    assert drawn.keys() | absent.keys() == set(USUAL)
    assert all(absent.values())


def test_inlined_drawings_follow_the_page(study, pilot_fit):
    named = ("loss", "frontier", "rivals")
    figures, _ = figures_of(study, pilot_fit)
    drawn = {name: figures[name].render()[0] for name in named}
    colours = palette.variables(3, 5)
    text = inline_svg(drawn["loss"], 'a "<b>" label', colours)
    assert text.startswith('<svg role="img" aria-label="a &quot;&lt;b>&quot; label"')
    assert "viewBox" in text[:400]
    assert not re.search(r'<svg[^>]*\swidth="', text)
    for name in ("ink", "grid", "depth-0", "depth-2"):
        assert f"var(--{name})" in text
        assert colours[name][0] not in text
    assert "var(--law-power)" in inline_svg(drawn["rivals"], "", colours)
    # Several drawings share one page.
    ids = [set(re.findall(r'\bid="([^"]+)"', inline_svg(svg, "", colours))) for svg in drawn.values()]
    assert all(ids)
    assert not any(one & other for one, other in itertools.combinations(ids, 2))
    # What is referred to is still there.
    for svg in drawn.values():
        page = inline_svg(svg, "", colours)
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(re.findall(r'\bid="([^"]+)"', page))


def test_colours_are_distinct_variables():
    table = palette.variables(12, 9)
    light = [pair[0] for pair in table.values()]
    assert len(set(light)) == len(light)


def test_the_caption_explains_the_dotted_line_also_where_the_entropy_is_nothing(study, pilot_fit):
    contexts = [Context(study, pilot_fit, entropy) for entropy in (None, 0.0, 0.7)]
    assert ["dotted line" in loss.figure(context).caption for context in contexts] == [False, True, True]
