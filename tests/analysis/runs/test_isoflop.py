import math

import numpy as np
import pandas as pd
import pytest

from analysis.runs.isoflop import compute_minima
from analysis.runs.table import RunTable
from tests.isoflop import isoflop_table, least_loss
from tests.simulated_study import shapes_of


def minima(frame):
    return compute_minima(RunTable.from_frame(frame).used)


@pytest.mark.parametrize("flops", [True, False])
def test_the_minima_of_a_table_are_the_best_sizes_and_least_losses_of_its_world(flops):
    frame = isoflop_table(noise=0)
    found = minima(frame if flops else frame.drop(columns="flops"))
    assert (len(found.rows), found.left_out) == (20, {})
    sizes = {size.depth: size for size in found.sizes}
    for row in found.rows.itertuples():
        log_size, least = least_loss(row.params, row.depth)
        # The loss is no parabola: it is steeper towards small models.
        assert math.log(row.n_best) == pytest.approx(log_size, abs=0.05)
        assert row.loss == pytest.approx(least, abs=0.004)
        size = sizes[row.depth]
        assert size.params(row.params) == pytest.approx(row.n_best, rel=0.05)
        assert size.tokens(row.params) == pytest.approx(row.params / (6 * size.params(row.params)), rel=1e-6)


def test_a_minimum_at_an_end_of_the_sizes_is_dropped_with_the_reason():
    frame = isoflop_table(noise=0)
    small = (frame["flops"] == frame["flops"].min()) & (frame["params"] > 8e6) & (frame["depth"] == 4)
    found = minima(frame[~small])
    assert "end of the sizes" in found.left_out[4, frame["flops"].min()]
    assert not ((found.rows["depth"] == 4) & (found.rows["params"] == frame["flops"].min())).any()
    two = frame[~((frame["flops"] == frame["flops"].min()) & (frame["params"] > 4e6) & (frame["depth"] == 4))]
    assert "2 sizes" in minima(two).left_out[4, frame["flops"].min()]


def test_the_tokens_follow_the_flops_of_the_table():
    """Attention and vocabulary cost FLOPs as the width does."""
    frame = isoflop_table(noise=0)
    per_token = 6 * frame["params"] + 3e4 * frame["depth"] * frame["width"]
    frame["tokens"] = frame["flops"] / per_token
    found = minima(frame)
    compute = float(frame["flops"].median())
    (size,) = (size for size in found.sizes if size.depth == 8)
    params = size.params(compute)
    width = math.sqrt(params / 96)
    assert size.tokens(compute) == pytest.approx(compute / (6 * params + 3e4 * 8 * width), rel=1e-6)


def test_each_seed_has_its_minimum_and_learning_rates_are_chosen_first():
    frame = isoflop_table(3)
    plain = minima(frame)
    assert plain.rows.groupby(["depth", "params"])["seed"].nunique().eq(3).all()
    worse = frame.assign(lr=1e-2, loss=frame["loss"] + 0.1)
    both = minima(pd.concat([frame.assign(lr=1e-3), worse], ignore_index=True))
    np.testing.assert_allclose(both.rows["loss"], plain.rows["loss"], rtol=1e-9)


def test_other_tables_have_no_minima():
    frame = isoflop_table()
    one_budget = frame[frame["flops"] == frame["flops"].max()]
    grid = pd.DataFrame(shapes_of((2, 4, 8), np.geomspace(1e6, 1e8, 6)), columns=["depth", "width", "budget"])
    for other in (
        one_budget,
        frame[frame["depth"] == 4],
        grid.assign(loss=3.0, tokens=1e9),
        frame.drop(columns="tokens"),
    ):
        assert minima(other) is None
