"""Intervals of simulated studies (`analysis.design.simulated_study`) cover the truth at their level.

400 studies know a coverage of 95 % to 1.1 %, so that the asked-for 92 to 98 % are nearly three of its standard errors
either way; here are 500 of each world, 1,000 where the coverage is so near 98 % that 500 do not tell it from more. No
seed was chosen.
"""

import multiprocessing
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from analysis.curves.curves import build_curves
from analysis.design.objective import projection
from analysis.law.crossings import find_crossings
from analysis.law.projection import solve_depth
from analysis.law.threshold import OWN_SCATTER, fit_threshold
from tests.simulated_study import Truth, shapes_of, simulate


@dataclass(frozen=True)
class World:
    """A truth and the grid it is studied on: budgets from the first crossing / low to the crossing `last` · high."""

    truth: Truth
    seeds: int
    budgets: int
    low: float = 4.0
    high: float = 4.0
    last: int = -2
    studies: int = 500

    @property
    def shapes(self):
        ends = [self.truth.crossing(self.truth.depths[index]) for index in (0, self.last)]
        return shapes_of(
            self.truth.depths, np.geomspace(ends[0] / self.low, ends[1] * self.high, self.budgets)
        )


WORLDS = {
    "3 depths, 3 seeds, 0.5 %": World(Truth(2.5, 0.3, (1, 2, 4)), 3, 6, studies=1000),
    "3 depths, 5 seeds, 2 %": World(Truth(2.5, 0.3, (1, 2, 4), noise=0.02, slope=0.08), 5, 8),
    "4 depths, 1 seed, 0.2 %": World(Truth(2.5, 0.3, (1, 2, 4, 6), noise=0.002), 1, 7),
    "4 depths, 4 seeds, 0.5 %, steep, much shared": World(
        Truth(2.5, 0.3, (1, 2, 4, 6), slope=0.02, exponent=0.6, shared=0.7), 4, 6
    ),
    "5 depths, 2 seeds, 1 %": World(Truth(3, 0.15, (2, 4, 6, 8, 10), noise=0.01), 2, 7),
    "5 depths, 3 seeds, 0.5 %, the last crossing outside": World(
        Truth(3, 0.15, (2, 4, 6, 8, 10)), 3, 7, high=1.7, last=2
    ),
    "5 depths, 3 seeds, 0.5 %, the first crossing outside": World(
        Truth(3, 0.15, (2, 4, 6, 8, 10)), 3, 7, low=1 / 1.6
    ),
    "7 depths of the paper, 1 seed, 0.2 %": World(
        Truth(5.039, 0.0555, (6, 12, 18, 24, 30, 36, 48), noise=0.002), 1, 8
    ),
    "7 depths of the paper, 3 seeds, 1 %, slow": World(
        Truth(5.039, 0.0555, (6, 12, 18, 24, 30, 36, 48), noise=0.01, exponent=0.1), 3, 8
    ),
}


def answered(frame):
    """The adjacent pairs of a study, its law, and the interval of the depth at ten times its largest size."""
    curves = build_curves(frame)
    found = find_crossings(curves, draws=100, delta=None, neighbours=True)
    ahead = projection(curves, found, 10 * float(frame["params"].max()))
    return found.items, fit_threshold(found, "log-linear"), ahead.interval


def answers(frames):
    """The same of many studies, in order; two at a time, because thousands of them are most of the slow tests."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        yield from pool.imap(answered, frames, chunksize=20)


def holds(interval, value):
    low, high = interval
    return (low is None or low <= value) and (high is None or value <= high)


def coverage(world, studies, seed=0):
    """Share of the studies whose interval holds the truth, by what is asked; and how often each pair was closed."""
    generator = np.random.default_rng(seed)
    hits, asked, statuses = Counter(), Counter(), Counter()
    largest = 10 * max(12 * depth * width**2 for depth, width, _ in world.shapes)
    depth = solve_depth(world.truth.a, world.truth.b, largest)

    def ask(name, interval, value):
        asked[name] += 1
        hits[name] += holds(interval, value)

    frames = [simulate(world.truth, world.shapes, world.seeds, generator) for _ in range(studies)]
    for items, law, ahead in answers(frames):
        for item in items:
            statuses[item.shallow, item.status] += 1
            ask(f"crossing {item.shallow}", item.params_interval, world.truth.crossing(item.shallow))
        statuses["law", law.status] += 1
        if law.a is not None:
            ask("a", law.a_interval, world.truth.a)
            ask("b", law.b_interval, world.truth.b)
            ask("depth", ahead, depth)
    # A law that is missing is not asked; that must be rare, or the rest is a choice.
    assert min(asked.values()) >= 0.97 * studies, (asked, statuses)
    return {name: hits[name] / asked[name] for name in asked}, statuses


def outside(world):
    """The crossings that no size measured reaches, by name."""
    sizes = [12 * depth * width**2 for depth, width, _ in world.shapes]
    depths = world.truth.depths[:-1]
    return {
        f"crossing {depth}" for depth in depths if not min(sizes) < world.truth.crossing(depth) < max(sizes)
    }


def few(world):
    """Whether fewer crossings are measured than show their own scatter."""
    return len(world.truth.depths) - 1 - len(outside(world)) < OWN_SCATTER


@pytest.mark.extended
@pytest.mark.parametrize("name", WORLDS)
def test_intervals_cover_the_truth_at_their_level(name):
    world = WORLDS[name]
    found, statuses = coverage(world, world.studies)
    assert {"a", "b", "depth"} < found.keys(), statuses
    for what, share in found.items():
        # An interval that is open on the side of a crossing that was never measured can hardly miss it. That of a depth
        # spans several forms, and with few crossings the scatter is assumed, and larger than the none of these worlds.
        wide = what in outside(world) or what == "depth" or (what in "ab" and few(world))
        assert 0.92 <= share <= (1.0 if wide else 0.98), (what, found, statuses)


@pytest.mark.slow
def test_intervals_cover_the_truth_in_a_few_studies_too():
    # 80 studies: 95 % is known to 2.4 %, so three standard errors below is 88 %.
    found, statuses = coverage(WORLDS["4 depths, 4 seeds, 0.5 %, steep, much shared"], 80, seed=1)
    assert len(found) == 6
    assert min(found.values()) >= 0.88, (found, statuses)


@pytest.mark.extended
@pytest.mark.parametrize(("seeds", "noise"), [(1, 0.002), (3, 0.005), (5, 0.02)])
def test_a_study_without_a_crossing_says_so(seeds, noise):
    # The first crossing lies at thrice the largest size.
    truth = Truth(4, 0.3, (1, 2, 4), noise=noise, slope=0.08)
    shapes = shapes_of(truth.depths, np.geomspace(truth.crossing(1) / 100, truth.crossing(1) / 3, 6))
    generator = np.random.default_rng(0)
    frames = [simulate(truth, shapes, seeds, generator) for _ in range(400)]
    said = [
        law.status == "insufficient" and all(item.status == "right_censored" for item in items)
        for items, law, _ in answers(frames)
    ]
    assert np.mean(said) >= 0.95
