"""The sampler `crossing` against the grid in simulated studies; the bench has all settings and other samplers."""

import math
import statistics

import numpy as np
import pytest

from analysis.aim import Estimate
from tests.bench import search
from tests.bench.search import SETTINGS, Setting, crossing, grid, losses_of, race, studies

#: One setting and a tenth of the studies of the bench take a minute of one core; all of them, two hours.
RACED, STUDIES = "5 depths, high noise", 11


@pytest.fixture(scope="module")
def raced():
    return [found["crossing"] for _, found in studies(SETTINGS[RACED], ("crossing",), STUDIES)]


@pytest.mark.long
def test_the_search_is_as_sure_for_a_third_of_the_grid(raced):
    ratios = [ratio for ratio, _ in raced]
    assert statistics.median(ratios) <= 0.33, ratios


@pytest.mark.long
def test_its_intervals_hold_the_truth_although_it_stops_when_they_are_narrow(raced):
    """11 studies know 95 % to 6.6 points, so three standard errors below is 75 %."""
    assert np.mean([one.held for _, one in raced]) >= 0.75


def test_every_sampler_meets_the_same_losses_and_spends_what_it_trains():
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
        search, "estimate", lambda rows, aim: Estimate(setting.depth, 1.0, 99.0, next(widths), "")
    )
    found = race(setting, losses_of(setting, 0), grid(setting))
    assert (found.cells, found.reached, found.held) == (5 * setting.batch, True, True)
