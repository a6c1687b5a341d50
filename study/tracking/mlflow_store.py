"""MLflow's stores: their addresses, whether they can be used, and an experiment, without output or long waits."""

import logging
import os
import re
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlparse

from analysis.runs.mlflow import all_runs
from core.extras import need
from study.errors import SpecError
from study.proxy import reach_loopback_directly
from study.spec.resources import TrackingSection
from study.spec.section import from_environment
from trainables.storage.storage import redacted

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


def silence_mlflow() -> None:
    """Keep MLflow and its database layer from writing to the terminal, and its HTTP client from waiting.

    The client also reaches a server on this machine without a proxy.
    """
    reach_loopback_directly()
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


def is_server(uri: str) -> bool:
    """Whether a store is an HTTP tracking server; the others are files and databases."""
    return urlparse(uri).scheme in ("http", "https")


def server_problem(uri: str, timeout: float = 3.0) -> str | None:
    """Ask an HTTP tracking server for its health; return one sentence if it cannot be used, None if it can.

    MLflow's client would wait three times as long for a server that accepts a connection and never answers. Other
    stores are not asked. A server on this machine is asked without a proxy, as MLflow's client does here.
    """
    if not is_server(uri):
        return None
    reach_loopback_directly()
    # The address may hold a password, if it comes from the environment.
    name = redacted(uri)
    try:
        with urllib.request.urlopen(uri.rstrip("/") + "/health", timeout=timeout):
            return None
    except urllib.error.HTTPError as error:
        # A proxy may not have /health; only an error of the server itself means that it cannot be used.
        if error.code < 500:
            return None
        return f"the tracking server {name} answers {error.code} ({error.reason})"
    except (OSError, ValueError) as error:
        why = str(getattr(error, "reason", error)).replace(uri, name)
        return f"the tracking server {name} does not answer ({why})"


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite store; None for any other store."""
    need("reading an MLflow store", "train", "mlflow")
    if not uri.startswith("sqlite"):
        return None
    from sqlalchemy.engine import make_url

    return Path(make_url(uri).database or "")


def artifact_folder(file: Path) -> Path:
    """Return the folder with the artifacts of a SQLite store."""
    return file.parent.resolve() / "mlartifacts"


class Experiment:
    """An MLflow experiment, made if it is missing. Every method calls MLflow at once and raises what it raises."""

    def __init__(self, uri: str, name: str) -> None:
        """Open the experiment; a SpecError if it is deleted, or if a retry cannot open the store."""
        silence_mlflow()
        from mlflow.tracking import MlflowClient

        file = sqlite_file(uri)
        # MLflow's default is a folder in the working directory.
        self._files = artifact_folder(file).as_uri() if file else None
        folder = f"{self._files}/experiment-{quote(name, safe='')}" if self._files else None
        try:
            self.client = MlflowClient(uri)
            experiment = self.client.get_experiment_by_name(name)
            self.id = str(
                experiment.experiment_id if experiment else self.client.create_experiment(name, folder)
            )
        except Exception as error:
            if is_server(uri):
                raise
            raise SpecError(
                f"the MLflow store {uri} cannot be opened: {first_line(error)} Check tracking.uri, or leave it `auto` "
                "for a SQLite file in the results folder."
            ) from error
        if experiment and experiment.lifecycle_stage != "active":
            raise SpecError(
                f"the MLflow experiment {name!r} in {uri} is deleted; restore it there "
                f"(mlflow experiments restore --experiment-id {self.id}), or give the study another "
                "name with tracking.experiment=NAME."
            )

    def read(self) -> Any:
        """Return the experiment with its tags as they are now."""
        return self.client.get_experiment(self.id)

    @property
    def keeps_files(self) -> bool:
        """Whether the store is a SQLite file and the experiment's artifacts are beside it."""
        return bool(self._files) and str(self.read().artifact_location).startswith(f"{self._files}/")

    def runs(self, condition: str = "tags.`interplay.kind` = 'trial'") -> Iterator[Any]:
        """Yield all runs that match an MLflow filter, by default those of cells."""
        return all_runs(self.client, self.id, condition)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, for people."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]
