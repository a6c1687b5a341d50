"""What a device gives a cell: its speed in matrix products, as the yardstick of utilisation, and the memory used."""

import contextlib
import ctypes
import functools
import gc
import resource
import time
from pathlib import Path

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


class MemoryMeter:
    """Peak memory of one cell in a process that may train many.

    On a GPU the most its tensors have held at once, by the allocator's count; on a CPU the most resident memory above
    what the process had when the meter was made. Pages of files are left out: they are code, and the token store,
    which the system takes back when it needs them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        _return_freed_memory()
        _reset_high_water()
        self.base = _status("VmRSS") - _status("RssFile")

    def peak(self) -> int:
        """Bytes held at most since the meter was made."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        # Linux keeps no peak without the pages of files; these hardly ever become fewer.
        return max(0, _status("VmHWM") - _status("RssFile") - self.base)


def _return_freed_memory() -> None:
    """Give the pages of earlier cells back to the system, where glibc is asked to; else they count as the base."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _reset_high_water() -> None:
    """Linux keeps the peak of the process's whole life, until told to begin anew."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    """A field of /proc/self/status in bytes; the peak of the whole life where there is no such file (macOS)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:
        return 0 if name == "RssFile" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
