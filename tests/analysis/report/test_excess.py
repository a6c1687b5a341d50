"""The first figure: what each depth costs against the best one, its title, and the field `my size`."""

import html
import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from analysis.fit.document import fit
from analysis.report.figures import best_depth, excess
from analysis.report.figures.excess import (
    _apart,
    excess_data,
    finding,
    sizes_json,
    top_of,
)
from analysis.report.figures.figure import Context
from analysis.report.study_page import first_figure, write_report
from analysis.report.words import about_sentences
from analysis.runs.table import RunTable
from core.numbers import digits, human
from tests import chromium, isoflop


@pytest.fixture(scope="module")
def found(study):
    return fit(study)


@pytest.fixture(scope="module")
def table(found):
    return excess_data(found)


def at(table, depth, params, column="excess"):
    rows = table[table["depth"] == depth]
    return np.interp(math.log(params), np.log(rows["params"]), rows[column])


def test_the_costs_are_those_of_the_best_shapes(found, table):
    checked = 0
    for best in found.best:
        if not table["params"].min() <= best.params <= table["params"].max():
            continue
        for shape in best.shapes:
            cost = 100 * shape.excess / best.loss
            assert at(table, shape.depth, best.params) == pytest.approx(cost, abs=0.02)
            checked += 1
    assert checked >= 9
    lowest = table.groupby("params")["loss"].transform("min")
    np.testing.assert_allclose(table["excess"], 100 * (table["loss"] / lowest - 1), atol=1e-9)
    assert (table.groupby("params")["excess"].min() == 0).all()


def test_two_depths_cost_nothing_at_their_crossing_and_are_tied_within_its_interval(found, table):
    bracketed = [item for item in found.crossings if item.status == "bracketed"]
    assert bracketed
    for item in bracketed:
        for depth in (item.shallow, item.deep):
            # The curves are cubic between the places of the grid, the gap is linear.
            assert at(table, depth, item.params) == pytest.approx(0, abs=0.01)
        for depth, end in zip((item.deep, item.shallow), item.params_interval, strict=True):
            # At the ends of the interval the cost is as large as half its own interval.
            ratio = at(table, depth, end) / at(table, depth, end, "margin")
            assert ratio == pytest.approx(1, abs=0.05)
    best = table[table["excess"] == 0]
    assert (best["low"] == 0).all()
    others = table[table["excess"] > 0]
    np.testing.assert_allclose(others["high"], others["excess"] + others["margin"])
    np.testing.assert_allclose(others["low"], np.maximum(others["excess"] - others["margin"], 0))


LINES = {
    "shallow": (
        {1: (1.0, -0.1), 2: (1.2, -0.1)},
        r"^1 layer wins at every size measured \(1\.0–32 thousand\)",
    ),
    "deep": ({1: (1.2, -0.1), 2: (1.0, -0.1)}, r"^2 layers win at every size measured \(.*\); 1 layer costs"),
    "crossing": ({1: (1.0, -0.02), 2: (1.0, -0.12)}, r"^2 layers win above 6\.\d thousand; 1 layer costs"),
    "tied": (
        {1: (1.0, -0.1), 2: (1.0, -0.1)},
        r"^The runs do not decide between 1 and 2 layers at every size measured \(.*\); at 32 thousand the losses",
    ),
    "many": (dict.fromkeys((1, 2, 3, 4), (1.0, -0.1)), "^The runs do not decide between"),
}


@pytest.mark.parametrize("case", LINES)
def test_the_title_is_the_finding(line_frame, case):
    lines, title = LINES[case]
    result = fit(RunTable.from_frame(line_frame(lines), count="table"))
    made = excess_data(result)
    assert re.search(title, finding(result, made)), finding(result, made)
    if "cost" in title:
        largest = made[made["params"] == made["params"].max()]
        cost = f"{digits(largest['excess'].max())} % at {human(largest['params'].iloc[0])}"
        assert finding(result, made).endswith(cost)


def test_a_title_without_a_noise_estimate_says_so(line_frame):
    frame = line_frame({1: (1.2, -0.1), 2: (1.0, -0.1)}, seeds=1, sizes=(1e3, 4e3))
    result = fit(RunTable.from_frame(frame, count="table"))
    made = excess_data(result)
    assert made["margin"].isna().all()
    assert finding(result, made).endswith("(no noise estimate)")


def test_a_study_without_two_comparable_depths_starts_with_its_losses(pilot_frame):
    frame = pilot_frame()
    one = RunTable.from_frame(frame[frame["depth"] == 1])
    figure = first_figure(Context(one, fit(one)))
    assert (figure.name, figure.title) == ("loss", "Loss against size: one depth only")
    few = RunTable.from_frame(frame.groupby("depth").head(3))
    assert excess_data(fit(few)) is None
    assert "too few sizes" in first_figure(Context(few, fit(few))).title


def test_a_line_breaks_where_other_depths_are_compared(line_frame):
    # Two layers are measured in the middle of the small sizes, and no two depths between 4e3 and 1e5.
    sizes = (1e3, 1.4e3, 2e3, 2.8e3, 4e3, 1e5, 2e5, 4e5)
    frame = line_frame({1: (1.2, -0.1), 2: (1.0, -0.1), 4: (1.1, -0.1), 8: (1.3, -0.1)}, sizes=sizes)
    ends = {1: (0, 1e6), 2: (1.2e3, 3e3), 4: (0, 5e3), 8: (5e4, 1e6)}
    kept = [ends[row.depth][0] < row.params < ends[row.depth][1] for row in frame.itertuples()]
    result = fit(RunTable.from_frame(frame[kept], count="table"))
    made = excess_data(result)
    assert sorted(set(made[made["depth"] == 2]["part"].diff().dropna())) == [0]
    assert made["params"].max() == pytest.approx(4e5)
    assert not ((made["params"] > 4.1e3) & (made["params"] < 0.99e5)).any()
    numbers = sizes_json(made, result)
    hole = [
        place
        for place in range(len(numbers["sizes"]))
        if all(depth["loss"][place] is None for depth in numbers["depths"])
    ]
    (place,) = hole
    assert math.log(4e3) < numbers["sizes"][place] < math.log(1e5)


def test_the_page_gets_the_numbers_of_the_csv(found, table):
    numbers = sizes_json(table, found)
    assert numbers["start"] == pytest.approx(math.log(found.best[-1].params))
    assert (numbers["count"], numbers["step"]) == (found.count, found.reading.width_step)
    assert numbers["sizes"] == sorted(numbers["sizes"])
    for depth in numbers["depths"]:
        rows = table[table["depth"] == depth["depth"]]
        losses = [loss for loss in depth["loss"] if loss is not None]
        assert losses == pytest.approx(rows["loss"].to_numpy(), rel=1e-6)
        at = {round(size, 6): near for size, near in zip(numbers["sizes"], depth["near"], strict=True)}
        for params, near in zip(found.reading.params, found.reading.near, strict=True):
            assert at.get(round(math.log(params), 6), depth["depth"] in near) == (depth["depth"] in near)
    json.dumps(numbers, allow_nan=False)


def test_the_frame_shows_what_matters_and_the_caption_what_it_cuts(study, found, table):
    top = top_of(table)
    largest = table[table["params"] == table["params"].max()]
    assert top > largest["excess"].max()
    figure = excess.figure(Context(study, found))
    highest = table["excess"].max()
    assert (f"up to +{digits(highest)} %" in figure.caption) == (highest > top)
    # A depth far from the best one does not set the frame.
    far = table.assign(excess=np.where(table["depth"] == 4, 50 * table["excess"], table["excess"]))
    assert top_of(far) < 50 * table.loc[table["depth"] == 4, "excess"].max()


@pytest.mark.parametrize("edition", ["draw", "narrow"])
def test_no_labels_of_the_figure_overlap(line_frame, edition):
    lines = {depth: (1 + 0.0002 * depth, -0.1 - 0.0002 * depth) for depth in (1, 2, 3, 4, 6, 8, 12)}
    runs = RunTable.from_frame(line_frame(lines, sd=0.0001), count="table")
    figure = excess.figure(Context(runs, fit(runs)))
    canvas = getattr(figure, edition)()
    canvas.draw_without_rendering()
    (axes,) = canvas.axes
    boxes = [Text.get_window_extent(text) for text in axes.texts if text.get_text()]
    assert len(boxes) >= 7
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
        assert canvas.bbox.x0 <= box.x0
        assert box.x1 <= canvas.bbox.x1


def test_labels_are_moved_apart_and_stay_in_their_order():
    assert _apart([0, 0.1, 5, 9.9], 1, 10) == pytest.approx([0, 1, 5, 9.9])
    places = _apart([9.5, 9.8, 10], 1, 10)
    assert places == pytest.approx([8, 9, 10])


def test_a_mark_of_the_figure_is_a_measured_shape(study, found, table):
    svg = excess.figure(Context(study, found)).render()[0].decode()
    titles = [html.unescape(text) for text in re.findall(r"<title>(.*?)</title></use>", svg)]
    shown = table[table["measured"] & (table["excess"] <= top_of(table))]
    crossed = sum(item.params is not None for item in found.crossings)
    assert len(titles) == len(shown) + crossed
    shapes = {(row.depth, row.width) for row in study.used.itertuples()}
    assert {(row.depth, round(row.width)) for row in shown.itertuples()} <= shapes
    low, high, bottom, top = map(float, re.search(r'data-frame="([^"]*)"', svg)[1].split())
    assert low < math.log(table["params"].min()) < math.log(table["params"].max()) < high
    assert bottom < 0 < top


def test_shapes_trained_on_several_numbers_of_tokens_are_drawn_with_their_widths():
    widths = {2: (46, 64, 92, 130, 182), 4: (32, 46, 64, 92, 130)}
    rows = [
        {
            "depth": depth,
            "width": width,
            "tokens": tokens,
            "loss": isoflop.loss(12 * depth * width**2, tokens, depth),
        }
        for depth in widths
        # Both depths of a size have the same tokens.
        for width, same_size in zip(widths[depth], widths[4], strict=True)
        for tokens in (flops / (6 * 12 * 4 * same_size**2) for flops in (6e12, 12e12))
    ]
    result = fit(RunTable.from_frame(pd.DataFrame(rows)))
    assert result.tokens.rule == "groups"
    marks = excess_data(result).query("measured")
    drawn = set(zip(marks["depth"], marks["width"], strict=True))
    assert len(drawn) > 5
    assert all(width in widths[depth] for depth, width in drawn)
    assert about_sentences(result).startswith("20 of 20 runs of 10 shapes")


def test_the_axis_of_best_depths_has_every_depth(line_frame):
    # Two layers are never the best.
    runs = RunTable.from_frame(
        line_frame({1: (1.0, -0.02), 2: (1.3, -0.07), 4: (1.0, -0.12)}, sd=0.001), count="table"
    )
    (axes,) = best_depth.figure(Context(runs, fit(runs))).draw().axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1", "2", "4"]


def test_an_unfinished_study_says_how_many_cells_there_are(tmp_path, pilot_frame):
    frame = pilot_frame()
    runs = RunTable.from_frame(frame[frame["depth"] == 1])
    page = write_report(runs, fit(runs), tmp_path, cells=(15, 1045)).read_text()
    answer = page[page.index('class="answer"') : page.index("<figure")]
    assert "15 of 1,045 cells" in answer
    assert "cells are trained" not in write_report(runs, fit(runs), tmp_path).read_text()


DRIVE = """<script>
const text = document.getElementById("my-size-text"), answer = document.getElementById("my-size-answer");
const said = [];
for (const size of SIZES) {
  text.value = size;
  text.dispatchEvent(new Event("input"));
  said.push([answer.textContent, document.querySelectorAll("#excess .marker circle").length]);
}
const slider = document.getElementById("my-size-slider");
slider.value = slider.max;
slider.dispatchEvent(new Event("input"));
said.push([answer.textContent, text.value]);
const svg = document.querySelector("#loss svg"), use = svg.querySelector("use[aria-label]");
const box = use.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent("pointerdown", { clientX: box.left + 2, clientY: box.top + 2 }));
said.push([use.getAttribute("aria-label"), document.querySelector(".tip").textContent]);
said.push([document.querySelector(".tip").hidden, document.getElementById("my-size").hidden]);
document.body.innerHTML = "";
document.title = JSON.stringify(said);
</script></body>"""


def test_my_size_and_the_values_under_the_pointer_in_a_browser(tmp_path, study, found, table):
    page = write_report(study, found, tmp_path)
    text = page.read_text()
    assert '<form id="my-size" hidden>' in text
    best = found.best[2]
    middle = best.params
    thousands = f"{middle / 1e3:.6f}"
    sizes = [f"{middle:.0f}", f"{thousands}k", f" {thousands} thousand ", f"{middle:.6e}", f"{middle:,.0f}"]
    sizes += ["7B", "many", "1,5k"]
    driven = text.replace("</body>", DRIVE.replace("SIZES", json.dumps(sizes)))
    page.write_text(re.sub("<meta http-equiv[^>]*>", "", driven))
    said = json.loads(html.unescape(re.search("<title>(.*?)</title>", chromium.dump_dom(page))[1]))
    plain, *others, outside, unknown, comma, (last, size), tip, (tip_hidden, form_hidden) = said
    assert others == [plain] * 4
    assert comma == unknown
    answer, marks = plain
    assert marks == len(best.shapes) == 3
    costs = sorted((shape.excess, shape.depth) for shape in best.shapes)
    (_, first), (second, second_depth), _ = costs
    answer = answer.replace("\u00a0", " ")
    assert answer.startswith(f"{human(middle)}: {first} layers × ")
    assert re.search(
        rf"; {second_depth} × \d+ costs \+{re.escape(digits(100 * second / best.loss))} %", answer
    )
    assert "No depth is stated at 7.0 billion" in outside[0]
    assert outside[1] == unknown[1] == 0
    assert "30M" in unknown[0]
    assert last.startswith(f"{size}: 4 layers ×\u00a0")
    assert tip[0] == tip[1]
    assert (tip_hidden, form_hidden) == (False, False)


def test_my_size_names_the_depths_that_are_not_measured_there(tmp_path, line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (0.95, -0.11), 4: (0.9, -0.12)}, seeds=2)
    frame = frame[(frame["depth"] != 4) | (frame["params"] < frame["params"].median())]
    runs = RunTable.from_frame(frame, count="table")
    result = fit(runs)
    last = result.best[-1]
    assert last.missing == (4,)
    page = write_report(runs, result, tmp_path)
    text = page.read_text().replace(
        "</body>",
        "<script>document.title = document.getElementById('my-size-answer').textContent</script></body>",
    )
    page.write_text(re.sub("<meta http-equiv[^>]*>", "", text))
    said = html.unescape(re.search("<title>(.*?)</title>", chromium.dump_dom(page))[1])
    assert said.endswith("; not measured there: 4.")
