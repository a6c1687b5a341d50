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
from typing import IO
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from study.errors import SpecError

#: Time limit for SSH to the head and a busy dashboard.
OPEN_SECONDS = 120.0
#: Time limit for the end of ssh.
CLOSE_SECONDS = 5.0


class Tunnel:
    """`ray dashboard FILE` as a child process."""

    def __init__(self, file: str) -> None:
        """Choose a free port; `open` starts the process."""
        self.file = file
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._child: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`

    @property
    def address(self) -> str:
        """Address of the dashboard while the tunnel is open."""
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Start the process unless it runs, and wait until the dashboard answers.

        Raises:
            SpecError: `ray dashboard` ended, or nothing answered in time; the message has its last line of output.
        """
        if self._child is None or self._child.poll() is not None:
            command = ["ray.scripts.scripts", "dashboard", self.file, "-p", str(self.port)]
            # Its own session: Ctrl-C must not end it, and its ssh must end with it.
            self._child = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            )
        deadline = time.monotonic() + OPEN_SECONDS
        while not answers(self.address):
            has_ended = self._child.poll() is not None
            if has_ended or time.monotonic() > deadline:
                how = "ended" if has_ended else f"opened no tunnel within {OPEN_SECONDS:.0f} seconds"
                raise SpecError(
                    f'`ray dashboard {self.file}` {how}; it printed "{self._last_output()}". Is the cluster up? '
                    f"`ray up {self.file}` starts it, and `ray exec {self.file} 'ray status'` shows its state."
                )
            time.sleep(0.3)

    def close(self) -> None:
        """End the process and the ssh below it."""
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(CLOSE_SECONDS)
            # ssh may outlive it, and hold the port.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._output.close()

    def _last_output(self) -> str:
        """The last line of output without colours; of a traceback, the exception."""
        self._output.seek(0)
        text = re.sub(r"\x1b\[[0-9;]*m", "", self._output.read().decode(errors="replace"))
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@contextmanager
def open_tunnel(file: str) -> Iterator[Tunnel]:
    """Keep a tunnel to the head of a cluster file open; raises the errors of `Tunnel.open`."""
    tunnel = Tunnel(file)
    try:
        tunnel.open()
        yield tunnel
    finally:
        tunnel.close()


def answers(address: str) -> bool:
    """Whether any web server answers at an address, without a proxy."""
    try:
        with build_opener(ProxyHandler({})).open(f"{address}/api/version", timeout=5):
            return True
    except HTTPError:
        return True
    except (HTTPException, OSError):
        return False
