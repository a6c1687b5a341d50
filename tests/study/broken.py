"""A trainer of which a third of the cells diverge and a tenth die, the same ones whenever they are tried.

Its process imports nothing of ours, so that it starts fast: it is started anew for each cell that dies.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.sleeper import loss_of


def fate(key: str) -> str:
    """`died`, `diverged` or `done`, by a cell's key."""
    number = int(key, 16)
    if number % 10 == 0:
        return "died"
    return "diverged" if number // 10 % 3 == 0 else "done"


def broken(result: Mapping[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Return a trainable that reports a result by a cell's fate, if it lives.

    Args:
        result: a `Result` as JSON's dict.
    """
    return partial(_train, dict(result))


def _train(result: dict[str, Any], config: dict[str, Any]) -> None:
    from ray import tune

    end = fate(config["key"])
    if end == "died":
        os.kill(os.getpid(), signal.SIGKILL)
    loss = loss_of(config) if end == "done" else None
    reason = None if end == "done" else "the loss is nan"
    tune.report({"report": json.dumps({"result": {**result, "status": end, "reason": reason, "loss": loss}})})
