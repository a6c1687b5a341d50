"""A number of the GPU that the host reads without waiting for the newest kernels."""

import torch


class LateReading:
    """Reads a number one call late.

    A read waits for all kernels that were started before it. Then the queue of a GPU is empty, and a model of 10
    million parameters and 8 thousand tokens takes 5 to 10 ms to fill it again (expected: no GPU has run this).
    """

    def __init__(self, *, is_late: bool) -> None:
        self._is_late = is_late
        self._copy: torch.Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def exchange(self, value: torch.Tensor) -> float | None:
        """Start to copy a value and return that of the call before, None at first; the value itself if not late."""
        if not self._is_late:
            return float(value)
        earlier = self.newest()
        self._copy = torch.empty((), dtype=value.dtype, pin_memory=value.is_cuda)
        self._copy.copy_(value.detach(), non_blocking=True)
        if value.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        return earlier

    def newest(self) -> float | None:
        """Wait for the newest copy and return it, once; None if there is none."""
        if self._copy is None:
            return None
        if self._copied is not None:
            self._copied.synchronize()
        value, self._copy = float(self._copy), None
        return value
