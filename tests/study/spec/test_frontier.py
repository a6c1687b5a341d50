"""Budgets -> shapes: held to the definition by brute force, and to the grid the pilot rehearsed."""

import itertools
import math
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from study.spec.frontier import SPACING, FrontierShape, added_shapes, misses, shapes
from study.spec.study import FrontierSection, load_spec
from tests.study.small import SMALL


def widths(frontier: FrontierSection) -> dict[int, list[int]]:
    table: dict[int, list[int]] = {}
    for found in shapes(frontier):
        table.setdefault(found.shape.depth, []).append(found.shape.width)
    return table


def deviation(found: FrontierShape) -> float:
    return found.shape.budget_params / found.budget - 1


def test_every_budget_gives_each_depth_its_nearest_width() -> None:
    frontier = load_spec(SMALL).frontier
    table = widths(frontier)
    assert table == {1: [12, 16, 22, 32, 44], 2: [8, 12, 16, 22, 32], 4: [6, 8, 12, 16, 22]}
    assert misses(frontier) == []


def test_budget_range_is_geometric_and_holds_both_ends() -> None:
    budgets = load_spec(SMALL).frontier.budget_values
    assert budgets[0] == 1600
    assert budgets[-1] == 24000
    ratios = [b / a for a, b in itertools.pairwise(budgets)]
    assert ratios == pytest.approx([15**0.25] * 4)


frontiers = st.fixed_dictionaries(
    {
        "budgets": st.lists(st.floats(500, 1e8), min_size=1, max_size=6, unique=True),
        "depths": st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True),
        "tolerance": st.floats(0.01, 0.9),
        "width_multiple": st.sampled_from([1, 2, 3, 8, 16]),
    },
    optional={},
)


@settings(max_examples=150, deadline=None)
@given(frontiers, st.sampled_from([{"heads": 1}, {"heads": 2}, {"heads": 6}, {"head_dim": 8}]))
def test_shapes_and_misses_share_out_every_budget_and_depth(
    values: dict[str, object], head: dict[str, int]
) -> None:
    try:
        frontier = FrontierSection.model_validate({**values, **head})
    except ValidationError as error:
        assume("no shape at any budget" not in str(error))
        raise
    step = math.lcm(frontier.width_multiple, *head.values())
    found, missed = shapes(frontier), misses(frontier)
    pairs = [(f.budget, f.shape.depth) for f in found] + [(m.budget, m.depth) for m in missed]
    assert sorted(pairs) == sorted((b, d) for b in frontier.budget_values for d in frontier.depth_values)
    for one in found:
        shape = one.shape
        assert shape.width % step == 0
        assert shape.width % shape.heads == 0
        assert shape.heads == head.get("heads", shape.width // 8)
        assert abs(12 * shape.depth * shape.width**2 / one.budget - 1) <= frontier.tolerance + 1e-9
        # Nearest: no other allowed width is nearer.
        for other in (shape.width - step, shape.width + step):
            gap = abs(12 * shape.depth * other**2 - one.budget)
            assert other <= 0 or abs(shape.budget_params - one.budget) <= gap
    assert len({(f.shape.depth, f.shape.width) for f in found}) == len(found)
    for miss in missed:
        nearest = 12 * miss.depth * miss.nearest_width**2
        assert miss.deviation == pytest.approx(nearest / miss.budget - 1)
        if miss.taken_by is None:
            assert abs(miss.deviation) > frontier.tolerance
        else:
            owner = next(f for f in found if f.budget == miss.taken_by and f.shape.depth == miss.depth)
            assert owner.shape.width == miss.nearest_width
            assert abs(deviation(owner)) <= abs(miss.deviation)
    for depth in frontier.depth_values:
        column = [f.shape.width for f in found if f.shape.depth == depth]
        assert column == sorted(column)


def test_a_miss_says_how_far_off_the_nearest_width_is() -> None:
    frontier = FrontierSection(budgets=(1000.0, 12_288.0), depths=(1,), heads=8, tolerance=0.05)
    assert widths(frontier) == {1: [32]}
    (miss,) = misses(frontier)
    assert (miss.budget, miss.depth, miss.nearest_width) == (1000.0, 1, 8)
    assert miss.reason == "left out: depth 1 at budget 1,000, where the nearest width 8 is 23% below it"


def test_two_budgets_never_train_one_shape_twice() -> None:
    frontier = FrontierSection(budgets=(12_000.0, 12_500.0), depths=(1,), heads=2, tolerance=0.1)
    assert [(f.budget, f.shape.width) for f in shapes(frontier)] == [(12_500.0, 32)]
    (miss,) = misses(frontier)
    assert (
        miss.reason == "left out: depth 1 at budget 12,000, whose width 32 belongs to budget 12,500 already"
    )


def test_widths_by_hand_are_taken_as_they_are() -> None:
    frontier = FrontierSection(widths={4: (64, 32), 2: (48,)}, heads=2)
    found = [(f.budget, f.shape.depth, f.shape.width) for f in shapes(frontier)]
    assert found == [(12 * 4 * 32**2, 4, 32), (12 * 2 * 48**2, 2, 48), (12 * 4 * 64**2, 4, 64)]
    assert misses(frontier) == []


def test_depths_choose_among_widths_by_hand() -> None:
    frontier = FrontierSection(widths={4: (64, 32), 2: (48,)}, depths=(2,), heads=2)
    assert [f.shape.depth for f in shapes(frontier)] == [2]


def test_a_search_may_add_shapes_between_the_budgets_but_none_that_is_there() -> None:
    frontier = load_spec("quickstart").frontier
    added = added_shapes(frontier)
    there = {(found.shape.depth, found.shape.width) for found in shapes(frontier)}
    new = [(found.shape.depth, found.shape.width) for found in added]
    assert new
    assert len(new) == len(set(new))
    assert not there & set(new)
    assert all(abs(deviation(found)) <= frontier.tolerance for found in added)
    assert all(found.shape.width % 2 == 0 and found.shape.heads == 2 for found in added)
    budgets = sorted({*frontier.budget_values, *(found.budget for found in added)})
    assert budgets[0] == 800
    assert budgets[-1] == 27_500
    assert max(high / low for low, high in pairwise(budgets)) <= SPACING


def test_of_widths_by_hand_each_depth_has_its_own_budgets_between() -> None:
    frontier = FrontierSection(widths={2: (16, 64), 4: (32, 34)}, heads=2)
    added = added_shapes(frontier)
    assert {found.shape.depth for found in added} == {2}
    assert all(16 < found.shape.width < 64 for found in added)
