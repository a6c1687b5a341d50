"""Proposed cells in simulated studies where it is clear what is missing."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.curves.curves import build_curves
from analysis.design import gains as module
from analysis.design.gains import Cells, gains
from analysis.design.next_cells import Option, propose
from analysis.design.objective import Objective
from tests.simulated_study import Truth, shapes_of, simulate

#: The depths cross at N = 3,200 and 11,800, inside the sizes.
TRUTH = Truth(2.327, 0.212, (1, 2, 4), noise=0.005)
BUDGETS = np.geomspace(800, 48_000, 6)
SHAPES = shapes_of(TRUTH.depths, BUDGETS)
BETWEEN = shapes_of(TRUTH.depths, np.geomspace(800, 48_000, 16))
OBJECTIVES = (Objective("depth", 480_000.0), Objective("crossings"))
COLUMNS = ["depth", "width", "params", "lr", "seed", "loss"]
NOTHING = pd.DataFrame({name: [] for name in COLUMNS})


def options_of(shapes, seeds):
    return [
        Option(depth, width, 12.0 * depth * width**2, 1.0, seed, 6e6 * 12 * depth * width**2)
        for depth, width in sorted({shape[:2] for shape in shapes})
        for seed in range(seeds)
    ]


def trained(truth, shapes, seeds, key=0):
    return simulate(truth, shapes, seeds, np.random.default_rng(key)).assign(lr=0.01)


def lost(options, **columns):
    """Rows of these cells without a loss."""
    return pd.DataFrame([{**vars(item), "lr": 0.01, "loss": math.nan, **columns} for item in options])


def left(options, rows):
    have = set(rows[["depth", "width", "seed"]].itertuples(index=False, name=None))
    return [item for item in options if (item.depth, item.width, item.seed) not in have]


@pytest.fixture(scope="module")
def rows():
    return trained(TRUTH, SHAPES, 2)


@pytest.fixture(scope="module")
def options(rows):
    return left(options_of([*SHAPES, *BETWEEN], 6), rows)


def test_the_first_design_is_small_cheap_and_has_pairs_of_every_depth():
    options = options_of(SHAPES, 4)
    chosen = propose(NOTHING, [], options, OBJECTIVES[0], 18)
    cells = [choice.option for choice in chosen]
    assert len(set(cells)) == 18
    for depth in TRUTH.depths:
        own = [item for item in cells if item.depth == depth]
        sizes = {item.params for item in own}
        assert len(sizes) == 3
        assert {(item.params, item.seed) for item in own} == set(itertools.product(sizes, (0, 1)))
    assert sum(item.cost for item in cells) < 0.1 * sum(item.cost for item in options)
    assert all(math.isnan(choice.gain) and choice.reason.startswith("first design") for choice in chosen)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)
def test_equal_input_gives_equal_output_in_any_order(rows, options, objective):
    chosen = propose(rows, options[:3], options[3:], objective, 8)
    mixed = propose(rows.sample(frac=1, random_state=1), options[2::-1], options[:2:-1], objective, 8)
    assert mixed == chosen
    assert len({choice.option for choice in chosen}) == 8
    assert not {choice.option for choice in chosen} & set(options[:3])
    assert all(choice.gain > 0 for choice in chosen)


def test_no_more_cells_than_options(rows, options):
    assert len(propose(rows, [], options[:4], OBJECTIVES[0], 9)) == 4
    assert propose(rows, [], [], OBJECTIVES[0], 9) == []


def test_seeds_are_proposed_where_noise_dominates():
    rows = trained(TRUTH, SHAPES, 3)
    chosen = propose(rows, [], left(options_of(SHAPES, 8), rows), OBJECTIVES[0], 10)
    assert {choice.option.params for choice in chosen} <= set(rows["params"])
    assert all("another seed" in choice.reason for choice in chosen)


def test_sizes_are_proposed_where_shapes_deviate_from_the_curves():
    """A misfit of eight times the noise of a mean, which no seed averages out."""
    rough = Truth(2.327, 0.212, (1, 2, 4), noise=0.0005, misfit_sd=0.008)
    rows = trained(rough, SHAPES, 3)
    chosen = propose(rows, [], left(options_of([*SHAPES, *BETWEEN], 6), rows), OBJECTIVES[0], 10)
    assert not {choice.option.params for choice in chosen} & set(rows["params"])


def test_a_crossing_beyond_the_measured_sizes_gets_its_missing_side():
    below = [shape for shape in SHAPES if shape[2] < TRUTH.crossing(2)]
    rows = trained(Truth(2.327, 0.212, (1, 2, 4), noise=0.0005), below, 3)
    chosen = propose(rows, [], left(options_of(SHAPES, 6), rows), OBJECTIVES[0], 4)
    above = [choice.option for choice in chosen if choice.option.params > TRUTH.crossing(2)]
    assert {item.depth for item in above} == {2, 4}
    assert any("2 → 4 is not yet measured on both sides" in choice.reason for choice in chosen)


def test_diverged_shapes_are_not_proposed_again(rows, options):
    best = propose(rows, [], options, OBJECTIVES[0], 1)[0].option
    other = rows[(rows["depth"] != best.depth) | (rows["params"] != best.params)]
    gone = pd.concat([other, *(lost([best], seed=seed)[COLUMNS] for seed in range(2))])
    rest = left(options, gone)
    assert any((item.depth, item.params) == (best.depth, best.params) for item in rest)
    chosen = propose(gone, [], rest, OBJECTIVES[0], 40)
    assert not [c for c in chosen if (c.option.depth, c.option.params) == (best.depth, best.params)]


def test_asking_for_many_equals_asking_repeatedly_for_one(rows, options):
    """So running cells are counted, and the first design resumes."""
    for known, free, count in ((rows, options, 5), (NOTHING, options_of(SHAPES, 4), 29)):
        many = [choice.option for choice in propose(known, [], free, OBJECTIVES[0], count)]
        waiting = []
        for _ in range(count):
            rest = [item for item in free if item not in waiting]
            waiting.append(propose(known, waiting, rest, OBJECTIVES[0], 1)[0].option)
        assert waiting == many


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)
def test_with_one_seed_the_search_continues_with_new_sizes(objective):
    """Noise that is estimated from the scatter about the curves has no part that a seed adds to all its shapes."""
    rows = trained(TRUTH, BETWEEN[::2], 1)
    options = left(options_of(BETWEEN, 1), rows)
    chosen = propose(rows, options[:2], options[2:], objective, 6)
    assert len({choice.option for choice in chosen}) == 6
    assert all(choice.gain > 0 and "a new size" in choice.reason for choice in chosen)


def test_curves_without_a_common_exponent_or_with_a_sharp_bend_work(line_frame):
    """A line puts the exponent at the end of its range; a step of the losses lies on no power law."""
    for sizes, bend in ((6, 0.0), (10, 0.3)):
        places = tuple(np.geomspace(1e3, 32e3, sizes))
        rows = line_frame({1: (2.0, -0.05), 2: (2.0, -0.15)}, sd=0.002, sizes=places).assign(lr=0.01)
        rows["loss"] -= bend * np.clip(np.log(rows["params"] / 6e3), 0, 1)
        cells = itertools.product((1, 2), places, (0, 1))
        options = [Option(depth, 10, size * 1.2, 1.0, seed, size) for depth, size, seed in cells]
        assert len(propose(rows, [], options, Objective("crossings"), 5)) == 5


def shares_of_seeds(seeds, keys, most, chosen_if):
    """Shares of repeated shapes among six cells, and their parameters, in studies whose curves have a property."""
    shares, sizes = [], []
    for key in range(keys):
        rows = trained(TRUTH, SHAPES, seeds, key)
        if chosen_if(build_curves(rows)):
            options = left(options_of([*SHAPES, *BETWEEN], most), rows)
            chosen = propose(rows, [], options, OBJECTIVES[0], 6)
            shares.append(sum("another seed" in choice.reason for choice in chosen) / 6)
            sizes.append(sum(choice.option.params for choice in chosen))
    return shares, sizes


def test_noise_of_few_replicates_is_not_mistaken_for_misfit():
    """Studies without misfit whose seeds happen to agree too well: sizes alone would never show it."""
    shares, _ = shares_of_seeds(2, 30, 6, lambda curves: curves.misfit_p < 0.15)
    assert len(shares) >= 6
    # Without the bound 0.51 of the cells would be seeds.
    assert np.mean(shares) >= 0.6


def test_shared_noise_of_three_seeds_by_chance_buys_no_large_sizes():
    """A true share of 0.3 estimated as 0.6 or more would make the remaining noise look like misfit."""
    shares, sizes = shares_of_seeds(3, 80, 8, lambda curves: curves.noise.correlation > 0.6)
    assert len(shares) >= 5
    # Without the bound 0.22 of the cells would be seeds, and the six cells have 46,500 parameters together.
    assert np.mean(shares) >= 0.5
    assert np.mean(sizes) <= 20_000


def test_one_diverged_cell_or_any_failed_ones_do_not_give_up_a_shape():
    options = options_of(SHAPES, 8)
    first = propose(NOTHING, [], options, OBJECTIVES[0], 1)[0].option

    def after(runs, status):
        rows = lost([replace(first, seed=seed) for seed in range(runs)], status=status)[[*COLUMNS, "status"]]
        chosen = propose(rows, [], left(options, rows), OBJECTIVES[0], 18)
        return {(choice.option.depth, choice.option.params) for choice in chosen}

    shape = (first.depth, first.params)
    assert shape in after(1, "diverged")
    assert shape in after(4, "failed")
    assert shape not in after(2, "diverged")


def test_a_depth_without_a_loss_delays_the_search_but_not_forever():
    rows = trained(TRUTH, [shape for shape in SHAPES if shape[0] != 4], 4)
    free = left(options_of(SHAPES, 8), rows)
    assert [choice.option.depth for choice in propose(rows, [], free, OBJECTIVES[1], 6)] == [4] * 6
    cells = [item for item in free if item.depth == 4]
    many = pd.concat([rows.assign(status="done"), lost(cells[: len(cells) // 2], status="failed")])
    chosen = propose(many, [], left(free, many), OBJECTIVES[1], 6)
    assert {choice.option.depth for choice in chosen} == {1, 2}


def ratio_of(curves):
    return float(np.mean(curves.nugget) / np.mean(curves.noise.sd_at(curves.mean) ** 2))


def test_gains_and_conditioning_are_those_of_all_cells_at_once(monkeypatch):
    """By hand: the joint covariance of the fit, a deviation of each shape, and every cell with its own noise."""
    monkeypatch.setattr(module, "sure_noise", lambda curves: (curves.noise.correlation, ratio_of(curves)))
    rough = Truth(2.327, 0.212, (1, 2, 4), noise=0.002, misfit_sd=0.004, shared=0.4, depth_shared=0.2)
    rows = trained(rough, SHAPES, 3)
    curves = build_curves(rows, span=(math.log(500), math.log(90_000)))
    assert curves.nugget.mean() > 0
    assert min(curves.noise.correlation, curves.noise.within) > 0
    places = [(1, 1300.0), (2, 5000.0), (4, 80_000.0), (2, 9000.0)]
    depth, x = np.array([place[0] for place in places]), np.log([place[1] for place in places])
    cells = Cells(curves, depth, x, [0, 1, 2, 3, 4])
    taken = [(0, 3), (0, 1), (1, 4), (1, 0), (1, 3)]
    option = (1, 2), (0, 0), (2, 4), (3, 1)

    size, count, width = curves.values.size, 3, len(curves.seeds)
    new = 2 * (1 + count)
    state = np.zeros((len(curves.joint) + new + len(places),) * 2)
    state[: len(curves.joint), : len(curves.joint)] = curves.joint
    state[range(len(curves.joint), len(state)), range(len(curves.joint), len(state))] = 1.0
    ratio = ratio_of(curves)

    def observed(shape, seed):
        loss = curves.weights(int(depth[shape]), x[[shape]])[0]
        sd = curves.noise.sd_at(loss @ curves.values.ravel())
        row, rank = np.zeros(len(state)), curves.depths.index(depth[shape])
        row[:size] = loss
        if seed in curves.seeds:
            first = size + curves.seeds.index(seed)
            second = first + width * (1 + rank)
        else:
            first = len(curves.joint) + (seed - 3) * (1 + count)
            second = first + 1 + rank
        row[first] += math.sqrt(curves.noise.correlation) * sd
        row[second] += math.sqrt(curves.noise.within) * sd
        row[len(curves.joint) + new + shape] = math.sqrt(ratio) * sd
        return row, curves.noise.independent * sd**2

    def after(seen):
        table, noise = (np.array(part) for part in zip(*(observed(*cell) for cell in seen), strict=True))
        total = table @ state @ table.T + np.diag(noise)
        return state - state @ table.T @ np.linalg.solve(total, table @ state)

    for shape, seed in taken:
        cells.take(shape, seed)
    kept = slice(0, size)
    np.testing.assert_allclose(cells.covariance[kept, kept], after(taken)[kept, kept], atol=1e-12)
    objective = np.random.default_rng(0).standard_normal((2, size))
    rows_of, noise = cells.observed(*(np.array(part) for part in zip(*option, strict=True)))
    said = gains(cells.covariance, objective, rows_of, noise)
    by_hand = [
        np.trace(objective[:, kept] @ (after(taken) - after([*taken, cell]))[kept, kept] @ objective.T)
        for cell in option
    ]
    np.testing.assert_allclose(said, by_hand, rtol=1e-6)
