import multiprocessing
import os

import pandas as pd
import pytest

from study.errors import SpecError
from study.ledger import Connection, Places, begun, known_rows, outcomes, run_table
from study.plan import make_plan
from study.spec import load_spec
from study.tracking import Row
from tests.study.small import SMALL

AWAY = Connection("http://127.0.0.1:9", None, "it does not answer")


@pytest.fixture(scope="module")
def plan():
    return make_plan(load_spec(SMALL))


@pytest.fixture
def where(tmp_path):
    return Places(tmp_path, "quickstart")


def row(planned, status="done", loss=0.9, reason=None):
    metrics = {"train_seconds": 3.0, **({"loss": loss} if status == "done" else {})}
    return Row(
        cell=planned.cell.key, name=planned.cell.name, protocol="p", status=status, reason=reason, params={},
        metrics=metrics, tags={},
    )  # fmt: skip


def test_run_table_has_the_columns_of_the_contract_in_the_plans_order(plan):
    rows = {p.cell.key: row(p, loss=1 + i / 100) for i, p in enumerate(plan.cells)}
    table = run_table(plan, dict(reversed(rows.items())))
    contract = ["cell", "depth", "width", "heads", "params", "total_params", "budget", "seed", "lr", "tokens", "loss",
                "status", "reason", "train_seconds"]  # fmt: skip
    assert list(table.frame.columns)[: len(contract)] == contract
    assert list(table.frame["cell"]) == [p.cell.key for p in plan.cells]
    assert list(table.frame["loss"]) == [1 + i / 100 for i in range(len(plan.cells))]
    first = plan.cells[0]
    assert table.frame["total_params"].iloc[0] == first.parameters.total


def test_cells_without_a_row_are_not_in_the_table_and_bad_endings_have_their_reason(plan):
    ends = [("done", None), ("diverged", "the training loss is nan"), ("failed", "out of memory")]
    rows = {
        p.cell.key: row(p, status, reason=reason)
        for p, (status, reason) in zip(plan.cells, ends, strict=False)
    }
    table = run_table(plan, rows)
    assert len(table.frame) == 3
    assert len(table.used) == 1
    assert len(table.left_out) == 2
    reasons = " ".join(item["reason"] for item in table.left_out)
    assert "nan" in reasons
    assert "out of memory" in reasons


def test_failed_cells_are_tried_again_and_diverged_ones_are_not(plan):
    diverged, failed = row(plan.cells[1], "diverged", reason="x"), row(plan.cells[2], "failed", reason="y")
    rows = {"a": row(plan.cells[0]), "b": diverged, "c": failed}
    assert {key: outcome.loss for key, outcome in outcomes(rows).items()} == {"a": 0.9, "b": None}


def test_the_outbox_is_part_of_the_ledger_and_foreign_cells_are_not(plan, where):
    where.outbox.put(row(plan.cells[0]))
    where.outbox.put(row(plan.cells[1]).model_copy(update={"cell": "another-study"}))
    assert list(known_rows(plan, AWAY, where)) == [plan.cells[0].cell.key]


def test_without_a_server_the_last_run_table_stands_in(plan, where):
    where.folder.mkdir()
    ends = [row(plan.cells[0], loss=0.123456789), row(plan.cells[1], "diverged", reason="it is nan"),
            row(plan.cells[2], "failed", reason="gone")]  # fmt: skip
    run_table(plan, {r.cell: r for r in ends}).write_csv(where.runs)
    known = known_rows(plan, AWAY, where)
    assert set(known) == {ends[0].cell, ends[1].cell}
    assert known[ends[0].cell].loss == 0.123456789
    assert known[ends[1].cell].reason == "it is nan"
    assert not pd.read_csv(where.runs).empty


def hold(results, name, ready, release):
    with Places(results, name).locked():
        ready.set()
        release.wait(60)


def test_a_study_is_locked_for_one_process_and_free_when_it_dies(where):
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(where.results, where.name, ready, release))
    holder.start()
    assert ready.wait(60)
    assert where.driver() == holder.pid
    with pytest.raises(SpecError, match=rf"process {holder.pid}"), where.locked():
        pass
    holder.kill()
    holder.join()
    assert where.driver() is None
    with where.locked():
        assert where.folder.joinpath("run.pid").read_text() == str(os.getpid())
    assert where.driver() is None


def test_begun_cells_are_those_that_failed_or_left_a_checkpoint(plan, where):
    done, failed, cut, untouched = plan.cells[:4]
    rows = {done.cell.key: row(done), failed.cell.key: row(failed, "failed", reason="x")}
    for planned in (done, cut):
        (where.checkpoints / planned.cell.key).mkdir(parents=True)
    assert begun(plan, rows, where) == {failed.cell.key, cut.cell.key}
    assert untouched.cell.key not in begun(plan, rows, where)
