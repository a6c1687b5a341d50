import math

import numpy as np
import pytest

from analysis.curves.best_shapes import BestShape, DepthAt
from analysis.errors import InputError
from analysis.law.loss_surfaces import SurfaceFit
from analysis.law.near_optimal import check_within, measured_near_optimal, near_optimal
from analysis.law.published import LIU2026

ADDITIVE = SurfaceFit(
    "additive", "ok", parameters={"E": 1.7, "c_m": 30.0, "alpha_m": 0.7, "c_l": 2.0, "alpha_l": 1.3}
)
RESPONSE = SurfaceFit(
    "response",
    "ok",
    parameters={"b": 3.0, "b_N": -0.1, "b_L": 0.0, "b_NN": 0.0, "b_NL": -0.01, "b_LL": 0.02}
    | {"log_params": math.log(1e8), "log_depth": math.log(12)},
)


@pytest.mark.parametrize("model", [ADDITIVE, RESPONSE, LIU2026], ids=["additive", "response", "published"])
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


def test_without_a_best_depth_there_is_no_range():
    ridge = SurfaceFit("response", "ok", parameters=RESPONSE.parameters | {"b_LL": -0.02})
    assert near_optimal(ridge, 1e8, 12, "here") is None


def test_a_depth_that_the_law_does_not_count_has_no_loss():
    found = near_optimal(LIU2026, 1e8, 2, "here")
    assert found.lost is found.lost_text is None
    # Where the best width would be below one, one depth is left.
    assert near_optimal(ADDITIVE, 13.0, None, "here").depths == (1, 1)


def test_measured_depths_give_the_measured_difference():
    excess = {2: 0.02, 4: 0.004, 8: 0.0, 16: 0.006, 32: 0.03}
    shapes = tuple(DepthAt(depth, 64.0, 3 + value, None, value, None) for depth, value in excess.items())
    best = BestShape(1e6, 1e6, 8, 64.0, 3.0, None, shapes)
    assert measured_near_optimal(best).depths == (4, 8)
    assert measured_near_optimal(best, 0.01).depths == (4, 16)
    assert measured_near_optimal(best, 0.001).depths_text == "8"


@pytest.mark.parametrize("within", [0, -1, math.nan, math.inf])
def test_the_allowance_is_a_positive_number(within):
    with pytest.raises(InputError, match="--within is"):
        check_within(within)
