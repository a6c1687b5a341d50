"""The intervals of studies whose truth is outside the fitted family; all figures are in `docs/coverage.md`."""

import json
import math
from functools import cache

import numpy as np
import pytest

from tests.coverage.measure import measure, score, summary
from tests.coverage.page import BEFORE, PAGE, page_text
from tests.coverage.worlds import WORLDS, World

#: Their 200 to 600 crossings give a coverage of 95 % a standard error of 1.0 to 1.5 points.
STUDIES = 200
#: Not losses correlated within a depth with one seed: an error that moves a whole curve, in the only seed, leaves the
#: losses of another study with other crossings, so no interval of useful length can hold both.
MISFIT = [
    name
    for name, world in WORLDS.items()
    if world.group == "misfit" and not (world.truth.depth_shared and world.seeds == 1)
]
#: No form that is fitted is true, or it is true with a scatter that so few crossings do not show.
FORM_WRONG = [
    name
    for name in WORLDS
    if name.startswith(("power law in L", "scatter", "deep models", "two sizes", "best depth saturates"))
]
WELL_BEHAVED = [name for name, world in WORLDS.items() if world.group == "noise" and world.asks]


@cache
def measured(name):
    ((_, found),) = measure([name], STUDIES)
    return found


def share(count):
    return count[0] / count[1]


@pytest.mark.extended
@pytest.mark.parametrize("name", MISFIT)
def test_crossings_are_covered_where_curves_deviate_smoothly(name):
    # 98.2 % where a misfit of five times the noise is as short as the spacing of the sizes.
    assert 0.92 <= share(measured(name)["crossings"]) <= 0.985


@pytest.mark.extended
@pytest.mark.parametrize("name", FORM_WRONG)
def test_a_stated_projection_is_true_where_the_form_is_not(name):
    found = measured(name)
    assert found["claims_false"] <= 0.1 * max(found["claims"], 1)


@pytest.mark.extended
@pytest.mark.parametrize("name", WELL_BEHAVED)
def test_intervals_are_covered_whatever_the_noise_and_the_grid(name):
    found = measured(name)
    assert share(found["crossings"]) >= 0.92
    assert share(found["slopes"]) >= 0.92
    assert share(found["depths"]) >= 0.92


@pytest.mark.extended
@pytest.mark.parametrize("name", WELL_BEHAVED)
def test_misfit_costs_at_most_a_quarter_of_the_length_where_there_is_none(name):
    before = json.loads(BEFORE.read_text())["worlds"][name]
    assert measured(name)["length"] <= 1.25 * before["length"]


@pytest.mark.extended
def test_nothing_is_projected_from_deep_models_that_are_trained_too_little():
    assert measured("deep models undertrained beyond a size")["projections"] <= 0.1 * STUDIES


@pytest.mark.extended
def test_two_sizes_are_never_bracketed():
    assert measured("two sizes")["bracketed"][1] == 0


@pytest.mark.extended
def test_identical_curves_have_no_crossing():
    found = measured("identical curves")
    assert found["bracketed"][1] <= 0.02 * found["pairs"]
    assert found["slopes_significant"] <= 0.05 * STUDIES


@pytest.mark.slow
def test_crossings_are_covered_whatever_the_noise_in_a_few_studies_too():
    ((_, found),) = measure(["log-normal noise"], 25)
    assert share(found["crossings"]) >= 0.87


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "smooth misfit .005 nats, 1.5 e-folds, 8 sizes, 3 seeds",
        "losses correlated within a depth .8, 3 seeds",
    ],
)
def test_crossings_are_covered_where_curves_deviate_in_a_few_studies_too(name):
    """Of 75 crossings 95 % are held but for a standard error of 2.5 points; three of these below."""
    ((_, found),) = measure([name], 25)
    assert share(found["crossings"]) >= 0.87


@pytest.mark.slow
def test_a_few_studies_of_a_wrong_form_claim_little_that_is_false():
    ((_, found),) = measure(["power law in L, depths 2 to 24"], 25)
    assert found["claims_false"] <= 3


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_has_positive_losses_sizes_and_true_crossings(name):
    world = WORLDS[name]
    rows, curves = world.study(name, 0)
    assert rows["loss"].min() > 0
    assert np.isfinite(rows["loss"]).all()
    assert set(rows["depth"]) == set(world.truth.depths)
    assert rows.groupby("depth")["width"].nunique().min() >= min(world.sizes, 3) - (world.sizes == 2)
    again, _ = world.study(name, 0)
    assert again.equals(rows)
    assert not np.array_equal(world.study(name, 1)[0]["loss"].to_numpy()[:5], rows["loss"].to_numpy()[:5])
    for shallow, deep in zip(world.truth.depths[:-1], world.truth.depths[1:], strict=True):
        true = world.true_crossing(curves, shallow)
        if 0 < true < math.inf:
            gaps = [
                float(
                    curves.loss(shallow, np.array([true * by]))[0]
                    - curves.loss(deep, np.array([true * by]))[0]
                )
                for by in (1 / 1.001, 1.001)
            ]
            assert gaps[0] < 0 < gaps[1]
    if "depth" in world.asks:
        middle = math.sqrt(world.truth.depths[0] * world.truth.depths[1])
        assert world.truth.best_depth(world.truth.crossing(world.truth.depths[0])) == pytest.approx(middle)


def test_an_error_of_the_measurement_leaves_the_true_crossings():
    world = WORLDS["learning rate off by depth"]
    _, curves = world.study("learning rate off by depth", 0)
    assert world.true_crossing(curves, 4) == pytest.approx(world.truth.crossing(4), rel=1e-6)
    assert world.error(world.span, 1.0)(8, np.zeros(1)) == pytest.approx(0.03), "a factor of two at depth 8"


def test_a_study_is_scored_against_its_truth(monkeypatch):
    sharp = World("noise", WORLDS["widths in multiples of 8"].truth, sizes=6)
    monkeypatch.setitem(WORLDS, "sharp", sharp)
    records = [score("sharp", number) for number in range(6)]
    found = summary(sharp, records)
    assert found["studies"] == 6
    assert found["pairs"] == 18
    assert share(found["crossings"]) >= 0.8
    assert found["crossings"] == found["crossings_law"], "without misfit the curves cross on the law"
    assert found["slopes"][1] == 6
    # Against another truth the same intervals fail.
    monkeypatch.setattr(
        World, "true_crossing", lambda self, curves, shallow: 3 * self.truth.crossing(shallow)
    )
    assert summary(sharp, [score("sharp", 0)])["crossings"][0] == 0


def test_the_page_has_the_recorded_figures():
    page = PAGE.read_text()
    assert page_text(page) == page
    for name in WORLDS:
        assert f"| {name} |" in page
