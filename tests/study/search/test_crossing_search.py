"""The sampler crossing: what it asks, what ends it, and that it goes on from the run table alone."""

import itertools
import math

import numpy as np
import pytest
from rich.console import Console

from analysis.design.next_cells import LOST_RUNS
from analysis.design.objective import estimate_sentence
from analysis.design.simulated_study import Truth
from study.plan.plan import make_plan
from study.run.console import Viewer
from study.run.recorder import Recorder
from study.search import crossing_search as crossing
from study.search import make_search
from study.search.crossing_search import checks, group_of
from study.spec.study import load_spec
from study.tracking.study_paths import StudyPaths
from tests.stubs import stub_result, stub_row
from tests.study.small import SMALL

TRUTH = Truth(a=2.4, b=0.28, depths=(1, 2, 4), asymptote=0.72, drop=0.2, noise=0.003, slope=0.05)


def study_of(search, *overrides):
    spec = load_spec(SMALL, [f"search={{sampler: crossing, {search}}}", *overrides])
    return spec, make_plan(spec)


def loss_of(planned):
    """A landscape with known crossings, and noise that belongs to the cell."""
    shape, seed = planned.cell.shape, planned.cell.seed
    shared = np.random.default_rng([seed]).standard_normal()
    own = np.random.default_rng([seed, shape.depth, shape.width]).standard_normal()
    noise = math.sqrt(TRUTH.shared) * shared + math.sqrt(1 - TRUTH.shared) * own
    return float(TRUTH.loss(shape.depth, shape.budget_params) * (1 + TRUTH.noise * noise))


def outcome_of(planned):
    return stub_row(planned, loss_of(planned))


def drain(search, workers, outcome=outcome_of, stop=None, order=()):
    """Run the search with so many trials side by side, up to `stop` ended ones; return given, ended and running.

    Cells do not end in the order in which they began: they end as in `order`, where that has them.
    """
    given, ended, running = [], [], []
    while True:
        while len(running) < workers and (planned := search.take()):
            given.append(planned)
            running.append(planned)
        if not running or len(ended) == stop:
            assert running or search.done
            return given, ended, running
        next_one = len(ended) % len(running)
        if places := [order.index(key) for key in keys(running) if key in order]:
            next_one = keys(running).index(order[min(places)])
        planned = running.pop(next_one)
        ended.append(planned)
        search.tell(outcome(planned))


def keys(cells):
    return [planned.cell.key for planned in cells]


def counted(monkeypatch, module, name):
    """Count the calls of a module's function."""
    calls, real = [], getattr(module, name)

    def call(*args, **options):
        calls.append(args)
        return real(*args, **options)

    monkeypatch.setattr(module, name, call)
    return calls


@pytest.fixture(scope="module")
def whole():
    """A search with three workers to its end: spec, plan, and the cells in the order they were given and ended."""
    spec, plan = study_of("max_cells: 26")
    given, ended, _ = drain(make_search(spec, plan, {}, workers=3), 3)
    return spec, plan, given, ended


def test_a_search_gives_as_many_cells_as_allowed_none_twice_and_some_of_new_budgets(whole):
    _, plan, given, ended = whole
    assert len(given) == len(ended) == len(set(keys(given))) == 26
    assert set(keys(given)) <= {p.cell.key for p in plan.pool}
    assert not set(keys(given)) <= {p.cell.key for p in plan.cells}
    assert {p.cell.shape.depth for p in given[:6]} == {1, 2, 4}


def test_equal_searches_give_equal_cells(whole):
    spec, plan, given, _ = whole
    again, _, _ = drain(make_search(spec, plan, {}, workers=3), 3, stop=20)
    assert keys(again) == keys(given)[: len(again)]


@pytest.mark.slow
@pytest.mark.parametrize("cut", [7, 21])
def test_a_killed_search_goes_on_from_the_rows_in_their_order_and_the_cells_that_ran(whole, cut):
    spec, plan, given, ended = whole
    first, done, running = drain(make_search(spec, plan, {}, workers=3), 3, stop=cut)
    assert keys(done) == keys(ended)[:cut]
    known = {p.cell.key: outcome_of(p) for p in done}
    again, _, _ = drain(make_search(spec, plan, known, keys(running), workers=3), 3, order=keys(ended))
    assert keys(again[: len(running)]) == keys(running)
    assert keys(again[len(running) :]) == keys(given[len(first) :])


def with_divergence(planned):
    """Some cells diverge, which leaves FLOPs for others."""
    return stub_row(planned, None, 0.3) if planned.cell.shape.width % 7 == 1 else outcome_of(planned)


def assert_it_goes_on(spec, plan, workers, outcome, cuts):
    """A search that is cut off after each of so many ended cells gives what the whole one did."""
    given, ended, _ = drain(make_search(spec, plan, {}, workers=workers), workers, outcome)
    for cut in (cut for cut in cuts if cut < len(ended)):
        first, done, running = drain(make_search(spec, plan, {}, workers=workers), workers, outcome, stop=cut)
        known = {p.cell.key: outcome(p) for p in done}
        search = make_search(spec, plan, known, keys(running), workers=workers)
        again, _, _ = drain(search, workers, outcome, order=keys(ended))
        assert keys(again) == keys(running) + keys(given[len(first) :]), cut


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 8])
def test_a_killed_search_goes_on_wherever_it_was_cut(workers):
    assert_it_goes_on(*study_of("max_cells: 48"), workers, outcome_of, range(1, 40, 6))


@pytest.mark.slow
@pytest.mark.parametrize("flops", ["5e11", "8e11"])
@pytest.mark.parametrize("outcome", [outcome_of, with_divergence])
def test_a_killed_search_goes_on_where_its_flops_run_out(flops, outcome):
    """Which cells it can still afford changes while a group of eight is not whole yet."""
    assert_it_goes_on(*study_of(f"max_flops: {flops}"), 8, outcome, range(5, 100, 4))


def test_a_finished_search_has_nothing_to_give_and_says_why(whole):
    spec, plan, _, ended = whole
    search = make_search(spec, plan, {p.cell.key: outcome_of(p) for p in ended}, workers=3)
    assert search.done
    assert search.take() is None
    assert (search.ending.limit, search.ending.words) == ("max_cells", "the limit of 26 cells is reached.")


def test_failed_cells_come_first_again_even_after_the_end(whole):
    spec, plan, _, ended = whole
    known = {p.cell.key: outcome_of(p) for p in ended[:-2]}
    search = make_search(spec, plan, known, keys(ended[-2:]), workers=3)
    assert search.ending.limit == "max_cells"
    assert not search.done
    assert [search.take(), search.take(), search.take()] == [*ended[-2:], None]
    assert search.done


def test_the_flops_of_a_search_stay_within_their_limit():
    spec, plan = study_of("max_flops: 5e11")
    search = make_search(spec, plan, {}, workers=4)
    given, _, _ = drain(search, 4)
    spent = sum(p.flops for p in given)
    left = [p.flops for p in plan.pool if p.cell.key not in set(keys(given))]
    assert spent <= 5e11 < spent + min(left)
    assert search.ending.limit == "max_flops"
    assert search.ending.words == "no other cell fits into 500G training FLOPs."


@pytest.mark.slow
def test_a_certainty_ends_a_search_before_its_cells_do_and_ends_it_again():
    spec, plan = study_of("halfwidth: 0.5, max_cells: 150")
    search = make_search(spec, plan, {}, workers=2)
    given, ended, _ = drain(search, 2)
    assert search.ending.limit == "halfwidth"
    assert len(given) < 150
    assert "±50 % was asked for" in search.ending.words
    state = search.state()
    assert state.estimate.halfwidth <= 0.5
    assert state.flops == pytest.approx(sum(p.flops for p in given))
    for workers in (2, 16):
        again = make_search(spec, plan, {p.cell.key: outcome_of(p) for p in ended}, workers=workers)
        assert again.done, "on another machine too"
        assert again.ending == search.ending


def test_a_search_ends_when_every_cell_is_tried():
    spec, plan = study_of(
        "max_seeds: 1, new_budgets: none, max_cells: 1000",
        "training.seeds=1",
        "frontier.budgets=[1700, 4000]",
    )
    search = make_search(spec, plan, {}, workers=2)
    given, _, _ = drain(search, 2)
    assert sorted(keys(given)) == sorted(keys(plan.pool))
    assert (search.ending.limit, search.done) == ("options", True)


@pytest.mark.parametrize("kind", ["diverged", "failed"])
def test_only_cells_that_diverged_give_their_shape_up(kind):
    spec, plan = study_of("max_cells: 24")
    search = make_search(spec, plan, {}, workers=1)
    first = search.take()
    search.tell(stub_row(first, None, status=kind))

    def outcome(planned):
        return (
            stub_row(planned, None, status=kind)
            if planned.cell.shape == first.cell.shape
            else outcome_of(planned)
        )

    given, _, _ = drain(search, 1, outcome)
    assert len({first.cell.key, *keys(given)}) == 24, "none is given twice"
    lost = [row for row in search._rows if row.status != "done"]
    assert {row.status for row in lost} == {kind}
    if kind == "diverged":
        assert len(lost) == LOST_RUNS
    else:
        assert len(lost) > LOST_RUNS, "a failure says nothing of the shape"


def test_sensitivity_runs_are_no_cells_of_the_search():
    spec, plan = study_of("max_cells: 12")
    first = plan.cells[0]
    sensitivity_runs = [
        plan.planned_for(first.cell.shape, first.budget, factor, 0, "sensitivity") for factor in (0.5, 2)
    ]
    known = {
        sensitivity_runs[0].cell.key: stub_row(sensitivity_runs[0], 0.9),
        first.cell.key: outcome_of(first),
    }
    search = make_search(spec, plan, known, [sensitivity_runs[1].cell.key])
    given, _, _ = drain(search, 1)
    assert len(given) == 11
    assert not {p.cell.key for p in sensitivity_runs} & set(keys(given))


@pytest.mark.parametrize(
    ("loss", "share", "status", "kind"),
    [
        (0.9, 1.0, "done", "done"),
        (None, 1.0, "diverged", "diverged"),
        (math.inf, 1.0, "done", "diverged"),
        (None, 0.5, "diverged", "diverged"),
        (None, 1.0, "failed", "failed"),
    ],
)
def test_how_a_cell_ended_reaches_the_estimate(loss, share, status, kind):
    spec, plan = study_of("max_cells: 12")
    search = make_search(spec, plan, {})
    planned = search.take()
    search.tell(stub_row(planned, loss, share, status))
    table = search._table(1)
    (row,) = table.frame.to_dict("records")
    assert row["status"] == kind
    assert len(table.used) == (kind == "done")
    assert search.state().flops == pytest.approx(planned.flops * share)


def test_what_is_known_is_news_at_the_checks():
    spec, plan = study_of("max_cells: 30")
    search = make_search(spec, plan, {}, workers=1)
    assert search.news() is None
    told = []
    while (planned := search.take()) and len(told) < 8:
        search.tell(outcome_of(planned))
        told.append(search.news())
    assert [news.cells for news in told] == list(range(1, 9))


def test_checks_are_a_share_of_the_cells_apart():
    assert checks(5) == [1, 2, 3, 4, 5]
    found = checks(1000)
    assert all(later - sooner == max(1, sooner // 20) for sooner, later in itertools.pairwise(found))
    assert len(checks(100_000)) < 250


def test_a_search_plans_once_a_group_of_cells_and_alone_after_each():
    assert [group_of(workers) for workers in (1, 2, 4, 7, 8, 15, 16, 32, 64)] == [1, 1, 2, 3, 8, 8, 8, 16, 32]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "most"), [(1, 101), (8, 14), (32, 8)])
def test_how_often_a_search_plans_follows_from_its_workers(workers, most, monkeypatch):
    spec, plan = study_of("max_cells: 100")
    plans = counted(monkeypatch, crossing, "propose")
    search = make_search(spec, plan, {}, workers=workers)
    running = [search.take() for _ in range(workers)]
    for _ in range(100 - workers):
        planned = running.pop(0)
        search.tell(outcome_of(planned))
        search.news()
        running.append(search.take())
    assert most // 2 < len(plans) <= most


@pytest.mark.slow
def test_what_a_cell_costs_a_search_does_not_grow_with_the_cells(monkeypatch):
    spec, plan = study_of("max_cells: 100, halfwidth: 1e-6")
    tables, judged = counted(monkeypatch, crossing, "run_table"), counted(monkeypatch, crossing, "reached")
    plans = counted(monkeypatch, crossing, "propose")
    estimates = counted(monkeypatch, crossing, "estimate")
    search = make_search(spec, plan, {}, workers=16)
    given, _, _ = drain(search, 16)
    search.state()
    assert len(given) == 100
    assert len(tables) <= len(estimates) + len(plans), "a table is made once for each estimate or choice"
    assert max(len(estimates), len(judged)) <= len(checks(100)), "a check is made once"


def test_flops_that_running_cells_leave_over_are_spent_and_a_finished_search_stays_finished():
    spec, plan = study_of("max_flops: 3e11")
    outcome = with_divergence
    search = make_search(spec, plan, {}, workers=4)
    given, ended, _ = drain(search, 4, outcome)
    spent = sum(p.flops * outcome(p).trained_share for p in given)
    left = [p.flops for p in plan.pool if p.cell.key not in set(keys(given))]
    assert spent <= 3e11 < spent + min(left)
    assert search.ending.limit == "max_flops"
    for workers in (1, 32):
        again = make_search(spec, plan, {p.cell.key: outcome(p) for p in ended}, workers=workers)
        assert again.done
        assert again.ending == search.ending
    assert_it_goes_on(spec, plan, 4, outcome, (len(ended) - 9, len(ended) - 3))


class Heard:
    """A tracker that sends nothing and remembers all rows."""

    def __init__(self):
        self.rows = []

    def ended(self, row):
        self.rows.append(row)


def test_the_screen_shows_each_new_estimate_of_a_search_and_rows_have_an_order(tmp_path):
    spec, plan = study_of("max_cells: 22")
    search, heard, notes = make_search(spec, plan, {}), Heard(), {}
    shown = Viewer(plan, 1, 22, Console(quiet=True), search)
    paths = StudyPaths(tmp_path, "small")
    paths.folder.mkdir()
    listener = Recorder(plan, {}, heard, paths)
    while planned := search.take():
        result = stub_result(loss=loss_of(planned))
        search.tell(listener.ended(planned, result))
        shown.note = ""
        shown.ended(planned, result)
        if shown.note:
            notes[shown.count] = shown.note
    assert list(notes) == list(checks(22))
    assert notes[22] == estimate_sentence(search.state().estimate)
    ends = [row.ended for row in heard.rows]
    assert ends == sorted(set(ends))
