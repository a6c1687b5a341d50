import json
import math

import numpy as np
import pandas as pd
import pytest

from analysis.fit.document import Fit, fit
from analysis.fit.next_runs import next_runs_of
from analysis.law.decision import FORMS
from analysis.law.threshold_law import solve_depth
from analysis.runs.left_out import RowReason, WhyNot, entry
from analysis.runs.remarks import About, Remark
from analysis.runs.table import RunTable
from core.errors import InputError
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4, 6))


def simulated(truth=TRUTH, seeds=3, seed=0, budgets=6, span=4.0):
    """A study of `truth` on budgets from its first crossing over `span` to its last times `span`."""
    low, high = truth.crossing(truth.depths[0]) / span, truth.crossing(truth.depths[-2]) * span
    shapes = shapes_of(truth.depths, np.geomspace(low, high, budgets))
    return simulate(truth, shapes, seeds, np.random.default_rng(seed))


def test_a_known_world_is_recovered():
    found = fit(RunTable.from_frame(simulated()))
    for item in found.crossings:
        assert item.status == "bracketed"
        assert item.params_interval[0] < TRUTH.crossing(item.shallow) < item.params_interval[1]
    assert found.law.status == "ok"
    assert found.law.depths == pytest.approx((math.sqrt(2), math.sqrt(8), math.sqrt(24)))
    assert found.law.a_interval[0] < TRUTH.a < found.law.a_interval[1]
    assert found.law.b_interval[0] < TRUTH.b < found.law.b_interval[1]
    assert [item.form for item in found.alternatives] == ["power", "root"]
    assert [item.form for item in found.gap_laws.laws][:5] == list(FORMS)
    assert found.remarks == found.warnings == ()
    true = solve_depth(TRUTH.a, TRUTH.b, 1e5)
    low, high = found.predict(1e5).depth_interval
    assert low < true < high


def test_a_choice_of_depth_solves_the_law_and_its_power_form():
    found = fit(RunTable.from_frame(simulated()))
    for fitted, regressor in ((found.law, lambda depth: depth), (found.alternatives[0], math.log)):
        depth = fitted.best_depth(3e5)
        width = math.exp(fitted.a + fitted.b * regressor(depth))
        assert 12 * depth * width**2 == pytest.approx(3e5, rel=1e-9)


def test_a_study_in_which_deeper_never_wins_says_so():
    # The last crossing lies ten times above the largest size.
    truth = Truth(4.0, 0.3, (1, 2, 4))
    shapes = shapes_of((1, 2), np.geomspace(1000, truth.crossing(1) / 10, 6))
    found = fit(RunTable.from_frame(simulate(truth, shapes, 3, np.random.default_rng(1))))
    (item,) = found.crossings
    assert item.status == "right_censored"
    assert item.params_interval == (pytest.approx(item.range[1]), None)
    assert found.law.status == "insufficient"


def test_the_json_contract(study):
    document = fit(study).to_json()
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text) == document
    assert {"crossings", "law", "alternatives", "rows"} <= document.keys()
    assert {"shallow", "deep", "status", "params", "params_interval"} <= document["crossings"][0].keys()
    law = document["law"]
    assert law["form"] == "log-linear"
    assert {"status", "a", "b", "covariance", "a_interval", "b_interval", "level"} <= law.keys()
    assert document["rows"] == {"used": 45, "merged": 0, "left_out": []}


def test_json_is_strict_also_where_nothing_is_known(pilot_frame):
    # One seed, no budget, a depth with one size: NaN and infinities everywhere inside.
    frame = pilot_frame(seeds=1).drop(columns=["budget", "tokens", "lr"])
    frame = frame[(frame["depth"] != 4) | (frame["width"] == 6)]
    document = fit(RunTable.from_frame(frame)).to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["law"]["status"] == "insufficient"
    assert document["noise"]["source"] == "residuals"
    exact = fit(RunTable.from_frame(frame.iloc[[0, 1, 5, 6]])).to_json()
    assert exact["noise"]["source"] == "none"
    assert json.loads(json.dumps(exact, allow_nan=False)) == exact


def test_round_trip(study, pilot_frame):
    for runs in (study, RunTable.from_frame(pilot_frame(seeds=1))):
        document = fit(runs).to_json()
        assert Fit.from_json(document).to_json(next_runs_of(document)) == document


@pytest.mark.parametrize(
    "broken", [{}, {"crossings": 3}, {"crossings": [{}], "law": {}, "alternatives": [], "rows": {}}]
)
def test_a_file_that_is_no_fit_is_refused(broken):
    with pytest.raises(InputError, match="not a fit file"):
        Fit.from_json(broken)


@pytest.mark.parametrize("key", ["remarks", "refusal"])
def test_a_file_that_does_not_say_whether_tokens_allow_a_projection_is_refused(study, key):
    document = fit(study).to_json()
    del document["tokens"][key]
    with pytest.raises(InputError, match=f"not a fit file: tokens.{key}"):
        Fit.from_json(document)


def test_units_of_the_loss_do_not_move_the_crossings(pilot_frame):
    frame = pilot_frame()
    nats, bits = (
        fit(RunTable.from_frame(frame.assign(loss=frame["loss"] * unit))) for unit in (1, 1 / math.log(2))
    )
    for one, other in zip(nats.crossings, bits.crossings, strict=True):
        assert one.params_interval == pytest.approx(other.params_interval)
        assert one.status == other.status


def test_diverged_rows_are_reported_and_not_used(pilot_frame):
    frame = pilot_frame()
    frame.loc[3, ["status", "reason"]] = ["diverged", "loss above 20"]
    found = fit(RunTable.from_frame(frame))
    assert found.used == 44
    assert found.left_out == (
        entry(4, frame.loc[3, "cell"], WhyNot(RowReason.STATUS, ("diverged", "loss above 20"))),
    )
    assert found.left_out[0]["reason"] == "diverged: loss above 20"
    assert Remark(About.UNEQUAL_SEEDS, (2, 3)) in found.remarks


def remarks_of(frame):
    return fit(RunTable.from_frame(frame)).remarks


def test_what_is_not_known_of_the_noise_is_said():
    single = simulated(seeds=1)
    assert Remark(About.ONE_SEED) in remarks_of(single)
    few = single.groupby("depth").head(2)
    assert Remark(About.NO_NOISE_OF_ONE_SEED) in remarks_of(few)
    equal = pd.concat([few, few.assign(seed=1)], ignore_index=True)
    assert Remark(About.NO_NOISE_OF_EQUAL_LOSSES) in remarks_of(equal)
    many = pd.concat([single, single.assign(seed=1)], ignore_index=True)
    assert Remark(About.EQUAL_LOSSES) in remarks_of(many)
    assert Remark(About.ONE_SEED) not in remarks_of(many)


def test_losses_off_the_curves_beyond_the_noise_are_said():
    frame = simulated()
    wave = 0.05 * np.where(frame.groupby("depth")["width"].rank("dense") % 2 == 0, 1, -1)
    found = fit(RunTable.from_frame(frame.assign(loss=frame["loss"] + wave)))
    (misfit,) = (remark for remark in found.remarks if remark.about is About.MISFIT)
    assert misfit.values == (found.curves.misfit, "nats", found.curves.misfit_p)
    assert found.curves.misfit_p < 0.01


def test_a_shape_whose_runs_all_diverged_and_a_lead_that_shrinks_again_are_said():
    frame = simulated()
    deep = frame[frame["depth"] == 2]
    largest = frame["width"] == deep["width"].max()
    lost = frame.assign(status=np.where((frame["depth"] == 2) & largest, "diverged", "done"))
    params = 12.0 * 2 * int(deep["width"].max()) ** 2
    assert Remark(About.LOST_SHAPES, (2, params)) in remarks_of(lost)
    back = frame.assign(loss=frame["loss"] + np.where((frame["depth"] == 2) & largest, 0.2, 0.0))
    assert Remark(About.TURNED, ("1 → 2",)) in remarks_of(back)


def test_nothing_usable_is_an_error_with_the_reasons(pilot_frame):
    runs = RunTable.from_frame(pilot_frame().assign(status="failed", reason="out of memory"))
    with pytest.raises(InputError, match="failed: out of memory"):
        fit(runs)


@pytest.mark.parametrize("options", [{"level": 1.0}, {"level": 0}])
def test_bad_options(study, options):
    with pytest.raises(InputError):
        fit(study, **options)


def test_one_depth_is_an_answer_not_a_crash(pilot_frame):
    frame = pilot_frame()
    found = fit(RunTable.from_frame(frame[frame["depth"] == 2]))
    assert found.crossings == ()
    assert found.law.status == "insufficient"
    assert found.best == ()
