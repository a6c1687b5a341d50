"""Stages about cells: their losses, what a process goes through, gangs, memory, checkpoints."""

import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from benchmarks.gpu import rival
from benchmarks.gpu.common import cell_of, quick_weights, release, this_device
from benchmarks.gpu.processes import Row
from benchmarks.gpu.sizes import Sizes
from study.plan.layouts import LayoutPlanner
from study.run.trial import retry_with_smaller_batches
from study.spec.resources import ResourcesSection
from tests.ranks import Ranks
from tests.trainables.memory_cells import STEPS as MEASURED_STEPS
from tests.trainables.memory_cells import measure as measure_memory
from tests.trainables.train import golden
from trainables.cell import Cell, Recipe
from trainables.checkpoint.checkpoint import MARKER
from trainables.data.store.batches import validation_batches
from trainables.data.store.open import open_store
from trainables.layout import Layout
from trainables.progress import Result
from trainables.ranks.process_group import RankInfo, Rendezvous, device
from trainables.record import Keep
from trainables.train import engine, loop
from trainables.train.loop import train

#: Optimizer steps of a cell of `life`.
STEPS = 8
#: Layouts of two ranks on one GPU.
GANGS = {
    "tensor parallel": Layout(tensor_parallel=2),
    "data parallel, ZeRO-1": Layout(data_parallel=2, zero=1),
    "data parallel, ZeRO-2": Layout(data_parallel=2, zero=2),
}


def agreement(sizes: Sizes, root: Path, compiled: bool = False) -> Iterator[Row]:
    """The largest relative difference of a loss of the curve from that of a plain torch loop of the same model."""
    case = next(iter(sizes.cases.values()))
    for precision in ("fp32", "bf16"):
        cell = cell_of(case, 30, precision=precision)
        losses, _ = rival.run(cell, root, rival.plain(cell, root), Layout())
        with mock.patch.object(engine, "COMPILER", sizes.compiler):
            result = train(cell, data_root=root, layout=Layout(compiled=compiled), evaluations=1)
        apart = [abs(p.train_loss / loss - 1) for p, loss in zip(result.points, losses, strict=True)]
        yield {"what": precision, "apart": max(apart), "first": losses[0], "last": losses[-1]}


def life(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Cells after each other in one process, one that does not fit, one that is killed and resumed, and its weights."""
    held = None
    for case in sizes.life:
        train(cell_of(case, STEPS), data_root=root, evaluations=1)
        release()
        left = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        held = left if held is None else held
        yield {"what": f"after {case.name}", "bytes left": left - held}
    yield _out_of_memory(sizes, root)
    yield from _killed(sizes, root)


def _out_of_memory(sizes: Sizes, root: Path) -> Row:
    cell, tried = cell_of(sizes.beyond, 2), []

    def attempt(layout: Layout) -> Result:
        tried.append(layout.sequences(cell.recipe))
        if not torch.cuda.is_available() and tried[-1] > 4:
            raise torch.OutOfMemoryError("a CPU has room for all; so that the miniature takes the same way")
        return train(cell, data_root=root, layout=layout, evaluations=1)

    result = retry_with_smaller_batches(attempt, Layout(), cell.recipe)
    return {"what": "out of memory", "sequences tried": tried, "loss": result.loss}


def _killed(sizes: Sizes, root: Path) -> Iterator[Row]:
    cell, folder = cell_of(sizes.life[-1], 4 * STEPS), root / "killed"
    whole = train(cell, data_root=root, weights=Keep(root / "weights"), evaluations=1)
    process = multiprocessing.get_context("spawn").Process(target=_train_and_save, args=(cell, root, folder))
    process.start()
    deadline = time.monotonic() + 120
    while not list(folder.glob(f"*/{MARKER}")) and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.join()
    resumed = train(cell, data_root=root, checkpoints=folder, evaluations=1)
    apart = abs((resumed.loss or math.nan) / (whole.loss or math.nan) - 1)
    yield {"what": "killed and resumed", "from step": resumed.resumed_from, "apart": apart}
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(root / "weights").to(device())
    store = open_store(cell.data, context=cell.recipe.context, root=root, key=cell.data_key)
    parts = next(validation_batches(store, context=cell.recipe.context, batch=cell.recipe.batch))
    x, y = (torch.from_numpy(part).to(device()) for part in parts)
    with torch.no_grad(), rival.autocast(cell.recipe.precision):
        loss = float(functional.cross_entropy(model(x).logits.flatten(0, 1).float(), y.flatten()))
    apart = abs(loss / (whole.loss or math.nan) - 1)
    yield {"what": "weights read by transformers", "loss": loss, "apart": apart}


def _train_and_save(cell: Cell, root: Path, folder: Path) -> None:
    train(cell, data_root=root, checkpoints=folder, checkpoint_every=0, evaluations=1)


def gangs(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Two ranks that share the GPU, joined by gloo: the largest relative difference of a loss from one rank's."""
    with Ranks(2, on_gpu=torch.cuda.is_available()) as pool:
        for precision in ("fp32", "bf16"):
            cell = golden.cell(precision=precision)
            alone = train(cell, data_root=root, evaluations=1)
            for name, layout in GANGS.items():
                points = pool.gang(2, _losses, cell, root, layout)[0]
                apart = [abs(loss / p.train_loss - 1) for loss, p in zip(points, alone.points, strict=True)]
                yield {"what": f"{name}, {precision}", "apart": max(apart)}


def _losses(
    cell: Cell, root: Path, layout: Layout, rank_info: RankInfo | None, rendezvous: Rendezvous | None
) -> list[float]:
    result = train(
        cell, data_root=root, layout=layout, evaluations=1, rank_info=rank_info, rendezvous=rendezvous
    )
    return [point.train_loss for point in result.points]


def memory(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Whether the largest micro-batch that a plan allows fits, and the plan's estimate over the measured peak.

    It measures in this process, which should be a new one.
    """
    case, place = list(sizes.cases.values())[-1], this_device()
    # Four batches at once, so that the plan has something to divide.
    recipe = Recipe(steps=MEASURED_STEPS, batch=4 * case.batch, context=case.context, precision="bf16")
    planner = LayoutPlanner(ResourcesSection(device=place.name), place, 1, recipe, case.vocabulary)
    cost = planner.choose(case.shape).cost
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with quick_weights():
        measure_memory(sender, 0, case.shape, case.vocabulary, recipe, cost.layout)
    peak = receiver.recv()
    yield {
        "what": f"{case.name}, the largest that fits",
        "sequences": cost.layout.sequences(recipe),
        "bytes": peak,
        "of": planner.usable,
        "estimate over it": cost.memory.total / peak,
    }


def checkpoints(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Bytes and seconds of a checkpoint of a large case, from the pause of training to its end."""
    case, folder = sizes.cases[sizes.saved], root / "checkpoints"
    seconds: list[float] = []
    save = loop._Training._save

    def timed_save(training: Any) -> None:
        rival.wait()
        start = time.perf_counter()
        save(training)
        training._finish_save()
        seconds.append(time.perf_counter() - start)

    with mock.patch.object(loop._Training, "_save", timed_save), quick_weights():
        train(
            cell_of(case, 6),
            data_root=root,
            layout=Layout(micro_batch=case.micro),
            checkpoints=folder,
            checkpoint_every=0,
            evaluations=1,
        )
    written = max(
        sum(file.stat().st_size for file in tag.rglob("*") if file.is_file())
        for tag in folder.iterdir()
        if tag.is_dir()
    )
    yield {"what": case.name, "bytes": written, "seconds": statistics.median(seconds), "saves": len(seconds)}
