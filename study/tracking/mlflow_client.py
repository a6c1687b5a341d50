"""MLflow's client for one experiment, without output and with short timeouts."""

import logging
import os
import re
import sqlite3
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from analysis.runs.mlflow import all_runs
from study.errors import SpecError
from study.spec.resources import TrackingSection
from study.spec.section import from_environment

#: Read by MLflow when it is imported. Its own defaults block for minutes on a dead port (7 retries, back-off 2,
#: 120 s each) and print every migration to the terminal.
ENVIRONMENT = {
    # Two lines per run, on stdout, with a tracking server.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
#: MLflow filter of the runs of cells.
CELL_RUNS = "tags.`interplay.kind` = 'trial'"


def silence_mlflow() -> None:
    """Keep MLflow and its database layer from writing to the terminal, and its HTTP client from waiting."""
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    for name in ("mlflow", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="mlflow|sqlalchemy|alembic")


def tracking_uri(uri: str, results: Path) -> str:
    """Return the MLflow URI of a spec.

    `auto` is INTERPLAY_TRACKING, which the head of a cluster sets, else a SQLite file in the results folder.
    """
    if uri != "auto":
        return uri
    if named := from_environment("INTERPLAY_TRACKING", TrackingSection, "uri"):
        return tracking_uri(named, results)
    path = (results / "mlflow.db").resolve()
    if re.search(r"\?|%[0-9a-fA-F]{2}", str(path)):
        raise SpecError(
            f"the results folder {results} has a `?` or a `%` code in its path, which SQLite's address cannot hold; "
            "use another folder."
        )
    return f"sqlite:///{path}"


def server_problem(uri: str, timeout: float = 3.0) -> str | None:
    """Ask an HTTP tracking server for its health; return one sentence if it cannot be used, None if it can.

    MLflow's client would wait three times as long for a server that accepts a connection and never answers. Other
    stores (SQLite, a database) are not asked.
    """
    if urlparse(uri).scheme not in ("http", "https"):
        return None
    try:
        with urllib.request.urlopen(uri.rstrip("/") + "/health", timeout=timeout):
            return None
    except urllib.error.HTTPError as error:
        # A proxy may not have /health; only an error of the server itself means that it cannot be used.
        if error.code < 500:
            return None
        return f"the tracking server {uri} answers {error.code} ({error.reason})"
    except (OSError, ValueError) as error:
        return f"the tracking server {uri} does not answer ({getattr(error, 'reason', error)})"


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite store; None for any other store."""
    if not uri.startswith("sqlite"):
        return None
    from sqlalchemy.engine import make_url

    return Path(make_url(uri).database or "")


def relocate_artifacts(file: Path, artifacts: Path) -> None:
    """Point the experiments of a results folder that was copied or moved to the artifacts beside its store `file`.

    MLflow stores the absolute location of each experiment and run, and has no call to change it (3.17), so artifacts
    of the copy would go into the folder that was copied. Experiments with artifacts elsewhere are left alone.

    Raises:
        SpecError: the file is no database, or cannot be written.
    """
    place = artifacts.resolve().as_uri()
    try:
        with closing(sqlite3.connect(file)) as store, store:
            if not store.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone():
                return
            listed = store.execute("SELECT experiment_id, artifact_location FROM experiments").fetchall()
            for number, old in listed:
                if old == place or (old or "").rpartition("/")[2] != artifacts.name:
                    continue
                moved = "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?"
                store.execute(moved, (place, number))
                store.execute(
                    "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
                    "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
                    (place, len(old) + 1, number, len(old) + 1, f"{old}/"),
                )
    except sqlite3.DatabaseError as error:
        raise SpecError(
            f"the MLflow store {file} cannot be opened: {error}. Check tracking.uri, or use another results folder."
        ) from error


class Experiment:
    """An MLflow experiment. Every method calls MLflow at once and raises what it raises."""

    def __init__(self, uri: str, name: str, artifacts: Path | None = None, *, create: bool = True) -> None:
        """Open the experiment; one of a local store keeps files in `artifacts`, also after a move of both.

        Raises:
            SpecError: it is deleted, or the store cannot be opened and retrying does not help.
            LookupError: it, or the file of a local store, is missing and not to be made.
        """
        silence_mlflow()
        from mlflow.tracking import MlflowClient

        self.uri = uri
        file = sqlite_file(uri)
        if file is not None and not file.is_file() and not create:
            raise LookupError(file)
        if (
            file is not None
            and file.is_file()
            and artifacts
            and artifacts.parent.resolve() == file.parent.resolve()
        ):
            relocate_artifacts(file, artifacts)
        try:
            self.client = MlflowClient(uri)
            found = self.client.get_experiment_by_name(name)
            if found is None and create:
                location = artifacts.resolve().as_uri() if artifacts else None
                self.experiment_id = str(self.client.create_experiment(name, artifact_location=location))
                return
        except Exception as error:
            if urlparse(uri).scheme in ("http", "https"):
                raise
            raise SpecError(
                f"the MLflow store {uri} cannot be opened: {first_line(error)} Check tracking.uri, or leave it `auto` "
                "for a SQLite file in the results folder."
            ) from error
        if found is None:
            raise LookupError(name)
        if found.lifecycle_stage != "active":
            raise SpecError(
                f"the MLflow experiment {name!r} in {uri} is deleted; restore it there "
                f"(mlflow experiments restore --experiment-id {found.experiment_id}), or give the study another "
                "name with --set tracking.experiment=NAME."
            )
        self.experiment_id = str(found.experiment_id)

    def runs(self, condition: str = CELL_RUNS) -> Iterator[Any]:
        """Yield all runs that match an MLflow filter."""
        return all_runs(self.client, self.experiment_id, condition)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, for people."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]
