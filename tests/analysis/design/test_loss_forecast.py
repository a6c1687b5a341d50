"""Forecasts of final losses: right on simulated curves, calibrated on real ones, independent of the order."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.design.loss_forecast import MOST_RUNS, fit_forecasts

LAST = 1000


def study(runs, seed=0, noise=0.0, shared=0.0, depths=(1, 2, 4), seeds=1):
    """Curves whose fall after step 500 is linear in ln N, ln L and the loss, with errors of cell and shape."""
    generator = np.random.default_rng(seed)
    lines = []
    for number in range(runs):
        shape, name = divmod(number, seeds)
        depth = depths[shape % len(depths)]
        params = 12.0 * depth * (8 + 2 * (shape // len(depths))) ** 2
        own = np.random.default_rng([seed, shape]).standard_normal() * shared
        loss = 4 - 0.2 * math.log(params) + 0.1 * generator.standard_normal()
        fall = -1 + 0.3 * loss + 0.05 * math.log(params) + 0.1 * math.log(depth)
        final = loss + fall + own + noise * generator.standard_normal()
        run = {"run": f"{number}", "depth": depth, "params": params, "seed": name}
        lines += [{**run, "step": 500, "loss": loss}, {**run, "step": LAST, "loss": final}]
    return pd.DataFrame(lines)


def parts(frame, runs):
    """Return the curves of the first cells, and (depth, N, loss at 500, final loss) of the others."""
    number = frame["run"].astype(int)
    rest = frame[number >= runs].pivot_table(index=["run", "depth", "params"], columns="step", values="loss")
    return frame[number < runs], [(*index[1:], row[500], row[LAST]) for index, row in rest.iterrows()]


def scores(fit, others):
    """Errors of the forecasts over their standard errors."""
    found = []
    for depth, params, loss, final in others:
        value, error = fit.line(depth, params).at(loss)
        found.append((final - value) / error)
    return np.array(found)


def test_a_fall_linear_in_size_depth_and_loss_is_forecast_exactly():
    finished, others = parts(study(30), 20)
    (fit,) = fit_forecasts(finished, [500], LAST)
    for depth, params, loss, final in others:
        value, error = fit.line(depth, params).at(loss)
        assert value == pytest.approx(final, abs=1e-9)
        assert error < 1e-6


def test_intervals_are_calibrated():
    found = []
    for seed in range(40):
        finished, others = parts(study(44, seed, noise=0.01), 40)
        (fit,) = fit_forecasts(finished, [500], LAST)
        found.append(scores(fit, others))
    square = float(np.mean(np.concatenate(found) ** 2))
    # An upper bound at 90 % of a variance with 36 degrees of freedom is 1.4 times the variance.
    assert 0.5 < square < 1.0


def test_a_finished_seed_informs_most_about_its_shape():
    inside, outside = [], []
    for seed in range(40):
        frame = study(48, seed, noise=0.002, shared=0.02, seeds=3)
        third = frame[frame["seed"] < 2]
        (fit,) = fit_forecasts(third, [500], LAST)
        assert fit.shared > 1
        _, others = parts(frame[frame["seed"] == 2], 0)
        inside.append(scores(fit, others))
        depth, params, loss, _ = others[0]
        known, new = fit.line(depth, params), fit.line(depth, params * 1.0001)
        assert known.at(loss)[1] < new.at(loss)[1] / 2
        without = third[third["params"] != params]
        (fit,) = fit_forecasts(without, [500], LAST)
        outside.append(scores(fit, [item for item in others if item[1] == params]))
    assert float(np.mean(np.concatenate(inside) ** 2)) < 1.2
    assert float(np.mean(np.concatenate(outside) ** 2)) < 1.2


def test_selection_by_the_loss_so_far_does_not_bias_the_forecasts():
    errors = []
    for seed in range(60):
        frame = study(60, seed, noise=0.02)
        early = frame[frame["step"] == 500].set_index("run")["loss"]
        good = early.index[early < early.median()]
        (fit,) = fit_forecasts(frame[frame["run"].isin(good)], [500], LAST)
        _, others = parts(frame[~frame["run"].isin(good)], 0)
        errors += [final - fit.line(depth, params).at(loss)[0] for depth, params, loss, final in others]
    assert abs(np.mean(errors)) < 4 * 0.02 / math.sqrt(60)


def test_too_few_cells_give_no_forecast():
    assert fit_forecasts(study(9), [500], LAST) == ()
    assert len(fit_forecasts(study(10), [500], LAST)) == 1
    assert fit_forecasts(study(30), [400], LAST) == ()
    assert fit_forecasts(study(30), [500], 2000) == ()
    unfinished = study(30)[lambda frame: (frame["step"] == 500) | (frame["run"].astype(int) < 5)]
    assert fit_forecasts(unfinished, [500], LAST) == ()


def test_runs_of_one_depth_or_of_one_shape_are_enough():
    (fit,) = fit_forecasts(study(20, noise=0.01, depths=(2,)), [500], LAST)
    assert fit.named == (True, False)
    (fit,) = fit_forecasts(study(20, noise=0.01, depths=(2,), seeds=20), [500], LAST)
    assert fit.named == (False, False)
    value, error = fit.line(2, 768.0).at(3.0)
    assert 0 < error < value


def test_an_earlier_step_never_has_a_smaller_variance_than_a_later_one():
    frame = study(30, noise=0.01)
    late = frame[frame["step"] == 500].assign(step=800, loss=lambda part: part["loss"] - 0.1)
    both = fit_forecasts(pd.concat([frame, late]), [500, 800], LAST)
    assert both[0].scale >= both[1].scale


def test_only_the_latest_runs_are_used_and_their_order_does_not_matter():
    frame = study(MOST_RUNS + 30, noise=0.01)
    (fit,) = fit_forecasts(frame, [500], LAST)
    (same,) = fit_forecasts(frame[frame["run"].astype(int) >= 30], [500], LAST)
    assert fit.runs == MOST_RUNS
    assert fit.line(2, 5000.0).at(3.0) == same.line(2, 5000.0).at(3.0)
    (turned,) = fit_forecasts(frame.iloc[60:].iloc[::-1], [500], LAST)
    (straight,) = fit_forecasts(frame.iloc[60:], [500], LAST)
    assert turned.line(2, 5000.0).at(3.0) == pytest.approx(straight.line(2, 5000.0).at(3.0), rel=1e-9)


def test_forecasts_of_real_curves_are_calibrated():
    lines = Path(__file__).parent.parents[1].joinpath("data", "curves.jsonl").read_text().splitlines()
    runs = [json.loads(line) for line in lines]
    frame = pd.DataFrame(
        {"run": number, "depth": run["depth"], "params": float(run["params"]), "step": step, "loss": loss}
        for number, run in enumerate(runs)
        for step, loss in run["curve"]
    )
    last = int(frame["step"].max())
    for share, most in ((0.5, 0.04), (0.7, 0.02), (0.8, 0.008), (0.9, 0.002)):
        step, found, errors = round(share * last), [], []
        for number, run in enumerate(runs):
            (fit,) = fit_forecasts(frame[frame["run"] != number], [step], last)
            curve = dict(map(tuple, run["curve"]))
            value, error = fit.line(run["depth"], float(run["params"])).at(curve[step])
            found.append((curve[last] - value) / error)
            errors.append(error)
        assert 0.6 < math.sqrt(np.mean(np.square(found))) < 1.15, share
        assert abs(np.mean(found)) < 0.4, share
        assert np.mean(errors) < most, share
