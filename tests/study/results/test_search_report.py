"""A searched study from its rows to its report: search and sensitivity runs."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.design.simulated_study import Truth
from analysis.fit.study import study_of
from analysis.runs.table import RunTable
from study.plan.plan import make_plan
from study.results.answer import answer, search_info
from study.search.sensitivity_runs import sensitivity_cells
from study.spec.study import load_spec
from study.tracking.study_paths import StudyPaths
from tests.study.small import SMALL

TRUTH = Truth(a=2.4, b=0.25, depths=(1, 2, 4))
SEARCH = ("search.sampler=crossing", "search.objective=b", "search.max_cells=40")


def table_of(cells):
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
    assert search_info(spec, make_plan(spec)) is None


def test_a_search_is_reported_with_its_objective():
    spec = load_spec(SMALL, SEARCH)
    found = search_info(spec, make_plan(spec))
    assert found is not None
    assert found.objective.kind == "b"
    assert found.ended == ""


@pytest.mark.extended
def test_the_report_of_a_searched_study_has_all_of_it(tmp_path):
    spec = load_spec(SMALL, [*SEARCH, "sensitivity.lr_factors=[0.5]"])
    plan = make_plan(spec)
    again = sensitivity_cells(spec, plan, study_of(table_of(plan.cells)))
    runs = table_of([*plan.cells, *again])
    where = StudyPaths(tmp_path, "small")
    fit, page = answer(spec, plan, runs, where, None, "the limit of 40 cells is reached.")
    assert [pair.shift is not None for pair in fit.learning_rate.pairs] == [True, True]
    html = page.read_text()
    assert 'id="section-the-search"' in html
    # The sensitivity runs have a section of their own, with the shift of each crossing.
    assert 'id="section-the-learning-rate"' in html
    assert "The limit of 40 cells is reached." in html
    document = json.loads((page.parent / "fit.json").read_text())
    assert [pair["shift"]["runs"] > 0 for pair in document["learning_rate"]["pairs"]] == [True, True]
    assert pd.read_csv(page.parent / "runs.csv")["purpose"].eq("sensitivity").sum() == len(again)
