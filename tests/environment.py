"""The environment of commands that tests start."""

import os

#: The priority of Ray's workers, which `make test-gate` sets: at Ray's own, 15, they starve beside the other lanes, and
#: a cell that takes seconds took minutes.
PRIORITY = {k: v for k, v in os.environ.items() if k == "RAY_worker_niceness"}


def environment_without(*prefixes: str) -> dict[str, str]:
    """This process's environment without the settings of some programs, but with the priority of Ray's workers."""
    return {k: v for k, v in os.environ.items() if not k.startswith(prefixes)} | PRIORITY
