import multiprocessing
import os

import pandas as pd
import pytest

from study.errors import SpecError
from study.plan.plan import make_plan
from study.spec.study import load_spec
from study.tracking.ledger import (
    Connection,
    StudyPaths,
    begun,
    known_rows,
    outcomes,
    places,
    run_table,
    study_paths_of,
    with_recorded,
)
from study.tracking.mlflow_store import Row, store_uri
from tests.study.small import SMALL

AWAY = Connection("http://127.0.0.1:9", None, "it does not answer")


@pytest.fixture(scope="module")
def plan():
    return make_plan(load_spec(SMALL))


@pytest.fixture
def where(tmp_path):
    return StudyPaths(tmp_path, "quickstart")


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
    with StudyPaths(results, name).locked():
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
    assert begun(plan, rows, where) == [failed.cell.key, cut.cell.key]
    assert untouched.cell.key not in begun(plan, rows, where)


def test_what_machines_share_lies_where_the_spec_or_the_machine_says(plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = load_spec(SMALL)
    monkeypatch.delenv("INTERPLAY_STORAGE", raising=False)

    def kept(storage):
        resources = spec.resources.model_copy(update={"storage": storage})
        where = places(spec.model_copy(update={"resources": resources}), tmp_path)
        return where.data, where.checkpoints, where.models, where.shared_results

    own = tmp_path / spec.name
    assert kept("auto")[:3] == (tmp_path / "data", own / "checkpoints", own / "models")
    assert not places(spec, tmp_path).is_shared
    root = tmp_path / "kept"
    own = root / spec.name
    assert kept("kept") == (root / "data", own / "checkpoints", own / "models", own / "results")
    uri = f"s3://b/k/{spec.name}/%s?region=x"
    names = ("checkpoints", "models", "results")
    assert kept("s3://b/k?region=x") == ("s3://b/k/data?region=x", *(uri % name for name in names))
    monkeypatch.setenv("INTERPLAY_STORAGE", "s3://cluster")
    assert kept("auto")[0] == "s3://cluster/data"
    assert kept("kept")[0] == root / "data", "what a spec says goes before what the machine offers"
    shared = StudyPaths(tmp_path, spec.name, str(root))
    assert shared.is_shared
    (own / "checkpoints" / plan.cells[0].cell.key).mkdir(parents=True)
    assert begun(plan, {}, shared) == [plan.cells[0].cell.key]


def test_the_storage_of_a_studys_last_run_is_found_by_its_folder(tmp_path, monkeypatch):
    """On another machine, or years later, the environment of the run is gone."""
    monkeypatch.setenv("INTERPLAY_STORAGE", "s3://bucket/shared")
    where = StudyPaths(tmp_path / "results", "mine")
    where.folder.mkdir(parents=True)
    where.remember()
    monkeypatch.delenv("INTERPLAY_STORAGE")
    assert study_paths_of(where.folder).models == "s3://bucket/shared/mine/models"
    where.remember()
    monkeypatch.setenv("INTERPLAY_STORAGE", "s3://bucket/other")
    assert study_paths_of(where.folder).models == where.folder / "models", "an older study has its own"


@pytest.mark.parametrize(
    ("variable", "value", "use"),
    [
        ("INTERPLAY_STORAGE", "s3://KEYID:hunter2@bucket/x", lambda folder: StudyPaths(folder, "x").shared),
        ("INTERPLAY_TRACKING", "http://bob:hunter2@host:5000", lambda folder: store_uri("auto", folder)),
    ],
)
def test_secrets_in_the_environment_of_a_machine_are_refused_unseen(
    variable, value, use, tmp_path, monkeypatch
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SpecError) as error:
        use(tmp_path)
    assert f"the environment variable {variable}: " in str(error.value)
    assert "hunter2" not in str(error.value)


SEARCH = "search={sampler: crossing, max_cells: 30}"


def params_of(planned):
    return {
        **{name: planned.row()[name] for name in ("depth", "width", "heads", "seed", "budget", "lr_factor")}
    }


def searched(plan, planned, ended, **changes):
    values = {
        "protocol": plan.protocol,
        "params": params_of(planned),
        "tags": {"interplay.ended": str(ended)},
    }
    return row(planned).model_copy(update={**values, **changes})


@pytest.fixture(scope="module")
def crossing():
    return make_plan(load_spec(SMALL, [SEARCH]))


def test_rows_come_in_the_order_in_which_they_ended(crossing, where):
    cells = [crossing.cells[0], crossing.more[-1], crossing.cells[5]]
    for planned, ended in zip(cells, (30.5, 10.25, 20.0), strict=True):
        where.outbox.put(searched(crossing, planned, ended))
    known = known_rows(crossing, AWAY, where)
    assert list(known) == [cells[1].cell.key, cells[2].cell.key, cells[0].cell.key]
    table = run_table(crossing, known).frame.set_index("cell")
    assert [int(table.loc[p.cell.key, "order"]) for p in cells] == [3, 1, 2]
    assert "arm" not in table


def test_a_search_knows_the_rows_it_made_under_other_limits_and_those_of_no_other_study(crossing, where):
    wide = make_plan(load_spec(SMALL, [SEARCH, "search.max_seeds=12", "frontier.depths=[1, 2, 4, 8]"]))
    seed = next(p for p in wide.more if p.cell.seed == 11 and p.cell.shape.depth == 2)
    deep = next(p for p in wide.pool if p.cell.shape.depth == 8)
    four = make_plan(load_spec(SMALL, [SEARCH, "frontier.heads=1"])).cells[3]
    other = searched(crossing, crossing.cells[1], 4.0, cell="0" * 16)
    protocol = searched(crossing, seed, 5.0, cell="1" * 16, protocol="another")
    rows = [
        searched(crossing, seed, 1.0),
        searched(crossing, deep, 2.0),
        searched(crossing, four, 3.0),
        other,
    ]
    for one in (*rows, protocol):
        where.outbox.put(one)
    known = known_rows(crossing, AWAY, where)
    assert list(known) == [seed.cell.key]
    assert crossing.by_key(seed.cell.key) is None
    found = with_recorded(crossing, known).by_key(seed.cell.key)
    assert found == seed
    assert list(run_table(crossing, known).frame["cell"]) == [seed.cell.key]
    assert known_rows(make_plan(load_spec(SMALL)), AWAY, where) == {}, "a grid is its list"


def test_without_a_server_a_searchs_own_cells_are_read_back_in_their_order(crossing, where):
    where.folder.mkdir()
    wide = make_plan(load_spec(SMALL, [SEARCH, "search.max_seeds=12"]))
    cells = [wide.more[-1], wide.cells[0], wide.cells[9]]
    rows = {p.cell.key: searched(wide, p, 100.0 - i) for i, p in enumerate(cells)}
    run_table(wide, rows).write_csv(where.runs)
    assert list(known_rows(crossing, AWAY, where)) == [p.cell.key for p in reversed(cells)]


def test_cells_of_an_arm_are_marked_unless_the_study_lists_them_itself(plan, where):
    first = plan.cells[0]
    arm = plan.planned_for(first.cell.shape, first.budget, 2.0, first.cell.seed, "sensitivity")
    tags = {"interplay.ended": "2", "interplay.arm": "sensitivity"}
    rows = [searched(plan, first, 1.0), searched(plan, arm, 2.0, tags=tags)]
    for one in rows:
        where.outbox.put(one)
    known = known_rows(plan, AWAY, where)
    table = run_table(plan, known).frame.set_index("cell")
    assert table["arm"].to_dict() == {first.cell.key: "", arm.cell.key: "sensitivity"}
    assert "order" not in table, "a grid has no order of its own"
    both = make_plan(load_spec(SMALL, ["search.lr_factors=[1, 2]"]))
    assert "arm" not in run_table(both, known_rows(both, AWAY, where)).frame


def test_cells_that_have_a_run_and_no_row_were_begun_in_this_order(plan, where):
    class Runs:
        def begun(self):
            return [
                plan.cells[7].cell.key,
                "of another study",
                plan.cells[2].cell.key,
                plan.cells[0].cell.key,
            ]

    failed = plan.cells[4]
    rows = {failed.cell.key: row(failed, "failed", reason="x"), plan.cells[0].cell.key: row(plan.cells[0])}
    (where.checkpoints / plan.cells[7].cell.key).mkdir(parents=True)
    (where.checkpoints / plan.cells[3].cell.key).mkdir()
    keys = [plan.cells[i].cell.key for i in (4, 7, 2, 3)]
    assert begun(plan, rows, where, Runs()) == keys
