"""A study whose trainer is broken still ends, and says what can be said: Ray Tune, the ledger and the fit for real."""

import functools
from collections import Counter

import pandas as pd
import pytest
from rich.console import Console

from interplay.study_fit import fit_and_report
from study.run.runner import run_study
from study.run.tuner import run_cells
from study.spec.study import load_spec
from tests.stubs import stub_result
from tests.study.broken import broken, fate
from tests.study.small import SMALL


@pytest.mark.extended
def test_a_search_over_a_broken_trainer_ends_with_an_answer(tmp_path, monkeypatch):
    trainable = broken(stub_result().model_dump(mode="json"))
    monkeypatch.setattr("study.run.runner.run_cells", functools.partial(run_cells, trainable=trainable))
    options = [
        "search.sampler=crossing",
        "search.max_cells=40",
        "resources.slots=2",
        "resources.max_retries=0",
    ]
    spec = load_spec(SMALL, options)
    summary = run_study(spec, tmp_path, Console(quiet=True), fit_and_report)
    rows = pd.read_csv(tmp_path / "small" / "runs.csv", dtype={"cell": str})
    assert summary.finished
    assert rows["cell"].is_unique
    told = {"died": "failed", "diverged": "diverged", "done": "done"}
    assert list(rows["status"]) == [told[fate(cell)] for cell in rows["cell"]]
    counts = Counter(rows["status"])
    assert counts["diverged"] >= len(rows) / 5
    assert counts["failed"] >= 1
    died = rows.loc[rows["status"] == "failed", "reason"]
    assert set(died) == {"the process of the trial died (ActorDiedError)"}
    statuses = [crossing.status for crossing in summary.conclusion.answer.fit.crossings]
    assert len(statuses) >= 2, "each pair of depths is answered"
    assert len(rows) == 40, "a cell that ends without a loss is one of the budget"
    assert summary.conclusion.page.is_file()
