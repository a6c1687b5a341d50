"""Studies whose cells diverge, from the results of their trials to the fit: nothing is trained here."""

import contextlib
import json
import shutil

import pandas as pd
import pytest
from rich.console import Console

from interplay.study_fit import fit_and_report
from study.run import runner
from study.spec.study import load_spec
from study.tracking.mlflow_store import Experiment, tracking_uri
from tests.stubs import stub_result
from tests.study.run.test_study import SPEC


@pytest.fixture
def run(tmp_path, template, monkeypatch):
    """Run the study of 8 cells, of which those diverge that a function names."""
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(template, results / "mlflow.db")
    (tmp_path / "tiny.yaml").write_text(SPEC)

    def run(diverges):
        def in_turn(source, slots, settings, retries, callback, **options):
            while planned := source.take():
                callback.started(planned)
                wild, shape = diverges(planned.cell.shape), planned.cell.shape
                result = (
                    {"status": "diverged", "reason": "the training loss is nan", "loss": None} if wild else {}
                )
                callback.ended(
                    planned, stub_result(**{"loss": 2 - shape.width * shape.depth / 100, **result})
                )
            return True

        monkeypatch.setattr(runner, "run_cells", in_turn)
        monkeypatch.setattr(runner, "private_ray", lambda slots: contextlib.nullcontext())
        summary = runner.run_study(
            load_spec(str(tmp_path / "tiny.yaml")), results, Console(quiet=True), fit_and_report
        )
        rows = pd.read_csv(results / "tiny" / "runs.csv")
        runs = Experiment(tracking_uri("auto", results), "tiny").runs("attributes.status != 'nothing'")
        assert {run.info.status for run in runs} == {"FINISHED"}
        return summary, rows, results / "tiny"

    return run


@pytest.mark.slow
def test_a_diverged_cell_is_an_outcome_and_the_others_are_compared(run):
    summary, rows, folder = run(lambda shape: (shape.depth, shape.width) == (2, 16))
    assert summary.finished
    assert len(rows) == 8
    lost = rows[(rows["depth"] == 2) & (rows["width"] == 16)]
    assert lost["status"].tolist() == ["diverged"] * 2
    assert lost["reason"].str.startswith("the training loss").all()
    assert lost["loss"].isna().all()
    fit = json.loads((folder / "fit.json").read_text())
    assert fit["rows"]["used"] == 6
    assert len(fit["rows"]["left_out"]) == 2


@pytest.mark.slow
def test_a_study_whose_cells_all_diverge_ends_without_a_fit(run):
    summary, rows, folder = run(lambda shape: True)
    assert (summary.finished, summary.conclusion) == (True, None)
    assert summary.failed == {}
    assert set(rows["status"]) == {"diverged"}
    assert not (folder / "fit.json").exists()
