import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from analysis.fit import fit
from analysis.projection import LEVINE2020, recommend
from analysis.report import write_report
from analysis.runs import RunTable, read_runs


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


def test_the_report_says_the_answer_and_has_every_file(tmp_path, study):
    found = fit(study)
    path = write_report(study, found, tmp_path / "out", title="quickstart", floor=0.7365)
    page = read(path)
    assert re.search(
        r"Depth 2 overtakes depth 1 at N ≈ [\d.]+ thousand \(95 %: [\d.]+–[\d.]+ thousand\)", page.text
    )
    assert "two crossings: no test of the form" in page.text
    assert "extrapolated" in page.text
    assert "every row of the run table is used" in page.text
    assert json.loads((path.parent / "fit.json").read_text()) == found.to_json()
    assert read_runs(path.parent / "runs.csv").used["loss"].tolist() == study.used["loss"].tolist()
    names = sorted(item.name for item in (path.parent / "figures").iterdir())
    assert names == sorted(
        f"{name}.{kind}"
        for name in ("loss", "gaps", "depth_profile", "transition", "health")
        for kind in ("svg", "png", "csv")
    )
    assert not list(path.parent.rglob("*.tmp"))


def test_the_page_needs_no_network(tmp_path, study):
    page = read(write_report(study, fit(study), tmp_path))
    used = {tag for tag, _ in page.tags}
    assert used.isdisjoint({"script", "link", "img", "iframe", "object"})
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            # `xlink:href="#id"` inside a drawing stays on the page; a namespace is a name, not an address.
            if name.endswith("href") or name == "src":
                assert value.startswith("#"), (tag, name, value)
    style = re.findall(r"url\([^)]*\)|@import", (tmp_path / "report.html").read_text())
    assert all(item.startswith("url(#") for item in style)


def test_hostile_words_are_shown_not_run(tmp_path, pilot_frame):
    evil = "<script>alert(1)</script>"
    frame = pilot_frame()
    frame.loc[0, ["status", "reason", "cell"]] = ["failed", evil, evil]
    runs = RunTable.from_frame(frame)
    path = write_report(runs, fit(runs), tmp_path, title=evil, facts={evil: evil}, spec_text=f"</pre>{evil}")
    page = read(path)
    assert "script" not in {tag for tag, _ in page.tags}
    # Title, heading, reason twice, cell, two facts, specification.
    assert page.text.count(evil) >= 8


def test_left_out_rows_and_warnings_are_on_the_page(tmp_path, pilot_frame):
    frame = pilot_frame().assign(vocabulary=9)
    frame.loc[3, ["status", "reason"]] = ["diverged", "loss above 20 at step 40"]
    runs = RunTable.from_frame(frame)
    page = read(write_report(runs, fit(runs), tmp_path, facts={"git revision": "abc123"}))
    assert "diverged: loss above 20 at step 40" in page.text
    assert "44 of 45" in page.text
    assert "than the vocabulary" in page.text
    assert "abc123" in page.text


def test_one_seed_reports_what_it_cannot_know(tmp_path, pilot_frame):
    runs = RunTable.from_frame(pilot_frame(seeds=1))
    page = read(write_report(runs, fit(runs), tmp_path))
    assert "one seed: no noise estimate" in page.text
    assert "Nothing is projected beyond the sizes measured" in page.text
    assert "unknown, one seed" in page.text


@pytest.mark.parametrize("case", ["one depth", "many depths", "falling law"])
def test_odd_studies_still_have_a_page(tmp_path, pilot_frame, line_frame, case):
    frame = {
        "one depth": lambda: pilot_frame()[lambda rows: rows["depth"] == 1],
        "many depths": lambda: line_frame({d: (1 + d / 100, -0.1 - d / 300) for d in range(1, 13)}),
        # Deeper pairs cross earlier, so the slope of the law is negative.
        "falling law": lambda: line_frame({1: (1.0, -0.05), 2: (0.99, -0.1), 3: (0.86, -0.25)}, sd=0.002),
    }[case]()
    runs = RunTable.from_frame(frame)
    found = fit(runs)
    if case == "falling law":
        assert found.law.status == "ok"
        assert found.law.b < 0
    assert "How to read this" in read(write_report(runs, found, tmp_path)).text


def test_given_recommendations_and_training_curves_are_shown(tmp_path, study):
    rows = recommend(LEVINE2020, [1.739e11], draws=200)
    curves = pd.DataFrame([{"cell": study.used["cell"].iloc[0], "step": s, "loss": 2 / s} for s in (1, 2)])
    page = read(write_report(study, fit(study), tmp_path, recommendations=rows, curves=curves))
    assert "174 billion 80 13459" in page.text
    assert len(pd.read_csv(tmp_path / "figures" / "training.csv")) == 2


def test_a_report_that_fails_keeps_the_old_page(tmp_path, study, monkeypatch):
    path = write_report(study, fit(study), tmp_path, title="first")

    def broken(*_, **__):
        raise RuntimeError("killed")

    monkeypatch.setattr("analysis.report.make_figures", broken)
    with pytest.raises(RuntimeError):
        write_report(study, fit(study), tmp_path, title="second")
    assert "first" in read(path).text
