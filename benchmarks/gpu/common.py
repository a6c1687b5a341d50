"""What several stages share: cells of random strings, quick weights, times, the device as plans have it."""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from unittest import mock

import torch

from benchmarks.gpu import rival
from benchmarks.gpu.sizes import Case
from study.spec.devices import DEVICES, Device, device_of
from trainables.cell import Cell, Recipe
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData

#: Repetitions of what takes less than a second.
REPEATS = 10
#: Elements of the block that quick weights repeat, and of the smallest tensor that is filled in this way.
BLOCK, LARGE = 1 << 20, 1 << 22


def this_device() -> Device:
    """The device as plans have it; a GPU that they lack counts as the first GPU of the list."""
    if not torch.cuda.is_available():
        return DEVICES["cpu"]
    return DEVICES[device_of(torch.cuda.get_device_name(0)) or "l4-24gb"]


def cell_of(case: Case, steps: int, sequences: int | None = None, **recipe: object) -> Cell:
    """A cell of the case on random strings, in bf16 unless the recipe has another precision.

    `sequences`: how many there are to train on; by default every one is used once.
    """
    settings = {"precision": "bf16", **recipe}
    full_recipe = Recipe(steps=steps, batch=case.batch, context=case.context, **settings)
    data = HierarchyData(
        vocabulary=case.vocabulary - 1,
        levels=4,
        sequences=sequences or steps * case.batch,
        validation_sequences=case.batch,
    )
    key = data_key(data, case.context)
    return Cell(shape=case.shape, recipe=full_recipe, data=data, data_key=key, lr=1e-3, seed=0)


@contextlib.contextmanager
def quick_weights() -> Iterator[None]:
    """Fill large matrices with copies of one block of random numbers, and do not draw what is drawn again.

    For speeds and memory only: drawing 1.3 billion weights takes the time of twenty steps, and the loss of a model
    with repeated weights means nothing.
    """
    drawn = torch.Tensor.normal_

    def normal(
        self: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        if self.device.type != "cpu" or self.numel() < LARGE:
            return drawn(self, mean, std, generator=generator)
        block = drawn(torch.empty(BLOCK, dtype=self.dtype), mean, std, generator=generator)
        flat = self.detach().view(-1)
        whole = len(flat) // BLOCK * BLOCK
        flat[:whole].view(-1, BLOCK).copy_(block.expand(whole // BLOCK, -1))
        flat[whole:].copy_(block[: len(flat) - whole])
        return self

    def unchanged(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return tensor

    with (
        mock.patch.object(torch.Tensor, "normal_", normal),
        mock.patch.object(torch.nn.init, "kaiming_uniform_", unchanged),
    ):
        yield


def timed(work: Callable[[], object]) -> float:
    """Median seconds of a call, after one that warms up."""
    work()
    seconds = []
    for _ in range(REPEATS):
        rival.wait()
        start = time.perf_counter()
        work()
        rival.wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def release() -> None:
    """Give back what a cell held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
