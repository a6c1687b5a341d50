import io
import math

import pytest
from rich.console import Console

from study.plan.plan import make_plan
from study.run.console import Viewer
from study.spec.study import load_spec
from tests.stubs import stub_result
from tests.study.small import SMALL
from trainables.progress import Point, Progress


@pytest.fixture
def plan():
    return make_plan(load_spec(SMALL, ["training.seeds=2"]))


def viewer(plan, **options):
    console = Console(file=io.StringIO(), width=120, force_terminal=False, **options)
    return Viewer(plan, 2, len(plan.cells), console)


def text_of(shown):
    console = Console(file=io.StringIO(), width=120)
    console.print(shown.render())
    return console.file.getvalue()


def progress(share, loss):
    point = Point(step=int(1000 * share), train_loss=loss, lr=0.1, grad_norm=1.0, tokens_per_second=120_000.0)
    return Progress(step=point.step, steps=1000, train_seconds=1.0, points=(point,), evaluations=())


def test_the_table_shows_means_counts_and_running_cells(plan):
    shown = viewer(plan)
    first, second = plan.cells[0], plan.cells[1]
    running = next(p for p in plan.cells if p.cell.shape.depth == 4)
    shown.ended(first, stub_result(loss=0.9))
    shown.ended(second, stub_result(loss=1.0))
    shown.started(running)
    shown.progress(running, progress(0.25, 1.234))
    text = text_of(shown)
    assert "2 of 30 cells" in text
    assert "0.9500 2/2" in text
    assert running.cell.name in text
    assert "loss 1.234" in text
    assert "120k tokens/s" in text


def test_a_cell_of_text_is_shown_with_its_bits_per_byte(plan):
    shown = viewer(plan)
    shown.ended(plan.cells[0], stub_result(loss=2.0, bytes_per_token=4.0))
    assert f"loss 2.0000 ({2 / 4 / math.log(2):.4f} bits per byte)" in shown.console.file.getvalue()


def test_without_a_terminal_each_ended_cell_is_one_line(plan):
    shown = viewer(plan)
    shown.ended(plan.cells[0], stub_result(loss=0.9, train_seconds=4.5))
    shown.ended(plan.cells[1], stub_result(status="diverged", loss=None, reason="the training loss is nan"))
    shown.failed(plan.cells[2], "out of memory [rank0]")
    lines = shown.console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("[1/30] L1-d12-s0")
    assert "loss 0.9000  4.5 s" in lines[0]
    assert "diverged: the training loss is nan" in lines[1]
    assert "out of memory [rank0]" in lines[2]


def test_time_left_is_the_plans_corrected_by_what_was_measured(plan):
    shown = viewer(plan)
    assert shown.seconds_left() is None
    half = plan.cells[: len(plan.cells) // 2]
    for planned in half:
        shown.ended(planned, stub_result(train_seconds=3 * planned.seconds))
    rest = sum(p.seconds for p in plan.cells[len(half) :])
    assert shown.seconds_left() == pytest.approx(3 * rest / 2)


def test_time_left_is_that_of_the_plan_shown_for_cells_of_a_search_made_before_steps_were_timed(plan):
    shown = viewer(make_plan(load_spec(SMALL, ["training.seeds=2", "resources.utilisation=0.01"])))
    slow = {planned.cell.key: planned.seconds for planned in shown.plan.cells}
    first, second, *rest = plan.cells
    assert slow[first.cell.key] > 2 * first.seconds
    shown.ended(first, stub_result(train_seconds=slow[first.cell.key]))
    shown.started(second)
    left = sum(slow[planned.cell.key] for planned in (second, *rest)) / 2
    assert shown.seconds_left() == pytest.approx(left, rel=1e-3)


def test_time_left_counts_every_rank_of_a_cell():
    plan = make_plan(load_spec(SMALL, ["resources.slots=2", "resources.tensor_parallel=2"]))
    shown = viewer(plan)
    first = plan.cells[0]
    shown.ended(first, stub_result(train_seconds=first.seconds))
    # A cell takes both slots, so the cells come one after another.
    assert shown.seconds_left() == pytest.approx(sum(p.seconds for p in plan.cells[1:]))


def test_time_left_of_a_search_counts_only_the_cells_it_will_try(plan):
    shown = Viewer(plan, 1, 10, Console(file=io.StringIO()))
    planned = plan.cells[0]
    shown.ended(planned, stub_result(train_seconds=planned.seconds))
    rest = [p.seconds for p in plan.cells[1:]]
    assert shown.seconds_left() == pytest.approx(9 * sum(rest) / len(rest))


def test_time_left_counts_a_cell_once_however_it_went(plan):
    shown = viewer(plan)
    first, second, third, fourth = plan.cells[:4]
    shown.add_finished({first.cell.key: 0.9})
    shown.started(second)
    shown.retried(second, "the process died")
    shown.started(second)
    shown.ended(second, stub_result(loss=0.8, train_seconds=second.seconds))
    shown.started(third)
    shown.failed(third, "out of memory")
    shown.started(fourth)
    rest = sum(p.seconds for p in plan.cells[3:])
    # Two slots share what is left; the cell that has just begun has measured nothing to speak of.
    assert shown.seconds_left() == pytest.approx(rest / 2, rel=1e-3)
    assert shown.count == 3


def test_the_table_of_a_search_has_the_cells_it_tried_and_that_of_a_grid_all():
    search = ["search={sampler: crossing, max_cells: 9}"]
    first, again = (make_plan(load_spec(SMALL, overrides)) for overrides in ([], search))
    for plan, count in ((first, 3), (again, 2)):
        shown = viewer(plan)
        a, b, *_ = [p for p in plan.cells if p.cell.shape == plan.cells[0].cell.shape]
        shown.started(a)
        shown.ended(a, stub_result(loss=0.9))
        shown.started(b)
        shown.retried(b, "the machine was lost")
        shown.started(b)
        assert f"0.9000 1/{count}" in text_of(shown)


def test_what_ends_of_an_arm_is_in_no_mean(plan):
    planned = plan.cells[0]
    sensitivity_run = plan.planned_for(planned.cell.shape, planned.budget, 2.0, 0, "sensitivity")
    shown = viewer(plan)
    shown.ended(planned, stub_result(loss=0.9))
    shown.started(sensitivity_run)
    shown.ended(sensitivity_run, stub_result(loss=0.1))
    assert "0.9000 1/2" in text_of(shown)
    assert shown.count == 2


def test_of_many_running_cells_the_first_are_shown_and_the_others_counted(plan):
    shown = viewer(plan)
    for planned in plan.cells:
        shown.started(planned)
    text = text_of(shown)
    # Five budgets are five lines of the 24.
    assert text.count("starting") == 19
    assert "and 11 more" in text
