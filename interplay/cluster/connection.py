"""The connection to the dashboard of a cluster, by default through a tunnel.

The dashboard listens only on the head's loopback address.
"""

import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from core.extras import need
from interplay.cluster.cluster_file import read, read_token
from study.errors import SpecError
from study.proxy import reach_loopback_directly

#: Where `ray dashboard` makes the dashboard of the head available by default.
ADDRESS = "http://127.0.0.1:8265"
#: Time limit for SSH to the head and a busy dashboard.
OPEN_SECONDS = 120.0
#: Time limit for the end of ssh.
CLOSE_SECONDS = 5.0
#: The token of this machine, used without a cluster file.
TOKEN = Path("~/.ray/interplay-token")


@dataclass(frozen=True)
class Cluster:
    """A reachable cluster."""

    client: Any
    """Ray's `JobSubmissionClient`."""
    options: tuple[str, ...]
    """The options that name the cluster on the command line."""

    def command(self, verb: str, job: str) -> str:
        """A shell command about a job."""
        return shlex.join(["interplay", verb, job, *self.options])


@contextmanager
def connect(file: str | None, address: str | None) -> Iterator[Cluster]:
    """Connect to the cluster of a file, through a tunnel if no address is given.

    Without a file, the address is that of RAY_API_SERVER_ADDRESS or of `ray dashboard`, and the token that of
    RAY_AUTH_TOKEN_PATH or of this machine. Errors of Ray's client in the block become SpecErrors.

    Raises:
        SpecError: the cluster does not answer, refuses the token or a request, or is no Ray cluster.
    """
    need("reaching a cluster", "cluster", "aiohttp")
    if file is not None:
        token, options = read(file).token, ["--cluster", file]
    else:
        named = os.environ.get("RAY_AUTH_TOKEN_PATH")
        path = Path(named) if named else TOKEN.expanduser()
        token, options = path if named or path.is_file() else None, []
    # Ray would read the token once per process, from the environment at that time.
    headers = {"Authorization": f"Bearer {read_token(token)}"} if token else {}
    with ExitStack() as stack:
        # A tunnel has a session of its own: without the handlers it would outlive this process.
        for number in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, signal.default_int_handler))
        # Ray's client logs a line per ignore file.
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)
        if file is not None and address is None:
            with Console().status(f"opening a tunnel to the head of {file}"):
                address = stack.enter_context(open_tunnel(file))
        else:
            address = (address or os.environ.get("RAY_API_SERVER_ADDRESS") or ADDRESS).rstrip("/")
            options += ["--address", address]
        if not re.fullmatch(r"https?://[^/\s]+", address):
            raise SpecError(f"--address {address} is not the address of a dashboard; write it as {ADDRESS}.")
        # Both silently replace the client's address (ray 2.60); this process ends with the verb.
        for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
            os.environ.pop(name, None)
        # The end of a tunnel is not behind a proxy.
        reach_loopback_directly()
        with _as_spec_errors(address, token, file):
            from ray.job_submission import JobSubmissionClient

            yield Cluster(JobSubmissionClient(address, headers=headers), tuple(options))


@contextmanager
def _as_spec_errors(address: str, token: Path | None, file: str | None) -> Iterator[None]:
    """Turn the errors of Ray's client into one paragraph."""
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except SpecError:
        raise
    except AuthenticationError as error:
        wrong = f"it refuses the token {token}" if token else "there is no token here"
        fix = "give the cluster's file with --cluster, or the token's with RAY_AUTH_TOKEN_PATH"
        if file is not None:
            fix = f"make one with `interplay cluster token {file}`, and copy it with `ray up {file}`"
        raise SpecError(f"the cluster on {address} requires its token, and {wrong}; {fix}.") from error
    except (ConnectionError, requests.RequestException) as error:
        raise SpecError(
            f"no cluster answers on {address} ({type(error).__name__}); `ray status` on the head shows its state. "
            "`--cluster FILE` opens a tunnel to the head of a cluster file."
        ) from error
    except (RuntimeError, ValueError) as error:
        # The server answers with a traceback; its last line is the reason.
        reason = (str(error).rstrip(". \n") or type(error).__name__).splitlines()[-1]
        if "returned 404" in reason:
            reason = "it is no Ray dashboard; give another address, or the cluster's file with --cluster"
        if too_large := re.search(r"Maximum request body size (\d+) exceeded", reason):
            reason = (
                f"the package is larger than {int(too_large[1]) / 1e6:,.0f} MB, the limit of Ray's dashboard; name "
                "large files that the study does not need in .rayignore"
            )
        raise SpecError(f"the server on {address} refused the request: {reason}.") from error


@contextmanager
def open_tunnel(file: str) -> Iterator[str]:
    """Keep `ray dashboard FILE` running as a child process, and yield the address at which the dashboard answers.

    SpecError, with its last line of output, if `ray dashboard` ended or nothing answered in time.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        # Its own session: Ctrl-C must not end it, and its ssh must end with it.
        child = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "dashboard", file, "-p", port],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        )
        try:
            deadline = time.monotonic() + OPEN_SECONDS
            while not answers(address):
                if child.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    lines = re.sub(r"\x1b\[[0-9;]*m", "", output.read()).strip().splitlines() or [""]
                    raise SpecError(
                        f"`ray dashboard {file}` opened no tunnel within {OPEN_SECONDS:.0f} seconds, or ended; it "
                        f'printed "{lines[-1].strip()}". Is the cluster up? `ray up {file}` starts it, and '
                        f"`ray exec {file} 'ray status'` shows its state."
                    )
                time.sleep(0.3)
            yield address
        finally:
            # ssh may outlive `ray dashboard`, and hold the port.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(CLOSE_SECONDS)


def answers(address: str) -> bool:
    """Whether any web server answers at an address, without a proxy."""
    import requests

    session = requests.Session()
    session.trust_env = False
    try:
        session.get(f"{address}/api/version", timeout=5)
    except requests.RequestException:
        return False
    return True
