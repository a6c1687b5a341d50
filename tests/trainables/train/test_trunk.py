"""Cells that continue from a trunk against the same cells trained alone: equal to the bit."""

import pytest

from tests.trainables.checkpoint.test_checkpoint import ONE, StoppedError, cell, named
from trainables.cell import Recipe
from trainables.checkpoint import checkpoint
from trainables.checkpoint.checkpoint import Segment, TrainingState
from trainables.layout import Layout
from trainables.progress import Evaluation
from trainables.ranks.process_group import leave
from trainables.record import Keep
from trainables.storage.storage import discard, open_storage
from trainables.train import trunk
from trainables.train.loop import train
from trainables.train.trunk import CurveSteps, Trunk, branched

#: Four numbers of tokens, 1 to 8 times; the decays begin after 8, 16, 32 and 64 steps.
LENGTHS = (10, 20, 40, 80)
LAYOUTS = [
    (Layout(), {"dropout": 0.1}),
    (Layout(tensor_parallel=2, zero=1), {}),
    (Layout(data_parallel=2, zero=1), {"dropout": 0.1}),
]


def branch(steps, **recipe):
    return cell(steps=steps, schedule="wsd", warmup_steps=3, **recipe)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def train_rank(
    one, root, layout, folder=None, weights=None, stop=None, lengths=LENGTHS, rank_info=None, rendezvous=None
):
    """Train on one rank, saving at every step; with `stop`, end at that save, complete or not."""
    save, saves = checkpoint.save, 0

    def save_and_stop(*args):
        nonlocal saves
        saved = save(*args)
        saves += 1
        if stop and saves == stop[0]:
            if stop[1]:
                saved.finish()
            raise StoppedError
        return saved

    checkpoint.save = save_and_stop
    try:
        return train(
            one,
            data_root=root,
            layout=layout,
            checkpoints=folder and folder / one.key,
            checkpoint_every=0,
            trunk=folder and Trunk(folder / "trunk", lengths),
            weights=weights,
            rank_info=rank_info,
            rendezvous=rendezvous,
        )
    except StoppedError:
        return None
    finally:
        checkpoint.save = save
        if rank_info is not None:
            leave()


def run(pool, one, root, layout, *more):
    """The result of rank 0, in this process where it is the only one."""
    if layout.ranks == 1:
        return train_rank(one, root, layout, *more)
    return pool.gang(layout.ranks, train_rank, one, root, layout, *more)[0]


def numbers(result):
    points = [(p.step, p.train_loss, p.lr, p.grad_norm) for p in result.points]
    return result.loss, [(e.step, e.loss) for e in result.evaluations], points


def trunk_steps(folder):
    return sorted(int(tag.split("-")[1]) for tag in open_storage(folder / "trunk").tags())


@pytest.mark.slow
@pytest.mark.parametrize("case", LAYOUTS, ids=named)
def test_branches_equal_the_same_cells_trained_alone_to_the_bit(ranks, root, tmp_path, case):
    layout, recipe = case
    results = [run(ranks, branch(steps, **recipe), root, layout, tmp_path) for steps in LENGTHS]
    assert [result.trunk_steps for result in results] == [0, 8, 16, 32]
    assert trunk_steps(tmp_path) == [8, 16, 32]
    for steps, result in zip(LENGTHS, results, strict=True):
        alone = run(ranks, branch(steps, **recipe), root, layout)
        assert numbers(result) == numbers(alone)
        assert result.notes == alone.notes == ()
    trained = sum(result.step - result.trunk_steps for result in results)
    assert trained / LENGTHS[-1] <= 1.4


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE[1:], ids=named)
def test_weights_of_a_branch_equal_those_of_the_cell_trained_alone(root, tmp_path, case):
    layout, recipe = case
    short, long = (branch(steps, **recipe) for steps in (20, 40))
    run(None, short, root, layout, tmp_path)
    result = run(None, long, root, layout, tmp_path, Keep(tmp_path / "branch"))
    alone = run(None, long, root, layout, None, Keep(tmp_path / "alone"))
    assert (result.trunk_steps, numbers(result)) == (16, numbers(alone))
    names = {path.name for path in (tmp_path / "alone").glob("*.safetensors")}
    assert names
    assert all(
        (tmp_path / "branch" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
        for name in names
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "stop", "resumed_from"),
    [
        (20, (6, True), 6),
        (20, (16, False), 15),
        (20, (16, True), 15),
        (20, (19, True), 18),
        (40, (1, False), 16),
        (40, (1, True), 17),
    ],
    ids=[
        "in the trunk",
        "in its save",
        "after its save",
        "in the decay",
        "in the first save",
        "after the branch",
    ],
)
def test_a_cell_that_is_killed_anywhere_goes_on_to_the_same_bits(root, tmp_path, killed, stop, resumed_from):
    lengths = (20, 40)
    for steps in lengths:
        one = branch(steps, dropout=0.1)
        if steps == killed:
            assert train_rank(one, root, Layout(), tmp_path, None, stop, lengths) is None
        result = train_rank(one, root, Layout(), tmp_path, None, None, lengths)
        assert result.resumed_from == {20: 0, 40: 16}[steps] if steps != killed else resumed_from
        assert result.trunk_steps == {20: 0, 40: 16}[steps]
        assert numbers(result) == numbers(train_rank(one, root, Layout()))
    assert trunk_steps(tmp_path) == [16]


@pytest.mark.slow
def test_a_trunk_continues_in_another_layout(ranks, root, tmp_path):
    layout = Layout(tensor_parallel=2, zero=1)
    run(ranks, branch(20), root, Layout(), tmp_path)
    result, alone = run(ranks, branch(40), root, layout, tmp_path), run(ranks, branch(40), root, layout)
    assert result.trunk_steps == 16
    assert result.notes == ("resumed at step 16 from a checkpoint of another layout",)
    losses = [[point.train_loss for point in one.points] for one in (result, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-6)
    assert result.loss == pytest.approx(alone.loss, rel=2e-6)


@pytest.mark.slow
def test_a_trunk_that_is_damaged_or_of_other_lengths_is_not_used_and_changes_no_bit(root, tmp_path):
    train_rank(branch(20), root, Layout(), tmp_path, None, None, (20, 40))
    # Evaluated for 20 and 40 steps alone: a cell of 56 has an evaluation after 14.
    longest = train_rank(branch(56), root, Layout(), tmp_path, None, None, (20, 40, 56))
    assert (longest.trunk_steps, longest.notes) == (0, ())
    for path in (tmp_path / "trunk").glob("*/*model_states.pt"):
        path.write_bytes(path.read_bytes()[:-1])
    damaged = train_rank(branch(40), root, Layout(), tmp_path, None, None, (20, 40))
    assert (damaged.trunk_steps, len(damaged.notes)) == (0, 1)
    assert "was skipped" in damaged.notes[0]
    assert numbers(damaged) == numbers(train_rank(branch(40), root, Layout()))


@pytest.mark.slow
def test_a_longer_cell_beside_a_shorter_one_trains_alone(root, tmp_path):
    # The shorter one is at its save for longer cells, whose checkpoint is not complete.
    assert train_rank(branch(20), root, Layout(), tmp_path, None, (16, False), (20, 40)) is None
    beside = train_rank(branch(40), root, Layout(), tmp_path, None, None, (20, 40))
    assert beside.trunk_steps == 0
    assert len(beside.notes) == 1
    assert "it was not finished" in beside.notes[0]
    assert numbers(beside) == numbers(train_rank(branch(40), root, Layout()))
    short = train_rank(branch(20), root, Layout(), tmp_path, None, None, (20, 40))
    assert numbers(short) == numbers(train_rank(branch(20), root, Layout()))


@pytest.mark.slow
def test_points_over_several_steps_equal_those_of_the_cell_trained_alone(root, tmp_path, monkeypatch):
    # Windows of 7 and 13 steps, and a trunk that ends after 30.
    monkeypatch.setattr(trunk, "CURVE_POINTS", 5)
    lengths = (38, 65)
    results = [train_rank(branch(steps), root, Layout(), tmp_path, None, None, lengths) for steps in lengths]
    alone = [train_rank(branch(steps), root, Layout()) for steps in lengths]
    assert [result.trunk_steps for result in results] == [0, 30]
    assert [point.step for point in alone[1].points] == [13, 16, 26, 32, 39, 49, 52, 65]
    assert [numbers(result) for result in results] == [numbers(result) for result in alone]


@pytest.mark.slow
def test_a_trunk_may_lie_in_an_object_store(root):
    shared = Trunk("memory://wsd/trunk", (20, 40))
    short, long = (train(branch(steps), data_root=root, trunk=shared) for steps in shared.lengths)
    assert (short.trunk_steps, long.trunk_steps) == (0, 16)
    assert numbers(long) == numbers(train(branch(40), data_root=root))
    discard(shared.folder)
    assert open_storage(shared.folder).tags() == []


def test_a_cell_prepares_the_points_and_evaluations_of_longer_cells_until_its_decay():
    def steps_of(steps, lengths):
        recipe = Recipe(steps=steps, batch=1, context=2, schedule="wsd", warmup_steps=10)
        return CurveSteps.of(recipe, 4, Trunk("trunk", lengths))

    short, long = (steps_of(steps, (600, 900)) for steps in (600, 900))
    assert (short.trunk_end, long.trunk_end) == (480, 0)
    assert short.evaluations == {150, 300, 450, 600}
    assert short.longer_evaluations == {225}
    assert {step for step in long.points | long.evaluations if step <= 480} <= set(short.ends)
    assert set(long.ends) == long.points
    assert steps_of(600, (300, 600)) == steps_of(600, (600,)), "shorter cells need nothing"
    assert [short.end_after(step) for step in (0, 10, 479, 599)] == [10, 15, 480, 600]


def _state(step, ends, evaluated, losses=(1.0,)):
    parts = [
        Segment(step=end, loss=losses[min(i, len(losses) - 1)], seconds=1.0, lr=0.1, grad_norm=1.0)
        for i, end in enumerate(ends)
    ]
    items = [Evaluation(step=at, loss=1.0) for at in evaluated]
    return TrainingState(cell="t", step=step, segments=parts, longer_evaluations=items, train_seconds=9.0)


def test_a_trunk_is_taken_only_if_it_has_what_the_cell_trained_alone_would_have():
    one = branch(20)
    curve = CurveSteps.of(one.recipe, 2, Trunk("trunk", (12, 20)))
    ends = range(1, 11)
    taken = branched(one, curve, _state(10, ends, [10]), 1)
    assert (taken.step, taken.trunk_steps, taken.train_seconds, taken.cell) == (10, 10, 0.0, one.key)
    assert [point.step for point in taken.points] == list(ends)
    assert [item.step for item in taken.evaluations] == [10]
    assert branched(one, curve, _state(17, range(1, 18), [10]), 1) is None, "its decay begins after 16"
    assert branched(one, curve, _state(10, ends, []), 1) is None
    assert branched(one, curve, _state(10, [2, 4, 6, 8, 10], [10]), 1) is None
    assert branched(one, curve, _state(10, ends, [10], [1.0, 2.1]), 1) is None, "alone it diverges"
