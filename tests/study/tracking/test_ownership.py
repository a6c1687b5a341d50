"""A study's folder: the study may grow in it, and no other one replaces what is there."""

import shlex

import pytest

from interplay.study_fit import study_runs
from study.plan.plan import make_plan
from study.plan.rows import run_table
from study.run.recorder import cell_fields
from study.spec.study import load_spec
from study.tracking.ledger import study_rows
from study.tracking.study_paths import OtherStudyError, StudyPaths, check_owner, study_paths
from tests.study.small import SMALL
from tests.study.tracking.examples import row


def planned(*overrides):
    return make_plan(load_spec(SMALL, overrides))


def trained(plan, cells=None, **changes):
    """Rows of cells of a plan as its study would write them, by key."""
    changes |= {"study": "small", "protocol": plan.protocol}
    return {
        one.cell.key: row(
            one.cell.key, name=one.title, **cell_fields(plan, one), **changes
        )
        for one in (plan.cells if cells is None else cells)
    }  # fmt: skip


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "small").mkdir()
    return StudyPaths(tmp_path, "small")


@pytest.mark.parametrize(
    "wider",
    [
        (),
        ("training.seeds=4",),
        ("frontier.depths=[1, 2, 3, 4]",),
        ("frontier.budgets={min: 1600, max: 92951.6, points: 7}",),
        ("search.lr_factors=[0.5, 1, 2]",),
        ("search.sampler=crossing", "search.max_cells=10"),
        ("diagnostics=[rank]", "resources.slots=1", "description=other words"),
    ],
)
def test_a_study_grows_in_its_folder(paths, wider):
    plan = planned()
    rows = trained(plan)
    run_table(rows, "small").write_csv(paths.runs)
    check_owner(planned(*wider), paths, rows)


@pytest.mark.parametrize(
    ("other", "shares"),
    [
        (("frontier.depths=[1, 2]",), True),
        (("training.seeds=2",), True),
        (("frontier.budgets=[1600, 24000]",), True),
        (("data.grammar_seed=1",), False),
        (("training.steps=1100",), False),
    ],
)
def test_another_study_of_the_same_name_is_refused(paths, other, shares):
    plan = planned()
    rows = trained(plan)
    with pytest.raises(OtherStudyError) as refused:
        check_owner(planned(*other), paths, rows)
    assert refused.value.shares == shares
    kept = study_rows(planned(*other), rows)
    assert f"{len(rows) - len(kept)} of the {len(rows)} cells" in str(refused.value)


def test_a_study_does_not_replace_a_table_whose_rows_are_in_another_ledger(paths):
    """With another storage or experiment the ledger is empty, and the report in the folder is the same."""
    plan = planned()
    run_table(trained(plan), "small").write_csv(paths.runs)
    check_owner(plan, paths, {})
    with pytest.raises(OtherStudyError):
        check_owner(planned("frontier.depths=[1, 2]"), paths, {})


def test_cells_without_a_loss_and_those_of_other_studies_hold_no_folder(paths):
    plan, rates = planned(), planned("training.lr.base=0.2")
    wrong = trained(rates, status="diverged", reason="the loss is nan", loss=None)
    assert wrong.keys().isdisjoint(study_rows(plan, wrong))
    check_owner(plan, paths, wrong)
    shared = {key: one.model_copy(update={"study": "sister"}) for key, one in trained(rates).items()}
    check_owner(plan, paths, shared)


def test_cells_that_a_search_has_chosen_stay_with_it_under_other_limits_but_not_with_a_grid(paths):
    search = planned("search.sampler=crossing", "search.max_cells=50")
    chosen = search.planned_for(search.cells[0].cell.shape, search.cells[0].budget, 1.0, 77)
    rows = trained(search, [*search.cells[:5], chosen])
    check_owner(planned("search.sampler=crossing", "search.max_cells=10"), paths, rows)
    with pytest.raises(OtherStudyError, match="-s77"):
        check_owner(planned(), paths, rows)


def test_the_command_that_does_what_was_meant_is_given_and_finds_the_finished_cells(command, tmp_path):
    whole = load_spec(SMALL)
    paths = study_paths(whole, tmp_path / "results")
    for one in trained(make_plan(whole)).values():
        paths.ledger.put(one)
    narrow = ["frontier.depths=[1, 2]"]
    before = {path: path.read_bytes() for path in paths.folder.rglob("*.*")}
    status, out, err = command("run", SMALL, *narrow)
    assert (status, out) == (2, "")
    assert "\n" not in err.strip()
    assert {path: path.read_bytes() for path in paths.folder.rglob("*.json")} == before
    assert {path.name for path in paths.folder.iterdir()} <= {"rows", "run.lock"}
    given = shlex.split(err.strip().rpartition(": ")[2])
    assert given[:3] == ["interplay", "run", SMALL]
    own = load_spec(SMALL, given[3:])
    assert own.name == "small-2"
    plan, place = make_plan(own), study_paths(own, tmp_path / "results")
    check_owner(plan, place, place.ledger.rows())
    assert len(study_rows(plan, place.ledger.rows())) == len(plan.cells) < len(make_plan(whole).cells)


def test_the_report_of_a_part_states_which_cells_it_is_of(tmp_path):
    plan = make_plan(load_spec(SMALL))
    ledger = StudyPaths(tmp_path, "small").ledger
    for one in trained(plan, plan.cells[:-3]).values():
        ledger.put(one)
    for overrides, depths in (([], [1, 2, 4]), (["frontier.depths=[1, 2]"], [1, 2])):
        found = study_runs(load_spec(SMALL, overrides), tmp_path)
        with_row = [one.cell.shape for one in plan.cells[:-3] if one.cell.shape.depth in depths]
        sizes = {shape.budget_params for shape in with_row}
        fact = found.report_data["facts"]["cells"]
        assert f"{len(with_row)} of {len(found.plan.cells)} planned; depths {str(depths)[1:-1]};" in fact
        assert f"{len(sizes)} sizes from N = {min(sizes):,} to {max(sizes):,}" in fact


def test_fit_report_and_comparison_of_tables_do_not_replace_those_of_a_study(command, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "spec.yaml").touch()
    (tmp_path / "runs.csv").write_text("depth,width,loss\n1,8,2\n2,8,1.9\n")
    (tmp_path / "others.csv").write_text("depth,width,loss\n1,8,2\n2,8,1.9\n")
    for words in (
        ["report", "runs.csv", "--out", "mine"],
        ["fit", "runs.csv", "--out", "mine/fit.json"],
        ["compare", "runs.csv", "others.csv", "--out", "mine"],
    ):
        status, _, err = command(*words)
        assert status == 2
        assert "name another one" in err
        assert [path.name for path in (tmp_path / "mine").iterdir()] == ["spec.yaml"]
