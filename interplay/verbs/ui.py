"""`interplay ui`: MLflow's own web page on a store, on loopback by default."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

from rich.console import Console

from interplay.verbs.answer import existing, named_store
from study.errors import SpecError
from study.run.interrupts import stop_signals
from study.tracking.mlflow_store import artifact_folder, sqlite_file
from study.tracking.mlflow_view import CHARTS, TAG, page
from trainables.storage.storage import shown

#: Databases that MLflow's server can serve.
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
#: Seconds between two looks at the server and at the signals, and that it has to end by itself.
POLL_SECONDS, END_SECONDS = 0.1, 20.0


def serve(results: Path, host: str, port: int, console: Console, uri: str | None = None) -> None:
    """Run MLflow's server until Ctrl-C, SIGTERM or SIGHUP; of a tracking server, print the address of its page.

    The store is that of the results folder unless `uri` names another; see `interplay.verbs.answer.named_store`.

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
    artifacts = artifact_folder(file or results / "mlflow.db")
    try:
        # As servers do, it takes a port in TIME_WAIT.
        socket.create_server((host, port)).close()
    except OSError as error:
        raise SpecError(
            f"port {port} of {host} cannot be used ({error.strerror}); try --port "
            f"{port + 1 if port < 65535 else 5000}."
        ) from error
    command = [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--default-artifact-root", artifacts.as_uri()),
        *("--host", host, "--port", str(port), "--workers", "1"),
        # Else it prints four lines on its start, and one for each request.
        *("--uvicorn-opts", "--log-level warning"),
    ]
    address = f"http://{host}:{port}"
    links = [f"{address}/{charts}" for charts in chart_pages(store)]
    for link in links:
        console.print(link, markup=False, highlight=False, soft_wrap=True)
    console.print(f"MLflow on {address} (starting takes half a minute; Ctrl-C ends it)", markup=False)
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
    # Over SSH, without a screen, `webbrowser` would start a browser in the terminal.
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin"
    opens = len(links) == 1 and console.is_terminal and bool(display)
    with stop_signals() as signals:
        # In a process group of its own, so that each process that it starts can be ended with it.
        process = subprocess.Popen(command, env=environment, process_group=0)
        try:
            while process.poll() is None and not signals.came:
                time.sleep(POLL_SECONDS)
                if opens:
                    with contextlib.suppress(OSError):  # not ready yet
                        socket.create_connection((host, port), timeout=POLL_SECONDS).close()
                        webbrowser.open(links[0])
                        opens = False
        finally:
            end_group(process)


def chart_pages(store: str) -> list[str]:
    """Return the fragments of the pages with the charts of each experiment, the newest experiment first.

    They open with the saved view that `interplay run` gives an experiment. Another program's experiment has none, and
    is shown in the order of the loss: without an order MLflow 3.17 shows no nested run, and no charts.
    """
    from mlflow.tracking import MlflowClient

    found = MlflowClient(store).search_experiments(order_by=["last_update_time DESC"])
    query = f"{CHARTS}&orderByKey=metrics.%60loss%60&orderByAsc=true"
    return [
        page(one.experiment_id) if TAG in one.tags else f"#/experiments/{one.experiment_id}/runs?{query}"
        for one in found
        if one.name != "Default"
    ]


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its process group, of which it is the leader: by SIGTERM, and by SIGKILL what is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            # The leader is a member until it is reaped.
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(POLL_SECONDS)
