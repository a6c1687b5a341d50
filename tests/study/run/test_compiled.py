"""Compiled layers of a study are kept in its folder, by a real run."""

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_study_compiles_stays_in_its_folder(command, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    changes = (
        "frontier.depths=[1]", "frontier.budgets=[1730]", "data.sequences=1000", "training.steps=12",
        "training.seeds=1", "resources.slots=1",
    )  # fmt: skip
    status, _, errors = command("run", "quickstart", *changes, "resources.compile=always")
    assert status == 0, errors
    compiled = tmp_path / "results" / "quickstart" / "compiled"
    assert [file for file in compiled.rglob("*.so") if file.stat().st_size]
