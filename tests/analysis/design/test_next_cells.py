"""Proposed cells in simulated studies where it is clear what is missing."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from analysis.curves.curves import build_curves
from analysis.design import gains as module
from analysis.design.gains import Cells, gains
from analysis.design.next_cells import propose
from analysis.design.objective import Objective
from tests.simulated_study import Truth, shapes_of, simulate

#: The depths cross at N = 3,200 and 11,800, inside the sizes.
TRUTH = Truth(2.327, 0.212, (1, 2, 4), noise=0.005)
BUDGETS = np.geomspace(800, 48_000, 6)
SHAPES = shapes_of(TRUTH.depths, BUDGETS)
BETWEEN = shapes_of(TRUTH.depths, np.geomspace(800, 48_000, 16))
#: The sizes reach up to 47,000.
OBJECTIVES = (Objective("depth", 400_000.0), Objective("crossings"))
COLUMNS = ["depth", "width", "params", "lr", "seed", "loss"]
NOTHING = pd.DataFrame({name: [] for name in COLUMNS})


def table_of(cells):
    """Depth, width, seed -> the table of options."""
    table = pd.DataFrame(cells, columns=["depth", "width", "seed"], dtype=int)
    table.index = [f"L{depth}-d{width}-s{seed}" for depth, width, seed in table.itertuples(index=False)]
    params = 12.0 * table["depth"] * table["width"] ** 2
    return table.assign(params=params, flops=6e6 * params)


def options_of(shapes, seeds):
    planned = sorted({shape[:2] for shape in shapes})
    return table_of([(*shape, seed) for shape in planned for seed in range(seeds)])


def proposed(rows, pending, options, objective, count):
    """The chosen cells in their order, and how they were chosen."""
    chosen = propose(rows, pending, options, objective, count)
    cells = options.loc[[choice.cell for choice in chosen]]
    return cells.assign(gain=[choice.gain for choice in chosen], kind=[choice.kind for choice in chosen])


def shapes_in(table):
    return set(table[["depth", "params"]].itertuples(index=False, name=None))


def trained(truth, shapes, seeds, key=0):
    return simulate(truth, shapes, seeds, np.random.default_rng(key)).assign(lr=0.01)


def lost(options, **columns):
    """Rows of these cells without a loss."""
    return options.assign(lr=0.01, loss=math.nan, **columns)


def left(options, rows):
    return options.drop(table_of(rows[["depth", "width", "seed"]].to_numpy()).index, errors="ignore")


NONE = options_of((), 0)


@pytest.fixture(scope="module")
def rows():
    return trained(TRUTH, SHAPES, 2)


@pytest.fixture(scope="module")
def options(rows):
    return left(options_of([*SHAPES, *BETWEEN], 6), rows)


def test_the_first_design_is_small_cheap_and_has_pairs_of_every_depth():
    options = options_of(SHAPES, 4)
    chosen = proposed(NOTHING, NONE, options, OBJECTIVES[0], 18)
    assert len(set(chosen.index)) == 18
    for depth in TRUTH.depths:
        cells = chosen[chosen["depth"] == depth]
        sizes = set(cells["params"])
        assert len(sizes) == 3
        assert set(zip(cells["params"], cells["seed"], strict=True)) == set(itertools.product(sizes, (0, 1)))
    assert chosen["flops"].sum() < 0.1 * options["flops"].sum()
    assert chosen["gain"].isna().all()
    assert set(chosen["kind"]) == {"first"}


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)
def test_equal_input_gives_equal_output_in_any_order(rows, options, objective):
    chosen = propose(rows, options[:3], options[3:], objective, 8)
    mixed = propose(rows.sample(frac=1, random_state=1), options[2::-1], options[:2:-1], objective, 8)
    assert mixed == chosen
    assert len({choice.cell for choice in chosen}) == 8
    assert not {choice.cell for choice in chosen} & set(options[:3].index)
    assert all(choice.gain > 0 for choice in chosen)


def test_no_more_cells_than_options(rows, options):
    assert len(propose(rows, NONE, options[:4], OBJECTIVES[0], 9)) == 4
    assert propose(rows, NONE, NONE, OBJECTIVES[0], 9) == []


def test_seeds_are_proposed_where_noise_dominates():
    rows = trained(TRUTH, SHAPES, 3)
    chosen = proposed(rows, NONE, left(options_of(SHAPES, 8), rows), OBJECTIVES[0], 10)
    assert shapes_in(chosen) <= shapes_in(rows)
    assert set(chosen["kind"]) == {"seed"}


def test_sizes_are_proposed_where_shapes_deviate_from_the_curves():
    """A misfit of eight times the noise of a mean, which no seed averages out."""
    rough = Truth(2.327, 0.212, (1, 2, 4), noise=0.0005, misfit_sd=0.008)
    rows = trained(rough, SHAPES, 3)
    chosen = proposed(rows, NONE, left(options_of([*SHAPES, *BETWEEN], 6), rows), OBJECTIVES[0], 10)
    assert not set(chosen["params"]) & set(rows["params"])


def test_a_crossing_beyond_the_measured_sizes_gets_its_missing_side():
    below = [shape for shape in SHAPES if shape[2] < TRUTH.crossing(2)]
    rows = trained(Truth(2.327, 0.212, (1, 2, 4), noise=0.0005), below, 3)
    chosen = proposed(rows, NONE, left(options_of(SHAPES, 6), rows), Objective("depth", 80_000.0), 4)
    above = chosen[chosen["params"] > TRUTH.crossing(2)]
    assert set(above["depth"]) == {2, 4}
    assert "side" in set(above["kind"])


def test_a_projection_gets_the_cheapest_cell_from_which_it_is_stated():
    """Beyond ten times the largest size nothing is stated, however well the crossings are known."""
    rows = trained(TRUTH, [shape for shape in SHAPES if shape[2] < 25_000], 3)
    options = left(options_of(SHAPES, 3), rows)
    wanted = options[options["params"] >= 40_000]
    assert len(wanted) > 3
    chosen = proposed(rows, NONE, options, OBJECTIVES[0], 6)
    (cell,) = chosen.index[chosen["kind"] == "reach"]
    assert wanted.loc[cell, "flops"] == wanted["flops"].min()
    with_it = pd.concat([rows, wanted.loc[[cell]].assign(lr=0.01, loss=2.0)])
    for seen, running in ((rows, wanted.loc[[cell]]), (with_it, NONE)):
        again = proposed(seen, running, options.drop(cell), OBJECTIVES[0], 6)
        assert "reach" not in set(again["kind"])
    assert "reach" not in set(proposed(rows, NONE, options, OBJECTIVES[1], 6)["kind"])


def test_diverged_shapes_are_not_proposed_again(rows, options):
    best = proposed(rows, NONE, options, OBJECTIVES[0], 1)
    (shape,) = shapes_in(best)
    other = rows[(rows["depth"] != shape[0]) | (rows["params"] != shape[1])]
    gone = pd.concat([other, *(lost(best, seed=seed)[COLUMNS] for seed in range(2))])
    rest = left(options, gone)
    assert shape in shapes_in(rest)
    assert shape not in shapes_in(proposed(gone, NONE, rest, OBJECTIVES[0], 40))


def test_asking_for_many_equals_asking_repeatedly_for_one(rows, options):
    """So running cells are counted, and the first design resumes."""
    for ended, free, count in ((rows, options, 5), (NOTHING, options_of(SHAPES, 4), 29)):
        many = [choice.cell for choice in propose(ended, NONE, free, OBJECTIVES[0], count)]
        waiting = []
        for _ in range(count):
            chosen = propose(ended, free.loc[waiting], free.drop(waiting), OBJECTIVES[0], 1)
            waiting.append(chosen[0].cell)
        assert waiting == many


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)
def test_with_one_seed_the_search_continues_with_new_sizes(objective):
    """Noise that is estimated from the scatter about the curves has no part that a seed adds to all its shapes."""
    rows = trained(TRUTH, BETWEEN[::2], 1)
    options = left(options_of(BETWEEN, 1), rows)
    chosen = proposed(rows, options[:2], options[2:], objective, 6)
    assert len(set(chosen.index)) == 6
    assert (chosen["gain"] > 0).all()
    assert set(chosen["kind"]) - {"reach"} == {"size"}


def test_curves_without_a_common_exponent_or_with_a_sharp_bend_work(line_frame):
    """A line puts the exponent at the end of its range; a step of the losses lies on no power law."""
    for sizes, bend in ((6, 0.0), (10, 0.3)):
        places = tuple(np.geomspace(1e3, 32e3, sizes))
        rows = line_frame({1: (2.0, -0.05), 2: (2.0, -0.15)}, sd=0.002, sizes=places).assign(lr=0.01)
        rows["loss"] -= bend * np.clip(np.log(rows["params"] / 6e3), 0, 1)
        cells = itertools.product((1, 2), places, (0, 1))
        options = pd.DataFrame(cells, columns=["depth", "flops", "seed"]).eval("params = 1.2 * flops")
        assert len(propose(rows, NONE, options, Objective("crossings"), 5)) == 5


def shares_of_seeds(seeds, keys, most, chosen_if):
    """Shares of repeated shapes among six cells, and their parameters, in studies whose curves have a property."""
    shares, sizes = [], []
    for key in range(keys):
        rows = trained(TRUTH, SHAPES, seeds, key)
        if chosen_if(build_curves(rows)):
            options = left(options_of([*SHAPES, *BETWEEN], most), rows)
            chosen = proposed(rows, NONE, options, OBJECTIVES[0], 6)
            shares.append(float((chosen["kind"] == "seed").mean()))
            sizes.append(chosen["params"].sum())
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
    first = proposed(NOTHING, NONE, options, OBJECTIVES[0], 1)
    (shape,) = shapes_in(first)

    def after(runs, status):
        rows = pd.concat([lost(first, status=status).assign(seed=seed) for seed in range(runs)])
        return shapes_in(proposed(rows, NONE, left(options, rows), OBJECTIVES[0], 18))

    assert shape in after(1, "diverged")
    assert shape in after(4, "failed")
    assert shape not in after(2, "diverged")


def test_a_depth_without_a_loss_delays_the_search_but_not_forever():
    rows = trained(TRUTH, [shape for shape in SHAPES if shape[0] != 4], 4)
    free = left(options_of(SHAPES, 8), rows)
    assert proposed(rows, NONE, free, OBJECTIVES[1], 6)["depth"].tolist() == [4] * 6
    cells = free[free["depth"] == 4]
    many = pd.concat([rows.assign(status="done"), lost(cells[: len(cells) // 2], status="failed")])
    assert set(proposed(many, NONE, left(free, many), OBJECTIVES[1], 6)["depth"]) == {1, 2}


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
