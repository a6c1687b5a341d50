import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.curves.curves import build_curves
from analysis.fit.study import study_of
from analysis.law.reading import Range, Reading
from analysis.runs.table import RunTable
from core.files import from_json, to_json
from tests.simulated_study import Truth, shapes_of, simulate


def table_of(frame):
    # The sizes of `lines` are not those of a width.
    return RunTable.from_frame(frame, count="table" if "params" in frame else "nonembedding")


def rows_of(frame):
    return table_of(frame).used


def best_of(frame):
    return study_of(table_of(frame)).best


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


def test_a_trained_depth_is_compared_however_far_its_sizes_are_apart():
    """Three sizes, a factor of thirty apart: the best depths are 2, 4 and 8 at these sizes."""
    truth = Truth(2.5, 0.3, (2, 4, 8), noise=0.002)
    sizes = truth.crossing(2) / 5, math.sqrt(truth.crossing(2) * truth.crossing(4)), truth.crossing(4) * 5
    frame = simulate(truth, shapes_of(truth.depths, sizes), 2, np.random.default_rng(3))
    found = best_of(frame)
    assert [item.depth for item in found] == [2, 4, 8]
    assert [len(item.shapes) for item in found] == [3, 3, 3]


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


def reading_of(*places, depths=(2, 4, 8)):
    """A reading from places of (best depth, near depths, missing depths), a factor ten apart."""
    measured = [[depth not in missing for depth in depths] for _, _, missing in places]
    losses = tuple(
        tuple(
            (2.0 + 0.01 * (depth != best)) if measured[at][rank] else None
            for at, (best, _, _) in enumerate(places)
        )
        for rank, depth in enumerate(depths)
    )
    params = tuple(10.0 ** (3 + at) for at in range(len(places)))
    return Reading(
        params, depths, losses, tuple(near for _, near, _ in places), tuple(item[2] for item in places)
    )


BETWEEN = math.sqrt(10)
SETTLED = reading_of((2, (2,), ()), (4, (4,), ()), (8, (8,), ()))


def test_ranges_end_where_the_best_depth_changes():
    assert SETTLED.ranges == (
        Range((2,), 1e3, pytest.approx(1e3 * BETWEEN), pytest.approx((1e3 * BETWEEN, 1e3 * BETWEEN))),
        Range(
            (4,),
            pytest.approx(1e3 * BETWEEN),
            pytest.approx(1e4 * BETWEEN),
            pytest.approx((1e4 * BETWEEN,) * 2),
        ),
        Range((8,), pytest.approx(1e4 * BETWEEN), 1e5),
    )


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        # An interval has the places at which both depths are near.
        (
            [(2, (2,), ()), (2, (2, 4), ()), (4, (2, 4), ()), (4, (4,), ())],
            [((2,), (1e4, 1e5), ()), ((4,), None, ())],
        ),
        # Both are near from the first place on: the lower end is open, and four layers are never excluded.
        (
            [(2, (2, 4), ()), (4, (4,), ()), (4, (4,), ())],
            [((2,), (None, 1e3 * BETWEEN), (4,)), ((4,), None, ())],
        ),
        # Nothing decides between the two at any size.
        ([(2, (2, 4), ()), (4, (2, 4), ())], [((2, 4), None, ())]),
        # Eight layers lead in between by ten millinats, and four are not excluded.
        (
            [(4, (4,), ()), (8, (4, 8), ()), (4, (4,), ())],
            [((4,), (1e3 * BETWEEN, None), ()), ((8,), (None, 1e4 * BETWEEN), (4,)), ((4,), None, ())],
        ),
        # It does so beyond the noise.
        (
            [(4, (4,), ()), (8, (8,), ()), (4, (4,), ())],
            [((4,), (1e3 * BETWEEN,) * 2, ()), ((8,), (1e4 * BETWEEN,) * 2, ()), ((4,), None, ())],
        ),
    ],
)
def test_the_ranges_say_what_is_decided(places, expected):
    ranges = reading_of(*places).ranges
    assert [item.depths for item in ranges] == [depths for depths, _, _ in expected]
    assert [item.rivals for item in ranges] == [rivals for _, _, rivals in expected]
    for item, (_, interval, _) in zip(ranges, expected, strict=True):
        assert item.high_interval == (interval if interval is None else pytest.approx(interval))


def test_a_lead_of_next_to_nothing_that_changes_back_is_none():
    reading = reading_of((4, (4,), ()), (8, (4, 8), ()), (4, (4,), ()))
    small = tuple(tuple(2 + (loss - 2) / 20 for loss in line) for line in reading.losses)
    assert [item.depths for item in replace(reading, losses=small).ranges] == [(4, 8)]


def test_a_comparison_ends_where_a_depth_that_may_win_is_not_measured():
    reading = reading_of((2, (2,), ()), (4, (4,), ()), (4, (4,), (8,)))
    assert [(item.depths, item.high, item.missing) for item in reading.ranges][-1] == ((4,), 1e4, (8,))
    assert reading.at(1e5).missing == (8,)
    assert reading.at(5e4).missing == (8,)
    assert reading.at(1e4).missing == ()


def test_a_size_between_two_places_has_what_either_has():
    reading = reading_of((2, (2,), ()), (4, (2, 4), ()))
    middle = reading.at(1e3 * BETWEEN * 1.5)
    assert (middle.depth, middle.near) == (4, (2, 4))
    assert middle.loss == pytest.approx(2 + 0.01 * (0.5 - math.log10(1.5)))
    assert reading.at(1e5) is None
    assert reading.at(1e4).depth_interval == (None, 7)
    assert from_json(Reading, to_json(reading), "") == reading


def test_many_ranges_are_joined_where_their_borders_are_known_worst():
    depths = (1, 2, 3, 4, 5, 6, 7)
    places = [(depth, (depth,), ()) for depth in depths for _ in range(2)]
    # Three and four layers are near each other in a wide range.
    places[4:8] = [(3, (3,), ()), (3, (3, 4), ()), (4, (3, 4), ()), (4, (4,), ())]
    ranges = reading_of(*places, depths=depths).ranges
    assert len(ranges) == 5
    assert (3, 4) in [item.depths[:2] for item in ranges]


def test_a_depth_without_a_size_is_missing_unless_the_data_exclude_it():
    """Sixteen layers are measured at small sizes only, where they are excluded: farther on they may win."""
    truth = Truth(3, 0.15, (2, 4, 8, 16), noise=0.002)
    sizes = np.geomspace(truth.crossing(2) / 4, truth.crossing(8) / 2, 7)
    frame = simulate(truth, shapes_of(truth.depths, sizes), 3, np.random.default_rng(4))
    last = {2: 5, 16: 4}
    kept = [row.budget <= sizes[last.get(row.depth, 7) - 1] * 1.01 for row in frame.itertuples()]
    reading = study_of(table_of(frame[kept])).reading
    assert reading.at(sizes[2]).missing == ()
    assert reading.at(sizes[-1]).missing == (16,)
    assert reading.ranges[-1].missing == (16,)
    assert reading.ranges[-1].high == pytest.approx(sizes[3], rel=0.1)
    # If they diverged at the larger sizes, they are worse there, and not missing.
    lost = frame[(frame["depth"] == 16) & ~np.array(kept)].assign(loss=math.nan, status="diverged")
    both = pd.concat([frame[kept].assign(status="done"), lost], ignore_index=True)
    assert study_of(table_of(both)).reading.at(sizes[-1]).missing == ()
