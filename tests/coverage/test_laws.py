"""The intervals of studies whose law has another form than the fitted one, and of those in which all has that form."""

import numpy as np
import pytest

from analysis.curves.curves import build_curves
from analysis.law.crossings import find_crossings
from analysis.law.threshold import OWN_SCATTER, fit_threshold
from tests.coverage.measure import measured, share, together
from tests.coverage.worlds import WORLDS, Truth, World

STUDIES = 40
LAW_STUDIES = 60
#: No form that is fitted is true, or it is true with a scatter that so few crossings do not show.
WRONG = ("power law in L", "scatter", "deep models", "two sizes", "best depth saturates")
FORM_WRONG = [name for name in WORLDS if name.startswith(WRONG)]
SCATTERED = "scatter 0.2 of ln d, 3 depths"
SMOOTH = [name for name in WORLDS if name.startswith("smooth misfit")]
LAWFUL = [name for name, world in WORLDS.items() if world.group == "law"]


def reached(world):
    """The crossings between the smallest and the largest size."""
    return [shallow for shallow in world.truth.depths[:-1] if world.reaches(shallow)]


#: With fewer crossings their scatter is assumed, and larger than the none of these worlds.
SCATTER_SHOWN = [name for name in LAWFUL if len(reached(WORLDS[name])) >= OWN_SCATTER]


def mostly_true(names):
    """Whether the intervals of at most a tenth of the stated depths miss the best one."""
    held, stated = together(names, STUDIES, "stated_depths")
    return stated - held <= 0.1 * max(stated, 1)


@pytest.mark.extended
@pytest.mark.parametrize("name", FORM_WRONG)
def test_a_depth_stated_beyond_the_data_is_true_where_the_form_is_not(name):
    """Of 40 depths at most 4 are false; one in four would pass once in 60 measurements, one in fifty fail in 800."""
    assert mostly_true([name])


@pytest.mark.extended
def test_a_depth_stated_beyond_the_data_is_true_where_curves_have_another_form():
    assert mostly_true(SMOOTH)


@pytest.mark.extended
def test_nothing_is_stated_from_deep_models_that_are_trained_too_little():
    """One study of fifty is recorded with a law; a tenth of them would pass once in 12 measurements."""
    found = measured("deep models undertrained beyond a size", STUDIES)
    assert found["decided"] <= 1
    assert found["stated"] == 0


@pytest.mark.extended
def test_two_sizes_are_never_bracketed():
    assert measured("two sizes", STUDIES)["bracketed"][1] == 0


@pytest.mark.extended
@pytest.mark.parametrize("name", LAWFUL)
def test_every_interval_of_a_world_of_the_fitted_form_is_covered(name):
    """By the binomial 60 intervals of 95 % are below 85 % once in 1,300 measurements."""
    found = measured(name, LAW_STUDIES)
    for what in ("crossings", "intercepts", "slopes", "depths"):
        assert share(found[what]) >= 0.85, (what, found[what])
    # What is missing is not asked; that must be rare, or the rest is a choice.
    assert found["crossings"][1] == found["pairs"] == LAW_STUDIES * (len(WORLDS[name].truth.depths) - 1)
    assert min(found["intercepts"][1], found["slopes"][1]) >= 0.97 * LAW_STUDIES


@pytest.mark.extended
def test_the_crossings_of_all_worlds_of_the_fitted_form_are_covered_at_their_level():
    """Between the sizes 97.4 % of 1,920 are held.

    Their standard error is 0.36 points by the binomial and 0.41 by clusters of studies; the bounds are three of these.
    """
    held = together(LAWFUL, LAW_STUDIES, "crossings_reached")
    assert 0.961 <= share(held) <= 0.987
    # The interval of a crossing outside the sizes is open on that side, so that it hardly ever misses.
    everywhere = together(LAWFUL, LAW_STUDIES, "crossings")
    assert share([everywhere[0] - held[0], everywhere[1] - held[1]]) >= 0.95


@pytest.mark.extended
@pytest.mark.parametrize("what", ["intercepts", "slopes"])
def test_a_and_b_of_all_worlds_of_the_fitted_form_are_covered_at_their_level(what):
    """At least 95 % of 180 less three standard errors, but not all: 95 % hold all once in 10,000 measurements."""
    held, asked = together(SCATTER_SHOWN, LAW_STUDIES, what)
    assert share([held, asked]) >= 0.9
    assert held < asked


@pytest.mark.extended
@pytest.mark.parametrize(("seeds", "noise"), [(1, 0.002), (3, 0.005), (5, 0.02)])
def test_a_study_without_a_crossing_says_so(seeds, noise):
    # The first crossing lies at thrice the largest size.
    truth = Truth(4, 0.3, (1, 2, 4), noise=noise, slope=0.08)
    world = World("law", truth, seeds, sizes=6, low=100, high=1 / 3, last=0)
    said = []
    for number in range(400):
        found = find_crossings(build_curves(world.study("no crossing", number)[0]))
        statuses = {fit_threshold(found, "log-linear").status, *(item.status for item in found.items)}
        said.append(statuses == {"insufficient", "right_censored"})
    assert np.mean(said) >= 0.95


@pytest.mark.slow
def test_intervals_of_the_fitted_form_are_covered_in_a_few_studies_too():
    """By the binomial 75 crossings of 95 % are below 87 % once in 240 measurements, 25 others below 80 % in 800."""
    found = measured("4 depths, 4 seeds, 0.5 %, steep, much shared", 25)
    assert share(found["crossings"]) >= 0.87
    assert min(share(found[what]) for what in ("intercepts", "slopes", "depths")) >= 0.8
