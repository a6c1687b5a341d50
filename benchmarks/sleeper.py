"""A trial that only sleeps, in a module of its own: its process imports nothing of ours."""

import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


def sleeper(seconds: float, result: Mapping[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Return a trainable that sleeps and reports a result, its loss replaced by one that deeper models win later.

    Args:
        seconds: of sleep.
        result: a `Result` as JSON's dict.
    """
    return partial(_sleep, seconds, dict(result))


def _sleep(seconds: float, result: dict[str, Any], config: dict[str, Any]) -> None:
    from ray import tune

    began = time.monotonic()
    time.sleep(seconds)
    done = {**result, "loss": loss_of(config), "train_seconds": time.monotonic() - began}
    tune.report({"report": json.dumps({"result": done})})


def loss_of(config: Mapping[str, Any]) -> float:
    """The loss of a trial's cell: a power law of its size, least where the depth is the logarithm of the width."""
    shape = json.loads(config["cell"])["shape"]
    depth, width = shape["depth"], shape["width"]
    noise = 0.002 * (int(config["key"], 16) % 1000 / 1000 - 0.5)
    off = math.log2(depth) - math.log2(width / 8)
    return float(2.4 + 3 / (12 * depth * width**2) ** 0.2 + 0.01 * off**2 + noise)
