"""From RUNS to the fit and the report: foreign tables and searched studies."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.design.simulated_study import Truth
from analysis.fit.study import study_of
from analysis.runs.table import RunTable
from interplay.study_fit import fit_and_report, report_facts
from study.plan.plan import make_plan
from study.search.sensitivity_runs import sensitivity_cells
from study.spec.study import load_spec
from study.tracking.study_paths import StudyPaths
from tests.interplay.test_planned_runs import table_of
from tests.study.small import SMALL

#: Two checkpoints of six shapes, with a count of parameters that holds more than 12·L·d².
HEADER = "depth,width,n_params,tokens,final_loss"
ROWS = [
    f"{depth},{width},{12 * depth * width**2 + 1000 * width},{tokens},{3 - depth / 10 - width / 1000 - tokens / 1e11}"
    for depth in (1, 2)
    for width in (16, 32, 64)
    for tokens in (10**10, 2 * 10**10)
]
NAMES = ("--column", "loss=final_loss", "--column", "params=n_params")


@pytest.fixture
def their_runs(tmp_path):
    (tmp_path / "runs.csv").write_text("\n".join([HEADER, *ROWS]) + "\n")


@pytest.mark.usefixtures("their_runs")
@pytest.mark.parametrize("count", ["nonembedding", "table"])
def test_a_foreign_table_is_fitted_in_either_count_and_at_the_tokens_asked_for(command, count):
    status, out, _ = command(
        "fit", "runs.csv", *NAMES, "--count", count, "--tokens", "1e10", "--out", "f.json", "--json"
    )
    assert status == 0
    document = json.loads(out)
    assert document["count"] == count
    assert document["tokens"]["compared"] == 1e10
    assert document["rows"]["used"] == 6
    assert len(document["rows"]["left_out"]) == 6
    assert any("differs from 12·L·d²" in text for text in document["warnings"]) == (count == "table")
    # Without the option the most tokens that all shapes have are compared.
    assert json.loads(command("fit", "runs.csv", *NAMES, "--json")[1])["tokens"]["compared"] == 2e10


@pytest.mark.usefixtures("their_runs")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs.csv", *NAMES, "--tokens", "5e10"], "The table has 1e+10, 2e+10"),
        (["runs.csv", *NAMES, "--tokens", "-1"], "positive number"),
        (["runs.csv", *NAMES, "--tokens", "50B"], "within 5% of 5e+10"),
        (["runs.csv", *NAMES, "--tokens", "much"], "--tokens is 'much'"),
        (["runs.csv", "--column", "tokens=width", "--count", "table"], "no column 'width'"),
        (["quickstart", "--count", "table"], "quickstart is a spec"),
        (["no_tokens.csv", "--tokens", "1e10"], "--column tokens=THEIRS"),
    ],
)
def test_a_count_or_tokens_that_are_not_there_are_one_paragraph(command, tmp_path, words, said):
    (tmp_path / "no_tokens.csv").write_text("depth,width,loss\n1,8,2\n2,8,1.9\n")
    for verb in (["fit"], ["report", "--out", "report"]):
        status, out, err = command(*verb, *words)
        assert status == 2
        assert not out
        assert said in err
        assert "\n" not in err.strip()
        assert not (tmp_path / "report").exists()


TRUTH = Truth(a=2.4, b=0.25, depths=(1, 2, 4))
SEARCH = ("search.sampler=crossing", "search.objective=depth", "search.max_cells=40")


def searched_table(cells):
    lines = []
    for order, planned in enumerate(cells, 1):
        shape, harm = planned.cell.shape, 0.01 if planned.purpose and planned.cell.shape.depth == 2 else 0.0
        stray = np.random.default_rng([shape.depth, shape.width, planned.cell.seed]).standard_normal()
        loss = float(TRUTH.loss(shape.depth, np.array([shape.budget_params]))[0]) + 0.003 * stray + harm
        lines.append(
            {**planned.row(), "loss": loss, "status": "done", "purpose": planned.purpose, "order": order}
        )
    return RunTable.from_frame(pd.DataFrame(lines))


def test_a_grid_has_no_search():
    spec = load_spec(SMALL)
    plan = make_plan(spec)
    assert report_facts(spec, plan, table_of(plan.cells), "")["search"] is None


def test_the_report_of_an_unfinished_grid_has_its_finished_and_planned_cells():
    spec = load_spec(SMALL)
    plan = make_plan(spec)
    assert report_facts(spec, plan, table_of(plan.cells), "")["cells"] is None
    part = table_of(plan.cells[:-2])
    assert report_facts(spec, plan, part, "")["cells"] == (plan.cell_count - 2, plan.cell_count)
    failed = table_of(plan.cells).frame
    failed = RunTable.from_frame(failed.assign(status=["failed", *failed["status"][1:]]))
    assert report_facts(spec, plan, failed, "")["cells"] == (plan.cell_count - 1, plan.cell_count)
    # A search that chooses its cells may end before it has trained them all.
    searched = load_spec(SMALL, SEARCH)
    plan = make_plan(searched)
    found = report_facts(searched, plan, table_of(plan.cells[:-2]), "")["cells"]
    assert (found is None) == plan.search.may_end_early


def test_a_search_is_reported_with_its_objective():
    spec = load_spec(SMALL, SEARCH)
    plan = make_plan(spec)
    found = report_facts(spec, plan, table_of(plan.cells), "")["search"]
    assert found is not None
    assert found.objective.kind == "depth"
    assert found.ended == ""


@pytest.mark.extended
def test_the_report_of_a_searched_study_has_all_of_it(tmp_path):
    spec = load_spec(SMALL, [*SEARCH, "sensitivity.lr_factors=[0.5]"])
    plan = make_plan(spec)
    again = sensitivity_cells(spec, plan, study_of(searched_table(plan.cells)))
    runs = searched_table([*plan.cells, *again])
    where = StudyPaths(tmp_path, "small")
    concluded = fit_and_report(plan, {}, where, runs, "the limit of 40 cells is reached.")
    page = concluded.page
    assert [pair.shift is not None for pair in concluded.answer.fit.learning_rate.pairs] == [True, True]
    html = page.read_text()
    assert 'id="section-the-search"' in html
    # The sensitivity runs have a section of their own, with the shift of each crossing.
    assert 'id="section-the-learning-rate"' in html
    assert "The limit of 40 cells is reached." in html
    document = json.loads((page.parent / "fit.json").read_text())
    assert [pair["shift"]["runs"] > 0 for pair in document["learning_rate"]["pairs"]] == [True, True]
    assert pd.read_csv(page.parent / "runs.csv")["purpose"].eq("sensitivity").sum() == len(again)
