"""Losses that are forecasts of stopped runs: read, compared, weighed and told of, all the way to the fit."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.curves.curves import build_curves
from analysis.fit.document import fit
from analysis.law.parametric_bootstrap import resample
from analysis.runs.comparison import compare
from analysis.runs.table import RunTable, read_runs
from tests.simulated_study import Truth, family_covariance, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4))
SHAPES = shapes_of(TRUTH.depths, np.geomspace(TRUTH.crossing(1) / 4, TRUTH.crossing(2) * 4, 6))


def study(seed=0, error=0.01, seeds=3, every=2):
    """A simulated study in which every so many runs of the last seeds are forecasts with an error of their own."""
    generator = np.random.default_rng(seed)
    rows = simulate(TRUTH, SHAPES, seeds, generator)
    forecast = (rows.index % every == 0) & (rows["seed"] > 0)
    errors = np.where(forecast, error, 0.0)
    loss = rows["loss"] + errors * generator.standard_normal(len(rows))
    return rows.assign(loss=loss, loss_se=errors, status=np.where(forecast, "stopped", "done"))


def reasons(table):
    return {item["row"]: item["reason"] for item in table.left_out}


def test_a_stopped_run_counts_by_its_forecast_and_only_with_its_error(tmp_path):
    frame = pd.DataFrame(
        {
            "depth": 1,
            "width": [8, 8, 8, 10, 10, 10, 12],
            "seed": [0, 1, 2, 0, 1, 2, 0],
            "loss": [3.0, 3.1, 3.2, 2.9, 2.8, None, 2.7],
            "status": ["done", "stopped", "stopped", "stopped", "stopped", "stopped", "stopped"],
            "reason": ["", "at step 6 of 10", "worse than others", "", "", "", ""],
            "loss_se": [None, 0.01, None, 0.0, math.inf, 0.01, -1.0],
        }
    )
    table = RunTable.from_frame(frame)
    assert table.used.index.tolist() == [1, 2]
    assert reasons(table) == {
        3: "stopped: worse than others",
        4: "stopped",
        5: "stopped",
        6: "loss is missing or not a number",
        7: "stopped",
    }
    again = read_runs(table.write_csv(tmp_path / "runs.csv"))
    pd.testing.assert_frame_equal(again.used, table.used)


def test_a_foreign_table_may_name_its_errors(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_text("depth,width,loss,err,status\n1,8,3.0,,done\n1,10,2.9,0.02,stopped\n")
    rows = compare(read_runs(path, {"loss_se": "err"})).rows
    assert rows["loss_se"].tolist()[1] == 0.02


def test_an_error_of_a_run_that_was_not_stopped_changes_nothing():
    rows = study(error=0.0).drop(columns=["loss_se", "status"])
    plain = fit(RunTable.from_frame(rows), draws=100)
    assert fit(RunTable.from_frame(rows.assign(loss_se=0.01)), draws=100).to_json() == plain.to_json()


def test_a_run_that_was_stopped_and_then_trained_to_its_end_counts_by_its_end():
    frame = pd.DataFrame(
        {
            "cell": "a",
            "depth": 1,
            "width": 8,
            "loss": [2.9, 3.0, 2.8],
            "status": ["stopped", "done", "stopped"],
        }
    ).assign(loss_se=[0.01, None, 0.02])
    table = RunTable.from_frame(frame)
    assert table.used["loss"].tolist() == [3.0]
    assert set(reasons(table).values()) == {"a forecast of a run that another row has trained to its end"}


def test_a_fit_says_how_many_losses_are_forecasts():
    found = fit(RunTable.from_frame(study()), draws=100)
    forecast = int((study()["loss_se"] > 0).sum())
    assert (
        f"{forecast} of the {found.used} losses compared are forecasts of runs that were stopped early (standard error "
        "at most 0.01 nats); every interval allows for it."
    ) in found.warnings
    one = study().assign(loss_se=lambda rows: rows["loss_se"].where(rows.index == 2, 0.0))
    one = one.assign(status=np.where(one["loss_se"] > 0, "stopped", "done"))
    assert any("1 of the 54 losses compared is the forecast of a run that was" in w for w in
               compare(RunTable.from_frame(one)).warnings)  # fmt: skip


def test_seeds_that_were_stopped_without_a_forecast_are_warned_of():
    rows = study(every=1)
    lost = (rows["seed"] == 2) & (rows["depth"] == 1)
    rows = rows.assign(loss=rows["loss"].mask(lost), loss_se=rows["loss_se"].mask(lost))
    warnings = compare(RunTable.from_frame(rows)).warnings
    assert any("6 rows of shapes compared were stopped early without a forecast" in text for text in warnings)
    # A shape of which nothing is compared biases nothing.
    whole = rows[(rows["depth"] > 1) | (rows["seed"] == 2)]
    assert not any("without a forecast" in text for text in compare(RunTable.from_frame(whole)).warnings)


def test_errors_of_forecasts_add_to_those_of_their_points_and_not_to_the_noise():
    rows = study(error=0.02, seeds=6)
    curves, measured = build_curves(rows), build_curves(rows[rows["loss_se"] == 0])
    assert curves.noise.log_sd == measured.noise.log_sd
    assert curves.forecast_count.sum() == (rows["loss_se"] > 0).sum()
    squares = rows.assign(square=rows["loss_se"] ** 2).groupby(["depth", "params"])["square"].sum()
    mean = np.sqrt(squares.to_numpy()) / 6
    assert curves.forecast == pytest.approx(mean)
    assert curves.se == pytest.approx(np.hypot(curves.noise.sd_at(curves.mean) / 6**0.5, mean))
    without = build_curves(rows.drop(columns="loss_se"))
    assert without.forecast.tolist() == [0.0] * len(SHAPES)


def test_the_covariance_of_curves_allows_for_forecasts():
    drawn, claimed = [], []
    for seed in range(80):
        curves = build_curves(study(seed, error=0.03))
        place = np.array([math.log(TRUTH.crossing(1))])
        (ours, slopes), (theirs, other) = curves.smooth.both(1, place), curves.smooth.both(2, place)
        drawn.append(float(ours[0] - theirs[0]))
        claimed.append(float((slopes - other)[0] @ family_covariance(curves) @ (slopes - other)[0]))
    # Without the misfit, which these curves do not have.
    assert np.mean(claimed) == pytest.approx(np.var(drawn), rel=0.4)


def test_a_table_of_forecasts_alone_has_no_noise_but_their_scatter():
    curves = build_curves(study(every=1).query("seed > 0"))
    assert curves.noise.source == "residuals"
    assert curves.forecast_count.tolist() == curves.count.tolist()


def test_with_one_seed_forecasts_do_not_make_the_noise_of_all():
    gaps: dict[str, list[tuple[float, float, float]]] = {"measured": [], "forecast": [], "dropped": []}
    place = np.array([math.log(TRUTH.crossing(1))])
    for seed in range(40):
        generator = np.random.default_rng(seed)
        rows = simulate(TRUTH, SHAPES, 1, generator)
        errors = np.where(generator.random(len(rows)) < 0.3, 0.04, 0.0)
        forecast = rows.assign(
            loss=rows["loss"] + errors * generator.standard_normal(len(rows)), loss_se=errors
        )
        for name, part in (("measured", rows), ("forecast", forecast), ("dropped", rows[errors == 0])):
            curves = build_curves(part)
            (ours, ours_jacobian), (theirs, their_jacobian) = (
                curves.misfit.both(curves.smooth, depth, place) for depth in (1, 2)
            )
            jacobian, gap = ours_jacobian - their_jacobian, ours - theirs
            noise = math.exp(curves.noise.log_sd)
            gaps[name].append((float(gap[0]), float(jacobian[0] @ curves.covariance @ jacobian[0]), noise))
    found = {name: np.array(values) for name, values in gaps.items()}
    assert np.median(found["forecast"][:, 2]) < 1.5 * np.median(found["measured"][:, 2])
    assert np.std(found["forecast"][:, 0]) < 1.3 * np.std(found["dropped"][:, 0])
    assert np.median(found["forecast"][:, 1]) < 1.7 * np.median(found["dropped"][:, 1])


def test_simulated_studies_have_the_forecasts_of_the_study():
    curves = build_curves(study(error=0.05))
    rows = resample(curves, np.random.default_rng(0))
    again = build_curves(rows)
    assert again.forecast_count.tolist() == curves.forecast_count.tolist()
    assert again.forecast == pytest.approx(curves.forecast)
    spread = [build_curves(resample(curves, np.random.default_rng(k))).mean for k in range(60)]
    assert np.std(spread, axis=0) == pytest.approx(np.hypot(curves.se, curves.misfit_sd), rel=0.45)


def test_the_minimum_of_several_rates_errs_as_the_worst_forecast_of_them():
    frame = pd.DataFrame(
        {"depth": 1, "width": 8, "seed": [0, 0, 0, 1, 1, 1], "lr": [0.01, 0.02, 0.04] * 2}
    ).assign(loss=[3.02, 3.0, 3.03, 3.03, 3.01, 3.04], loss_se=[0.01, 0.0, 0.002, 0.0, 0.0, 0.0])
    frame["status"] = np.where(frame["loss_se"] > 0, "stopped", "done")
    rows = compare(RunTable.from_frame(frame)).rows
    assert rows["loss_se"].tolist() == [0.01, 0.0]


def test_copies_of_a_forecast_are_averaged_without_loss_of_error():
    frame = pd.DataFrame({"depth": 1, "width": 8, "seed": 0, "heads": [1, 2], "loss": [3.0, 3.1]})
    rows = compare(RunTable.from_frame(frame.assign(status="stopped", loss_se=[0.01, 0.03]))).rows
    assert rows["loss_se"].tolist() == [pytest.approx(0.02)]
