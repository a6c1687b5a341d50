import dataclasses
import math

import numpy as np
import pytest

from analysis.law.near_optimal import WITHIN, nats_of, near_optimal, within_words
from analysis.law.published import LIU2026
from analysis.law.reading import AtSize, DepthAt
from core.errors import InputError

ADDITIVE = dataclasses.replace(LIU2026, c_m=30.0, alpha_m=0.7, c_l=2.0 * 100**1.3, alpha_l=1.3, skipped=0)


@pytest.mark.parametrize("model", [ADDITIVE, LIU2026], ids=["additive", "published"])
@pytest.mark.parametrize("params", [2e5, 1e8, 7e9])
@pytest.mark.parametrize("within", [1e-4, 0.005, 0.05])
def test_the_range_is_that_of_trying_every_depth(model, params, within):
    depths = np.arange(1, min(1500, int(params / 12)) + 1)
    losses = np.array([float(model.loss(params, depth)) for depth in depths])
    near = depths[losses <= losses.min() + within]
    # One valley: nothing between the ends is outside.
    assert len(near) == near[-1] - near[0] + 1
    best = int(depths[losses.argmin()])
    for depth in (best, best + 3):
        found = near_optimal(model, params, depth, "here", within)
        assert found.lost == pytest.approx(losses[depth - 1] - losses.min(), abs=1e-12)
        assert (found.within, found.losses) == (within, "here")
        assert found.depths == (near[0], near[-1])


def test_a_depth_that_the_law_does_not_count_has_no_loss():
    found = near_optimal(LIU2026, 1e8, 2, "here")
    assert found.lost is found.lost_text is None
    # Where the best width would be below one, one depth is left.
    assert near_optimal(ADDITIVE, 13.0, None, "here").depths == (1, 1)


def test_measured_depths_give_the_measured_difference():
    excess = {2: 0.02, 4: 0.004, 8: 0.0, 16: 0.006, 32: 0.03}
    shapes = tuple(DepthAt(depth, 64.0, 3 + value, value) for depth, value in excess.items())
    best = AtSize(1e6, 8, 64.0, 3.0, None, shapes)
    assert [shape.depth for shape in best.within(WITHIN)] == [4, 8]
    assert [shape.depth for shape in best.within(0.01)] == [4, 8, 16]


@pytest.mark.parametrize("within", [0, -1, math.nan, math.inf, "0%", "200%", "a lot", "0.1 nats"])
def test_the_allowance_is_a_positive_number(within):
    with pytest.raises(InputError, match="within= is"):
        nats_of(within, 3.0)


def test_the_allowance_may_be_a_share_of_the_loss():
    assert nats_of("0.5%", 3.0) == pytest.approx(0.015)
    assert nats_of("0.004", 3.0) == nats_of(0.004) == 0.004
    assert (within_words("0.5%"), within_words(0.004)) == ("0.5% of the loss", "0.004 nats")
    with pytest.raises(InputError, match="share of a loss"):
        nats_of("0.5%")
