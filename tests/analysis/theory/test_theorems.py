import itertools
import math
from fractions import Fraction

import pytest

from analysis.errors import InputError
from analysis.theory.theorems import (
    EXAMPLE,
    bounds,
    equation_7,
    equation_8,
    log3,
    matching_width,
    regime,
    threshold,
)

DEPTHS = [*range(1, 13), 24, 48, 96, 100, 10**4]
WIDTHS = [
    1,
    2,
    3,
    4,
    8,
    9,
    10,
    26,
    27,
    28,
    100,
    729,
    768,
    1000,
    12288,
    59049,
    10**6,
    3**40,
    3**40 + 1,
    10**60,
]
HEADS = [1, 2, 3, 16, 96, 999, 1000, 10**6]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        *((256, 5.05), (512, 5.68), (768, 6.05), (1000, 6.29), (1024, 6.31)),
        *((2048, 6.94), (4096, 7.57), (8192, 8.20), (12288, 8.57), (30000, 9.38)),
    ],
)
def test_thresholds_of_widths(width, expected):
    assert threshold(width) == pytest.approx(expected, abs=0.005)


def test_powers_of_three_have_whole_logarithms():
    """log(243)/log(3) is 4.999…, which would put a boundary shape on a side."""
    assert math.log(243) / math.log(3) != 5
    for power in range(210):
        assert log3(3**power) == power
    # Their neighbours are not rounded to whole ones.
    for power in range(1, 20):
        assert threshold(3**power - 1 or 1) < power < threshold(3**power + 1)


def test_the_side_of_a_shape_is_decided_in_whole_numbers():
    for depth in (1, 5, 6, 40, 200):
        assert regime(depth, 3**depth + 1) == "depth-efficient"
        assert regime(depth, 3**depth) == "boundary"
        assert regime(depth, 3**depth - 1) == "depth-inefficient"
    assert regime(10**6, 10**100) == "depth-inefficient"


@pytest.mark.parametrize(
    ("shape", "lower", "upper", "theorem"),
    [
        ((6, 1000, 16), 133.010, 2294, 1),
        ((12, 1000, 16), 2071, 14246, 2),
        ((24, 1000, 16), 7963, 38258, 2),
        ((96, 1000, 16), 43315, 182330, 2),
    ],
)
def test_known_bounds(shape, lower, upper, theorem):
    found = bounds(*shape)
    assert found.lower == pytest.approx(lower, abs=5e-4 if theorem == 1 else 0.5)
    assert found.upper == pytest.approx(upper, abs=0.5)
    assert found.theorem == theorem
    assert not found.vacuous
    assert found.reason is None


def test_a_lower_bound_below_one_is_called_vacuous():
    found = bounds(7, 1000, 16)
    assert found.lower == pytest.approx(-384, abs=0.5)
    assert found.vacuous
    assert found.regime == "depth-inefficient"


def test_lower_bounds_never_exceed_upper_ones():
    defined = 0
    for depth, width, heads in itertools.product(DEPTHS, WIDTHS, HEADS):
        found = bounds(depth, width, heads)
        if found.upper is None:
            assert width == 3**depth
            assert (found.theorem, found.lower, found.regime) == (None, None, "boundary")
            assert "Theorem 1 needs" in found.reason
            continue
        assert math.isfinite(found.upper)
        assert found.theorem == (1 if 3**depth < width else 2)
        assert (found.lower is None) == (heads >= width)
        assert (found.reason is None) == (found.lower is not None)
        if found.lower is not None:
            defined += 1
            assert math.isfinite(found.lower)
            assert found.lower <= found.upper
            assert found.vacuous == (found.lower <= 0)
        else:
            assert found.vacuous
    assert defined > 1000


def test_the_bounds_of_one_layer_are_plain_numbers():
    """L = 1: between (d - H)^(1/3)·(3/2)^(1/3) and d + H, from the formula by hand."""
    for width, heads in ((4, 1), (8, 2), (1000, 16)):
        found = bounds(1, width, heads)
        assert 3**found.upper == pytest.approx(width + heads)
        assert 3 ** (3 * found.lower) == pytest.approx(1.5 * (width - heads))


def test_the_lower_bound_of_theorem_1_is_positive_just_where_it_should_be():
    """Its sign is that of log3(d - H) - L + 2 - log3 2, so that of 9·(d - H) - 2·3^L."""
    for depth, width, heads in itertools.product((1, 2, 3, 6, 30), (10, 100, 1000, 3**31), (1, 9, 99, 900)):
        if heads < width:
            lower, _ = equation_7(depth, width, heads)
            exact = Fraction(9 * (width - heads), 2 * 3**depth)
            assert (lower > 0) == (exact > 1)


def test_theorem_2_as_garbled_in_the_stored_text_contradicts_itself():
    depth, width = 12, 1000
    lower, upper = equation_8(depth, width, 16)
    factor = math.sqrt(2 * math.sqrt(2 * math.e))
    garbled = 2 * width * depth + depth - 2 * width * log3(width / 2) * factor + log3(width)
    assert lower <= upper
    assert garbled == pytest.approx(-413, abs=0.5)
    assert garbled < lower


def test_bounds_grow_with_depth():
    for width in (1000, 10**6):
        upper = [bounds(depth, width, 16).upper for depth in range(1, 101)]
        assert all(a < b for a, b in itertools.pairwise(upper))
    # Doubly exponential below the threshold, exponential above it.
    below = [bounds(depth, 10**6, 16).upper for depth in range(2, 12)]
    assert all(b / a > 3 for a, b in itertools.pairwise(below))
    above = [bounds(depth, 10**3, 16).upper for depth in range(20, 30)]
    steps = [b - a for a, b in itertools.pairwise(above)]
    assert steps == pytest.approx([steps[0]] * len(steps))


def test_the_example_of_corollary_1_is_not_what_the_earlier_revision_prints():
    two, three = (matching_width(shallow, *EXAMPLE) for shallow in (2, 3))
    assert two.needed == pytest.approx(133.010, abs=5e-4)
    assert two.width == pytest.approx(7.34e15, rel=1e-3)
    assert three.width == pytest.approx(7.61e4, rel=1e-3)
    assert 2e17 / two.width == pytest.approx(27, abs=0.5)
    assert 2e5 / three.width == pytest.approx(2.6, abs=0.05)
    assert two.binding
    assert three.binding


@pytest.mark.parametrize(
    ("deep", "shallow", "width"),
    [((6, 1000, 16), 1, 2.9e63), ((6, 1024, 16), 2, 1.20e16), ((6, 1024, 16), 3, 8.85e4)],
)
def test_other_widths_a_shallower_model_needs(deep, shallow, width):
    found = matching_width(shallow, *deep)
    assert found.width == pytest.approx(width, rel=5e-3)
    assert 10**found.log10_width == pytest.approx(found.width)


def test_at_that_width_the_two_bounds_meet():
    for deep, shallow in itertools.product(((6, 1000, 16), (6, 2000, 8), (4, 500, 1)), (1, 2, 3)):
        found = matching_width(shallow, *deep)
        upper = (3**shallow - 1) / 2 * math.log(found.width + deep[2]) / math.log(3)
        assert upper == pytest.approx(bounds(*deep).lower, rel=1e-12)


def test_the_bounds_do_not_separate_a_model_that_is_hardly_shallower():
    four = matching_width(4, *EXAMPLE)
    assert four.width == pytest.approx(23, abs=0.5)
    assert not four.binding
    five = matching_width(5, *EXAMPLE)
    assert (five.width, five.log10_width, five.binding) == (None, None, False)


def test_a_width_beyond_a_float_is_given_by_its_logarithm():
    found = matching_width(1, 12, 10**6, 1)
    assert found.width is None
    assert found.log10_width == pytest.approx(bounds(12, 10**6, 1).lower * math.log10(3))
    assert found.binding


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((6, 6, 1000, 16), "must be less"),
        ((2, 12, 1000, 16), "range of Theorem 1"),
        ((2, 6, 729, 16), "3\\^6 exactly"),
        ((1, 2, 10, 10), "more width than heads"),
        ((0, 6, 1000, 16), "depth is 0"),
    ],
)
def test_corollary_1_is_refused_where_it_does_not_apply(arguments, message):
    with pytest.raises(InputError, match=message):
        matching_width(*arguments)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 8, 1), "depth is 0"),
        ((-1, 8, 1), "depth is -1"),
        ((1, 0, 1), "width is 0"),
        ((1, 8, 0), "heads is 0"),
        ((10**7, 8, 1), "depth is too large"),
        ((1, 10**101, 1), "width is too large"),
    ],
)
def test_impossible_shapes_are_refused(shape, message):
    with pytest.raises(InputError, match=message):
        bounds(*shape)
