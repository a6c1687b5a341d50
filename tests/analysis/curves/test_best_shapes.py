import numpy as np
import pandas as pd
import pytest

from analysis.curves.best_shapes import best_shapes
from analysis.curves.curves import build_curves
from analysis.runs.table import RunTable


def rows_of(frame):
    # The sizes of `lines` are not those of a width.
    return RunTable.from_frame(frame, count="table" if "params" in frame else "nonembedding").used


def best_of(frame):
    return best_shapes(rows_of(frame), build_curves(rows_of(frame)))


def test_the_best_depth_moves_with_the_budget(pilot_frame):
    found = best_of(pilot_frame(noise=0.05))
    assert [item.budget for item in found] == [1600, 3200, 6400, 12800, 24000]
    # From the table of means: depth 1, then 2, then 4; at 12800 depths 2 and 4 are within 0.002 of each
    # other.
    assert [item.depth for item in found][:3] == [1, 2, 2]
    assert found[-1].depth == 4
    for item in found:
        shapes = {shape.depth: shape for shape in item.shapes}
        assert shapes[item.depth].excess == 0
        assert all(shape.excess >= 0 for shape in item.shapes)
        assert item.width == pytest.approx(np.sqrt(item.params / (12 * item.depth)))


def test_losses_are_compared_at_one_size_all_depths_cover(pilot_frame):
    first = best_of(pilot_frame(noise=0))[0]
    # Budget 1600 was met as 1728, 1536 and 1728: 1728 is the smallest size all three enclose.
    assert first.params == pytest.approx(1728)
    loss = {shape.depth: shape.loss for shape in first.shapes}
    curves = build_curves(rows_of(pilot_frame(noise=0)))
    for depth in (1, 2, 4):
        assert loss[depth] == pytest.approx(curves.loss(depth, np.log([1728.0]))[0])
    # Depth 2 lies between its sizes 1536 and 3456 there.
    assert 0.897 < loss[2] < 1.014


def test_what_cannot_be_told_apart_is_named(line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (1.002, -0.1), 4: (1.2, -0.1)}, sd=0.01, seeds=4)
    for item in best_of(frame):
        assert 4 not in item.near
        assert item.depth in item.near
    # A gap of 0.002 against a standard error near 0.004.
    assert any(item.near == (1, 2) for item in best_of(frame))


def test_without_noise_there_is_no_near_set(line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)}, seeds=1, sd=0)
    assert all(item.near is None for item in best_of(frame))


def test_sizes_without_budgets_are_grouped(pilot_frame):
    found = best_of(pilot_frame(noise=0).drop(columns="budget"))
    assert len(found) == 5
    assert found[0].budget == pytest.approx((1728 * 1536 * 1728) ** (1 / 3))


def test_a_wide_gap_is_not_bridged(line_frame):
    frame = line_frame({1: (1.0, -0.1), 2: (1.0, -0.2)})
    frame = frame[(frame["depth"] == 1) | frame["params"].isin([1e3, 32e3])]
    # Depth 2 has only the two ends, a factor of 32 apart: nothing between may be read off a straight line.
    assert [item.params for item in best_of(frame)] == [pytest.approx(1e3), pytest.approx(32e3)]


def test_a_budget_is_compared_where_all_its_depths_meet_not_where_one_is_far_from_its_next_size():
    """Depth 2 has 4,704 and then nothing before 60,300: at 4,800 it is not enclosed, at 4,704 all three are."""
    losses = {
        1: {1728: 0.85, 4800: 0.83, 60000: 0.83, 75000: 0.825},
        2: {1536: 0.90, 4704: 0.81, 60300: 0.79, 76800: 0.785},
        4: {1728: 0.97, 4800: 0.82, 60000: 0.78, 75000: 0.775},
    }
    lines = [
        (depth, round((n / (12 * depth)) ** 0.5), n, budget, loss + seed / 1e4, seed)
        for depth, curve in losses.items()
        for (n, loss), budget in zip(curve.items(), (1730, 4800, 60_000, 75_000), strict=True)
        for seed in range(2)
    ]
    frame = pd.DataFrame(lines, columns=["depth", "width", "params", "budget", "loss", "seed"])
    found = [(shape.budget, shape.depth, len(shape.shapes)) for shape in best_of(frame)]
    assert found == [(1730, 1, 3), (4800, 2, 3), (60_000, 4, 3), (75_000, 4, 3)]
