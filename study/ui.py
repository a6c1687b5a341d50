"""`interplay ui`: MLflow's own web page on a results folder, bound to loopback unless told otherwise."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from study.errors import SpecError
from study.tracking import store_uri


def serve(results: Path, host: str, port: int, console: Console) -> None:
    """Run MLflow's server on the store of a results folder until Ctrl-C.

    Raises:
        SpecError: the folder has no store, or the port is taken.
    """
    if not (results / "mlflow.db").is_file():
        raise SpecError(
            f"there is no MLflow store in {results} (mlflow.db); run a study first, such as `interplay run "
            "quickstart`, or name the folder with --results DIR."
        )
    with socket.socket() as probe:
        # As servers do: a port that only lingers after a server's end is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SpecError(
                f"port {port} of {host} cannot be used ({error.strerror}); try --port {port + 1}."
            ) from error
    command = [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--backend-store-uri", store_uri("auto", results)),
        *("--default-artifact-root", (results / "mlartifacts").resolve().as_uri()),
        *("--host", host, "--port", str(port), "--workers", "1"),
    ]
    console.print(f"MLflow on [bold]http://{host}:{port}[/] (starting takes half a minute; Ctrl-C ends it)")
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    process = subprocess.Popen(command, env=environment)
    try:
        process.wait()
    except KeyboardInterrupt:
        # The terminal has sent it the signal as well; wait for its own clean end.
        process.wait(timeout=30)
