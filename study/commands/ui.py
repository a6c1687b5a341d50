"""`interplay ui`: MLflow's own web page on a store, on loopback by default."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console

from study.errors import SpecError
from study.results.sources import existing, named_store
from study.tracking.mlflow_client import relocate_artifacts, sqlite_file
from study.tracking.study_paths import ARTIFACTS
from trainables.storage.storage import shown

#: Databases that MLflow's server can serve.
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


def serve(results: Path, host: str, port: int, console: Console, uri: str | None = None) -> None:
    """Run MLflow's server until Ctrl-C or SIGTERM; of a tracking server, print the address of its page.

    The store is that of the results folder unless `uri` names another; see `study.results.sources.named_store`.

    Raises:
        SpecError: there is no such store, or the port cannot be used.
    """
    store = named_store(uri, results)
    scheme = store.partition(":")[0].partition("+")[0]
    if scheme in ("http", "https"):
        console.print(f"MLflow on {shown(store)}", markup=False, soft_wrap=True)
        return
    if scheme not in DATABASES:
        raise SpecError(
            f"{shown(store)} is no MLflow store that can be served; give --uri sqlite:////path/mlflow.db "
            "or the address of a tracking server."
        )
    file = sqlite_file(existing(store))
    artifacts = (file.parent if file else results) / ARTIFACTS
    if file and artifacts.is_dir():
        relocate_artifacts(file, artifacts)
    with socket.socket() as probe:
        # As servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SpecError(
                f"port {port} of {host} cannot be used ({error.strerror}); try --port "
                f"{port + 1 if port < 65535 else 5000}."
            ) from error
    command = [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--default-artifact-root", artifacts.resolve().as_uri()),
        *("--host", host, "--port", str(port), "--workers", "1"),
    ]
    console.print(f"MLflow on [bold]http://{host}:{port}[/] (starting takes half a minute; Ctrl-C ends it)")
    # By the environment, because a database address may hold a password and every user can read arguments.
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_BACKEND_STORE_URI": store,
        # Else five idle job workers take 6 % of a core each.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    process = subprocess.Popen(command, env=environment)

    def terminate(number: int, frame: FrameType | None) -> None:
        # Else the server would outlive this process and keep the port.
        process.terminate()

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        process.wait()
    except KeyboardInterrupt:
        # The terminal has sent it the signal as well; wait for its own clean end.
        process.wait(timeout=30)
    finally:
        signal.signal(signal.SIGTERM, before)
