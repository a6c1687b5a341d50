"""The parts of a report that only a search, sensitivity runs or another parametrisation have."""

import re

import pytest

from analysis.fit.document import fit
from analysis.report.answers import shift_sentence
from analysis.report.study_page import write_report
from tests.analysis import searched
from tests.analysis.report.test_study_page import read


@pytest.fixture(scope="module")
def runs():
    return searched.table(searched.with_sensitivity_runs(searched.searched(seeds=2)))


@pytest.fixture(scope="module")
def found(runs):
    return fit(runs)


@pytest.fixture(scope="module")
def page(tmp_path_factory, runs, found):
    out = tmp_path_factory.mktemp("searched")
    return write_report(runs, found, out, search=searched.search(ended="the limit was reached."))


def test_the_page_has_the_search_and_the_shifts(page, found):
    text = read(page).text
    assert shift_sentence(found.shifts) in text
    assert "The search trained 42 cells" in text
    assert "The limit was reached." in text
    for kind in ("svg", "png", "csv"):
        assert (page.parent / "figures" / f"search.{kind}").is_file()
    html = page.read_text()
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert {"section-shape-or-tuning", "section-the-search", "search"} <= set(ids)
    # A colour of a drawing is a variable of the page.
    drawing = html[html.index('<figure id="search"') :]
    drawing = drawing[: drawing.index("</svg>")]
    assert not set(re.findall(r"(?:fill|stroke): (#\w{6})", drawing))
