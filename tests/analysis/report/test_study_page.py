import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from analysis.design.objective import SearchInfo, estimate_from, estimate_sentence
from analysis.fit.document import Fit, fit
from analysis.fit.words import GAP_LAWS, LAWS, headlines, next_steps
from analysis.law.decision import FORMS
from analysis.law.reasons import Because, Reason
from analysis.law.words import text_of
from analysis.report.figures import best_depth, excess, gaps, loss
from analysis.report.figures.figure import Context
from analysis.report.html import MOST_ANSWERS, PageSection
from analysis.report.study_page import first_figure, study_sections, write_report
from analysis.report.tables import (
    cost_table,
    law_reasons_table,
    laws_table,
)
from analysis.report.words import confidence
from analysis.runs.table import RunTable, read_runs
from core.numbers import scientific
from tests.analysis import searched


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
        if not {"style", "script"} & set(self.open):
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


FIGURES = ("excess", "loss", "best_depth", "gaps")


def test_the_report_says_the_answer_and_has_every_file(page, study, found):
    text = read(page).text
    for sentence in headlines(found):
        assert sentence in text
    assert text_of(Because(Reason.TWO_POINTS)) in text
    assert "Every row of the run table is used" in text
    assert json.loads((page.parent / "fit.json").read_text()) == found.to_json()
    assert read_runs(page.parent / "runs.csv").used["loss"].tolist() == study.used["loss"].tolist()
    names = sorted(item.name for item in (page.parent / "figures").iterdir())
    assert names == sorted(f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png", "csv"))
    assert not list(page.parent.rglob("*.tmp"))


def test_a_page_in_bits_per_byte_has_nats_only_where_it_gives_the_lowest_loss_in_both(tmp_path, study, page):
    size = 1.7
    runs = RunTable.from_frame(study.frame.assign(bytes_per_token=size))
    curves = pd.DataFrame({"cell": runs.used["cell"], "step": 1, "loss": 2.0})
    given = {"title": "quickstart", "entropy": 0.7365, "curves": curves}
    bits = fit(runs, unit="bpb")
    path = write_report(runs, bits, tmp_path / "bits", **given)
    text, lowest = read(path).text, study.used["loss"].min()
    assert re.findall(r"\S+ nats per token, \S+ bits per byte", text) == [
        f"{lowest:.4f} nats per token, {lowest / np.log(2) / size:.4f} bits per byte"
    ]
    assert text.count("nats") == 1
    assert "bits per byte" not in read(page).text
    factor = 1 / np.log(2) / size
    for name, columns in {
        "loss": ["loss", "low", "high", "se", "residual", "entropy"],
        "gaps": ["gap", "se"],
    }.items():
        own, other = (pd.read_csv(where.parent / "figures" / f"{name}.csv") for where in (page, path))
        np.testing.assert_allclose(other[columns], factor * own[columns], rtol=1e-9)
    own, other = (pd.read_csv(where.parent / "figures" / "excess.csv") for where in (page, path))
    np.testing.assert_allclose(other["loss"], factor * own["loss"], rtol=1e-9)
    np.testing.assert_array_equal(other["excess"], own["excess"])
    assert pd.read_csv(path.parent / "figures" / "training.csv")["loss"].tolist() == pytest.approx(
        [2.0 * factor] * len(curves)
    )
    assert read_runs(path.parent / "runs.csv").used["loss"].tolist() == study.used["loss"].tolist()


def test_each_csv_is_what_its_figure_shows(page, study, found):
    for figure in (
        draw(Context(study, found, 0.7365))
        for draw in (excess.figure, best_depth.figure, loss.figure, gaps.figure)
    ):
        table = pd.read_csv(page.parent / "figures" / f"{figure.name}.csv")
        own = figure.table
        assert list(table) == list(own)
        for name in own.select_dtypes("number"):
            # The CSV gives back the same floats, not rounded ones.
            np.testing.assert_array_equal(table[name].to_numpy(float), own[name].to_numpy(float))


def test_the_page_needs_no_network(page):
    used = {tag for tag, _ in read(page).tags}
    assert used.isdisjoint({"link", "img", "iframe", "object"})
    for tag, attributes in read(page).tags:
        for name, value in attributes.items():
            # `xlink:href="#id"` inside a drawing stays on the page; a namespace is a name, not an address.
            if name.endswith("href") or name == "src":
                assert value.startswith("#") or (page.parent / value).is_file(), (tag, name, value)
    html = page.read_text()
    style = re.findall(r"url\([^)]*\)|@import", html)
    assert all(item.startswith("url(#") for item in style)
    assert not re.findall(r"https?://(?!www\.w3\.org/)", html)


def test_the_page_can_be_read_aloud(page):
    tags = read(page).tags
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags if tag == "th")
    drawings = [attributes for tag, attributes in tags if tag == "svg"]
    # Those as wide as the page have a second drawing for a small screen.
    assert len(drawings) == len(FIGURES) + 3
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in drawings)
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = [value for _, found in tags for name, value in found.items() if name.endswith("href")]
    assert {value[1:] for value in links if value.startswith("#")} <= set(ids)
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
    style = html[html.index("<style>") : html.index("</style>")]
    widths = re.findall(r"(?:^|[;{ ])(?:min-)?width: *(\d+)px", style)
    assert all(int(width) < 350 for width in widths)
    assert "minmax(min(100%, 400px), 1fr)" in style
    assert "attr(data-name)" in style
    assert all("data-name" in attributes for tag, attributes in read(page).tags if tag == "td")


@pytest.fixture
def shallow(pilot_frame):
    """A study of one depth: the quickest page."""
    frame = pilot_frame()
    return RunTable.from_frame(frame[frame["depth"] == 1])


def test_the_same_study_gives_the_same_page(tmp_path, pilot_frame):
    frame = pilot_frame()
    runs = RunTable.from_frame(frame[frame["depth"] < 4])
    first, again = (write_report(runs, fit(runs), tmp_path / name) for name in ("a", "b"))
    names = [item.relative_to(first.parent) for item in first.parent.rglob("*.*")]
    assert len(names) == 3 + 3 * len(FIGURES)
    for name in names:
        assert (first.parent / name).read_bytes() == (again.parent / name).read_bytes()


def test_a_fit_from_a_file_is_refused_before_anything_is_written(tmp_path, study, found):
    with pytest.raises(ValueError, match="read from a file"):
        write_report(study, Fit.from_json(found.to_json()), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_curves_and_diagnostics_are_shown_and_earlier_figures_that_are_not_drawn_any_more_go(
    tmp_path, shallow
):
    old = [tmp_path / "figures" / f"{name}.svg" for name in ("transition", "search")]
    mine = tmp_path / "figures" / "notes.txt"
    mine.parent.mkdir()
    for path in (*old, mine):
        path.write_text("old")
    curves = pd.DataFrame([{"cell": shallow.used["cell"].iloc[0], "step": s, "loss": 2 / s} for s in (1, 2)])
    layer = {"cell": curves["cell"][0], "step": 0, "name": "rank_residual", "layer": 1, "value": 0.5}
    write_report(shallow, fit(shallow), tmp_path, curves=curves, measures=pd.DataFrame([layer]))
    assert pd.read_csv(tmp_path / "figures" / "diagnostics.csv")["value"].tolist() == [0.5]
    assert len(pd.read_csv(tmp_path / "figures" / "training.csv")) == 2
    assert not any(path.exists() for path in old)
    assert mine.exists()


def test_pairs_of_which_nothing_is_known_are_counted(tmp_path, line_frame):
    # Of ten depths only the first three have a second size.
    frame = line_frame({d: (1 + d / 100, -0.1 - d / 300) for d in range(1, 11)}, sizes=(1e3, 2e3))
    runs = RunTable.from_frame(frame[(frame["depth"] < 4) | (frame["params"] == 1e3)], count="table")
    result = fit(runs)
    page = read(write_report(runs, result, tmp_path))
    rest = page.text[page.text.index("From the N of a crossing") :]
    table = rest[: rest.index("Runs and cost")]
    assert [pair in table for pair in ("1 → 2", "2 → 3", "3 → 4", "9 → 10")] == [True, True, True, False]
    assert "3 more pairs" in table


def test_the_table_of_rivals_has_every_law_with_its_numbers(found):
    rows = {row["law"]: row for row in laws_table(found).records()}
    assert list(rows) == [*(name for name, _ in LAWS.values()), *(GAP_LAWS[form][0] for form in FORMS)]
    assert rows["threshold law"]["parameters"].startswith(f"a = {found.law.a:.3f} (")
    assert rows["threshold law"]["status"] == "open"
    for law in found.gap_laws.laws:
        row = rows[GAP_LAWS[law.form][0]]
        assert row["status"] == law.status
        assert row["p"] == (None if law.p_value is None else f"{law.p_value:.2g}")
        assert row["weight"] == (f"{100 * law.weight:.0f} %" if law.status == "ok" else None)
        assert all(f"{value:.3g}" in row["parameters"] for value in law.parameters.values())


def test_each_reason_of_the_laws_is_there_once_with_all_its_laws(found):
    rows = law_reasons_table(found).records()
    reasons = [row["reason"] for row in rows]
    assert len(set(reasons)) == len(reasons)
    shared = next(row["laws"] for row in rows if row["reason"] == text_of(Because(Reason.TWO_POINTS)))
    assert shared == "threshold law, power law, root law"


def test_cost_counts_a_model_once_and_says_what_is_not_known(pilot_frame):
    frame = pilot_frame(seeds=2).assign(cell="", flops=7e9)
    early = frame.assign(
        tokens=frame["tokens"] / 2, loss=frame["loss"] + 0.1, flops=3e9, train_seconds=np.nan
    )
    both = pd.concat([frame, early], ignore_index=True)
    table = dict(cost_table(RunTable.from_frame(both)).rows)
    assert table["rows"] == "60"
    # All of them are done.
    assert "rows done" not in table
    assert (
        table["total training time"] == f"{frame['train_seconds'].sum() / 60:.0f} min (unknown for 30 rows)"
    )
    assert table["training FLOPs"] == f"{7e9 * len(frame):.3g} of 30 models"
    # Rows of a study are trainings of their own, also of one shape, without what they took from a trunk.
    twice = pd.concat(
        [frame.assign(tokens=1000.0), frame.assign(tokens=2000.0, flops=14e9)], ignore_index=True
    )
    own = twice.assign(
        cell=[f"c{i}" for i in range(len(twice))], trunk_tokens=np.where(twice["tokens"] > 1000, 800, 0)
    )
    cost = dict(cost_table(RunTable.from_frame(own)).rows)
    assert cost["training FLOPs"] == f"{(7e9 + 0.6 * 14e9) * len(frame):.3g} of {2 * len(frame)} models"
    partly = both.assign(flops=[np.nan, *both["flops"][1:]])
    assert "training FLOPs" not in dict(cost_table(RunTable.from_frame(partly)).rows)


def test_left_out_rows_warnings_and_hostile_words_are_shown_not_run(tmp_path, pilot_frame):
    evil = "<script>alert(1)</script>"
    frame = pilot_frame()[lambda rows: rows["depth"] == 1].assign(vocabulary=9)
    frame.loc[0, ["status", "reason", "cell"]] = ["failed", evil, evil]
    frame.loc[3, ["status", "reason"]] = ["diverged", "loss above 20 at step 40"]
    runs = RunTable.from_frame(frame)
    path = write_report(runs, fit(runs), tmp_path, title=evil, facts={evil: evil}, spec_text=f"</pre>{evil}")
    page = read(path)
    # Only the script of every page, and the page lets a browser run no other.
    (script,) = re.findall(r"<script>(.*?)</script>", path.read_text(), flags=re.S)
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [item["content"] for tag, item in page.tags if item.get("http-equiv")]
    assert f"script-src 'sha256-{digest}';" in policy
    # Title, heading, reason, two facts, specification.
    assert page.text.count(evil) >= 6
    for words in (
        "diverged: loss above 20 at step 40",
        "13 of 15",
        "diverged shapes",
        "1 of 3",
        "above the vocabulary",
    ):
        assert words in page.text


def test_one_seed_reports_where_its_noise_comes_from_or_that_there_is_no_estimate(tmp_path, pilot_frame):
    frame = pilot_frame(seeds=1)
    runs = RunTable.from_frame(frame[frame["depth"] < 4])
    assert "One seed per shape: the noise" in (text := read(write_report(runs, fit(runs), tmp_path)).text)
    assert "estimated from the residuals of the curves" in text
    runs = RunTable.from_frame(frame[frame.groupby("depth").cumcount() < 2])
    assert "no noise estimate" in (text := read(write_report(runs, fit(runs), tmp_path)).text)


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
    text = read(write_report(runs, found, tmp_path)).text
    assert "Runs and cost" in text
    # A section without data is left out.
    assert ("The law and its alternatives" in text) == (case != "one depth")


def test_a_report_that_fails_keeps_the_old_page(tmp_path, shallow, monkeypatch):
    path = write_report(shallow, fit(shallow), tmp_path, title="first")

    def broken(*_, **__):
        raise RuntimeError("killed")

    monkeypatch.setattr("analysis.report.study_page.study_sections", broken)
    with pytest.raises(RuntimeError):
        write_report(shallow, fit(shallow), tmp_path, title="second")
    assert "first" in read(path).text


def test_the_answer_and_its_figure_come_before_all_else(page, found):
    html = page.read_text()
    order = [
        html.index(text)
        for text in (
            'class="answer"',
            'class="badge"',
            *(f'<figure id="{name}"' for name in ("excess", "loss", "gaps", "best_depth")),
        )
    ]
    assert order == sorted(order)
    text, steps = read(page).text, next_steps(found)
    assert steps
    assert all(text.count(step.replace("`", "")) == 1 for step in steps)
    assert html.index("What to do next") < html.index("What was measured")
    assert order[2] < html.index("<details") < html.index("<table")
    first = html[html.index('class="answer"') : html.index('class="badge"')]
    assert first.count("<p>") <= MOST_ANSWERS
    # At most five figures are open, and each caption has one or two sentences.
    opened = re.sub(r"<details.*?</details>", "", html, flags=re.S)
    assert opened.count("<figure") <= 1 + 5
    for caption in re.findall(r"<figcaption>(.*?)<span", html, flags=re.S):
        assert 1 <= len(re.findall(r"[.](?:\s|$)", caption.strip())) <= 2, caption


def test_the_badge_follows_from_crossings_and_the_learning_rate(found):
    def with_statuses(*statuses, checked):
        items = [replace(found.crossings[0], status=status, reasons=()) for status in statuses]
        pair = replace(found.learning_rate.pairs[0], reasons=() if checked else (Because(Reason.NO_RATES),))
        rate = replace(found.learning_rate, pairs=(pair,))
        return confidence(replace(found, crossings=tuple(items), learning_rate=rate))[0]

    assert with_statuses("bracketed", "right_censored", checked=True) == "settled"
    assert with_statuses("bracketed", "right_censored", checked=False) == "settled at these learning rates"
    assert with_statuses("bracketed", "ambiguous", checked=True) == "partly settled"
    assert with_statuses("ambiguous", "insufficient", checked=True) == "not settled"
    assert confidence(replace(found, crossings=())) is None


def test_sections_without_content_are_empty_and_titles_are_unique(study, found):
    sections = study_sections(context := Context(study, found), first_figure(context))
    empty = {section.title for section in sections if section.empty}
    assert empty == {"The learning rate", "The search", "What a depth gains, what it costs"}
    assert len({section.anchor for section in sections}) == len(sections)
    assert PageSection("x", [""], tables=[None]).empty


def test_the_page_has_the_search_and_the_shifts(tmp_path):
    frame = searched.searched(seeds=2)
    params = frame["params"].sum()
    runs = RunTable.from_frame(searched.with_sensitivity_runs(frame))
    found = fit(runs)
    page = write_report(runs, found, tmp_path, search=SearchInfo(searched.AIM, "the limit was reached."))
    text, html = read(page).text, page.read_text()
    for words in (
        "shifts of the crossings to the best learning rates",
        f"The search trained 42 cells for {scientific(6 * 1e6 * params)} training FLOPs.",
        estimate_sentence(estimate_from(found.study, searched.AIM)),
        "The limit was reached.",
    ):
        assert words in text
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert {"section-the-learning-rate", "section-the-search"} <= set(ids)
    # A colour of a drawing is a variable of the page.
    drawing = html[html.index('<figure id="gaps"') :]
    assert not set(re.findall(r"(?:fill|stroke): (#\w{6})", drawing[: drawing.index("</svg>")]))
