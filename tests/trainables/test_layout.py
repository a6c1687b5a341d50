import pytest
from pydantic import ValidationError

from core.errors import InputError
from trainables.cell import Recipe, Shape
from trainables.layout import Layout, default_zero


def recipe(batch=24, **changes):
    return Recipe(steps=10, batch=batch, context=8, **changes)


def shape(heads):
    return Shape(depth=2, width=12 * heads, heads=heads)


@pytest.mark.parametrize(
    ("layout", "ranks", "share", "sequences", "pieces"),
    [
        (Layout(), 1, 24, 24, 1),
        (Layout(micro_batch=24), 1, 24, 24, 1),
        (Layout(micro_batch=8), 1, 24, 8, 3),
        (Layout(micro_batch=1), 1, 24, 1, 24),
        (Layout(tensor_parallel=4), 4, 24, 24, 1),
        (Layout(data_parallel=3), 3, 8, 8, 1),
        (Layout(tensor_parallel=2, data_parallel=3, micro_batch=2), 6, 8, 2, 4),
        (Layout(data_parallel=24), 24, 1, 1, 1),
    ],
)
def test_a_step_is_shared_among_groups_and_cut_into_pieces(layout, ranks, share, sequences, pieces):
    one = recipe()
    assert layout.ranks == ranks
    assert (layout.share(one), layout.sequences(one), layout.pieces(one)) == (share, sequences, pieces)
    assert layout.pieces(one) * layout.sequences(one) * layout.data_parallel == one.batch
    layout.check(shape(heads=4), one)


@pytest.mark.parametrize(
    ("layout", "heads", "changes", "words"),
    [
        (
            Layout(tensor_parallel=4),
            2,
            {},
            ["tensor_parallel 4", "the 2 heads", "depth 2, width 24", "divisor of 2", "head_dim"],
        ),
        (Layout(tensor_parallel=2), 3, {}, ["tensor_parallel 2", "the 3 heads", "divisor of 3", "head_dim"]),
        (Layout(data_parallel=5), 4, {}, ["data_parallel 5", "batch of 24", "divisor of 24"]),
        (Layout(data_parallel=48), 4, {}, ["data_parallel 48", "batch of 24", "divisor of 24"]),
        (Layout(micro_batch=7), 4, {}, ["micro_batch 7", "the 24 sequences", "divisor of 24"]),
        (
            Layout(data_parallel=2, micro_batch=8),
            4,
            {},
            ["micro_batch 8", "the 12 sequences", "batch of 24 over data_parallel 2", "divisor of 12"],
        ),
        (
            Layout(compiled=True, tensor_parallel=2, shard_vocabulary=True),
            4,
            {},
            ["`shard_vocabulary`", "`compiled`"],
        ),
        (Layout(micro_batch=48), 4, {}, ["micro_batch 48", "the 24 sequences", "divisor of 24"]),
    ],
)
def test_a_layout_a_cell_cannot_be_trained_in_is_refused_with_both_numbers_and_the_way_out(
    layout, heads, changes, words
):
    with pytest.raises(InputError) as error:
        layout.check(shape(heads), recipe(**changes))
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"tensor_parallel": 0}, "greater than or equal to 1"),
        ({"data_parallel": -1}, "greater than or equal to 1"),
        ({"micro_batch": 0}, "greater than or equal to 1"),
        ({"zero": 4}, "0, 1, 2 or 3"),
        ({"pipeline_parallel": 2}, "Extra inputs"),
        ({"shard_vocabulary": True}, "there is only one"),
        ({"shard_vocabulary": True, "data_parallel": 2}, "there is only one"),
    ],
)
def test_layouts_that_are_none_are_refused(keys, words):
    with pytest.raises(ValidationError, match=words):
        Layout(**keys)


def test_a_layout_survives_json_and_is_one_rank_by_default():
    layout = Layout(tensor_parallel=2, data_parallel=3, zero=2, micro_batch=4, activation_checkpointing=True)
    assert Layout.model_validate_json(layout.model_dump_json()) == layout
    assert Layout().ranks == 1
    assert len({layout, Layout(**layout.model_dump()), Layout()}) == 2


@pytest.mark.parametrize(("ranks", "zero"), [(1, 0), (2, 1), (8, 1)])
def test_one_rank_has_nothing_to_share_by_default(ranks, zero):
    assert default_zero(recipe(), ranks) == zero
