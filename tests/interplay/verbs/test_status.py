"""What `interplay status` shows of a study from its files alone."""

import io
import json
import multiprocessing
import os
import shlex
from unittest import mock

import pytest
from rich.console import Console

from analysis.fit.document import fit
from analysis.law.answer_words import short_answer
from interplay.planned_runs import planned_runs
from interplay.verbs.status import status_json, status_table, study_status
from study.plan.plan import make_plan
from study.plan.rows import Row, run_table
from study.run.recorder import cell_fields
from study.spec.study import load_spec
from study.tracking.study_paths import study_paths
from tests.study.search.test_crossing_search import loss_of
from tests.study.small import SMALL
from tests.study.tracking.test_ledger import hold

CROSSING = "search={sampler: crossing, halfwidth: 0.01, max_cells: 40}"


def write(folder, *overrides, cells):
    """Write rows of these cells, as a run without MLflow would."""
    spec = load_spec(SMALL, overrides)
    plan = make_plan(spec)
    for rank, planned in enumerate(cells(plan)):
        study_paths(spec, folder).ledger.put(
            Row(
                cell=planned.cell.key, name=planned.cell.name, protocol=plan.protocol, status="done",
                **cell_fields(plan, planned), loss=loss_of(planned), ended=rank + 1.0,
            )
        )  # fmt: skip
    return study_status(spec, folder)


def text(state):
    console = Console(file=io.StringIO(), width=200)
    console.print(status_table(state))
    return console.file.getvalue()


def test_a_searchs_status_lists_what_it_trained(tmp_path):
    state = write(tmp_path, CROSSING, cells=lambda plan: [p for p in plan.pool if p.cell.seed < 2][:30])
    document = status_json(state)
    assert document["counts"] == {"done": 30}
    assert len(document["cells"]) == 30
    assert document["flops"] == pytest.approx(sum(cell["flops"] for cell in state.cells))
    assert (document["answer"], document["learning_rate"]) == ([], None)
    proposed = shlex.split(text(state).split("`")[-2])
    assert proposed == ["interplay", "fit", "small", "--results", str(tmp_path)]


def test_a_grids_status_lists_what_is_missing_and_has_the_answer_of_the_last_fit(tmp_path):
    half = {"cells": lambda plan: [p for p in plan.cells if p.cell.seed < 2]}
    state = write(tmp_path, "search.sampler=grid", **half)
    assert status_json(state)["counts"] == {"done": 30, "missing": 15}
    fitted = fit(run_table(state.rows, "small"))
    runs = planned_runs(state.plan, fitted, tmp_path)
    state.paths.folder.mkdir(exist_ok=True)
    (state.paths.folder / "fit.json").write_text(json.dumps(fitted.to_json(runs)))
    state = write(tmp_path, "search.sampler=grid", **half)
    document, shown = status_json(state), text(state)
    assert document["answer"] == short_answer(fitted.reading, fitted.best, fitted.level, fitted.tokens) != []
    assert all(sentence in shown for sentence in document["answer"])
    other = study_status(load_spec(SMALL, ["search.sampler=grid", "training.steps=600"]), tmp_path)
    assert not other.rows
    assert (status_json(other)["answer"], status_json(other)["learning_rate"]) == ([], None)
    assert not any(sentence in text(other) for sentence in document["answer"])
    assert not document["learning_rate"]["checked"]
    assert "sensitivity.lr_factors=[0.5,2]" in shown
    assert "answer of the last fit" in shown
    (state.paths.folder / "fit.json").write_text("{")
    assert status_json(study_status(state.plan.planner.spec, tmp_path))["answer"] == []


def test_without_a_spec_the_status_lists_all_studies_of_the_folder(command, tmp_path):
    assert "no study in results" in command("status")[1]
    folder = tmp_path / "results"
    write(folder, cells=lambda plan: plan.cells[:3])
    for name, content in (("small", load_spec(SMALL).to_yaml()), ("broken", "name: [")):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "spec.yaml").write_text(content)
    status, out, _ = command("status", "--json")
    broken, small = json.loads(out)
    assert status == 0
    assert small == {"study": "small", "driver": None, "counts": {"done": 3, "missing": 42}}
    assert broken["study"] == "broken"
    assert broken["problem"]
    lines = command("status")[1].strip().splitlines()
    assert len(lines) == 4
    assert "broken/spec.yaml" in lines[-1]
    assert command("status", "training.seeds=5")[0] == 2


def test_asking_for_a_status_takes_no_lock(tmp_path):
    """A run that starts at the same time would be refused."""
    state = write(tmp_path, cells=lambda plan: plan.cells[:1])
    state.paths.folder.mkdir(exist_ok=True)
    (state.paths.folder / "run.pid").write_text(f"{os.getpid()} 12.5")
    with mock.patch("study.tracking.study_paths.FileLock", side_effect=AssertionError):
        state = study_status(state.plan.planner.spec, tmp_path)
    assert state.driver is None, "the id is that of another process by now"


def test_a_second_driver_of_a_study_is_refused_and_its_status_names_the_first(command, tmp_path):
    plan = make_plan(load_spec(SMALL))
    where = study_paths(load_spec(SMALL), tmp_path / "results")
    where.folder.mkdir(parents=True)
    where.unfinished.start(plan.cells[0].cell.key, [])
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    driver = context.Process(target=hold, args=(where.results, where.name, ready, release))
    driver.start()
    try:
        assert ready.wait(60)
        status = json.loads(command("status", SMALL, "--json")[1])
        assert status["driver"] == driver.pid
        assert status["counts"]["running"] == 1
        ended, _, err = command("run", SMALL)
        assert ended == 2
        assert f"process {driver.pid}" in err
    finally:
        release.set()
        driver.join(60)
