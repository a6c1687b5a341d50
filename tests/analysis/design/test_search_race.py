"""The sampler `crossing` in simulated studies; the benchmark compares it with the grid and the other samplers.

A search stops when its interval is narrow, so its intervals are scored where it stopped: in the settings of the
benchmark, for which it was made, and in settings of other truths, noise and depths that nothing in it was chosen by.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.design.objective import Estimate
from analysis.fit.study import study_of
from analysis.runs.table import RunTable
from benchmarks import search
from benchmarks.search import ASKED, CAP, SETTINGS, Setting, crossing, grid, losses_of, race
from tests.coverage.measure import holds
from tests.simulated_study import Truth, draw_curves

NOISE = Truth(3.2, 0.1, (1, 2, 3, 4, 6, 8), noise=0.002)
OTHER = {
    "smooth misfit": Setting(Truth(3, 0.12, (2, 4, 6, 8, 12, 16), misfit_sd=0.003, misfit_length=1.5), 9),
    "heavy tails, flat gaps, little shared": Setting(
        replace(NOISE, a=2.8, b=0.2, noise_kind="t3", slope=0.025, exponent=0.2, shared=0.1), 9
    ),
    "errors common to a depth": Setting(replace(NOISE, depths=(3, 6, 9, 12, 15, 18), depth_shared=0.3), 8),
}

#: Studies of each; one takes 6 to 37 s of a core. The benchmark has a hundred of its settings, and races the grid too.
RACED = dict.fromkeys(SETTINGS, 1) | dict.fromkeys(OTHER, 2)


def raced(name, number):
    """The search in a study of a setting, stopped at twice the FLOPs of the grid that defines the half-width."""
    setting = (SETTINGS | OTHER)[name]
    most = CAP * ASKED * sum(12.0 * depth * width**2 for depth, width in setting.grid)
    return race(setting, losses_of(setting, number), crossing(setting), most)


def crossings_held(setting, rows, number):
    """Whether each interval of a crossing holds that of the study's own curves."""
    curves = draw_curves(setting.truth, (0, number))
    for item in study_of(RunTable.from_frame(rows)).crossings.items:
        true = curves.last_crossing(item.shallow, setting.budgets[0] / 20, setting.budgets[-1] * 20)
        yield holds(item.params_interval, true)


@pytest.mark.extended
def test_its_intervals_cover_the_truth_although_it_stops_when_they_are_narrow():
    """By the binomial 10 depths of 95 % are held less than 7 times once in 900 measurements.

    Of 51 crossings 95 % are held but for a standard error of 3.1 points; three of these below. An interval of the
    depth is scored where the depth is stated.
    """
    held, crossings, races = [], [], sum(RACED.values())
    for name, number in ((name, number) for name, studies in RACED.items() for number in range(studies)):
        run = raced(name, number)
        held += [run.held] if run.held is not None else []
        crossings += crossings_held((SETTINGS | OTHER)[name], run.rows, number)
    assert len(held) >= 0.8 * races
    assert np.mean(held) >= 0.7, np.mean(crossings)
    assert np.mean(crossings) >= 0.858, np.mean(held)


@pytest.mark.slow
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
        search, "estimate", lambda rows, objective: Estimate(setting.depth, 1.0, 99.0, next(widths), None)
    )
    found = race(setting, losses_of(setting, 0), grid(setting))
    assert (found.cells, found.reached, found.held) == (5 * setting.batch, True, True)
