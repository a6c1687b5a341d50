import itertools
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from analysis.fit.document import Fit, fit
from analysis.fit.sentences import headlines
from analysis.law.held_out import BASELINE, HeldOut, Trial
from analysis.law.threshold import TWO_POINTS
from analysis.numbers import duration
from analysis.report.catalogue import make_figures
from analysis.report.figures.figure import Context, Figure
from analysis.report.study_page import write_report
from analysis.report.tables import (
    DEEPER_THAN_WIDE,
    cost_table,
    depth_text,
    laws_table,
    paired_regret,
    projection_table,
    projections,
    training_flops,
)
from analysis.runs.table import RunTable, read_runs


class Page(HTMLParser):
    """Visible text, and every tag with its attributes."""

    def __init__(self):
        super().__init__()
        self.tags, self.words, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def read(path):
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


@pytest.fixture(scope="module")
def found(study):
    return fit(study)


@pytest.fixture(scope="module")
def page(tmp_path_factory, study, found):
    """The report of the pilot: its path."""
    out = tmp_path_factory.mktemp("report") / "out"
    return write_report(study, found, out, title="quickstart", entropy=0.7365)


FIGURES = ("loss", "gaps", "depth_profile", "frontier", "transition", "rivals", "health")


def test_the_report_says_the_answer_and_has_every_file(page, study, found):
    text = read(page).text
    for sentence in headlines(found):
        assert sentence in text
    assert re.search(
        r"2 layers overtake 1 layer at N ≈ [\d.]+ thousand \(95 %: [\d.]+–[\d.]+ thousand\)", text
    )
    assert TWO_POINTS in text
    assert "every row of the run table is used" in text
    assert json.loads((page.parent / "fit.json").read_text()) == found.to_json()
    assert read_runs(page.parent / "runs.csv").used["loss"].tolist() == study.used["loss"].tolist()
    names = sorted(item.name for item in (page.parent / "figures").iterdir())
    assert names == sorted(f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png", "csv"))
    assert not list(page.parent.rglob("*.tmp"))


def test_pictures_come_first(page):
    html = page.read_text()
    order = [html.index(f'id="{name}"') for name in FIGURES]
    assert order == sorted(order)
    assert html.index("</figure>") < html.index("<table>")


def test_each_csv_is_what_its_figure_shows(page, study, found):
    made = make_figures(Context(study, found, 0.7365))
    for figure in [item for items in made.values() for item in items if isinstance(item, Figure)]:
        table = pd.read_csv(page.parent / "figures" / f"{figure.name}.csv")
        own = figure.table
        assert list(table) == list(own)
        for name in own.select_dtypes("number"):
            # The CSV gives back the same floats, not rounded ones.
            np.testing.assert_array_equal(table[name].to_numpy(float), own[name].to_numpy(float))


def test_the_page_needs_no_network(page):
    used = {tag for tag, _ in read(page).tags}
    assert used.isdisjoint({"script", "link", "img", "iframe", "object"})
    for tag, attributes in read(page).tags:
        for name, value in attributes.items():
            # `xlink:href="#id"` inside a drawing stays on the page; a namespace is a name, not an address.
            if name.endswith("href") or name == "src":
                assert value.startswith("#") or (page.parent / value).is_file(), (tag, name, value)
    html = page.read_text()
    style = re.findall(r"url\([^)]*\)|@import", html)
    assert all(item.startswith("url(#") for item in style)
    assert not re.findall(r"https?://(?!www\.w3\.org/)", html)


def test_links_inside_the_page_arrive(page):
    tags = read(page).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    wanted = {
        value[1:]
        for _, attributes in tags
        for name, value in attributes.items()
        if name.endswith("href") and value.startswith("#")
    }
    assert wanted <= set(ids)


def test_the_page_can_be_read_aloud(page):
    tags = read(page).tags
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags if tag == "th")
    drawings = [attributes for tag, attributes in tags if tag == "svg"]
    assert len(drawings) == len(FIGURES)
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in drawings)
    ids = {attributes.get("id") for _, attributes in tags}
    assert all(attributes["aria-labelledby"] in ids for tag, attributes in tags if tag == "figure")
    assert dict(tags)["html"]["lang"] == "en"


def test_the_page_has_a_dark_a_small_and_a_printed_edition(page):
    html = page.read_text()
    dark = html[html.index("@media screen and (prefers-color-scheme: dark)") :]
    dark = dark[: dark.index("* { box-sizing")]
    light = html[html.index(":root {") : html.index("@media screen")]
    named = set(re.findall(r"var\(--([\w-]+)\)", html))
    for name in named:
        assert f"--{name}:" in light, name
        assert f"--{name}:" in dark, name
    printed = html[html.index("@media print") : html.index("</style>")]
    assert "break-inside: avoid" in printed
    assert "details-content" in printed
    assert "@media (max-width: 560px)" in html


def test_the_figures_begin_with_counts_seeds_tokens_and_counting(page, found):
    html = page.read_text()
    text = html[html.index('<h2 id="pictures">') : html.index("<figure")]
    for words in ("45 rows of 15 shapes, 3 seeds.", found.tokens.sentence, "12·L·d²"):
        assert words in text


@pytest.fixture
def shallow(pilot_frame):
    """A study of one depth: the quickest page."""
    frame = pilot_frame()
    return RunTable.from_frame(frame[frame["depth"] == 1])


def test_the_same_study_gives_the_same_page(tmp_path, shallow):
    first, again = (write_report(shallow, fit(shallow), tmp_path / name) for name in ("a", "b"))
    names = [item.relative_to(first.parent) for item in first.parent.rglob("*.*")]
    assert len(names) == 9
    for name in names:
        assert (first.parent / name).read_bytes() == (again.parent / name).read_bytes()


def test_a_fit_from_a_file_is_refused_before_anything_is_written(tmp_path, study, found):
    with pytest.raises(ValueError, match="read from a file"):
        write_report(study, Fit.from_json(found.to_json()), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_earlier_figure_that_is_not_drawn_any_more_goes(tmp_path, shallow):
    old = tmp_path / "figures" / "transition.svg"
    old.parent.mkdir()
    old.write_text("<svg/>")
    mine = tmp_path / "figures" / "notes.txt"
    mine.write_text("a reader's own")
    write_report(shallow, fit(shallow), tmp_path)
    assert not old.exists()
    assert mine.exists()


def test_projections_stand_beside_the_rivals(study, found, page):
    names, rows = projections(study, found)
    # An open law projects with an open band, and every size beyond the data is called outside.
    largest = max(item.params for item in found.best)
    assert [row["params"] for row in rows] == pytest.approx([*(largest * k for k in (3, 10, 100)), 1e9, 1e12])
    assert all(row["outside"] for row in rows)
    assert any(None in row["depth_interval"] for row in rows)
    advices = found.advices()
    power = names.index("power law")
    assert rows[0]["rivals"][power] == advices["power"](rows[0]["params"])
    text = read(page).text
    said = text[text.rindex("Recommended shapes") :]
    assert "open" in said[: said.index("The depth that all laws")]
    # Two crossings settle no depth, and the page gives the reason.
    assert all(row["depth"] is None for row in rows)
    assert rows[0]["reason"] in said


def test_a_depth_above_its_width_and_a_size_far_outside_are_called_so(study, found, monkeypatch):
    largest = max(item.params for item in found.best)
    # 12 L³ = N: a model as deep as it is wide.
    square = (100 * largest / 12) ** (1 / 3)
    advices = {
        "log-linear": lambda _: 3.0,
        "power": lambda _: square * 0.999,
        "additive": lambda _: square * 1.001,
        "response": lambda _: math.inf,
    }
    monkeypatch.setattr(Fit, "advices", lambda _: advices)
    names, rows = projections(study, found)
    assert names == ["power law", "additive loss", "response surface"]
    row = next(row for row in rows if row["params"] == 100 * largest)
    assert row["rivals"] == [square * 0.999, DEEPER_THAN_WIDE, None]
    assert [depth_text(value) for value in row["rivals"]] == [f"{square:.0f}", "n/a", None]
    assert [row["far"] for row in rows] == [False, False, False, True, True]
    table = projection_table(study, found)
    columns = [column.name for column in table.columns]
    assert [name for name in columns if name.startswith("by ")] == ["by power law", "by additive loss"]


def test_the_page_says_what_is_beyond_use(page, study, found):
    _, rows = projections(study, found)
    far = [row for row in rows if row["far"]]
    assert [row["params"] for row in far] == [1e9, 1e12]
    beyond = sum(value == DEEPER_THAN_WIDE for row in rows for value in row["rivals"])
    assert beyond
    text = read(page).text
    shapes = text[text.rindex("Recommended shapes") :]
    shapes, note = shapes.split("The depth that all laws", 1)
    assert shapes.count("far outside") == len(far)
    assert shapes.count("n/a") == beyond
    assert "n/a: by the law the model would have more layers" in note
    assert "more than 100 times the largest N" in note


def test_pairs_of_which_nothing_is_known_are_counted(tmp_path, line_frame):
    # Of ten depths only the first three have a second size.
    frame = line_frame({d: (1 + d / 100, -0.1 - d / 300) for d in range(1, 11)}, sizes=(1e3, 2e3))
    runs = RunTable.from_frame(frame[(frame["depth"] < 4) | (frame["params"] == 1e3)], count="table")
    result = fit(runs)
    page = read(write_report(runs, result, tmp_path))
    rest = page.text[page.text.index("The crossings in numbers") :]
    table = rest[: rest.index("Rows and cost")]
    assert [pair in table for pair in ("1 → 2", "2 → 3", "3 → 4", "9 → 10")] == [True, True, False, False]
    assert "7 more pairs" in table


def trial(budget, regret):
    return Trial(budget, budget, 1e3, 2, None if regret is None else 2.0, regret, None, None, None)


def test_regret_is_compared_in_the_same_trials():
    law = HeldOut("power", (trial(1e4, 0.3), trial(2e4, None), trial(3e4, 0.1)), None)
    base = HeldOut(BASELINE, (trial(1e4, 0.5), trial(2e4, 9.0), trial(3e4, 0.2)), None)
    assert paired_regret(law, base) == pytest.approx((0.2, 0.35))
    assert paired_regret(HeldOut("power", (trial(2e4, None),), None), base) == (None, None)


def test_the_table_of_rivals_has_every_law_with_its_numbers(found):
    rows = {row["law"]: row for row in laws_table(found).records()}
    assert list(rows) == [
        "threshold law",
        "power law",
        "root law",
        "additive loss",
        "response surface",
        "nearest measured",
    ]
    assert rows["threshold law"]["parameters"].startswith(f"a = {found.law.a:.3f} (")
    assert rows["threshold law"]["status"] == "open"
    surface = next(item for item in found.surfaces if item.form == "response")
    assert rows["response surface"]["AICc"] == f"{surface.aicc:.1f}"
    held = next(item for item in found.held_out if item.law == BASELINE)
    baseline = rows["nearest measured"]
    assert baseline["held-out regret"] == f"{held.mean_regret:.4f}"
    assert baseline["answered"] == f"{len(held.trials)} of {len(held.trials)}"


def test_cost_counts_a_model_once_and_says_what_is_not_known(pilot_frame):
    frame = pilot_frame(seeds=2).assign(cell="")
    early = frame.assign(tokens=frame["tokens"] / 2, loss=frame["loss"] + 0.1, train_seconds=np.nan)
    runs = RunTable.from_frame(pd.concat([frame, early], ignore_index=True))
    flops, models, silent = training_flops(runs)
    assert models == len(frame)
    assert silent == 0
    assert flops == pytest.approx(
        float((6 * 12 * frame["depth"] * frame["width"] ** 2 * frame["tokens"]).sum())
    )
    table = dict(cost_table(runs).rows)
    assert table["rows"] == "60"
    assert table["rows done"] == "60"
    time = f"{frame['train_seconds'].sum() / 60:.1f} min (unknown for 30 rows)"
    assert table["total training time"] == time
    assert duration(36_000_000) == "10,000.0 h"


def test_hostile_words_are_shown_not_run(tmp_path, pilot_frame):
    evil = "<script>alert(1)</script>"
    frame = pilot_frame()[lambda rows: rows["depth"] == 1]
    frame.loc[0, ["status", "reason", "cell"]] = ["failed", evil, evil]
    runs = RunTable.from_frame(frame)
    path = write_report(runs, fit(runs), tmp_path, title=evil, facts={evil: evil}, spec_text=f"</pre>{evil}")
    page = read(path)
    assert "script" not in {tag for tag, _ in page.tags}
    # Title, heading, reason, two facts, specification.
    assert page.text.count(evil) >= 6


def test_left_out_rows_and_warnings_are_on_the_page(tmp_path, pilot_frame):
    frame = pilot_frame()[lambda rows: rows["depth"] == 1].assign(vocabulary=9)
    frame.loc[3, ["status", "reason"]] = ["diverged", "loss above 20 at step 40"]
    runs = RunTable.from_frame(frame)
    page = read(write_report(runs, fit(runs), tmp_path, facts={"git revision": "abc123"}))
    assert "diverged: loss above 20 at step 40" in page.text
    assert "14 of 15" in page.text
    assert "Shapes that diverged" in page.text
    assert "1 of 3" in page.text
    assert "than the vocabulary" in page.text
    assert "abc123" in page.text


def test_one_seed_reports_where_its_noise_comes_from(tmp_path, pilot_frame):
    runs = RunTable.from_frame(pilot_frame(seeds=1)[lambda rows: rows["depth"] < 4])
    page = read(write_report(runs, fit(runs), tmp_path))
    assert "One seed per shape: the noise" in page.text
    assert "estimated from the residuals of the curves" in page.text


def test_without_noise_there_is_no_number_without_an_interval(tmp_path, pilot_frame):
    frame = pilot_frame(seeds=1)
    runs = RunTable.from_frame(frame[frame.groupby("depth").cumcount() < 2])
    page = read(write_report(runs, fit(runs), tmp_path))
    assert "no noise estimate" in page.text
    assert "No shape is projected beyond the measured sizes" in page.text


@pytest.mark.parametrize(
    "case",
    [
        "one depth",
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in ("two points", "many depths", "falling law")
        ),
    ],
)
def test_odd_studies_still_have_a_page(tmp_path, pilot_frame, line_frame, case):
    frame = {
        "one depth": lambda: pilot_frame()[lambda rows: rows["depth"] == 1],
        "two points": lambda: pilot_frame()[lambda rows: rows["width"] == 8],
        "many depths": lambda: line_frame(
            {d: (1 + d / 100, -0.1 - d / 300) for d in range(1, 10)}, sizes=(1e3, 2e3, 4e3)
        ),
        # Deeper pairs cross earlier, so the slope of the law is negative.
        "falling law": lambda: line_frame({1: (1.0, -0.05), 2: (0.99, -0.1), 3: (0.86, -0.25)}, sd=0.002),
    }[case]()
    # The lines have sizes that no width gives.
    runs = RunTable.from_frame(
        frame, count="table" if case in ("many depths", "falling law") else "nonembedding"
    )
    found = fit(runs)
    if case == "falling law":
        assert found.law.b < 0
    assert "How to read this" in read(write_report(runs, found, tmp_path)).text


def test_training_curves_are_shown(tmp_path, shallow):
    curves = pd.DataFrame([{"cell": shallow.used["cell"].iloc[0], "step": s, "loss": 2 / s} for s in (1, 2)])
    write_report(shallow, fit(shallow), tmp_path, curves=curves)
    assert len(pd.read_csv(tmp_path / "figures" / "training.csv")) == 2


def test_a_report_that_fails_keeps_the_old_page(tmp_path, shallow, monkeypatch):
    path = write_report(shallow, fit(shallow), tmp_path, title="first")

    def broken(*_, **__):
        raise RuntimeError("killed")

    monkeypatch.setattr("analysis.report.study_page.make_figures", broken)
    with pytest.raises(RuntimeError):
        write_report(shallow, fit(shallow), tmp_path, title="second")
    assert "first" in read(path).text
