"""Recommendations at sizes between the measured ones, against the truth that made the losses."""

import numpy as np
import pytest

from analysis.audit.recommend import compare, shapes_of_sizes
from analysis.fit.document import fit
from analysis.fit.recommendation import NamedFit
from analysis.runs.table import RunTable
from core.errors import InputError
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4), noise=0.002)
#: Five sizes a factor of four apart: many sizes in between are near none of them.
SIZES = np.geomspace(TRUTH.crossing(1) / 5, TRUTH.crossing(2) * 5, 5)


@pytest.fixture(scope="module")
def fitted():
    found = fit(
        RunTable.from_frame(simulate(TRUTH, shapes_of(TRUTH.depths, SIZES), 3, np.random.default_rng(1)))
    )
    assert [item.status for item in found.crossings] == ["bracketed", "bracketed"]
    return found


def test_between_two_sizes_the_depth_is_that_of_the_crossings(fitted):
    low, high = fitted.best[0].params, fitted.best[-1].params
    sizes = np.geomspace(low * 1.001, high / 1.001, 60)
    _, shapes = shapes_of_sizes(NamedFit("a fit", fitted), None, list(sizes))
    borders = [item.params for item in fitted.crossings]
    for size, shape in zip(sizes, shapes, strict=True):
        assert shape.source == "measured"
        assert shape.depth == TRUTH.depths[np.searchsorted(borders, size)]


def test_within_the_interval_of_a_crossing_both_depths_are_possible(fitted):
    crossing = fitted.crossings[1]
    low, high = crossing.params_interval
    for size in (low * 1.01, high / 1.01):
        _, (shape,) = shapes_of_sizes(NamedFit("a fit", fitted), None, [size])
        first, last = shape.depth_interval
        assert first is None or first <= 2
        assert last is None or last >= 4


@pytest.mark.parametrize("size", ["0", "-1", "nan", "inf", 0])
@pytest.mark.parametrize("law", [None, "levine2020", "log3"])
def test_a_size_that_is_none_is_refused_by_every_source(size, law):
    with pytest.raises(InputError, match="positive number"):
        compare([size]) if law is None else shapes_of_sizes(None, law, [size])
