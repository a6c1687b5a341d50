import math

import numpy as np
import pandas as pd
import pytest

from analysis.curves.unusual_runs import MOST_RUNS, UNUSUAL, unusual_runs

DEPTHS = (2, 4, 8, 16)
SIZES = tuple(np.geomspace(3e6, 5e8, 7))
NOISE = 0.003


def loss(depth, params):
    """An irreducible loss, and terms of N, of the width and of the depth; the best depth grows with N."""
    return 1.9 + 100 * params**-0.34 + 5 * math.sqrt(params / 12 / depth) ** -0.75 + 0.2 / depth**0.9


def study(number, *, depths=DEPTHS, sizes=SIZES, seeds=1, noise=NOISE, extra=None):
    """Simulated rows; `extra` (depth, N) is added to the loss."""
    generator = np.random.default_rng(number)
    rows = []
    for depth in depths:
        for size in sizes:
            width = 2 * round(math.sqrt(size / 12 / depth) / 2)
            params = 12.0 * depth * width**2
            mean = loss(depth, params) + (extra(depth, params) if extra else 0.0)
            rows += [
                (depth, width, params, seed, mean + noise * generator.standard_normal())
                for seed in range(seeds)
            ]
    return pd.DataFrame(rows, columns=["depth", "width", "params", "seed", "loss"])


def moved(rows, labels, by):
    """The rows with the losses of some of them moved, in nats."""
    rows = rows.copy()
    rows.loc[labels, "loss"] += by
    return rows


def named(rows):
    return {run.row for run in unusual_runs(rows)}


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_run_that_diverged_in_part_is_named(seeds):
    rows = study(0, seeds=seeds)
    for label in rows.index[:: 5 * seeds]:
        (run,) = unusual_runs(moved(rows, [label], 0.15))
        row = rows.loc[label]
        assert (run.row, run.depth, run.width, run.params, run.seed) == (
            label, row.depth, row.width, row.params, row.seed
        )  # fmt: skip
        assert run.loss == pytest.approx(row.loss + 0.15)
        # The curve at an end of the sizes is known to a few standard deviations of one run.
        assert run.above == pytest.approx(0.15, abs=0.03)
        assert run.deviations > UNUSUAL


def test_a_run_below_the_curve_is_named():
    (run,) = unusual_runs(moved(study(1), [10], -0.15))
    assert run.row == 10
    assert run.above == pytest.approx(-0.15, abs=0.02)
    assert run.deviations < -UNUSUAL


def test_rows_are_named_by_their_label():
    rows = moved(study(2), [16], 0.15).sample(frac=1, random_state=0)
    rows.index += 100
    assert named(rows) == {116}


@pytest.mark.parametrize("seeds", [1, 3])
def test_two_runs_of_one_depth_do_not_hide_each_other(seeds):
    rows = study(3, seeds=seeds)
    pair = [8 * seeds, 11 * seeds]
    assert named(moved(rows, pair, 0.15)) == set(pair)
    found = unusual_runs(moved(moved(rows, pair[:1], 0.15), pair[1:], 0.3))
    assert [run.row for run in found] == pair[::-1]


def test_a_gross_run_at_an_end_moves_the_exponent_and_no_other_run_is_named():
    assert named(moved(study(4), [21], 1.0)) == {21}


def test_one_seed_of_three_is_named_where_the_curves_are_no_power_laws():
    # The waves have fifty times the noise: the curve cannot show a run of 0.1 nats, its other seeds do.
    rows = study(5, seeds=3, extra=lambda depth, params: 0.1 * math.cos(2 * math.log(params) + depth))
    assert named(rows) == set()
    assert named(moved(rows, [31], 0.1)) == {31}


def test_no_run_of_a_clean_study_is_named():
    clean = [study(number, seeds=seeds) for number in range(10) for seeds in (1, 3)]
    clean += [study(number, depths=(2, 3, 4, 6, 8, 10, 12, 16, 24), sizes=SIZES[::2]) for number in range(5)]
    assert [named(rows) for rows in clean] == [set()] * len(clean)


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("end", [min, max])
def test_the_end_of_the_sizes_of_all_depths_is_no_run(seeds, end):
    rows = study(6, seeds=seeds, extra=lambda depth, params: 0.1 * (abs(params / end(SIZES) - 1) < 0.2))
    assert named(rows) == set()
    assert named(moved(rows, [10 * seeds], 0.5)) == {10 * seeds}


def test_a_shape_of_which_all_seeds_deviate_is_no_run():
    shape = slice(30, 32)
    assert named(moved(study(7, seeds=3), shape, 0.15)) == set()


def test_a_depth_whose_curve_is_no_power_law_has_no_unusual_run():
    rows = study(8, extra=lambda depth, params: 0.06 * (params / 3e6) ** -0.7 * (depth == 16), noise=0.0005)
    assert named(rows) == set()


@pytest.mark.parametrize("sizes", [1, 2, 3])
def test_a_run_that_no_other_checks_is_not_named(sizes):
    # Of three sizes of one depth the curve shows that one is off, and not which.
    rows = study(9, sizes=SIZES[::3][:sizes])
    assert named(moved(rows, [sizes], 0.5)) == set()


def test_few_or_exact_rows_are_no_error():
    assert unusual_runs(study(10, depths=(4,), sizes=SIZES[:1])) == ()
    assert unusual_runs(study(10, depths=(4,), sizes=SIZES[:3])) == ()
    assert unusual_runs(study(10, noise=0.0).assign(loss=2.0)) == ()


def test_what_other_seeds_check_needs_no_other_size():
    rows = study(11, sizes=SIZES[:1], seeds=4)
    assert named(moved(rows, [5], 0.15)) == {5}


def test_a_run_of_a_large_table_is_named():
    rows = study(12, sizes=np.geomspace(3e6, 5e9, 60), seeds=5)
    assert len(rows) > MOST_RUNS
    assert named(moved(rows, [700], 0.15)) == {700}
