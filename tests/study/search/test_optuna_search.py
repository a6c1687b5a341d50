import importlib.util
import math

import optuna
import pytest
from optuna.trial import TrialState

from study.errors import SpecError
from study.plan.plan import make_plan
from study.search import make_search
from study.search.source import database_problem
from study.spec.study import load_spec
from tests.stubs import stub_row
from tests.study.small import SMALL


def plan_for(*overrides):
    return make_plan(load_spec(SMALL, overrides))


def search_for(plan, spec_overrides=(), known=None):
    return make_search(load_spec(SMALL, spec_overrides), plan, known or {})


def loss_of(planned):
    """A landscape with a known best: depth 2 and factor 1 at every budget."""
    depth = planned.cell.shape.depth
    return (
        1
        + 0.1 * abs(math.log2(depth) - 1)
        + 0.05 * abs(math.log2(planned.lr_factor))
        + 0.001 * planned.cell.seed
    )


def drain(search, slots=2, loss=loss_of):
    """Run the search with so many trials side by side; return the cells in the order they were given."""
    order, running = [], []
    while True:
        while len(running) < slots and (planned := search.take()):
            order.append(planned)
            running.append(planned)
        if not running:
            assert search.done
            return order
        planned = running.pop(0)
        search.tell(stub_row(planned, loss(planned)))


def keys(cells):
    return [planned.cell.key for planned in cells]


def test_grid_gives_every_cell_once():
    plan = plan_for()
    search = search_for(plan)
    assert search.total == len(plan.cells) == 45
    order = drain(search)
    assert sorted(keys(order)) == sorted(keys(plan.cells))


def test_grid_runs_whole_seeds_one_after_the_other_and_long_cells_first():
    order = drain(search_for(plan_for()))
    seeds = [planned.cell.seed for planned in order]
    assert seeds == sorted(seeds)
    for seed in set(seeds):
        costs = [p.flops for p in order if p.cell.seed == seed]
        assert costs == sorted(costs, reverse=True)


def test_known_cells_are_not_given_again_whatever_their_outcome():
    plan = plan_for()
    known = {
        plan.cells[0].cell.key: stub_row(plan.cells[0], 0.9),
        plan.cells[4].cell.key: stub_row(plan.cells[4], None),
    }
    order = drain(search_for(plan, known=known))
    assert len(order) == 43
    assert not set(known) & set(keys(order))


def test_a_finished_study_has_nothing_to_give():
    plan = plan_for()
    known = {p.cell.key: stub_row(p, loss_of(p)) for p in plan.cells}
    search = search_for(plan, known=known)
    assert search.done
    assert search.take() is None


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_samplers_try_as_many_candidates_as_asked_with_all_seeds_and_none_twice(sampler):
    overrides = (
        f"search.sampler={sampler}",
        "search.candidates=5",
        "search.lr_factors=[0.5,1,2]",
        "training.seeds=2",
    )
    plan = plan_for(*overrides)
    search = search_for(plan, overrides)
    assert search.total == 5 * 5 * 2
    order = drain(search, slots=3)
    assert len(order) == len(set(keys(order))) == 50
    for budget in {p.budget for p in order}:
        candidates = {(p.cell.shape.depth, p.lr_factor) for p in order if p.budget == budget}
        assert len(candidates) == 5


def test_more_trials_than_candidates_tries_each_once():
    overrides = ("search.sampler=tpe", "search.candidates=50", "training.seeds=1")
    order = drain(search_for(plan_for(*overrides), overrides))
    assert len(order) == 15


@pytest.mark.slow
def test_gp_finds_the_best_candidate_of_a_known_landscape():
    overrides = (
        "search.sampler=gp",
        "search.candidates=10",
        "search.lr_factors=[0.25,0.5,1,2,4]",
        "training.seeds=1",
    )
    order = drain(search_for(plan_for(*overrides), overrides), slots=1)
    found = 0
    for budget in {p.budget for p in order}:
        best = min((p for p in order if p.budget == budget), key=loss_of)
        found += (best.cell.shape.depth, best.lr_factor) == (2, 1.0)
    # 10 of 15 candidates by chance find it in all five budgets in 13 % of the cases.
    assert found == 5


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
@pytest.mark.parametrize("cut", [1, 4, 7, 11, 20])
def test_an_adaptive_search_goes_on_from_the_run_table_alone(sampler, cut):
    """Cut anywhere, also inside a candidate's seeds, with one failed cell: it still trains what it would have."""
    overrides = (
        f"search.sampler={sampler}", "search.candidates=3", "search.lr_factors=[0.5,1]", "training.seeds=3",
    )  # fmt: skip
    plan = plan_for(*overrides)
    first = search_for(plan, overrides)
    known, failed = {}, None
    for step in range(cut):
        planned = first.take()
        if step == cut - 1:
            failed = planned.cell.key
        else:
            known[planned.cell.key] = stub_row(planned, loss_of(planned))
            first.tell(known[planned.cell.key])
    again = make_search(load_spec(SMALL, overrides), plan, known, {failed})
    order = drain(again)
    assert failed in keys(order), "a failed cell is tried again"
    assert not set(keys(order)) & set(known)
    assert len(order) + len(known) == first.total
    tried = set(keys(order)) | set(known)
    for budget in {p.budget for p in plan.cells}:
        cells = [p for p in plan.cells if p.budget == budget and p.cell.key in tried]
        candidates = {(p.cell.shape.depth, p.lr_factor) for p in cells}
        assert len(candidates) == 3
        assert len(cells) == 9, "each candidate has all its seeds"


def test_the_value_of_a_trial_is_named_loss_in_new_databases_and_those_of_earlier_versions(tmp_path):
    plan, database = plan_for(), tmp_path / "optuna.db"
    known = {plan.cells[0].cell.key: stub_row(plan.cells[0], 1.0)}
    name = f"{plan.name}: N = {plan.cells[0].budget:g}"
    storage = f"sqlite:///{database}"
    optuna.create_study(study_name=name, storage=storage)
    make_search(load_spec(SMALL), plan, known, database=database)
    assert optuna.load_study(study_name=name, storage=storage).metric_names == ["loss"]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("sampler", ["frontier", "optuna.samplers.QMCSampler"])
def test_any_sampler_of_optuna_searches_by_its_import_path(sampler):
    arguments = "{qmc_type: halton, scramble: true}" if sampler.endswith("QMCSampler") else "{}"
    overrides = (f"search={{sampler: {sampler}, candidates: 2, arguments: {arguments}}}", "training.seeds=1")
    order = drain(search_for(plan_for(*overrides), overrides))
    assert len({(p.budget, p.cell.shape.depth) for p in order}) == len(order) == 10


@pytest.mark.parametrize(
    ("section", "piece"),
    [
        ("{sampler: optuna.samplers.NoSampler, candidates: 2}", "cannot be imported"),
        ("{sampler: no_package.Sampler, candidates: 2}", "No module named 'no_package'"),
        ("{sampler: math.sqrt, candidates: 2}", "not a sampler of Optuna"),
        ("{sampler: tpe, candidates: 2, arguments: {seeed: 1}}", "seeed"),
    ],
)
def test_a_sampler_that_does_not_exist_is_refused(section, piece):
    spec = load_spec(SMALL, [f"search={section}"])
    search = make_search(spec, make_plan(spec), {})
    with pytest.raises(SpecError, match=piece):
        search.take()


@pytest.mark.skipif(importlib.util.find_spec("cmaes") is not None, reason="the package is installed")
def test_a_package_that_a_sampler_misses_when_it_is_asked_is_named():
    overrides = (
        "search={sampler: optuna.samplers.CmaEsSampler, candidates: 6, lr_factors: [0.5, 1]}",
        "training.seeds=1",
    )
    with pytest.raises(SpecError, match=r"CmaEsSampler needs a package that is not installed: .*cmaes"):
        drain(search_for(plan_for(*overrides), overrides))


# The database

ONE_SEED = ("training.seeds=2", "frontier.budgets=[1700, 4900]")


def trials_of(path, budget):
    """By depth, the state, value and attributes of the trials of a budget, read by plain Optuna."""
    study = optuna.load_study(study_name=f"small: N = {budget}", storage=f"sqlite:///{path}")
    return {trial.params["depth"]: trial for trial in study.trials}


def searched(path, sampler, stop=None, known=None, begun=()):
    """Run a search with a database to its end, or until `stop` cells have ended; return the outcomes."""
    section = {
        "grid": "{}",
        "crossing": "{sampler: crossing, max_cells: 14, new_budgets: none}",
        "frontier": "{sampler: frontier, candidates: 2}",
    }[sampler]
    spec = load_spec(SMALL, [f"search={section}", *ONE_SEED])
    plan = make_plan(spec)
    known = dict(known or {})
    search = make_search(spec, plan, known, begun, database=path)
    running = []
    while len(known) != stop:
        while len(running) < 2 and (planned := search.take()):
            running.append(planned)
        if not running:
            search.close()
            break
        planned = running.pop(0)
        known[planned.cell.key] = stub_row(planned, loss_of(planned))
        search.tell(known[planned.cell.key])
    return plan, known, keys(running)


@pytest.mark.parametrize("sampler", ["grid", "crossing", "frontier"])
def test_every_search_leaves_studies_that_plain_optuna_opens(tmp_path, sampler):
    path = tmp_path / "optuna.db"
    plan, known, _ = searched(path, sampler)
    for budget in (1700, 4900):
        found = trials_of(path, budget)
        assert len(found) == (2 if sampler == "frontier" else 3)
        for depth, trial in found.items():
            cells = [p for p in plan.pool if (p.budget, p.cell.shape.depth) == (budget, depth)]
            losses = [known[p.cell.key].loss for p in cells if p.cell.key in known]
            assert trial.state == TrialState.COMPLETE
            assert trial.value == pytest.approx(sum(losses) / len(losses))
            first = cells[0]
            assert trial.user_attrs["width"] == first.cell.shape.width
            assert trial.user_attrs["flops"] == first.flops
            if len(losses) == 2:
                assert trial.user_attrs["loss_se"] == pytest.approx(abs(losses[0] - losses[1]) / 2)


@pytest.mark.parametrize("sampler", ["grid", "crossing", "frontier"])
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.slow
def test_a_killed_driver_goes_on_from_the_rows_and_makes_a_lost_database_again(tmp_path, sampler, lost):
    whole, path = tmp_path / "whole.db", tmp_path / "optuna.db"
    searched(whole, sampler)
    _, known, running = searched(path, sampler, stop=5)
    assert running
    if lost:
        path.unlink()
    searched(path, sampler, known=known, begun=running)
    for budget in (1700, 4900):
        again, wanted = trials_of(path, budget), trials_of(whole, budget)
        assert {t.state for t in again.values()} == {TrialState.COMPLETE}
        assert len(again) == len(wanted)
        for depth in again.keys() & wanted.keys():
            if sampler != "crossing":
                assert again[depth].value == pytest.approx(wanted[depth].value)


def test_a_database_that_sqlite_cannot_use_is_named_before_a_study_needs_it(tmp_path):
    """Such as a damaged one, or one on a file system without locks; the study then runs without."""
    path = tmp_path / "optuna.db"
    assert database_problem(path) is None
    searched(path, "grid", stop=1)
    assert database_problem(path) is None
    content = bytearray(path.read_bytes())
    content[4096:8192] = bytes(4096)
    path.write_bytes(content)
    assert database_problem(path)
    path.write_bytes(b"no database" * 1000)
    assert "not a database" in database_problem(path)
    assert database_problem(tmp_path / "missing" / "optuna.db")


def test_a_finished_study_keeps_its_trials(tmp_path):
    path = tmp_path / "optuna.db"
    _, known, _ = searched(path, "grid")
    before = {depth: trial.datetime_complete for depth, trial in trials_of(path, 1700).items()}
    searched(path, "grid", known=known)
    assert {depth: trial.datetime_complete for depth, trial in trials_of(path, 1700).items()} == before


def test_a_candidate_without_a_loss_is_a_failed_trial(tmp_path):
    path = tmp_path / "optuna.db"
    spec = load_spec(SMALL, ["training.seeds=1", "frontier.budgets=[1700]"])
    plan = make_plan(spec)
    search = make_search(spec, plan, {}, database=path)
    while planned := search.take():
        loss = math.nan if planned.cell.shape.depth == 4 else loss_of(planned)
        search.tell(stub_row(planned, loss))
    states = {depth: trial.state.name for depth, trial in trials_of(path, 1700).items()}
    assert states == {1: "COMPLETE", 2: "COMPLETE", 4: "FAIL"}


def test_a_grid_of_several_numbers_of_tokens_leaves_a_trial_for_each(tmp_path):
    plan = make_plan(load_spec(SMALL, ["training.tokens=[400k, 800k]"]))
    known = {p.cell.key: stub_row(p, loss_of(p)) for p in plan.cells}
    search = make_search(plan.planner.spec, plan, known, database=tmp_path / "optuna.db")
    assert search.done
    study = optuna.load_study(study_name="small: N = 1600", storage=f"sqlite:///{tmp_path / 'optuna.db'}")
    assert len(study.trials) == 6
    assert {trial.params["tokens"] for trial in study.trials} == {p.tokens for p in plan.cells}


def test_a_grid_at_equal_flops_leaves_a_study_for_each_compute_and_a_trial_for_each_size(tmp_path):
    at_flops = ("frontier.flops=[2e9, 8e9]", "training.batch=4", "training.seeds=1")
    plan = make_plan(load_spec(SMALL, at_flops))
    known = {p.cell.key: stub_row(p, loss_of(p)) for p in plan.cells}
    assert make_search(plan.planner.spec, plan, known, database=tmp_path / "optuna.db").done
    for compute in (2e9, 8e9):
        study = optuna.load_study(
            study_name=f"small: C = {compute:g}", storage=f"sqlite:///{tmp_path / 'optuna.db'}"
        )
        assert len(study.trials) == sum(p.compute == compute for p in plan.cells)
