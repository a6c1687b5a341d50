"""`interplay ui`: MLflow's web page on a store, on loopback by default."""

import os
import socket
import sys
from pathlib import Path

from rich.console import Console

from interplay.study_fit import existing, named_store
from study.errors import SpecError
from study.tracking.mlflow_store import artifact_folder, sqlite_file
from study.tracking.mlflow_view import CHARTS, TAG, page
from trainables.storage.storage import redacted

#: Databases that MLflow's server can serve.
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


def serve(results: Path, host: str, port: int, console: Console, uri: str | None = None) -> None:
    """Print the links to the charts of a store and become MLflow's server, which Ctrl-C, SIGTERM or SIGHUP ends.

    The store is that of the results folder unless `uri` names another; see `interplay.study_fit.named_store`. Of a
    tracking server, only print the address of its page.

    Raises:
        SpecError: there is no such store, or the port cannot be used.
    """
    store = named_store(uri, results)
    scheme = store.partition(":")[0].partition("+")[0]
    if scheme in ("http", "https"):
        console.print(f"MLflow on {redacted(store)}", markup=False, soft_wrap=True)
        return
    if scheme not in DATABASES:
        raise SpecError(
            f"{redacted(store)} is no MLflow store that can be served; give --uri sqlite:////path/mlflow.db "
            "or the address of a tracking server."
        )
    file = sqlite_file(existing(store))
    try:
        # As servers do, it takes a port in TIME_WAIT.
        socket.create_server((host, port)).close()
    except OSError as error:
        raise SpecError(
            f"port {port} of {host} cannot be used ({error.strerror}); try --port "
            f"{port + 1 if port < 65535 else 5000}."
        ) from error
    address = f"http://{host}:{port}"
    for charts in chart_pages(store):
        console.print(f"{address}/{charts}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"MLflow on {address} (starting takes half a minute; Ctrl-C ends it)", markup=False)
    sys.stdout.flush()
    command = [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--default-artifact-root", artifact_folder(file or results / "mlflow.db").as_uri()),
        *("--host", host, "--port", str(port), "--workers", "1"),
        # Else it prints four lines on its start, and one for each request.
        *("--uvicorn-opts", "--log-level warning"),
    ]
    # By the environment, because a database address may hold a password and every user can read arguments.
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_BACKEND_STORE_URI": store,
        "MLFLOW_REGISTRY_STORE_URI": store,
        # Of the packages that the server imports, on their own next releases.
        "PYTHONWARNINGS": "ignore",
        # Else five idle job workers take 6 % of a core each.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    # In place of this process, so that signals reach the server, which ends its own processes.
    os.execve(sys.executable, command, environment)


def chart_pages(store: str) -> list[str]:
    """Return the fragments of the pages with the charts of each experiment, the newest experiment first.

    They open with the saved view that `interplay run` gives an experiment. Another program's experiment has none, and
    is shown in the order of the loss: without an order MLflow 3.17 shows no nested run, and no charts.
    """
    from mlflow.tracking import MlflowClient

    experiments = MlflowClient(store).search_experiments(order_by=["last_update_time DESC"])
    query = f"{CHARTS}&orderByKey=metrics.%60loss%60&orderByAsc=true"
    return [
        page(experiment.experiment_id)
        if TAG in experiment.tags
        else f"#/experiments/{experiment.experiment_id}/runs?{query}"
        for experiment in experiments
        if experiment.name != "Default"
    ]
