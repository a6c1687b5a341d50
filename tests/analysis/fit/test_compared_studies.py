import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from analysis.fit.compared_studies import (
    ComparedStudy,
    best_data,
    crossing_data,
    in_order,
    measure_data,
    measures_of,
    not_compared,
    shifts_by_value,
    slopes_by_value,
    unit_of,
)
from analysis.fit.document import fit
from analysis.fit.measures import label, value_axis
from analysis.report.figures.by_value import crossings_figure, measure_figure, set_values
from analysis.report.figures.canvas import new_canvas
from analysis.runs.table import RunTable
from tests.simulated_study import Truth, shapes_of, simulate

#: Value -> a world: each e-fold of the value moves all crossings down by the same factor.
WORLDS = {
    8: Truth(2.7, 0.3, (1, 2, 4, 6)),
    64: Truth(2.5, 0.3, (1, 2, 4, 6)),
    512: Truth(2.3, 0.3, (1, 2, 4, 6)),
}


def study(value, truth, seed=0):
    low, high = WORLDS[512].crossing(1) / 3, WORLDS[8].crossing(4) * 4
    shapes = shapes_of(truth.depths, np.geomspace(low, high, 7))
    runs = RunTable.from_frame(simulate(truth, shapes, 3, np.random.default_rng(seed)))
    return ComparedStudy(value, runs, fit(runs), f"{value}/report.html")


@cache
def worlds():
    return [study(value, truth, seed) for seed, (value, truth) in enumerate(WORLDS.items())]


@pytest.fixture(scope="module")
def studies():
    return worlds()


def test_losses_in_bits_per_byte_are_by_the_bytes_of_each_member(studies):
    sizes = {8: 1.5, 64: 2.5, 512: 4.0}
    bits = [
        replace(one, fit=replace(one.fit, unit="bits per byte", bytes_per_token=sizes[one.value]))
        for one in studies
    ]
    assert (unit_of(studies), unit_of(bits)) == ("nats per token", "bits per byte")
    for own, other, name in (
        (best_data(studies).rows, best_data(bits).rows, "loss"),
        (measure_data(studies, "loss").shapes, measure_data(bits, "loss").shapes, "mean"),
    ):
        factor = 1 / math.log(2) / own["value"].map(sizes)
        np.testing.assert_allclose(other[name], factor * own[name], rtol=1e-12)
        assert other["depth"].tolist() == own["depth"].tolist()
    pd.testing.assert_frame_equal(crossing_data(bits).rows, crossing_data(studies).rows)
    unfitted = [*bits[:2], replace(bits[2], fit=None)]
    assert set(measure_data(unfitted, "loss").shapes["value"]) == {8, 64}, (
        "without a fit its bytes are not known"
    )


def task(value, needs, depths=(1, 2, 3, 4), fitted=False, seeds=3):
    """A study whose accuracy is 0.95 from `needs` layers on and 0.3 below; the wider of two widths is better."""
    rows = [
        {"depth": depth, "width": width, "heads": 4, "seed": seed, "budget": 1e4,
         "accuracy": (0.95 if depth >= needs else 0.3) + 0.01 * (width == 64) + 0.001 * seed,
         "loss": (0.2 if depth >= needs else 2.0) - 0.1 * (width == 64) + 0.001 * seed}
        for depth in depths
        for width in (32, 64)
        for seed in range(seeds)
    ]  # fmt: skip
    runs = RunTable.from_frame(pd.DataFrame(rows))
    return ComparedStudy(value, runs, fit(runs) if fitted else None, None)


def test_crossings_that_move_are_found_at_every_value(studies):
    data = crossing_data([studies[2], studies[0], studies[1]])
    assert data.rows["value"].tolist() == [8, 8, 8, 64, 64, 64, 512, 512, 512]
    assert data.axis.log
    for row in data.rows.to_dict("records"):
        assert row["status"] == "bracketed"
        truth = WORLDS[row["value"]].crossing(row["shallow"])
        assert row["low"] < truth < row["high"]
        assert row["width"] == pytest.approx(math.sqrt(row["params"] / 12 / row["shallow"]))
        assert row["measured_low"] < row["low"] < row["params"] < row["high"] < row["measured_high"]


def test_shifts_hold_the_true_factor_and_stand_against_the_first_value(studies):
    found = shifts_by_value(studies[::-1])
    assert [(item.base, item.value) for item in found] == [(8, 64), (8, 512)]
    for item in found:
        for pair in item.pairs:
            low, high = pair.shift_interval
            true = math.log(WORLDS[item.value].crossing(pair.shallow) / WORLDS[8].crossing(pair.shallow))
            assert low < true < high
            assert low < pair.shift < high
    assert all(pair.significant for pair in found[1].pairs)


def test_differences_of_slopes_hold_the_truth_and_stand_against_the_first_value(studies):
    first, *others = (study.fit.law for study in studies)
    differences = slopes_by_value(studies[::-1])
    assert [(item.base, item.value) for item in differences] == [(8, 64), (8, 512)]
    for item, law in zip(differences, others, strict=True):
        assert item.slope == law.b
        assert item.difference == pytest.approx(law.b - first.b)
        low, high = item.interval
        # The worlds differ in their intercepts alone.
        assert low < 0 < high
        # MOVER: each side is the root of the sum of both squared distances.
        assert item.difference - low == pytest.approx(
            math.hypot(law.b - law.b_interval[0], first.b_interval[1] - first.b)
        )


def test_fits_of_another_level_or_count_are_named_and_not_subtracted(studies):
    other = [studies[0], replace(studies[1], fit=replace(studies[1].fit, level=0.9))]
    counted = [studies[0], replace(studies[1], fit=replace(studies[1].fit, count="table"))]
    for pair, words in ((other, "90 %"), (counted, "counts N as table")):
        assert shifts_by_value(pair) == slopes_by_value(pair) == ()
        (sentence,) = not_compared(pair)
        assert sentence.startswith("64 is not compared")
        assert words in sentence
    assert not_compared(studies) == []


def test_a_fit_without_its_rows_has_crossings_and_no_measures(studies):
    alone = [replace(study, runs=None, fit=replace(study.fit, study=None)) for study in studies]
    pd.testing.assert_frame_equal(crossing_data(alone).rows, crossing_data(studies).rows)
    assert shifts_by_value(alone) == shifts_by_value(studies)
    assert measures_of(alone) == []


def test_shifts_and_crossings_are_absent_where_nothing_is_fitted():
    alone = [task(1, 1), task(2, 2)]
    assert shifts_by_value(alone) == ()
    assert crossing_data(alone) is None
    assert best_data(alone) is None


def test_a_crossing_outside_the_sizes_keeps_its_bound(studies):
    own = studies[0].fit.crossings
    high = max(item.range[1] for item in own)
    narrow = RunTable.from_frame(studies[0].runs.used[studies[0].runs.used["params"] > high / 4].copy())
    data = crossing_data([replace(studies[0], runs=narrow, fit=fit(narrow))])
    row = data.rows[data.rows["shallow"] == 1].iloc[0]
    assert row["status"] == "left_censored"
    assert math.isnan(row["params"])
    assert math.isnan(row["low"])
    assert row["high"] >= WORLDS[8].crossing(1)


def test_best_depths_are_those_of_the_fits(studies):
    data = best_data(studies)
    assert len(data.rows) == sum(len(item.fit.best) for item in studies)
    for row in data.rows.to_dict("records"):
        fitted = next(item.fit for item in studies if item.value == row["value"])
        best = next(item for item in fitted.best if item.budget == row["budget"])
        assert (row["depth"], row["loss"], row["params"]) == (best.depth, best.loss, best.params)
        assert row["near"] == " ".join(map(str, best.near))
    # At the largest budget depth pays everywhere, at the smallest only where the crossings lie low.
    shallowest = data.rows.groupby("value")["depth"].min()
    assert shallowest[8] == 1
    assert data.rows.groupby("value")["depth"].max().tolist() == [6, 6, 6]


def test_a_measure_is_the_mean_over_seeds_and_the_best_over_widths():
    for name, best, wide in (("accuracy", 0.961, True), ("loss", 0.101, True)):
        data = measure_data([task(2, 2)], name)
        assert data.lower == (name == "loss")
        assert len(data.shapes) == 8
        deep = data.shapes[(data.shapes["depth"] == 4) & data.shapes["best"]]
        assert deep["mean"].tolist() == pytest.approx([best])
        assert (deep["width"] == 64).tolist() == [wide]
        assert deep["seeds"].tolist() == [3]
        assert (deep["high"] - deep["low"]).tolist() == pytest.approx([0.002])
        assert (data.shapes["head_width"] * data.shapes["heads"] == data.shapes["width"]).all()
        assert data.shapes["best"].sum() == 4
        assert data.needed.empty


def test_the_depth_a_target_needs_is_the_smallest_that_reaches_it():
    # Accuracies of the wider models: 0.961 or 0.311.
    studies = [task(1, 1), task(2, 2), task(4, 3, fitted=True), task(8, 4), task(16, 5)]
    data = measure_data(studies, "accuracy", 0.9)
    needed = data.needed.set_index("value")
    assert needed["depth"].tolist()[:4] == [1, 2, 3, 4]
    assert math.isnan(needed.loc[16, "depth"])
    assert needed.loc[16, "deepest"] == 4
    assert needed.loc[16, "best"] == pytest.approx(0.311)
    assert (needed["width"] == needed["heads"] * needed["head_width"])[:4].all()
    # For a loss it is a largest value that is to be reached.
    assert measure_data(studies, "loss", 0.15).needed["depth"].tolist()[:4] == [1, 2, 3, 4]
    # Only the wider models come above 0.955: a depth is judged by its best width.
    assert measure_data(studies[:1], "accuracy", 0.955).needed["width"].tolist() == [64]


def test_sensitivity_runs_are_no_measurements():
    frame = task(1, 1).runs.frame.copy().assign(purpose="")
    other = frame[frame["depth"] == 1].assign(purpose="sensitivity", lr=0.5, accuracy=0.0, loss=9.0)
    runs = RunTable.from_frame(pd.concat([frame.assign(lr=1.0), other], ignore_index=True))
    data = measure_data([ComparedStudy(1, runs, None, None)], "accuracy")
    assert data.shapes["mean"].min() > 0.9
    assert data.shapes.groupby("depth")["seeds"].max().to_dict() == {1: 3, 2: 3, 3: 3, 4: 3}
    assert measure_data([ComparedStudy(1, runs, None, None)], "loss").shapes["seeds"].tolist() == [3] * 8


def test_a_measure_that_no_row_has_is_none_and_is_not_looked_for(studies):
    assert measure_data(studies, "accuracy") is None
    assert measures_of(studies) == ["loss"]
    assert measures_of([task(1, 1)]) == ["accuracy", "loss"]
    nothing = RunTable.from_frame(pd.DataFrame({"depth": [1], "width": [8], "loss": [np.nan], "seed": [0]}))
    assert measure_data([ComparedStudy(1, nothing, None, None)], "loss") is None


def test_values_stand_in_order_and_on_a_log_axis_where_they_span_more_than_a_factor_of_four():
    def axis(*values):
        return value_axis(
            [study.value for study in in_order([ComparedStudy(value, None, None, None) for value in values])]
        )

    assert axis(16, 1, 4).places == (1, 4, 16)
    assert axis(16, 1, 4).log
    assert not axis(1, 2, 4).log
    assert not axis(0, 10).log
    words = axis("rope", "learned", "none")
    assert (words.labels, words.places, words.log) == (("rope", "learned", "none"), (0, 1, 2), False)
    # A truth value is no number.
    assert axis(True, False).labels == ("True", "False")
    assert axis(True, False).places == (0, 1)


def test_values_as_people_write_them():
    assert [label(value) for value in (8, 8.0, 0.25, 1_000_000, 1e6, "pre", True)] == [
        "8", "8", "0.25", "1,000,000", "1,000,000", "pre", "True",
    ]  # fmt: skip


def study_paths_of(axes):
    return {tuple(pair) for line in axes.lines for pair in np.round(np.column_stack(line.get_data()), 9)}


def test_the_crossings_are_drawn_where_the_table_has_them(studies):
    data = crossing_data(studies)
    axes = crossings_figure(data, "vocabulary", 0.95).draw().axes[0]
    drawn = study_paths_of(axes)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    for row in data.rows.to_dict("records"):
        for value in (row["params"], row["low"], row["high"]):
            near = [x for x, y in drawn if y == round(value, 9)]
            # Pairs stand a little to the side of their value, so that bars do not hide each other.
            assert any(abs(math.log(x / row["place"])) < 0.1 for x in near)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["8", "64", "512"]


def test_the_measure_and_the_depth_needed_are_drawn_where_the_table_has_them():
    data = measure_data([task(value, need) for value, need in ((1, 1), (2, 2), (8, 5))], "accuracy", 0.9)
    left, right = measure_figure(data, "hops", "x", "x").draw().axes
    best = data.shapes[data.shapes["best"]]
    assert {tuple(pair) for pair in np.round(best[["depth", "mean"]].to_numpy(), 9)} <= study_paths_of(left)
    assert {(1, 1), (2, 2), (8, 4)} <= study_paths_of(right)
    # The last is a bound: an arrow, and no point of the line.
    assert np.isnan(right.lines[0].get_ydata()[-1])
    assert right.get_yscale() == "linear"
    alone = measure_data([task("pre", 1)], "loss")
    assert len(measure_figure(alone, "norm", "x", "x").draw().axes) == 1


def test_values_whose_labels_would_touch_are_left_out():
    axes = new_canvas(3)[1]
    set_values(axes, value_axis((100_000, 100_001, 200_000)))
    assert [text.get_text() for text in axes.get_xticklabels()] == ["100,000", "200,000"]
