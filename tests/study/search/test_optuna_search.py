import math

import optuna
import pytest

from study.plan.plan import make_plan
from study.search import Outcome, make_search
from study.search.optuna_search import CandidateSearch
from study.spec.study import load_spec
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
        search.tell(planned.cell.key, Outcome(loss(planned)))


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
    known = {plan.cells[0].cell.key: Outcome(0.9), plan.cells[4].cell.key: Outcome(None)}
    order = drain(search_for(plan, known=known))
    assert len(order) == 43
    assert not set(known) & set(keys(order))


def test_a_finished_study_has_nothing_to_give():
    plan = plan_for()
    known = {p.cell.key: Outcome(loss_of(p)) for p in plan.cells}
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


def test_tpe_finds_the_best_candidate_of_a_known_landscape():
    overrides = (
        "search.sampler=tpe",
        "search.candidates=10",
        "search.lr_factors=[0.25,0.5,1,2,4]",
        "training.seeds=1",
    )
    order = drain(search_for(plan_for(*overrides), overrides), slots=1)
    found = 0
    for budget in {p.budget for p in order}:
        best = min((p for p in order if p.budget == budget), key=loss_of)
        found += (best.cell.shape.depth, best.lr_factor) == (2, 1.0)
    # 10 of 15 candidates by chance would find it in two of three budgets; the sampler in all five but one at most.
    assert found >= 4


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
            known[planned.cell.key] = Outcome(loss_of(planned))
            first.tell(planned.cell.key, known[planned.cell.key])
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


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_killed_adaptive_search_asks_for_the_very_cells_it_would_have(sampler, slots):
    overrides = (
        f"search.sampler={sampler}", "search.candidates=5", "search.lr_factors=[0.5,1,2]", "training.seeds=2",
    )  # fmt: skip
    plan = plan_for(*overrides)
    spec = load_spec(SMALL, overrides)
    whole = keys(drain(search_for(plan, overrides), slots))
    assert len(whole) == 50
    for cut in range(1, 50, 8):
        search, running, known, given = search_for(plan, overrides), [], {}, []
        while len(known) < cut:
            while len(running) < slots and (planned := search.take()):
                running.append(planned)
                given.append(planned)
            planned = running.pop(0)
            known[planned.cell.key] = Outcome(loss_of(planned))
            search.tell(planned.cell.key, known[planned.cell.key])
        again = make_search(spec, plan, known, keys(running))
        assert keys(drain(again, slots)) == keys(running) + whole[len(given) :]


def test_optuna_hears_the_mean_loss_of_each_candidate_and_which_failed_or_run():
    plan = plan_for("training.seeds=2", "frontier.budgets=[1700]", "search.lr_factors=[1, 2]")
    heard = []

    class Listening(optuna.samplers.RandomSampler):
        def infer_relative_search_space(self, study, trial):
            heard[:] = heard or [(t.params["depth_rank"], t.state.name, t.value) for t in study.trials[:-1]]
            return {}

    lost = {(2, 1), (4, 0), (4, 1)}
    known = {
        p.cell.key: Outcome(None if (p.cell.shape.depth, p.cell.seed) in lost else loss_of(p))
        for p in plan.cells
        if p.lr_factor == 1 and (p.cell.shape.depth, p.cell.seed) != (1, 0)
    }
    search = CandidateSearch(plan, known, (), 0, 6, lambda seed, startup: Listening(seed))
    assert (search.take().cell.name, heard) == ("L1-d12-s0", [])
    search.take()
    assert heard == [(0, "RUNNING", None), (1, "COMPLETE", 1.0), (2, "FAIL", None)]
