import io

import pytest
from rich.console import Console

from study.console import Board, Viewer
from study.plan import make_plan
from study.spec import load_spec
from tests.stubs import stub_result
from tests.study.small import SMALL
from trainables.progress import Point, Progress


@pytest.fixture
def plan():
    return make_plan(load_spec(SMALL, ["training.seeds=2"]))


def viewer(plan, **options):
    console = Console(file=io.StringIO(), width=120, force_terminal=False, **options)
    return Viewer(Board(plan, 2, len(plan.cells)), console)


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


def test_without_a_terminal_each_ended_cell_is_one_line(plan):
    shown = viewer(plan)
    with shown:
        shown.ended(plan.cells[0], stub_result(loss=0.9, train_seconds=4.5))
        shown.ended(
            plan.cells[1], stub_result(status="diverged", loss=None, reason="the training loss is nan")
        )
        shown.failed(plan.cells[2], "out of memory [rank0]")
    lines = shown.console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("[1/30] L1-d12-s0")
    assert "loss 0.9000  4.5 s" in lines[0]
    assert "diverged: the training loss is nan" in lines[1]
    assert "out of memory [rank0]" in lines[2]


def test_time_left_is_the_plans_corrected_by_what_was_measured(plan):
    board = viewer(plan).board
    assert board.seconds_left() is None
    half = plan.cells[: len(plan.cells) // 2]
    for planned in half:
        board.losses[planned.cell.key] = 1.0
        board.measured += 3 * planned.seconds
        board.estimated += planned.seconds
    rest = sum(p.seconds for p in plan.cells[len(half) :])
    assert board.seconds_left() == pytest.approx(3 * rest / 2)


def test_time_left_counts_every_rank_of_a_cell():
    plan = make_plan(load_spec(SMALL, ["resources.slots=2", "resources.tensor_parallel=2"]))
    board = Board(plan, plan.slots, len(plan.cells))
    first = plan.cells[0]
    board.losses[first.cell.key] = 1.0
    board.measured = board.estimated = first.seconds
    # A cell takes both slots, so the cells come one after another.
    assert board.seconds_left() == pytest.approx(sum(p.seconds for p in plan.cells[1:]))


def test_time_left_of_a_search_counts_only_the_cells_it_will_try(plan):
    board = Board(plan, 1, total=10)
    planned = plan.cells[0]
    board.losses[planned.cell.key] = 1.0
    board.measured = board.estimated = planned.seconds
    rest = [p.seconds for p in plan.cells[1:]]
    assert board.seconds_left() == pytest.approx(9 * sum(rest) / len(rest))
