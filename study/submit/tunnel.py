"""A way from this machine to the dashboard of a cluster, which listens on the loopback of its head alone."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from study.errors import SpecError

#: Where `ray dashboard` puts the head's dashboard by default.
ADDRESS = "http://127.0.0.1:8265"
#: The most that SSH to the head and a busy dashboard may take.
PATIENCE_SECONDS = 120.0
#: The most that ssh may take to end.
END_SECONDS = 5.0


class Tunnel:
    """`ray dashboard FILE` as a child of this process."""

    def __init__(self, file: str) -> None:
        """Take a free port; nothing is started yet."""
        self.file = file
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._child: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the tunnel

    @property
    def address(self) -> str:
        """Where the dashboard is, once the tunnel is open."""
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Start it if it does not run, and wait until the dashboard answers.

        Raises:
            SpecError: `ray dashboard` ended, or nothing answered in time; its last words are in the message.
        """
        if self._child is None or self._child.poll() is not None:
            command = [
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "dashboard",
                self.file,
                "-p",
                str(self.port),
            ]
            # A session of its own, so that Ctrl-C ends the following of a log and not the tunnel under it, and so that
            # the ssh it starts can be ended with it.
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not answers(self.address):
            if self._child.poll() is not None:
                raise SpecError(
                    f"no tunnel to the head of {self.file}: `ray dashboard {self.file}` ended with "
                    f'"{self._last_words()}". Is the cluster up? `ray up {self.file}` starts it.'
                )
            if time.monotonic() > deadline:
                raise SpecError(
                    f"the dashboard of {self.file} did not answer within {PATIENCE_SECONDS:.0f} seconds through "
                    f'`ray dashboard {self.file}`, which says "{self._last_words()}". Is the cluster up? `ray up '
                    f"{self.file}` starts it, and `ray exec {self.file} 'ray status'` shows it."
                )
            time.sleep(0.3)

    def close(self) -> None:
        """End it and the ssh below it."""
        child, self._child = self._child, None
        if child is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                _signal_group(child.pid, number)
                try:
                    child.wait(END_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
            # What the child started may outlive it for a moment, and hold the port.
            _signal_group(child.pid, signal.SIGKILL)
        self._said.close()

    def _last_words(self) -> str:
        """The last thing that was said, without colours: of a traceback its exception alone."""
        self._said.seek(0)
        text = re.sub(r"\x1b\[[0-9;]*m", "", self._said.read().decode(errors="replace"))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "nothing"


@contextmanager
def open_tunnel(file: str) -> Iterator[Tunnel]:
    """Hold a tunnel to the head of a cluster file open; raises as `Tunnel.open` does."""
    tunnel = Tunnel(file)
    try:
        tunnel.open()
        yield tunnel
    finally:
        tunnel.close()


def answers(address: str) -> bool:
    """Whether a web server answers there, whatever it says."""
    # No proxy: the environment's may be set for all addresses, and this one is our own end of the tunnel.
    try:
        with build_opener(ProxyHandler({})).open(f"{address}/api/version", timeout=5):
            return True
    except HTTPError:
        return True
    except (URLError, HTTPException, OSError):
        return False


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
