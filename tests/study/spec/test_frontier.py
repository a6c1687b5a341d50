"""Budgets -> shapes: held to the definition by brute force, and to the grid the pilot rehearsed."""

import itertools
import math
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from analysis.runs.columns import NEAR_PLANNED
from analysis.runs.isoflop import LEAST_BUDGETS, LEAST_SIZES, SAME_COMPUTE
from study.spec.frontier import (
    FLOPS_APART,
    LEAST_FACTORS,
    LEAST_FLOPS,
    SPACING,
    SPREAD,
    SPREAD_TOLERANCE,
    FrontierShape,
    added_shapes,
    misses,
    shapes,
)
from study.spec.study import FrontierSection, load_spec
from study.spec.training import ROUNDING
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


# Equal FLOPs

FLOPS = {"flops": [1e9, 4e9, 1.6e10], "depths": [1, 2, 4]}


def test_a_compute_has_sizes_spread_about_that_of_its_tokens_per_parameter() -> None:
    frontier = FrontierSection.model_validate(FLOPS)
    assert (frontier.spread, frontier.tolerance, frontier.budget_values) == (SPREAD, SPREAD_TOLERANCE, ())
    for ratio in (20, 5):
        found, missed = shapes(frontier, ratio), misses(frontier, ratio)
        every = [(one.compute, one.budget) for one in found] + [(one.compute, one.budget) for one in missed]
        centres = {compute: math.sqrt(compute / (6 * ratio)) for compute in frontier.compute_values}
        wanted = [
            (c, factor * centre) for c, centre in centres.items() for factor in SPREAD for _ in range(3)
        ]
        assert np.array(sorted(every)) == pytest.approx(np.array(sorted(wanted)))
        assert all(abs(deviation(one)) <= frontier.tolerance for one in found)
        assert [(one.compute, one.budget, one.shape.depth) for one in found] == sorted(
            (one.compute, one.budget, one.shape.depth) for one in found
        )


def test_a_shape_may_be_there_at_several_computes_but_once_at_each() -> None:
    found = shapes(FrontierSection.model_validate(FLOPS))
    assert len({(one.compute, one.shape) for one in found}) == len(found)
    assert len({one.shape for one in found}) < len(found)
    near = FrontierSection.model_validate({**FLOPS, "spread": [1, 1.01, 4]})
    missed = misses(near)
    assert {(one.compute, one.depth) for one in missed} == {(c, d) for c in FLOPS["flops"] for d in (1, 2, 4)}
    assert all(one.taken_by is not None and "1e9 FLOPs" in one.reason for one in missed if one.compute == 1e9)


def test_computes_as_a_range_are_geometric() -> None:
    frontier = FrontierSection.model_validate(
        {"flops": {"min": "1B", "max": 1.6e10, "points": 3}, "depths": [1]}
    )
    assert frontier.compute_values == pytest.approx(tuple(FLOPS["flops"]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budgets": [1e3]}, "`budgets` and `flops` exclude each other"),
        ({"widths": {1: [8]}}, "`widths` and `flops` exclude each other"),
        ({"depths": None}, "`depths` missing"),
        ({"flops": [1e9]}, "`flops` has 1 and"),
        ({"spread": [1, 2]}, "`spread` 2; the best depth"),
        ({"flops": [2e9]}, "set `flops: [2e+09, 8e+09, 3.2e+10]`"),
        ({"flops": [1e9, 1.1e9]}, "nearer to each other than 15%"),
        ({"flops": None, "budgets": [1e3], "spread": [1, 2, 4]}, "take `spread` out"),
        ({"max_cells": 44}, "45 triples of `flops`, `spread` and `depths`"),
    ],
)
def test_wrong_computes_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        FrontierSection.model_validate({**FLOPS, **change})


def test_a_depth_without_a_shape_at_any_compute_is_refused_with_a_tolerance_or_flops_that_give_it_one() -> (
    None
):
    deep = FrontierSection.model_validate({**FLOPS, "depths": [2, 10_000]})
    with pytest.raises(ValueError, match="depth 10000 has no shape") as caught:
        deep.check_depths(20)
    least = float(re.search(r"Raise the flops to (\d+) or more", str(caught.value))[1])  # type: ignore[index]
    FrontierSection.model_validate({**FLOPS, "depths": [10_000], "flops": [least, 4 * least]}).check_depths(
        20
    )


# Equal training time

MINUTES = {
    "minutes": {0.5: {"L2-d8": 9e4, "L1-d16": "120k", "L1-d8": 1.5e5}, 0.1: {"L2-d8": 9e4, "L1-d8": 1.5e5}}
}


def test_a_time_has_the_shapes_of_its_own_in_order_of_time_and_size() -> None:
    frontier = FrontierSection.model_validate(MINUTES)
    every = [(item.compute, item.shape.depth, item.shape.width) for item in shapes(frontier)]
    assert every == [(0.1, 1, 8), (0.1, 2, 8), (0.5, 1, 8), (0.5, 2, 8), (0.5, 1, 16)]
    assert [item.budget for item in shapes(frontier)] == [768, 1536, 768, 1536, 3072]
    assert (misses(frontier), frontier.depth_values) == ([], (1, 2))
    assert (frontier.compute_values, frontier.compute_unit) == ((0.1, 0.5), "minutes")
    assert frontier.minutes is not None
    assert frontier.minutes[0.5]["L1-d16"] == 120_000
    shallow = FrontierSection.model_validate({**MINUTES, "depths": [1]})
    assert {item.shape.depth for item in shapes(shallow)} == {1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"flops": [1e9, 4e9]}, "`flops` and `minutes` exclude each other"),
        ({"minutes": {1: {"L1-d8": 9}}}, "`minutes` has 1 value"),
        ({"minutes": {1: {"L1-d8": 9}, 1.1: {"L1-d8": 9}}}, "nearer to each other than 15%"),
        ({"minutes": {1: {"L1x8": 9}, 2: {"L1-d8": 9}}}, "write depth and width as `L2-d16`"),
        ({"minutes": {1: {"L1-d9": 9}, 2: {"L1-d8": 9}}}, "take 8 or 10"),
        ({"depths": [1, 3]}, "`depths` has [3], and `minutes` has the depths [1, 2]"),
        ({"minutes": {1: {"L1-d8": 0}, 2: {"L1-d8": 9}}}, "greater than 0"),
        ({"minutes": {1: {}, 2: {"L1-d8": 9}}}, "at least 1 item"),
        ({"minutes": {-1: {"L1-d8": 9}, 2: {"L1-d8": 9}}}, "greater than 0"),
        ({"minutes": {"1": {"L1-d8": 9}, 1: {"L1-d16": 9}, 4: {"L1-d8": 9}}}, "write it once"),
        ({"minutes": {}}, "`minutes` has 0 values"),
    ],
)
def test_wrong_times_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        FrontierSection.model_validate({**MINUTES, **change})


def test_computes_are_as_far_apart_and_as_many_as_their_analysis_needs() -> None:
    rounded = (1 + ROUNDING) / (1 - ROUNDING)
    assert rounded * (1 + SAME_COMPUTE) < FLOPS_APART
    assert (LEAST_FLOPS, LEAST_FACTORS) == (LEAST_BUDGETS, LEAST_SIZES)
    assert rounded < 1 + NEAR_PLANNED
