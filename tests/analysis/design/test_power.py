"""Power estimates against the truth that the studies are simulated from."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from analysis.design.power import PowerEstimate, compare_changes, simulate_power
from analysis.law.threshold_law import solve_depth
from tests.simulated_study import Truth, shapes_of

#: Crossings from N = 3.0e3 (1 and 2 layers) to 3.2e4 (4 and 5), well inside the sizes below. Four of them, because the
#: scatter about a law through fewer is assumed and not measured, so that seeds hardly narrow it.
TRUTH = Truth(2.3, 0.2, (1, 2, 3, 4, 5), noise=0.002)
BUDGETS = np.geomspace(600, 160_000, 6)
#: Crossings at N = 3.9e3 and 1.8e4.
THREE = Truth(2.3, 0.3, (1, 2, 4), noise=0.0005)
SHAPES = shapes_of(TRUTH.depths, BUDGETS)


@pytest.fixture(scope="module")
def plain() -> PowerEstimate:
    return simulate_power(TRUTH, SHAPES, 4, studies=16)


def mean_log_ratio(after, before):
    """Mean of the logarithm of paired widths' ratio, and its standard error."""
    count = after.studies
    logs = np.log(np.array(after.b_widths) / np.array(before.b_widths[:count]))
    return float(logs.mean()), float(logs.std(ddof=1) / math.sqrt(len(logs)))


def test_crossings_inside_the_sizes_are_found_and_their_intervals_contain_the_truth(plain):
    assert [(pair.shallow, pair.deep) for pair in plain.crossings] == [(1, 2), (2, 3), (3, 4), (4, 5)]
    for pair in plain.crossings:
        middle = math.sqrt(pair.shallow * pair.deep)
        assert pair.params == pytest.approx(12 * middle * math.exp(2 * (2.3 + 0.2 * middle)))
        assert pair.width == pytest.approx(math.sqrt(pair.params / (12 * pair.shallow)))
        assert pair.statuses["bracketed"] == 1 == pair.closed
        assert 1 < pair.ratio < 1.5
        # 16 intervals at 95 %: fewer than 13 that hold the truth has a chance of 0.7 %.
        assert pair.coverage >= 13 / 16
    assert plain.statuses["ok"] == 1
    assert plain.b_coverage >= 13 / 16
    assert plain.b_width == pytest.approx(np.median(plain.b_widths))


def test_the_projected_interval_contains_the_true_depth_ten_times_beyond(plain):
    assert plain.ahead_params == 10 * max(12 * depth * width**2 for depth, width, _ in SHAPES)
    assert plain.ahead_depth == pytest.approx(solve_depth(2.3, 0.2, plain.ahead_params))
    low, high = plain.band
    assert low < plain.ahead_depth < high
    assert 0 <= plain.stated <= 1


@pytest.mark.slow
def test_crossings_off_the_law_are_held_against_the_curves_of_their_own_study():
    """A scatter of 0.25 in ln d moves N by half an e-fold, four times the half-length of an interval."""
    truth = dataclasses.replace(TRUTH, scatter=0.25)
    found = simulate_power(truth, SHAPES, 4, studies=16)
    for pair in found.crossings:
        assert pair.params == truth.crossing(pair.shallow)
        assert pair.ratio < 1.5
        assert pair.coverage >= 13 / 16


def test_four_times_the_seeds_halve_the_interval(plain):
    """1/sqrt(seeds): 4 seeds of 18 shapes have 54 degrees of freedom and 16 have 270, which takes another 2 %."""
    after = simulate_power(TRUTH, SHAPES, 16, studies=8)
    for narrow, wide in zip(after.crossings, plain.crossings, strict=True):
        # Of the interval of ln N, as below. That of b also depends on the scatter that chance shows.
        assert math.log(narrow.ratio) / math.log(wide.ratio) == pytest.approx(0.5 * 1.97 / 2.00, abs=0.08)


@pytest.mark.slow
def test_half_the_noise_halves_the_interval(plain):
    after = simulate_power(dataclasses.replace(TRUTH, noise=0.001), SHAPES, 4, studies=12)
    mean, error = mean_log_ratio(after, plain)
    assert error < 0.03
    assert mean == pytest.approx(math.log(0.5), abs=max(3 * error, 0.03))
    for narrow, wide in zip(after.crossings, plain.crossings, strict=True):
        # Of the interval of ln N; its median is known to about 5 %.
        assert math.log(narrow.ratio) / math.log(wide.ratio) == pytest.approx(0.5, abs=0.07)


@pytest.mark.slow
def test_seeds_do_not_average_out_the_misfit_of_shapes():
    rough = dataclasses.replace(TRUTH, noise=1e-4, misfit_sd=0.005)
    few, many = (simulate_power(rough, SHAPES, seeds, studies=8) for seeds in (2, 8))
    mean, error = mean_log_ratio(many, few)
    assert mean == pytest.approx(0, abs=max(3 * error, 0.02))


def test_a_crossing_beyond_the_grid_is_censored():
    short = shapes_of(THREE.depths, np.geomspace(500, 7000, 5))
    found = simulate_power(THREE, short, 3, studies=12)
    second = found.crossings[1]
    assert second.params == pytest.approx(12 * math.sqrt(8) * math.exp(2 * (2.3 + 0.3 * math.sqrt(8))))
    assert second.statuses["right_censored"] > 0.9
    assert (second.closed, second.ratio, found.b_width) == (0, None, None)
    # An interval that is open above holds a crossing above.
    assert second.coverage > 0.8
    assert found.statuses["insufficient"] > 0.9
    assert math.isinf(np.median(found.b_widths))
    late = shapes_of(THREE.depths, np.geomspace(9000, 150_000, 5))
    first, second = simulate_power(THREE, late, 3, studies=12).crossings
    assert first.statuses["left_censored"] > 0.9
    assert second.statuses["bracketed"] > 0.9


def test_the_result_depends_on_the_seed_alone_and_more_studies_do_not_change_those_before():
    once, again, other = (simulate_power(TRUTH, SHAPES, 2, studies=3, seed=seed) for seed in (1, 1, 2))
    assert once == again
    assert once.b_widths != other.b_widths
    assert simulate_power(TRUTH, SHAPES, 2, studies=4, seed=1).b_widths[:3] == once.b_widths


@pytest.mark.slow
def test_changes_cost_what_their_cells_cost(plain):
    now, seeds, sizes = compare_changes(TRUTH, SHAPES, plain, studies=8)
    assert now.width == pytest.approx(np.median(plain.b_widths[:8]))
    assert (now.cost, now.seeds, now.shapes, now.closed) == (1, 4, len(SHAPES), 1)
    assert (seeds.cost, seeds.seeds, seeds.shapes) == (2, 8, len(SHAPES))
    assert seeds.width / now.width == pytest.approx(1 / math.sqrt(2), abs=0.2)
    pairs = [pair for pair in itertools.pairwise(sorted(SHAPES)) if pair[0][0] == pair[1][0]]
    evens = [2 * round(math.sqrt(low[1] * high[1]) / 2) not in (low[1], high[1]) for low, high in pairs]
    # Between the smallest widths there is no even one.
    assert 15 < sum(evens) < 25
    assert sizes.shapes == len(SHAPES) + sum(evens)
    assert 1.5 < sizes.cost < 2
    assert sizes.width < now.width


def test_an_open_interval_is_infinitely_wide():
    """Sizes end below the third crossing, at 3.3e4: b has no interval."""
    truth = Truth(2.3, 0.3, (1, 2, 3, 4), noise=0.002)
    short = shapes_of(truth.depths, np.geomspace(800, 20_000, 5))
    base = simulate_power(truth, short, 2, studies=4)
    assert np.isfinite(base.b_widths).mean() < 0.5
    now, *_ = compare_changes(truth, short, base, studies=3)
    assert (now.width, now.closed) == (None, np.isfinite(base.b_widths[:3]).mean())
