"""The environment of commands that tests start."""

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

#: The priority of Ray's workers, which `make test-gate` sets: at Ray's own, 15, they starve beside the other lanes, and
#: a cell that takes seconds took minutes.
PRIORITY = {k: v for k, v in os.environ.items() if k == "RAY_worker_niceness"}


def environment_without(*prefixes: str) -> dict[str, str]:
    """This process's environment without the settings of some programs, but with the priority of Ray's workers."""
    return {k: v for k, v in os.environ.items() if not k.startswith(prefixes)} | PRIORITY


def run_program(
    name: str, *arguments: object, home: Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a module of the tests that starts Ray, in a process of its own because Ray keeps its token."""
    return subprocess.run(
        [sys.executable, "-m", name, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**environment_without("RAY_"), "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"},
        timeout=timeout,
        check=False,
    )


def free_port() -> int:
    """A port for a server that another process will start.

    It is below the range from which the kernel takes the ports of connections (32768 on Linux), because the hundreds of
    connections of a Ray cluster beside this one may take one of those before the server starts.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
