"""A tunnel from this machine to the dashboard of a cluster, which listens only on the head's loopback address."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from study.errors import SpecError

#: Time limit for SSH to the head and a busy dashboard.
OPEN_SECONDS = 120.0
#: Time limit for the end of ssh.
CLOSE_SECONDS = 5.0


@contextmanager
def open_tunnel(file: str) -> Iterator[str]:
    """Keep `ray dashboard FILE` running as a child process, and yield the address at which the dashboard answers.

    Raises:
        SpecError: `ray dashboard` ended, or nothing answered in time; the message has its last line of output.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as output:
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
                    text = re.sub(r"\x1b\[[0-9;]*m", "", output.read().decode(errors="replace"))
                    raise SpecError(
                        f"`ray dashboard {file}` opened no tunnel within {OPEN_SECONDS:.0f} seconds, or ended; it "
                        f'printed "{text.strip().rpartition(chr(10))[2].strip()}". Is the cluster up? '
                        f"`ray up {file}` starts it, and `ray exec {file} 'ray status'` shows its state."
                    )
                time.sleep(0.3)
            yield address
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(CLOSE_SECONDS)
            # ssh may outlive it, and hold the port.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def answers(address: str) -> bool:
    """Whether any web server answers at an address, without a proxy."""
    try:
        with build_opener(ProxyHandler({})).open(f"{address}/api/version", timeout=5):
            return True
    except HTTPError:
        return True
    except (HTTPException, OSError):
        return False
