import json
import math
import multiprocessing
import os

import pandas as pd
import pytest

from analysis.runs.table import read_runs
from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.rows import Row, run_table
from study.run.recorder import cell_fields
from study.search import make_search
from study.spec.study import load_spec
from study.tracking.ledger import Ledger, ended_rows, study_rows, unfinished_cells
from study.tracking.mlflow_store import tracking_uri
from study.tracking.study_paths import StudyPaths, study_paths, study_paths_of
from study.tracking.tables import curve_table
from tests.study.small import SMALL
from tests.study.tracking import examples
from tests.study.tracking.examples import CELL
from trainables.progress import Evaluation


@pytest.fixture(scope="module")
def plan():
    return make_plan(load_spec(SMALL))


@pytest.fixture
def where(tmp_path):
    paths = StudyPaths(tmp_path, "quickstart")
    paths.folder.mkdir()
    return paths


def row(plan, planned, status="done", loss=0.9, reason=None):
    return Row(
        cell=planned.cell.key, name=planned.cell.name, protocol="p", status=status, reason=reason,
        loss=loss if status == "done" else None, train_seconds=3.0, **cell_fields(plan, planned),
    )  # fmt: skip


def test_run_table_has_the_columns_of_the_contract_in_the_plans_order(plan):
    rows = {p.cell.key: row(plan, p, loss=1 + i / 100) for i, p in enumerate(plan.cells)}
    table = run_table(dict(reversed(rows.items())), "small")
    contract = ["cell", "depth", "width", "heads", "params", "total_params", "budget", "seed", "lr", "tokens", "loss",
                "status", "reason", "train_seconds"]  # fmt: skip
    assert list(table.frame.columns)[: len(contract)] == contract
    assert list(table.frame["cell"]) == [p.cell.key for p in plan.cells]
    assert list(table.frame["loss"]) == [1 + i / 100 for i in range(len(plan.cells))]
    first = plan.cells[0]
    assert table.frame["total_params"].iloc[0] == first.parameters.total


def test_bits_per_byte_are_a_column_of_the_run_table_where_a_cell_has_them(plan, tmp_path):
    rows = {p.cell.key: row(plan, p, loss=1 + i / 100) for i, p in enumerate(plan.cells)}
    assert "bits_per_byte" not in run_table(rows, "small").frame
    known = {key: one.model_copy(update={"bits_per_byte": one.loss / 2}) for key, one in rows.items()}
    known[plan.cells[0].cell.key] = rows[plan.cells[0].cell.key]
    table = run_table(known, "small")
    assert math.isnan(table.frame["bits_per_byte"].iloc[0])
    assert list(table.frame["bits_per_byte"][1:]) == [one / 2 for one in table.frame["loss"][1:]]
    again = read_runs(table.write_csv(tmp_path / "runs.csv"))
    assert again.notes == run_table(rows, "small").notes
    pd.testing.assert_frame_equal(
        again.used[["loss", "bits_per_byte"]], table.used[["loss", "bits_per_byte"]]
    )


def test_cells_without_a_row_are_not_in_the_table_and_bad_endings_have_their_reason(plan):
    ends = [("done", None), ("diverged", "the training loss is nan"), ("failed", "out of memory")]
    rows = {
        p.cell.key: row(plan, p, status, reason=reason)
        for p, (status, reason) in zip(plan.cells, ends, strict=False)
    }
    table = run_table(rows, "small")
    assert len(table.frame) == 3
    assert len(table.used) == 1
    assert len(table.left_out) == 2
    reasons = " ".join(item["reason"] for item in table.left_out)
    assert "nan" in reasons
    assert "out of memory" in reasons


def test_failed_cells_are_tried_again_and_diverged_ones_are_not(plan):
    diverged, failed = (
        row(plan, plan.cells[1], "diverged", reason="x"),
        row(plan, plan.cells[2], "failed", reason="y"),
    )
    rows = {"a": row(plan, plan.cells[0]), "b": diverged, "c": failed}
    assert {key: outcome.loss for key, outcome in ended_rows(rows).items()} == {"a": 0.9, "b": None}


def test_rows_are_whole_or_not_there_and_a_damaged_one_is_as_if_missing(tmp_path, caplog):
    ledger = Ledger(tmp_path / "rows")
    assert ledger.rows() == {}
    first = examples.row("aaaa")
    ledger.put(first)
    (tmp_path / "rows" / "bbbb.json.part").write_text('{"cell": "bb')
    (tmp_path / "rows" / "cccc.json").write_bytes(b"")
    assert ledger.rows() == {"aaaa": first.without_curves()}
    assert ledger.get("aaaa") == first
    assert "cccc.json is damaged" in caplog.text
    ledger.put(examples.row("cccc"))
    assert set(Ledger(tmp_path / "rows").rows()) == {"aaaa", "cccc"}


def test_a_row_with_unknown_fields_counts_as_damaged_and_one_in_json_is_the_same(tmp_path, caplog):
    ledger = Ledger(tmp_path)
    text = examples.row().model_dump_json()
    assert Row.model_validate_json(text).model_dump_json() == text
    (tmp_path / "aaaa.json").write_text(json.dumps({**json.loads(text), "metrics": {"loss": 1.5}}))
    assert ledger.get("aaaa") is None
    assert "aaaa.json is damaged" in caplog.text


def test_texts_of_a_row_command_no_terminal(tmp_path):
    """In shared storage others may write rows; these would set the clipboard, clear the screen, and turn the text."""
    ledger, evil = Ledger(tmp_path), "\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202e\u009b2J"
    ledger.put(
        Row(
            cell="k",
            name=evil,
            protocol="p",
            status="failed",
            reason=f"first\n\tsecond {evil}",
            lost=(evil,),
            **{**CELL, "data_key": evil, "recipe": {evil: evil}},
            notes=(evil,),
            measures={evil: 1.0},
            device="é",
        )
    )
    row = ledger.get("k")
    shown = r"\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202e\x9b2J"
    assert row.reason == f"first\n\tsecond {shown}"
    assert (row.name, row.lost, row.notes, row.device) == (shown, (shown,), (shown,), "é")
    assert (row.data_key, row.recipe, row.measures) == (shown, {shown: shown}, {shown: 1.0})
    assert ledger.rows() == {"k": row}


def test_a_row_that_is_nested_too_deeply_is_damaged(tmp_path, caplog):
    (tmp_path / "abc.json").write_text("[" * 300_000)
    assert Ledger(tmp_path).rows() == {}
    assert "abc.json is damaged" in caplog.text


def test_a_row_file_of_another_cell_is_damaged(tmp_path, caplog):
    """Its cell names folders that are replaced: a file may only speak of the cell that it is named by."""
    ledger = Ledger(tmp_path)
    for cell in ("a", "b"):
        ledger.put(Row(cell=cell, name=cell, protocol="p", status="done", loss=1.0, **CELL))
    (tmp_path / "b.json").write_text(
        (tmp_path / "a.json").read_text().replace('"cell":"a"', '"cell":"../../a"')
    )
    assert list(ledger.rows()) == ["a"]
    assert "b.json is damaged" in caplog.text


def test_a_retried_cell_replaces_its_row(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.put(examples.row(status="failed", reason="out of memory"))
    ledger.put(examples.row())
    assert [one.status for one in ledger.rows().values()] == ["done"]


def test_curves_come_back_from_the_rows_without_what_is_not_finite(tmp_path):
    ledger, nan = Ledger(tmp_path), float("nan")
    points = (examples.point(1, nan).model_copy(update={"grad_norm": float("inf")}),)
    evaluations = (Evaluation(step=1, loss=1 / 3, measures={"accuracy": 0.5}), Evaluation(step=2, loss=nan))
    ledger.put(examples.row(status="diverged", points=points, evaluations=evaluations))
    back = ledger.get("aaaa")
    assert back.points[0].train_loss != back.points[0].train_loss
    assert back.points[0].grad_norm == float("inf")
    light = ledger.rows()
    assert light["aaaa"].points == ()
    assert light["aaaa"].evaluations[0].measures == {}
    assert curve_table(light).to_dict("records") == [{"cell": "aaaa", "step": 1, "loss": 1 / 3}]
    assert curve_table({}).empty


def test_rows_of_other_studies_are_left_out(plan, where):
    where.ledger.put(row(plan, plan.cells[0]))
    where.ledger.put(row(plan, plan.cells[1]).model_copy(update={"cell": "another-study"}))
    assert list(study_rows(plan, where.ledger.rows())) == [plan.cells[0].cell.key]


def test_studies_of_one_experiment_share_their_rows(tmp_path):
    first = StudyPaths(tmp_path, "first", experiment="both")
    second = StudyPaths(tmp_path, "second", experiment="both")
    first.ledger.put(examples.row())
    assert set(second.ledger.rows()) == {"aaaa"}
    assert StudyPaths(tmp_path, "first").ledger.rows() == {}
    for name in ("../up", "/Users/me/exp", ".."):
        place = StudyPaths(tmp_path, "first", experiment=name).ledger.place
        assert place.parent.parent == tmp_path
        assert place.parent.name.startswith("experiment-")


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
        assert where.folder.joinpath("run.pid").read_text().split()[0] == str(os.getpid())
    assert where.driver() is None


def test_unfinished_cells_failed_or_started_or_left_a_checkpoint_in_this_order(plan, where):
    done, failed, cut, started, other = plan.cells[:5]
    rows = {done.cell.key: row(plan, done), failed.cell.key: row(plan, failed, "failed", reason="x")}
    for planned in (done, cut, started):
        (where.checkpoints / planned.cell.key).mkdir(parents=True)
    unfinished = where.unfinished
    for planned in (other, started, done):
        unfinished.start(planned.cell.key, [])
    unfinished.start("of another plan", [])
    expected = [p.cell.key for p in (failed, other, started, cut)]
    assert unfinished_cells(plan, rows, where.unfinished, where.checkpoints) == expected


def test_started_cells_and_their_lost_trials_outlive_the_driver(where):
    first = where.unfinished
    first.start("aaaa", [])
    first.lose("aaaa", "out of memory")
    first.start("bbbb", [])
    again = where.unfinished
    assert (again.keys, again.running) == (["aaaa", "bbbb"], {"aaaa", "bbbb"})
    assert again.lost_trials("aaaa") == ["out of memory"]
    again.resume({"bbbb"})
    assert (where.unfinished.keys, where.unfinished.running) == (["aaaa"], set())
    again.end("aaaa")
    assert where.unfinished.keys == []
    again.path.write_text("{")
    assert where.unfinished.keys == []


def test_what_machines_share_lies_where_the_spec_or_the_machine_says(plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = load_spec(SMALL)
    monkeypatch.delenv("INTERPLAY_STORAGE", raising=False)

    def kept(storage):
        resources = spec.resources.model_copy(update={"storage": storage})
        where = study_paths(spec.model_copy(update={"resources": resources}), tmp_path)
        return where.data, where.checkpoints, where.models, where.shared_results

    own = tmp_path / spec.name
    assert kept("auto")[:3] == (tmp_path / "data", own / "checkpoints", own / "models")
    assert not study_paths(spec, tmp_path).is_shared
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
    assert unfinished_cells(plan, {}, shared.unfinished, shared.checkpoints) == [plan.cells[0].cell.key]
    assert shared.ledger.place == own / "rows"


def test_the_storage_of_a_studys_last_run_is_found_by_its_folder(tmp_path, monkeypatch):
    """On another machine, or years later, the environment of the run is gone."""
    monkeypatch.setenv("INTERPLAY_STORAGE", "s3://bucket/shared")
    where = StudyPaths(tmp_path / "results", "mine")
    where.folder.mkdir(parents=True)
    where.write_storage()
    monkeypatch.delenv("INTERPLAY_STORAGE")
    assert study_paths_of(where.folder).models == "s3://bucket/shared/mine/models"
    where.write_storage()
    monkeypatch.setenv("INTERPLAY_STORAGE", "s3://bucket/other")
    assert study_paths_of(where.folder).models == where.folder / "models", "an older study has its own"


@pytest.mark.parametrize(
    ("variable", "value", "use"),
    [
        ("INTERPLAY_STORAGE", "s3://KEYID:hunter2@bucket/x", lambda folder: StudyPaths(folder, "x").shared),
        ("INTERPLAY_TRACKING", "http://bob:hunter2@host:5000", lambda folder: tracking_uri("auto", folder)),
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


def searched(plan, planned, ended, **changes):
    values = {"protocol": plan.protocol, "ended": ended}
    return row(plan, planned).model_copy(update={**values, **changes})


@pytest.fixture(scope="module")
def crossing():
    return make_plan(load_spec(SMALL, [SEARCH]))


def test_rows_come_in_the_order_in_which_they_ended(crossing, where):
    cells = [crossing.cells[0], crossing.more[-1], crossing.cells[5]]
    for planned, ended in zip(cells, (30.5, 10.25, 20.0), strict=True):
        where.ledger.put(searched(crossing, planned, ended))
    known = study_rows(crossing, where.ledger.rows())
    assert list(known) == [cells[1].cell.key, cells[2].cell.key, cells[0].cell.key]
    table = run_table(known, "small", with_order=True).frame.set_index("cell")
    assert [int(table.loc[p.cell.key, "order"]) for p in cells] == [3, 1, 2]
    assert "purpose" not in table


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
        where.ledger.put(one)
    known = study_rows(crossing, where.ledger.rows())
    assert list(known) == [seed.cell.key]
    assert crossing.by_key(seed.cell.key) is None
    state = make_search(crossing.planner.spec, crossing, ended_rows(known)).state()
    assert (state.cells, state.flops) == (1, pytest.approx(seed.flops))
    assert list(run_table(known, "small").frame["cell"]) == [seed.cell.key]
    assert study_rows(make_plan(load_spec(SMALL)), where.ledger.rows()) == {}, "a grid is its list"


def test_cells_of_an_arm_are_marked_unless_the_study_lists_them_itself(plan, where):
    first = plan.cells[0]
    sensitivity_run = plan.planned_for(first.cell.shape, first.budget, 2.0, first.cell.seed, "sensitivity")
    rows = [searched(plan, first, 1.0), searched(plan, sensitivity_run, 2.0, purpose="sensitivity")]
    for one in rows:
        where.ledger.put(one)
    known = study_rows(plan, where.ledger.rows())
    table = run_table(known, "small").frame.set_index("cell")
    assert table["purpose"].to_dict() == {first.cell.key: "", sensitivity_run.cell.key: "sensitivity"}
    assert "order" not in table, "a grid has no order of its own"
    both = make_plan(load_spec(SMALL, ["search.lr_factors=[1, 2]"]))
    assert "purpose" not in run_table(study_rows(both, where.ledger.rows()), "small").frame


def test_sensitivity_runs_of_several_numbers_of_tokens_belong_to_the_study_each_with_its_own(where):
    several = make_plan(load_spec(SMALL, ["training.tokens=[400k, 800k]"]))
    first = several.cells[0]
    steps = first.cell.recipe.steps
    again = several.planned_for(first.cell.shape, first.budget, 2.0, first.cell.seed, "sensitivity", steps)
    where.ledger.put(searched(several, again, 1.0, purpose="sensitivity"))
    known = study_rows(several, where.ledger.rows())
    assert list(known) == [again.cell.key]
    assert known[again.cell.key].tokens == again.tokens
    assert again.tokens == first.tokens < several.planner.recipe.tokens
