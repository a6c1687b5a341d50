"""The sampler `crossing` against the grid in simulated studies; the benchmark also has the other samplers.

A search stops when its interval is narrow, so its intervals are scored where it stopped: in the settings of the
benchmark, for which it was made, and in settings of other truths, noise and depths that nothing in it was chosen by.
"""

import functools
import math
import statistics

import numpy as np
import pytest

from analysis.curves.curves import build_curves
from analysis.design.objective import DRAWS, Estimate, compared
from analysis.design.simulated_study import Truth, draw_curves
from analysis.law.crossings import find_crossings
from tests.bench import search
from tests.bench.search import SETTINGS, Setting, crossing, grid, losses_of, race, studies

#: Each takes a second of one core; the benchmark has a hundred per setting.
STUDIES = 25
OTHER = {
    "smooth misfit": Setting(Truth(3, 0.12, (2, 4, 6, 8, 12, 16), misfit_sd=0.003, misfit_length=1.5), 9),
    "heavy tails, flat gaps, little shared": Setting(
        Truth(
            2.8, 0.2, (1, 2, 3, 4, 6, 8), noise=0.002, noise_kind="t3", slope=0.025, exponent=0.2, shared=0.1
        ),
        9,
    ),
    "errors common to a depth": Setting(
        Truth(3.2, 0.1, (3, 6, 9, 12, 15, 18), noise=0.002, depth_shared=0.3), 8
    ),
}


@pytest.fixture(scope="module")
def raced():
    """Results of the search in each study, by setting."""

    @functools.cache
    def of(name):
        setting = (SETTINGS | OTHER)[name]
        return [found["crossing"] for _, found in studies(setting, ("crossing",), STUDIES)]

    return of


@pytest.mark.extended
@pytest.mark.parametrize("name", SETTINGS)
def test_the_search_reaches_the_half_width_for_a_third_of_the_grid(raced, name):
    ratios = [ratio for ratio, _ in raced(name)]
    assert statistics.median(ratios) <= 0.33
    assert np.quantile(ratios, 0.9) <= 0.6


def crossings_held(setting, rows, number):
    """Whether each interval of a crossing holds that of the study's own curves."""
    curves = draw_curves(setting.truth, (0, number))
    found = find_crossings(build_curves(compared(rows)[0]), draws=DRAWS, delta=None, neighbours=True)
    for item in found.items:
        low, high = item.params_interval or (None, None)
        true = curves.crossing(item.shallow, setting.budgets[0] / 20, setting.budgets[-1] * 20)
        yield (low is None or low <= true) and (high is None or true <= high)


@pytest.mark.extended
@pytest.mark.parametrize("settings", [SETTINGS, OTHER], ids=["of the benchmark", "others"])
def test_its_intervals_cover_the_truth_although_it_stops_when_they_are_narrow(raced, settings):
    """The standard error of a coverage of 95 % over a hundred studies is 2.2 points.

    An interval of the depth is scored where the depth is stated.
    """
    stated = {name: [one.held for _, one in raced(name) if one.held is not None] for name in settings}
    held = [one for each in stated.values() for one in each]
    crossings = [
        found
        for name, setting in settings.items()
        for number, (_, one) in enumerate(raced(name))
        for found in crossings_held(setting, one.rows, number)
    ]
    assert min(map(len, stated.values())) >= 0.8 * STUDIES, stated
    assert np.mean(held) >= 0.92, np.mean(crossings)
    assert np.mean(crossings) >= 0.92, np.mean(held)


def test_all_samplers_have_the_same_losses_and_pay_for_their_cells():
    setting = SETTINGS["6 depths, low noise"]
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
    setting = Setting(SETTINGS["6 depths, low noise"].truth, 4)
    widths = iter([math.inf, 0.1, math.inf, 0.1, 0.1, 0.1])
    monkeypatch.setitem(setting.__dict__, "halfwidth", 0.2)
    monkeypatch.setattr(
        search, "estimate", lambda rows, objective: Estimate(setting.depth, 1.0, 99.0, next(widths), "")
    )
    found = race(setting, losses_of(setting, 0), grid(setting))
    assert (found.cells, found.reached, found.held) == (5 * setting.batch, True, True)
