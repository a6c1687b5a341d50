"""The sampler `crossing` against the grid in simulated studies; the benchmark also has the other samplers."""

import functools
import math
import statistics

import numpy as np
import pytest

from analysis.design.objective import Estimate
from tests.bench import search
from tests.bench.search import SETTINGS, Setting, crossing, grid, losses_of, race, studies

#: Each takes a second of one core; the benchmark has a hundred per setting.
STUDIES = 25


@pytest.fixture(scope="module")
def raced():
    """Results of the search in each study, by setting."""

    @functools.cache
    def of(name):
        return [found["crossing"] for _, found in studies(SETTINGS[name], ("crossing",), STUDIES)]

    return of


@pytest.mark.extended
@pytest.mark.parametrize("name", SETTINGS)
def test_the_search_reaches_the_half_width_for_a_third_of_the_grid(raced, name):
    ratios = [ratio for ratio, _ in raced(name)]
    assert statistics.median(ratios) <= 0.33
    assert np.quantile(ratios, 0.9) <= 0.6


@pytest.mark.extended
def test_its_intervals_cover_the_truth_although_it_stops_when_they_are_narrow(raced):
    """The standard error of a coverage of 95 % over a hundred studies is 2.2 points."""
    held = [one.held for name in SETTINGS for _, one in raced(name)]
    assert np.mean(held) >= 0.92


def test_all_samplers_have_the_same_losses_and_pay_for_their_cells():
    setting = SETTINGS["3 depths, low noise"]
    losses = losses_of(setting, 0)
    assert losses == losses_of(setting, 0)
    assert losses != losses_of(setting, 1)
    cells = grid(setting)(None, 2 * len(setting.grid))
    assert [seed for _, _, seed in cells] == [0] * len(setting.grid) + [1] * len(setting.grid)
    assert set(cells) <= set(losses)
    one = race(setting, losses, crossing(setting), most=1.0)
    assert (one.cells, one.reached) == (setting.batch, False)
    assert one.spent >= setting.batch * min(12.0 * depth * width**2 for depth, width in setting.between)


def test_a_race_ends_when_the_estimate_was_narrow_twice(monkeypatch):
    setting = Setting(SETTINGS["3 depths, low noise"].truth, 4)
    widths = iter([math.inf, 0.1, math.inf, 0.1, 0.1, 0.1])
    monkeypatch.setitem(setting.__dict__, "halfwidth", 0.2)
    monkeypatch.setattr(
        search, "estimate", lambda rows, objective: Estimate(setting.depth, 1.0, 99.0, next(widths), "")
    )
    found = race(setting, losses_of(setting, 0), grid(setting))
    assert (found.cells, found.reached, found.held) == (5 * setting.batch, True, True)
