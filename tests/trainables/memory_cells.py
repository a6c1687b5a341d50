"""What a process of `test_memory` does; a module of its own, so that fresh processes start with its imports done."""

import contextlib
import ctypes
import importlib
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.ranks.process_group import RankInfo, Rendezvous, device, import_deepspeed, join
from trainables.train.engine import build_engine, preload
from trainables.train.memory_meter import MemoryMeter

import_deepspeed()
importlib.import_module("deepspeed.runtime.superoffload.superoffload_stage3")
# As in a process that trains, which has loaded the classes of the model before it measures.
importlib.import_module("trainables.train.loop")

#: The optimizer has its moments from the end of the first step on, so the second is the first that has everything.
STEPS = 2

# Names of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_no_freed_blocks() -> None:
    """Have glibc give every block of 128 kB or more back to the system when it is freed.

    By default it keeps blocks up to 32 MB, and cannot use one again for a tensor of the same size, because an aligned
    block needs some bytes more (glibc bug 14581, there until 2.38). What is measured is then luck as much as need:
    535 MB of tensors took 650, and 196 MB took 447. No default for training: page faults cost up to 40 % of a step.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 17)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 17)


def peak_of_a_new_process(measure_in: Callable[..., None], *arguments: Any) -> int:
    """Return what a function sends as its peak in bytes, in a process of its own; RuntimeError if it sends nothing."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure_in, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        return int(ours.recv())
    except EOFError as error:
        raise RuntimeError("a process ended without its peak, as when it runs out of memory") from error
    finally:
        process.join(10)
        process.kill()


def measure(
    parent: Connection, rank: int, shape: Shape, vocabulary: int, recipe: Recipe, layout: Layout
) -> None:
    """Train a few steps as `train` does, and send the peak; rank 0 of a gang sends its port before."""
    keep_no_freed_blocks()
    rank_info = rendezvous = None
    if layout.ranks > 1:
        if rank == 0:
            rendezvous = Rendezvous()
            parent.send(rendezvous.port)
        rank_info = RankInfo(
            rank, layout.ranks, "127.0.0.1", rendezvous.port if rendezvous else parent.recv(), 60.0
        )
    join(rank_info, rendezvous)
    preload(recipe, layout)
    meter = MemoryMeter(device())
    engine = build_engine(build_model(shape, recipe, vocabulary, 0), shape, recipe, 1e-3, layout)
    generator = torch.Generator().manual_seed(rank // layout.tensor_parallel)
    for _ in range(STEPS):
        tokens = torch.randint(0, vocabulary, (layout.share(recipe), recipe.context), generator=generator)
        for x in tokens.to(device()).chunk(layout.pieces(recipe)):
            loss = engine(input_ids=x, labels=x, shift_labels=x).loss
            engine.backward(loss)
            del loss
            engine.step()
    parent.send(meter.peak())
