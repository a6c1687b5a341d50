import json
import re
from dataclasses import replace
from io import StringIO

import pandas as pd
import pytest

from analysis.fit.compared_studies import ComparedStudy, best_data, crossing_data, measure_data
from analysis.fit.document import fit
from analysis.report.comparison_page import StudyComparison, write_comparison
from analysis.report.figures.by_value import crossings_figure
from analysis.runs.table import RunTable
from core.numbers import short
from tests.analysis.fit.test_compared_studies import task, worlds
from tests.analysis.report.test_study_page import read


@pytest.fixture(scope="module")
def studies():
    return worlds()


@pytest.fixture(scope="module")
def hops():
    return [task(1, 1), task(2, 2), task(4, 3), task(8, 5)]


@pytest.fixture(scope="module")
def page(tmp_path_factory, studies):
    out = tmp_path_factory.mktemp("comparison") / "out"
    return write_comparison(
        StudyComparison("bottleneck", "data.vocabulary", studies, facts={"revision": "abc123"}), out
    )


def test_the_page_tells_where_each_crossing_lies(page, studies):
    text = read(page).text
    for shallow, deep in ((1, 2), (2, 4)):
        assert re.search(
            rf"{deep} layers overtake {shallow} layers?, by data.vocabulary: N ≈ [\d.]+ thousand \(95 %: "
            r"[\d.]+–[\d.]+ thousand\) at 8; .* at 64; .* at 512\.",
            text,
        )
    assert "Against data.vocabulary 8, " in text
    assert "Lowest loss at a budget of N ≈" in text
    best = best_data(studies).rows
    assert all(f"{short(row.budget)} {row.depth}" in text for row in best.itertuples())
    assert "abc123" in text
    links = [dict(at)["href"] for tag, at in read(page).tags if tag == "a" and "href" in at]
    assert [link for link in links if link.endswith("report.html")] == [item.report for item in studies]


def test_every_figure_has_its_files_and_its_csv_is_what_was_drawn(page, studies):
    folder = page.parent / "figures"
    tables = {
        "crossings": crossing_data(studies).table(),
        "measure_loss": measure_data(studies, "loss").table(),
    }
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}.{kind}" for name in tables for kind in ("csv", "png", "svg")
    )
    for name, table in tables.items():
        again = pd.read_csv(StringIO(table.to_csv(index=False)))
        pd.testing.assert_frame_equal(pd.read_csv(folder / f"{name}.csv"), again)
        assert f'id="{name}"' in page.read_text()


def test_the_json_has_every_number(page, studies):
    document = json.loads((page.parent / "comparison.json").read_text())
    assert [item["value"] for item in document["studies"]] == [8, 64, 512]
    rows = crossing_data(studies).rows
    assert [item["params"] for item in document["crossings"]] == pytest.approx(rows["params"].tolist())
    assert {(item["base"], item["value"]) for item in document["shifts"]} == {(8, 64), (8, 512)}
    assert document["studies"][0]["law"]["b"] == studies[0].fit.law.b
    assert document["measures"]["loss"]["target"] is None


def test_a_task_is_told_by_the_depth_it_needs(tmp_path, hops):
    path = write_comparison(StudyComparison("k-hop", "data.hops", hops), tmp_path)
    text = read(path).text
    assert (
        "For a mean accuracy of at least 0.9: 1 layer at data.hops 1, 2 layers at data.hops 2, "
        "3 layers at data.hops 4, no depth up to 4 at data.hops 8." in text
    )
    assert "head width m width m·H" in text
    document = json.loads((tmp_path / "comparison.json").read_text())
    needed = document["measures"]["accuracy"]["needed"]
    assert [row["depth"] for row in needed] == [1, 2, 3, None]
    assert all(row["head_width"] * row["heads"] == row["width"] for row in needed[:3])
    assert "crossings" not in {path.stem for path in (tmp_path / "figures").iterdir()}


def test_losses_of_the_same_data_are_compared_at_the_largest_net_that_all_have(tmp_path, hops):
    words = (
        "Mean loss of 4 layers at N ≈ 197 thousand, by data.hops: "
        "0.1010 at 1, 0.1010 at 2, 0.1010 at 4, 1.901 at 8."
    )
    same = write_comparison(StudyComparison("x", "data.hops", hops, comparable=True), tmp_path / "same")
    assert words in read(same).text
    assert "may be compared" in read(same).text
    other = write_comparison(StudyComparison("x", "data.hops", hops), tmp_path / "other")
    assert "Mean loss of" not in read(other).text
    assert "are not compared" in read(other).text


def test_words_of_a_key_and_of_values_are_escaped(tmp_path, hops):
    values = ["<b>pre", "post & no"]
    named = [replace(item, value=value) for item, value in zip(hops, values, strict=False)]
    path = write_comparison(StudyComparison("<i>norm", "a<b", named), tmp_path)
    text = path.read_text()
    assert "<b>pre" not in text
    assert "<i>norm" not in text
    assert "&lt;b&gt;pre" in text


def test_one_study_without_any_fit_still_has_a_page_without_earlier_figures(tmp_path):
    alone = task("only", 1, depths=(2,))
    alone = replace(alone, runs=RunTable.from_frame(alone.runs.frame.drop(columns="accuracy")))
    folder = tmp_path / "figures"
    folder.mkdir()
    for name in ("crossings.svg", "measure_other.csv", "mine.txt"):
        (folder / name).write_text("old")
    text = read(write_comparison(StudyComparison("one", "k", [alone]), tmp_path)).text
    assert "no fit" in text
    assert "No study has two depths that can be compared" in text
    assert json.loads((tmp_path / "comparison.json").read_text())["crossings"] == []
    assert {path.name for path in folder.iterdir()} == {"mine.txt"} | {
        path.name for path in folder.glob("measure_loss.*")
    }


def test_crossings_without_an_estimate_have_a_bound_or_no_mark(studies):
    data = crossing_data(studies)
    first = data.rows.index[0]
    for status, bound, marks in (("left_censored", "low", 0), ("ambiguous", None, 0), ("bracketed", None, 1)):
        rows = data.rows.copy()
        if not marks:
            rows.loc[first, "params"] = float("nan")
        rows.loc[first, "status"] = status
        if bound:
            rows.loc[first, bound] = float("nan")
        figure = crossings_figure(replace(data, rows=rows), "key", 0.95)
        titles = re.findall(r"<title>([^<]*N =[^<]*)</title>", figure.render()[0].decode())
        assert len(titles) == int(rows["params"].notna().sum())
        assert any(short(float(data.rows.loc[first, "params"])) in title for title in titles) or not marks


def test_studies_whose_losses_are_all_equal_has_a_page(tmp_path):
    frame = pd.DataFrame(
        [(depth, width, 2.0) for depth in (1, 2) for width in (8, 12, 16)], columns=["depth", "width", "loss"]
    )
    runs = RunTable.from_frame(frame)
    studies = [ComparedStudy(value, runs, fit(runs), None) for value in (1, 2)]
    text = read(write_comparison(StudyComparison("flat", "k", studies), tmp_path)).text
    assert "best depth of each budget" in text
    assert "`" not in text
