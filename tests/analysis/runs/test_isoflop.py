import math

import numpy as np
import pandas as pd
import pytest

from analysis.runs.columns import planned_compute
from analysis.runs.comparison import compare
from analysis.runs.isoflop import LEAST_SIZES, compute_minima
from analysis.runs.remarks import About, Remark
from analysis.runs.table import RunTable
from tests.isoflop import isoflop_table, least_loss
from tests.remarks import remarks_about
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
    least = frame["flops"].min()
    assert found.left_out[4, least] == Remark(About.LEAST_AT_END, (4, least, "FLOPs"))
    assert not ((found.rows["depth"] == 4) & (found.rows["params"] == frame["flops"].min())).any()
    two = frame[~((frame["flops"] == frame["flops"].min()) & (frame["params"] > 4e6) & (frame["depth"] == 4))]
    few = Remark(About.FEW_SIZES_AT_COMPUTE, (4, 2, LEAST_SIZES, least, "FLOPs"))
    assert minima(two).left_out[4, least] == few


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


def planned(frame, off=0.008):
    """The table as a study at equal FLOPs writes it, with whole steps: FLOPs differ from the planned ones."""
    sign = np.where(np.arange(len(frame)) % 2, 1, -1)
    return frame.assign(compute=frame["flops"], flops=frame["flops"] * (1 + off * sign))


def test_the_planned_flops_of_a_study_are_its_budgets_even_if_most_flops_are_those_of_the_vocabulary():
    frame = isoflop_table()
    found = minima(planned(frame.assign(flops=40 * frame["flops"])))
    plain = minima(frame)
    assert found.rows["params"].unique().tolist() == [40 * flops for flops in plain.rows["params"].unique()]
    np.testing.assert_allclose(found.rows["loss"], plain.rows["loss"])
    # The same FLOPs without what was planned are not taken for those of training.
    assert planned_compute(frame) is None
    assert minima(frame.assign(flops=40 * frame["flops"])).rows["params"].max() < 1e20


def test_a_study_at_equal_flops_is_compared_by_these_where_a_shape_is_at_several():
    """Each shape at two budgets: by tokens alone the table has levels, of which one would be compared."""
    frame = pd.concat([isoflop_table(budgets=4), isoflop_table(budgets=4, least=1.2e16)], ignore_index=True)
    half = len(frame) // 2
    more = frame.iloc[half:].assign(
        flops=lambda rows: 2 * rows["flops"], tokens=lambda rows: 2 * rows["tokens"]
    )
    table = RunTable.from_frame(planned(pd.concat([frame.iloc[:half], more], ignore_index=True)))
    chosen = compare(table)
    assert (chosen.tokens.rule, chosen.tokens.comparable, len(chosen.rows)) == ("compute", False, len(frame))
    assert not chosen.left_out
    assert not remarks_about(chosen.remarks, About.AVERAGED)
    assert compute_minima(table.used).rows["params"].nunique() == 8
    assert compare(table, tokens=float(frame["tokens"].iloc[0])).tokens.rule == "level"


@pytest.mark.parametrize("change", ["far", "one", "missing", "absent"])
def test_a_column_that_is_not_the_planned_flops_of_all_rows_is_none_of_a_study_at_equal_flops(change):
    frame = planned(isoflop_table())
    if change == "far":
        frame.loc[3, "compute"] *= 1.03
    elif change == "one":
        frame = frame[frame["compute"] == frame["compute"].max()]
    elif change == "missing":
        frame.loc[3, "compute"] = np.nan
    else:
        frame = frame.drop(columns="flops")
    assert planned_compute(frame) is None
    assert compare(RunTable.from_frame(frame)).tokens.rule != "compute"
