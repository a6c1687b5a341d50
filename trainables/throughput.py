"""How fast this device multiplies matrices, as the yardstick of a cell's utilisation."""

import functools
import time

import torch

from trainables.cell import Precision


@functools.lru_cache(maxsize=4)
def matmul_flops_per_second(device: torch.device, precision: Precision) -> float:
    """Return the fastest rate of a square matrix product measured on this device, in FLOP/s.

    Utilisation is given against this measurement and not a data sheet: it holds on any CPU or GPU, with the
    threads this process really has.
    """
    size = 512 if device.type == "cpu" else 4096
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.ones(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(5):
        _wait(device)
        start = time.perf_counter()
        a @ a
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def peak_memory(device: torch.device) -> int:
    """Bytes this process has held at most: on the GPU, or of resident memory on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
