"""The check of the learning rate of a study: what its missing part takes is what the override it names adds."""

import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis.files import write_json
from analysis.fit.study import study_of
from analysis.runs.table import RunTable
from study.plan.plan import make_plan
from study.results.answer import planned_check, study_fit
from study.results.recommend import recommend
from study.results.tables import fit_table, recommendation_table
from study.search.sensitivity_runs import sensitivity_cells
from study.spec.study import load_spec
from tests.study.search.test_sensitivity_runs import loss_of
from tests.study.small import SMALL


def table_of(cells, best=1.0, harm=0.03):
    """Losses that rise by `harm` at a factor of two from the best multiple of the rate."""
    lines = [
        {
            **planned.row(),
            "loss": loss_of(planned) + harm * float(np.log2(planned.lr_factor / best)) ** 2,
            "status": "done",
            "purpose": planned.purpose,
        }
        for planned in cells
    ]
    return RunTable.from_frame(pd.DataFrame(lines))


def added(check):
    """The overrides that the sentence names."""
    return re.findall(r"[\w.]+=[^\s`]+", check.sentence)


def keys(cells):
    return {planned.cell.key for planned in cells}


def test_the_missing_check_takes_the_sensitivity_runs_of_the_plan():
    plan = make_plan(load_spec(SMALL))
    check = planned_check(plan, study_of(table_of(plan.cells)))
    assert not check.checked
    spec = load_spec(SMALL, added(check))
    cells = sensitivity_cells(spec, make_plan(spec), study_of(table_of(plan.cells)))
    assert check.runs == len(cells) > 0
    assert check.flops == pytest.approx(sum(planned.flops for planned in cells))
    assert check.seconds == pytest.approx(sum(planned.seconds for planned in cells) / plan.slots)
    # What was trained of it is not counted again; all of it is the check.
    assert planned_check(plan, study_of(table_of([*plan.cells, *cells[:5]]))).runs == len(cells) - 5
    done = planned_check(plan, study_of(table_of([*plan.cells, *cells])))
    assert done.checked
    assert (done.runs, done.flops) == (0, None)


def test_a_best_rate_beyond_those_tried_asks_for_wider_ones():
    spec = load_spec(SMALL, ["sensitivity.lr_factors=[0.5, 2]"])
    plan = make_plan(spec)
    cells = sensitivity_cells(spec, plan, study_of(table_of(plan.cells, best=4.0)))
    table = table_of([*plan.cells, *cells], best=4.0)
    check = planned_check(plan, study_of(table))
    assert not check.checked
    wider = load_spec(SMALL, added(check))
    assert wider.sensitivity.lr_factors == (0.25, 0.5, 2.0, 4.0)
    assert check.runs == len(keys(sensitivity_cells(wider, plan, study_of(table))) - keys(cells))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        (SMALL, ["search.lr_factors=[0.5,1]"]),
        (SMALL, []),
        (SMALL, ["sensitivity.lr_factors=[0.5,2]"]),
        ("quickstart-search", ["sensitivity.lr_factors=[0.5,2]"]),
    ],
)
def test_without_one_rate_or_a_crossing_it_takes_more_rates_of_all_shapes(name, overrides):
    plan = make_plan(load_spec(name, overrides))
    table = table_of(plan.cells)
    if len(plan.search.lr_factors) == 1:
        frame = table.frame.assign(loss=table.frame["loss"] - 0.9 * np.log2(table.frame["depth"]))
        table = RunTable.from_frame(frame.assign(loss=frame["loss"] + 2))
    check = planned_check(plan, study_of(table))
    more = make_plan(load_spec(name, [*overrides, *added(check)]))
    assert keys(plan.cells) < keys(more.cells)
    assert check.runs == len(more.cells) - len(plan.cells)
    assert check.flops == pytest.approx(sum(p.flops for p in more.cells) - sum(p.flops for p in plan.cells))


def test_three_rates_in_the_grid_are_a_check():
    plan = make_plan(load_spec(SMALL, ["search.lr_factors=[0.5, 1, 2]"]))
    assert planned_check(plan, study_of(table_of(plan.cells))).checked


def test_fit_and_recommendation_state_the_check(tmp_path):
    plan = make_plan(load_spec(SMALL))
    fit = study_fit(plan, table_of(plan.cells))
    assert fit.learning_rate == planned_check(plan, study_of(table_of(plan.cells)))
    write_json(tmp_path / "fit.json", fit.to_json())
    assert json.loads((tmp_path / "fit.json").read_text())["learning_rate"]["checked"] is False
    source, shapes = recommend(tmp_path / "fit.json", None, [2e4])
    assert [shape.learning_rate for shape in shapes] == [fit.learning_rate.sentence]
    for view in (recommendation_table(source, shapes), fit_table(fit)):
        console = Console(file=io.StringIO(), width=2000)
        console.print(view)
        assert fit.learning_rate.sentence in console.file.getvalue()


def test_the_next_depth_costs_what_its_option_adds_to_the_plan():
    plan = make_plan(load_spec(SMALL))
    frame = table_of(plan.cells).frame
    deepest = frame["depth"] == frame["depth"].max()
    better = RunTable.from_frame(frame.assign(loss=frame["loss"] - 0.3 * deepest))
    following = study_fit(plan, better).next_depth
    more = make_plan(load_spec(SMALL, [following.how]))
    assert following.runs == len(more.cells) - len(plan.cells) > 0
    assert following.flops == pytest.approx(
        sum(p.flops for p in more.cells) - sum(p.flops for p in plan.cells)
    )
