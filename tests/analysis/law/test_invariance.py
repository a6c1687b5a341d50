"""What must not change an answer, and tables that hold next to none."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.fit.document import Fit, fit
from analysis.fit.next_runs import next_runs_of
from analysis.report.study_page import write_report
from analysis.runs.table import RunTable
from core.errors import InputError
from tests.simulated_study import Truth, shapes_of, simulate

TRUTH = Truth(2.5, 0.3, (1, 2, 4))


@pytest.fixture(scope="module")
def frame():
    """54 runs with three checkpoints each, the largest of which counts."""
    last = simulate(TRUTH, shapes_of(TRUTH.depths, np.geomspace(1e3, 1e5, 6)), 3, np.random.default_rng(0))
    parts = [last.assign(tokens=tokens, loss=last["loss"] + 1e9 / tokens) for tokens in (1e9, 2e9, 4e9)]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def answer(frame):
    return document(frame)


def document(frame):
    """The fit file without the rows left out, whose numbers follow the order of the rows."""
    found = fit(RunTable.from_frame(frame)).to_json()
    assert Fit.from_json(found).to_json(next_runs_of(found)) == found
    found["rows"]["left_out"] = len(found["rows"]["left_out"])
    return found


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    # Residuals of two crossings are nothing but rounding.
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if abs(value) > 1e-9 else 0.0


def without(found, *names):
    return rounded({name: value for name, value in found.items() if name not in names})


def test_the_order_of_rows_and_the_names_of_seeds_change_nothing(frame, answer):
    assert rounded(document(frame.sample(frac=1, random_state=4))) == rounded(answer)
    for names in ({0: 2, 1: 0, 2: 1}, {0: "b", 1: "a", 2: "c"}, {0: 0.5, 1: 99.25, 2: -1.0}):
        assert rounded(document(frame.assign(seed=frame["seed"].map(names)))) == rounded(answer)


def test_rows_twice_change_nothing_but_their_own_count(frame, answer):
    found = document(pd.concat([frame, frame.sample(n=40, random_state=1)]))
    assert found["rows"]["left_out"] == answer["rows"]["left_out"] + 40
    assert without(found, "rows") == without(answer, "rows")


def test_the_unit_of_tokens_changes_nothing_but_its_name(frame, answer):
    found = document(frame.assign(tokens=frame["tokens"] / 1e9))
    assert found["tokens"]["compared"] == pytest.approx(answer["tokens"]["compared"] / 1e9)
    flops = [document["next_runs"]["depth"]["flops"] for document in (found, answer)]
    assert flops[0] == pytest.approx(flops[1] / 1e9)
    assert without(found, "tokens", "next_runs") == without(answer, "tokens", "next_runs")


DEGENERATE = {
    "one depth": lambda f: f[f["depth"] == 2],
    "one row": lambda f: f.head(1),
    "two points": lambda f: f[(f["seed"] == 0) & (f["budget"] < 1100) & (f["depth"] < 4)],
    "two sizes a depth, one seed": lambda f: f[(f["seed"] == 0) & (f["budget"] < 3e3)],
    "a depth of one size": lambda f: f[(f["depth"] < 4) | (f["budget"] < 1100)],
    "sizes apart": lambda f: f[(f["depth"] == 1) == (f["budget"] < 1e4)],
    "the same loss everywhere": lambda f: f.assign(loss=2.0),
    "noise only": lambda f: f.assign(loss=2 + 0.01 * np.random.default_rng(0).standard_normal(len(f))),
    "half of it diverged": lambda f: f.assign(status=np.where(f["depth"] < 4, "done", "diverged")),
    "NaN, infinite and negative among the losses": lambda f: f.assign(
        loss=np.select([f.index % k == 0 for k in (11, 7, 5)], [-1.0, np.inf, np.nan], f["loss"])
    ),
    "a loss of a millionth": lambda f: f.assign(loss=f["loss"] * 1e-6),
    "widths of one": lambda f: f.assign(width=1),
    "every seed its own": lambda f: f.assign(seed=range(len(f))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEGENERATE)
def test_a_poor_table_gets_an_answer_that_says_what_it_lacks(name, frame, tmp_path):
    last = frame[frame["tokens"] == 4e9].drop(columns="tokens").reset_index(drop=True)
    runs = RunTable.from_frame(DEGENERATE[name](last))
    found = fit(runs)
    written = found.to_json()
    assert (
        json.loads(json.dumps(written, allow_nan=False))
        == Fit.from_json(written).to_json(next_runs_of(written))
        == written
    )
    assert len(found.left_out) + found.used == len(runs.frame)
    if found.law.a is None:
        assert found.law.reason
    assert all(item.reason for item in found.crossings if item.status != "bracketed")
    assert write_report(runs, found, tmp_path).is_file()


@pytest.mark.parametrize("loss", [np.nan, -1.0, np.inf])
def test_a_table_without_a_loss_is_refused_with_its_reasons(loss, frame):
    with pytest.raises(InputError, match="no usable row"):
        fit(RunTable.from_frame(frame.assign(loss=loss)))
