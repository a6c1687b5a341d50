"""A study with early stopping by the real command: what is stopped, what becomes of it, and the same to its end."""

import json

import pytest

from study.tracking.study_paths import StudyPaths
from tests.study.run.test_study import Laptop

pytestmark = pytest.mark.extended

SPEC = """
name: tiny
data: {kind: hierarchy, vocabulary: 8, branching: 2, levels: 4, synonyms: 2, sequences: 4000, validation_sequences: 64}
frontier: {depths: [1, 2], heads: 2, budgets: [1600, 3200, 6200], tolerance: 0.2}
training: {steps: 40, batch: 8, context: 32, lr: {rule: width, base: 0.4, cap: 0.04}, seeds: 3}
early_stopping: {rule: forecast, halfwidth: 0.5, finished: 12, whole_share: 0.1}
resources: {device: cpu, slots: 1, evaluations: 4, keep_weights: none}
"""


def test_a_study_stops_cells_counts_their_forecasts_and_can_be_trained_to_its_end(tmp_path):
    laptop = Laptop(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SPEC)
    first = laptop.run("run", "tiny.yaml")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "stopped: at step 20 of 40; forecast" in first.stdout
    rows = {row["cell"]: row for row in laptop.rows()}
    stopped = {key: row for key, row in rows.items() if row["status"] == "stopped"}
    assert len(rows) == 18
    assert 2 <= len(stopped) <= 6, "twelve end before any is foretold, and one in ten is not stopped"
    for row in stopped.values():
        assert float(row["loss"]) > 0
        assert 0 < 1.96 * float(row["loss_se"]) < 0.5 * float(row["loss"])
        assert float(row["trained_share"]) == 0.5
    assert {row["loss_se"] for key, row in rows.items() if key not in stopped} == {""}
    _, trials = laptop.runs()
    assert {run.info.status for run in trials} == {"FINISHED"}
    assert not laptop.checkpoints()
    fit = json.loads(laptop.run("fit", "mlflow:tiny", "--json").stdout)
    assert fit["rows"] == {"used": 18, "left_out": []}
    assert any(f"{len(stopped)} of the 18 losses compared are forecasts" in text for text in fit["warnings"])
    status = json.loads(laptop.run("status", "tiny.yaml", "--json").stdout)
    assert status["counts"] == {"done": 18 - len(stopped), "stopped": len(stopped)}

    # With `keep_weights: none` nothing is kept, and the study says so when it is asked.
    assert not StudyPaths(laptop.results, "tiny").models.exists()
    done = next(key for key in rows if key not in stopped)
    refused = laptop.run("export", done, "--out", "none")
    assert refused.returncode == 2
    assert "were not kept" in " ".join(refused.stderr.split())

    again = laptop.run("run", "tiny.yaml")
    assert "nothing to train" in again.stdout
    assert {row["cell"]: row for row in laptop.rows()} == rows

    whole = laptop.run("run", "tiny.yaml", "--set", "early_stopping=null")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert f"{len(stopped)} cells in" in whole.stdout
    ended = {row["cell"]: row for row in laptop.rows()}
    assert {row["status"] for row in ended.values()} == {"done"}
    assert {key for key in rows if rows[key]["loss"] != ended[key]["loss"]} == set(stopped)
    _, trials = laptop.runs()
    assert len(trials) == 18
    fit = json.loads(laptop.run("fit", "mlflow:tiny", "--json").stdout)
    assert not any("forecast" in text for text in fit["warnings"])
