"""The stages of the measurement of a GPU by name. Each yields rows of numbers, and runs in miniature on a CPU."""

from collections.abc import Callable, Iterator
from importlib.metadata import version

import torch

from benchmarks.gpu import life, machine, speed
from benchmarks.gpu.common import this_device
from benchmarks.gpu.processes import Row

#: Each takes the sizes, a folder of its own, and the options of its step (`benchmarks.gpu.plan`).
STAGES: dict[str, Callable[..., Iterator[Row]]] = {
    "facts": machine.facts,
    "contact": machine.contact,
    "ceilings": machine.ceilings,
    "agreement": life.agreement,
    "throughput": speed.throughput,
    "profile": speed.profile,
    "life": life.life,
    "kernels": speed.kernels,
    "gangs": life.gangs,
    "attention": machine.attention,
    "constants": speed.constants,
    "memory": life.memory,
    "packing": speed.packing,
    "checkpoints": life.checkpoints,
}


def has_gpu() -> bool:
    """Whether torch finds a GPU; makes no CUDA context, which would take half a gigabyte beside another stage."""
    return torch.cuda.is_available()


def about() -> Row:
    """Name of the device, its name in plans, and versions."""
    return {
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU",
        "planned as": this_device().name,
        "versions": {name: version(name) for name in ("torch", "deepspeed", "transformers")},
    }
