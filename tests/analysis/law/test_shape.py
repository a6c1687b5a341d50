"""What every answer about a shape shares."""

import math

import pytest

from analysis.law.shape import buildable_width
from core.errors import InputError


@pytest.mark.parametrize(
    ("width", "step", "built"),
    [
        (724.1, None, 704),
        (3486.0, None, 3456),
        (3520.0, None, 3520),
        (288.0, None, 320),
        (255.9, None, 256),
        (100.0, None, 104),
        (8.5, None, 8),
        (1.2, None, 1),
        (724.1, 48, 720),
        (8.5, 2, 8),
        (1.0, 64, 64),
    ],
)
def test_a_width_can_be_built(width, step, built):
    assert buildable_width(width, step) == built


@pytest.mark.parametrize(("width", "step"), [(0.0, None), (math.inf, None), (math.nan, 8), (64.0, 0)])
def test_a_width_that_is_none_is_refused(width, step):
    with pytest.raises(InputError):
        buildable_width(width, step)
