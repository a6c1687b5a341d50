"""The measured speed of this machine: steps of a few cells, kept in a file that later plans read.

The plan's constants of a device come from one machine of its kind; another may take twice as long or half.
"""

import itertools
import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from core.files import write_text
from study.plan.cost import Cost
from study.spec.devices import Device, cores, local_device
from trainables.cell import Recipe

Floats = npt.NDArray[np.float64]
#: Weight, against the relative error of a step, of the plan's own division of a step into its parts.
PRIOR = 0.1
#: The newest records that the file keeps.
KEPT = 50


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What the steps of a machine take: seconds of each step, of each layer, and a factor on the time of the work.

    Attributes:
        machine: the processors that were measured.
        device: their name in `study.spec.devices`.
        workers: cells that trained side by side.
        recipe: what decides the time of a step besides the shape.
        cells: names of the measured cells.
        date: day of the measurement.
        busy: whether other work took a part of the processors meanwhile.
        compile_seconds: of a compiled cell; None if none was measured.
    """

    step: float
    layer: float
    work: float
    machine: str | None
    device: str
    workers: int
    recipe: dict[str, Any]
    cells: list[str]
    date: str
    busy: bool
    compile_seconds: float | None = None

    def of(self, device: Device) -> Device:
        """Return the device with its constants as measured."""
        compiling = self.compile_seconds
        return replace(
            device,
            seconds_per_step=self.step,
            seconds_per_step_layer=self.layer,
            seconds_per_value=device.seconds_per_value * self.work,
            utilisation=device.utilisation / self.work,
            seconds_to_compile=device.seconds_to_compile if compiling is None else compiling,
        )


def fitted(costs: Sequence[Cost], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return seconds per step and per layer, and the factor on the time of the work, of measured steps.

    Least squares of the relative errors. A prior keeps the parts in the plan's proportion where the cells cannot
    separate them.

    Args:
        costs: of the cells, by the constants of the device.
        seconds: of a step of each.
    """
    device = costs[0].device
    empty = replace(
        device, seconds_per_step=0.0, seconds_per_step_layer=0.0, seconds_per_value=0.0, utilisation=math.inf
    )
    units = [
        replace(empty, seconds_per_step=1.0),
        replace(empty, seconds_per_step_layer=1.0),
        replace(device, seconds_per_step=0.0, seconds_per_step_layer=0.0),
    ]
    measured = np.asarray(seconds)
    parts = np.array(
        [[replace(cost, device=unit, utilisation=None).step_seconds for unit in units] for cost in costs]
    )
    planned = np.array([device.seconds_per_step, device.seconds_per_step_layer, 1.0])
    ratio = np.exp(np.mean(np.log(measured / (parts @ planned))))
    share = PRIOR * parts.mean(axis=0) / measured.mean()
    matrix = np.vstack([parts / measured[:, None], np.diag(share)])
    target = np.concatenate([np.ones(len(measured)), share * planned * ratio])
    step, layer, work = _non_negative(matrix, target)
    return float(step), float(layer), max(float(work), float(ratio) / 100)


def _non_negative(matrix: Floats, target: Floats) -> Floats:
    """Non-negative least squares of few unknowns: the best of all choices of those that are not zero.

    `scipy.optimize.nnls` takes 0.3 s to import, and a machine with torch only (docs/gpu.md) lacks it.
    """
    best, least = np.zeros(matrix.shape[1]), math.inf
    for chosen in itertools.product((False, True), repeat=matrix.shape[1]):
        solution = np.zeros(len(chosen))
        if any(chosen):
            solution[list(chosen)] = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
        square = float(np.sum((matrix @ solution - target) ** 2))
        if solution.min() >= 0 and square < least:
            best, least = solution, square
    return best


def known_speed(device: Device, workers: int, recipe: Recipe, vocabulary: int) -> Speed | None:
    """Return the newest speed of this machine for such a recipe, else for another one; None if none was measured."""
    place = (machine(device), device.name, workers)
    mine = [record for record in _records() if (record.machine, record.device, record.workers) == place]
    alike = [record for record in mine if record.recipe == timing_fields(recipe, vocabulary)]
    return [None, *mine, *alike][-1]


def keep(speed: Speed) -> None:
    """Add a record to the file, in place of the older one of the same machine and recipe."""
    same = (speed.machine, speed.device, speed.workers, speed.recipe)
    others = [
        record
        for record in _records()
        if (record.machine, record.device, record.workers, record.recipe) != same
    ]
    write_text(_file(), json.dumps([asdict(record) for record in [*others, speed][-KEPT:]], indent=1))


def timing_fields(recipe: Recipe, vocabulary: int) -> dict[str, Any]:
    """Return what decides the time of a step besides the shape."""
    names = ("network", "optimizer", "residual", "precision", "batch", "context")
    return {**{name: getattr(recipe, name) for name in names}, "vocabulary": vocabulary}


def machine(device: Device) -> str | None:
    """Return a name of this machine's processors; None if it has no such device."""
    if device.is_gpu:
        return device.title if local_device() == device.name else None
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.processor() or platform.machine()}, {cores()} cores"


def _file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "interplay" / "speed.json"


def _records() -> list[Speed]:
    """The records of the file, oldest first; none if the file is missing, damaged or of another release."""
    try:
        return [Speed(**record) for record in json.loads(_file().read_text())]
    except (OSError, ValueError, TypeError):
        return []
