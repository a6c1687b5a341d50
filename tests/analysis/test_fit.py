import json
import math

import pandas as pd
import pytest

from analysis.errors import InputError
from analysis.fit import Fit, fit
from analysis.runs import RunTable


def numbers(value):
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return round(value, 9) if isinstance(value, float) else value


def test_the_pilot_gives_the_crossings_it_was_made_with(study):
    found = fit(study)
    pairs = {(item.shallow, item.deep): item for item in found.crossings}
    # Crossings of the table of means the study is simulated from.
    for pair, truth in (((1, 2), 3157), ((2, 4), 11508)):
        assert pairs[pair].status == "bracketed"
        low, high = pairs[pair].params_interval
        assert low < truth < high
    assert found.law.status == "ok"
    assert found.law.note == "two crossings: no test of the form"
    assert found.rivals[0].form == "power"
    assert found.projection_law() is not None


def test_the_json_contract(study):
    document = fit(study).to_json()
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text) == document
    assert {"crossings", "law", "rivals", "rows"} <= document.keys()
    assert {"shallow", "deep", "status", "params", "params_interval", "width", "width_interval"} <= document[
        "crossings"
    ][0].keys()
    law = document["law"]
    assert law["form"] == "log-linear"
    assert {"status", "a", "b", "covariance", "a_interval", "b_interval", "level"} <= law.keys()
    assert document["rows"] == {"used": 45, "left_out": []}


def test_json_is_strict_also_where_nothing_is_known(pilot_frame):
    # One seed, no budget, a depth with one size: NaN and infinities everywhere inside.
    frame = pilot_frame(seeds=1).drop(columns=["budget", "tokens", "lr"])
    frame = frame[(frame["depth"] != 4) | (frame["width"] == 6)]
    document = fit(RunTable.from_frame(frame)).to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["law"]["status"] == "insufficient"
    assert document["noise"]["known"] is False


def test_round_trip(study, pilot_frame):
    for runs in (study, RunTable.from_frame(pilot_frame(seeds=1))):
        document = fit(runs).to_json()
        assert Fit.from_json(document).to_json() == document


@pytest.mark.parametrize(
    "broken", [{}, {"crossings": 3}, {"crossings": [{}], "law": {}, "rivals": [], "rows": {}}]
)
def test_a_file_that_is_no_fit_is_refused(broken):
    with pytest.raises(InputError, match="not a fit file"):
        Fit.from_json(broken)


def test_order_and_duplicates_change_nothing(pilot_frame):
    frame = pilot_frame()
    document = fit(RunTable.from_frame(frame)).to_json()
    shuffled = frame.sample(frac=1, random_state=5)
    doubled = pd.concat([shuffled, shuffled.iloc[:7]])
    other = fit(RunTable.from_frame(doubled)).to_json()
    assert len(other["rows"].pop("left_out")) == 7
    document["rows"].pop("left_out")
    assert numbers(other) == numbers(document)


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
    assert found.left_out == ({"row": 4, "cell": frame.loc[3, "cell"], "reason": "diverged: loss above 20"},)
    assert any("between 2 and 3 seeds" in sentence for sentence in found.warnings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocabulary": 9}, "wider (12, 16, 22, 24, 32, 44) than the vocabulary (9)"),
        ({"tokens": range(45)}, "differ in training tokens"),
        ({"params": 1000.0}, "differs from 12·L·d²"),
    ],
)
def test_warnings(pilot_frame, change, words):
    found = fit(RunTable.from_frame(pilot_frame().assign(**change).drop(columns="cell")))
    assert any(words in sentence for sentence in found.warnings)


def test_a_clean_study_has_no_warning(study):
    assert fit(study).warnings == ()


def test_other_learning_rates_are_left_out_with_a_reason(pilot_frame):
    frame = pilot_frame()
    worse = frame.assign(lr=frame["lr"] * 3, loss=frame["loss"] + 0.2, cell=frame["cell"] + "x")
    both = fit(RunTable.from_frame(pd.concat([frame, worse], ignore_index=True)))
    alone = fit(RunTable.from_frame(frame))
    assert both.used == 45
    assert len(both.left_out) == 45
    assert "learning rate" in both.left_out[0]["reason"]
    assert both.crossings == alone.crossings
    assert any("biased down" in sentence for sentence in both.warnings)


def test_nothing_usable_is_an_error_with_the_reasons(pilot_frame):
    runs = RunTable.from_frame(pilot_frame().assign(status="failed", reason="out of memory"))
    with pytest.raises(InputError, match="failed: out of memory"):
        fit(runs)


@pytest.mark.parametrize("options", [{"level": 1.0}, {"level": 0}, {"draws": 5}])
def test_bad_options(study, options):
    with pytest.raises(InputError):
        fit(study, **options)


def test_one_depth_is_an_answer_not_a_crash(pilot_frame):
    frame = pilot_frame()
    found = fit(RunTable.from_frame(frame[frame["depth"] == 2]))
    assert found.crossings == ()
    assert found.law.status == "insufficient"
    assert found.best == ()
