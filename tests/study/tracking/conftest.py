import shutil

import pytest

from study.tracking.mlflow_store import tracking_uri


@pytest.fixture
def uri(template, tmp_path, monkeypatch):
    """The address of an empty store, with batches that are sent at once."""
    monkeypatch.setattr("study.tracking.mirror.BATCH_SECONDS", 0.05)
    shutil.copy(template, tmp_path / "mlflow.db")
    return tracking_uri("auto", tmp_path)
