"""Sensitivity runs: their cells, when they start, and that an interrupted study continues with the same ones."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis.design.simulated_study import Truth
from analysis.fit.study import study_of
from analysis.runs.table import RunTable
from study.errors import SpecError
from study.plan.plan import make_plan
from study.run.console import Viewer
from study.run.runner import _Run
from study.search.sensitivity_runs import sensitivity_cells
from study.search.source import ListedCells
from study.spec.study import load_spec, parse_spec
from study.tracking.study_paths import study_paths
from study.tracking.tables import study_of_rows
from tests.stubs import stub_row
from tests.study.small import SMALL

TRUTH = Truth(a=2.4, b=0.25, depths=(1, 2, 4))


@pytest.fixture(scope="module")
def spec():
    return load_spec(SMALL, ["sensitivity.lr_factors=[0.5, 2]"])


@pytest.fixture(scope="module")
def plan(spec):
    return make_plan(spec)


def loss_of(planned):
    shape = planned.cell.shape
    stray = np.random.default_rng([shape.depth, shape.width, planned.cell.seed]).standard_normal()
    return float(TRUTH.loss(shape.depth, np.array([shape.budget_params]))[0]) + 0.003 * stray


def table_of(cells):
    lines = [
        {**planned.row(), "loss": loss_of(planned), "status": "done", "purpose": planned.purpose}
        for planned in cells
    ]
    return RunTable.from_frame(pd.DataFrame(lines))


def test_sensitivity_runs_are_around_each_crossing_with_all_seeds_and_both_rates(spec, plan):
    cells = sensitivity_cells(spec, plan, study_of(table_of(plan.cells)))
    listed = {(p.cell.shape, p.cell.seed): p.cell for p in plan.cells}
    for planned in cells:
        twin = listed[planned.cell.shape, planned.cell.seed]
        assert planned.cell.lr == pytest.approx(planned.lr_factor * twin.lr)
        assert planned.cell.key != twin.key
        assert planned.purpose == "sensitivity"
    assert {p.lr_factor for p in cells} == {0.5, 2.0}
    for shallow, deep in ((1, 2), (2, 4)):
        where = TRUTH.crossing(shallow)
        for depth in (shallow, deep):
            sizes = sorted({p.cell.shape.budget_params for p in cells if p.cell.shape.depth == depth})
            assert sizes[0] < where < sizes[-1]
    # One seed has at most two sizes of two depths at two rates a crossing, and every seed has the same.
    seeds = [sum(p.cell.seed == seed for p in cells) for seed in (0, 1, 2)]
    assert seeds[0] == seeds[1] == seeds[2] <= 16
    assert [p.cell.seed for p in cells] == sorted(p.cell.seed for p in cells)


def test_rows_of_sensitivity_runs_do_not_change_their_cells(spec, plan):
    cells = sensitivity_cells(spec, plan, study_of(table_of(plan.cells)))
    again = sensitivity_cells(spec, plan, study_of(table_of([*plan.cells, *cells[:7]])))
    assert [p.cell.key for p in again] == [p.cell.key for p in cells]


def test_without_a_section_or_a_crossing_there_are_no_sensitivity_runs(plan, spec):
    table = table_of(plan.cells)
    assert sensitivity_cells(load_spec(SMALL), plan, study_of(table)) == []
    shallow = table_of([p for p in plan.cells if p.cell.shape.depth == 1])
    assert sensitivity_cells(spec, plan, study_of(shallow)) == []


def empty_study(spec, results, template):
    """The folder of a study that has not been run, with a store of MLflow."""
    shutil.copy(template, results / "mlflow.db")
    paths = study_paths(spec, results)
    paths.folder.mkdir()
    return paths


def test_sensitivity_runs_start_after_every_cell_of_the_search_has_ended(tmp_path, template):
    spec = load_spec(SMALL, ["sensitivity.lr_factors=[0.5]"])
    plan, console = make_plan(spec), Console(quiet=True)
    paths = empty_study(spec, tmp_path, template)
    run = _Run(spec, plan, paths, {}, None, console, lambda: None)
    viewer = Viewer(plan, plan.slots, run.search.total, console, run.search)
    assert (viewer.total, run.sensitivity) == (len(plan.cells), [])
    trained, totals = [], []
    for source in run._sources(viewer):
        totals.append(viewer.total)
        while planned := source.take():
            run.rows[planned.cell.key] = stub_row(planned, loss_of(planned))
            source.tell(run.rows[planned.cell.key])
            trained.append(planned)
    last = trained[len(plan.cells) :]
    assert {p.cell.key for p in trained[: len(plan.cells)]} == {p.cell.key for p in plan.cells}
    assert [p.cell.key for p in last] == [
        p.cell.key for p in sensitivity_cells(spec, plan, study_of(table_of(plan.cells)))
    ]
    assert {p.purpose for p in last} == {"sensitivity"}
    assert totals == [len(plan.cells), len(trained)]


def test_of_sensitivity_runs_only_the_missing_ones_are_left_when_the_search_has_ended(tmp_path, template):
    spec = load_spec(SMALL, ["sensitivity.lr_factors=[0.5]"])
    plan, console = make_plan(spec), Console(quiet=True)
    paths = empty_study(spec, tmp_path, template)
    cells = sensitivity_cells(spec, plan, study_of(table_of(plan.cells)))
    recorded = {p.cell.key: stub_row(p, loss_of(p)) for p in (*plan.cells, *cells[:2])}
    recorded = {key: row.model_copy(update={"protocol": plan.protocol}) for key, row in recorded.items()}
    run = _Run(spec, plan, paths, recorded, None, console, lambda: None)
    (source,) = run._sources(Viewer(plan, plan.slots, run.search.total, console, run.search))
    assert [p.cell.key for p in iter(source.take, None)] == [p.cell.key for p in cells[2:]]


@pytest.mark.parametrize("cut", [1, 7])
def test_sensitivity_runs_that_were_cut_short_go_on_with_the_same_cells(spec, plan, cut):
    rows = {p.cell.key: stub_row(p, loss_of(p)) for p in plan.cells}
    cells = sensitivity_cells(spec, plan, study_of_rows(rows, "small"))
    source = ListedCells(cells)
    for _ in range(cut):
        planned = source.take()
        rows[planned.cell.key] = stub_row(planned, loss_of(planned))
        source.tell(rows[planned.cell.key])
    assert not source.done
    again = sensitivity_cells(spec, plan, study_of_rows(rows, "small"))
    left = [p.cell.key for p in again if p.cell.key not in rows]
    assert left == [p.cell.key for p in cells[cut:]]
    assert [source.take().cell.key for _ in left] == left
    assert source.done
    assert source.take() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sensitivity": {"lr_factors": []}}, "list is empty; give"),
        ({"sensitivity": {"lr_factors": [0.5, 0.5]}}, "0.5 is there more than once"),
        ({"sensitivity": {"lr_factors": [1, 2]}}, "has 1, which is the study itself"),
        ({"sensitivity": {"factors": [2]}}, "factors"),
        ({"sensitivity": {}, "search": {"lr_factors": [0.5, 1]}}, "already has 2 per shape"),
    ],
)
def test_sensitivity_runs_that_make_no_sense_are_refused(spec, change, words):
    raw = {**load_spec(SMALL).model_dump(mode="json", exclude_none=True), **change}
    with pytest.raises(SpecError, match=words):
        parse_spec(raw)


def test_a_spec_with_sensitivity_runs_comes_back_from_its_own_yaml(spec, tmp_path):
    path = tmp_path / "again.yaml"
    path.write_text(spec.to_yaml())
    assert load_spec(str(path)) == spec


@pytest.mark.extended
def test_a_real_study_ends_with_its_sensitivity_runs_and_does_them_once(tmp_path):
    def run():
        command = [sys.executable, "-m", "interplay", "run", str(Path(SMALL).with_name("sensitivity.yaml"))]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=True
        ).stdout

    assert "[10/10]" in run()
    runs = pd.read_csv(tmp_path / "results" / "sensitivity" / "runs.csv")
    again = runs[runs["purpose"] == "sensitivity"]
    assert len(runs) == 10
    assert again["lr_factor"].tolist() == [0.5] * 4
    fit = json.loads((tmp_path / "results" / "sensitivity" / "fit.json").read_text())
    (shift,) = [pair["shift"] for pair in fit["learning_rate"]["pairs"]]
    assert (shift["shallow"], shift["deep"], shift["runs"]) == (1, 2, 4)
    assert 1600 < shift["params"] < 12_000
    assert fit["rows"]["used"] == 6
    assert "nothing to train: all 10 cells are done" in run()


def test_of_several_numbers_of_tokens_the_compared_one_is_trained_at_other_rates(spec):
    levels = spec.model_copy(
        update={"training": spec.training.model_copy(update={"tokens": (4e5, 8e5), "steps": None})}
    )
    plan = make_plan(levels)
    for tokens in sorted({p.tokens for p in plan.cells}):
        cells = sensitivity_cells(levels, plan, study_of(table_of(plan.cells), tokens=tokens))
        assert cells
        assert {p.tokens for p in cells} == {tokens}
