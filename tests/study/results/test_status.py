"""What `interplay status` knows of a study from its rows alone."""

import io
import json
import multiprocessing

from rich.console import Console

from study.plan.plan import make_plan
from study.results.status import status_json, status_table, study_status
from study.spec.study import load_spec
from study.tracking.rows import Row
from study.tracking.study_paths import study_paths
from tests.study.search.test_crossing_search import loss_of
from tests.study.small import SMALL
from tests.study.tracking.test_ledger import hold

CROSSING = "search={sampler: crossing, stop_when: {crossing_halfwidth: 0.01}, max_cells: 40}"


def write(folder, *overrides, cells):
    """Write rows of these cells, as a run without MLflow would."""
    spec = load_spec(SMALL, overrides)
    plan = make_plan(spec)
    for rank, planned in enumerate(cells(plan)):
        shape, names = planned.cell.shape, ("budget", "lr_factor", "seed")
        own = {**shape.model_dump(), **{name: planned.row()[name] for name in names}}
        study_paths(spec, folder).ledger.put(
            Row(
                cell=planned.cell.key, name=planned.cell.name, protocol=plan.protocol, status="done",
                parameters=own, loss=loss_of(planned), ended=rank + 1.0,
            )
        )  # fmt: skip
    return study_status(spec, folder)


def text(state):
    console = Console(file=io.StringIO(), width=200)
    console.print(status_table(state))
    return console.file.getvalue()


def test_a_searchs_status_lists_what_it_trained_and_names_what_comes_next(tmp_path):
    state = write(tmp_path, CROSSING, cells=lambda plan: [p for p in plan.pool if p.cell.seed < 2][:30])
    document = status_json(state)
    assert document["counts"] == {"done": 30}
    assert len(document["cells"]) == 30
    known = document["known"]
    assert known["cells"] == 30
    assert known["next"][0]["reason"]
    assert known["flops"] > 0
    assert "next: L" in text(state)


def test_a_grids_status_has_the_answer_too_and_lists_what_is_missing(tmp_path):
    state = write(
        tmp_path, "search.sampler=grid", cells=lambda plan: [p for p in plan.cells if p.cell.seed < 2]
    )
    document = status_json(state)
    assert document["counts"] == {"done": 30, "missing": 15}
    assert document["answer"]
    assert all(sentence in text(state) for sentence in document["answer"])
    assert not document["learning_rate"]["checked"]
    assert document["learning_rate"]["runs"] > 0
    assert "sensitivity.lr_factors=[0.5,2]" in text(state)
    assert document["known"]["next"] == []
    assert document["known"]["ended"] is None


def test_a_study_without_rows_knows_nothing(tmp_path):
    state = write(tmp_path, CROSSING, cells=lambda plan: [])
    assert status_json(state)["known"] is None
    assert status_json(state)["counts"] == {}


def test_a_search_that_has_ended_says_which_limit_ended_it(tmp_path):
    state = write(tmp_path, CROSSING, "search.max_cells=6", cells=lambda plan: plan.cells[:6])
    assert status_json(state)["known"]["ended"]["limit"] == "max_cells"
    assert "the search has ended: the limit of 6 cells is reached." in text(state)


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
