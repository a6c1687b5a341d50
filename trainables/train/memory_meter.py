"""Peak memory of a cell."""

import contextlib
import ctypes
import gc
import resource
from pathlib import Path

import torch


class MemoryMeter:
    """Peak memory of one cell in a process that may train many: on a GPU the allocator's peak.

    On a CPU the peak resident memory above that at construction, without pages of files, which can be reclaimed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        # Return the pages of earlier cells to the system (glibc only); otherwise they count as the base.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        # Reset the peak, which Linux keeps for the life of a process.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.base = _status("VmRSS") - _status("RssFile")

    def peak(self) -> int:
        """Return the peak since construction in bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        # Linux has no peak without pages of files; their number hardly ever falls.
        return max(0, _status("VmHWM") - _status("RssFile") - self.base)


def _status(name: str) -> int:
    """Return a field of /proc/self/status in bytes; without that file (macOS) the peak of the process's life."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:
        return 0 if name == "RssFile" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
