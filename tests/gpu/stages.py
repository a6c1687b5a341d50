"""The stages of the measurement of a GPU. Each yields rows of numbers, and runs in miniature on a CPU."""

import gc
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from study.plan.cost import Cost
from study.plan.layouts import LayoutPlanner
from study.plan.speed import fitted
from study.run.trial import in_memory
from study.spec.devices import DEVICES, Device, device_of, usable_memory
from study.spec.resources import ResourcesSection
from tests.bench import kernels
from tests.gpu import rival
from tests.gpu.sizes import Case, Sizes
from tests.ranks import Ranks
from tests.trainables.memory_cells import measure as measure_memory
from tests.trainables.memory_cells import peak_of_a_new_process
from tests.trainables.train import golden
from trainables.cell import Cell, Precision, Recipe
from trainables.checkpoint.checkpoint import MARKER
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.store.batches import validation_batches
from trainables.data.store.open import open_store
from trainables.layout import Layout
from trainables.model.counts import memory
from trainables.progress import Result
from trainables.ranks.process_group import RankInfo, Rendezvous, device, join
from trainables.record import Keep
from trainables.train import engine, loop
from trainables.train.gpu_readings import gpu_readings
from trainables.train.loop import train

Row = dict[str, Any]
#: Repetitions of what takes less than a second.
REPEATS = 10
#: Who is timed: the trainer with and without compiled layers, its model in a plain loop, a compiled nanoGPT-like loop.
WHO = ("ours", "ours, compiled", "plain torch", "compiled nanoGPT")
#: Layouts of two ranks on one GPU.
GANGS = {
    "tensor parallel": Layout(tensor_parallel=2),
    "data parallel, ZeRO-1": Layout(data_parallel=2, zero=1),
    "data parallel, ZeRO-2": Layout(data_parallel=2, zero=2),
}


def this_device() -> Device:
    """The device as plans know it; a GPU that they do not know counts as the first GPU of the list."""
    if not torch.cuda.is_available():
        return DEVICES["cpu"]
    return DEVICES[device_of(torch.cuda.get_device_name(0)) or "l4-24gb"]


def cell_of(case: Case, steps: int, precision: Precision = "bf16") -> Cell:
    """A cell of the case on random strings."""
    recipe = Recipe(steps=steps, batch=case.batch, context=case.context, precision=precision)
    data = HierarchyData(
        vocabulary=case.vocabulary - 1,
        levels=4,
        sequences=steps * recipe.batch,
        validation_sequences=recipe.batch,
    )
    key = data_key(data, case.context)
    return Cell(shape=case.shape, recipe=recipe, data=data, data_key=key, lr=1e-3, seed=0)


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


def ceilings(sizes: Sizes, root: Path) -> Iterator[Row]:
    """What the device reaches at most: products of random matrices, copies on it, and copies to it."""
    place, n = device(), sizes.matrix
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(n, n, device=place, dtype=dtype) for _ in range(2))
        yield {"what": f"product, {name}", "FLOP/s": 2 * n**3 / timed(lambda a=a, b=b: a @ b)}
    source = torch.randint(0, 255, (sizes.copied,), dtype=torch.uint8, device=place)
    target = torch.empty_like(source)
    yield {"what": "copy on the device", "bytes/s": 2 * sizes.copied / timed(lambda: target.copy_(source))}
    host = torch.randint(0, 255, (sizes.copied // 4,), dtype=torch.uint8)
    pinned = host.pin_memory() if torch.cuda.is_available() else host
    for name, tensor in (("pageable", host), ("pinned", pinned)):
        seconds = timed(lambda tensor=tensor: target[: len(tensor)].copy_(tensor))
        yield {"what": f"copy to the device, {name}", "bytes/s": len(tensor) / seconds}


def agreement(sizes: Sizes, root: Path) -> Iterator[Row]:
    """The largest relative difference of a loss of the curve from that of a plain torch loop of the same model."""
    for precision in ("fp32", "bf16"):
        cell = cell_of(sizes.cases[0], 30, precision)
        losses, _ = rival.run(cell, root, rival.plain(cell, root), Layout())
        for layout in (Layout(), Layout(compiled=True)):
            with mock.patch.object(engine, "COMPILER", sizes.compiler):
                result = train(cell, data_root=root, layout=layout, evaluations=1)
            apart = [abs(p.train_loss / loss - 1) for p, loss in zip(result.points, losses, strict=True)]
            what = f"{precision}, compiled" if layout.compiled else precision
            yield {"what": what, "apart": max(apart), "loss": result.loss}


def life(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Cells after each other in one process, one that does not fit, one that is killed and resumed, and its weights."""
    held = None
    for case in sizes.life:
        train(cell_of(case, sizes.steps), data_root=root, evaluations=1)
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

    result = in_memory(attempt, Layout(), cell.recipe)
    return {"what": "out of memory", "sequences tried": tried, "loss": result.loss}


def _killed(sizes: Sizes, root: Path) -> Iterator[Row]:
    cell, folder = cell_of(sizes.life[-1], 4 * sizes.steps), root / "killed"
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
            own = train(cell, data_root=root, evaluations=1)
            for name, layout in GANGS.items():
                points = pool.gang(2, _losses, cell, root, layout)[0]
                apart = [abs(loss / p.train_loss - 1) for loss, p in zip(points, own.points, strict=True)]
                yield {"what": f"{name}, {precision}", "apart": max(apart)}


def _losses(
    cell: Cell, root: Path, layout: Layout, rank_info: RankInfo | None, rendezvous: Rendezvous | None
) -> list[float]:
    result = train(
        cell, data_root=root, layout=layout, evaluations=1, rank_info=rank_info, rendezvous=rendezvous
    )
    return [point.train_loss for point in result.points]


def memory_use(sizes: Sizes, root: Path) -> Iterator[Row]:
    """The plan's estimate over the measured peak, and whether the largest micro-batch that a plan allows fits."""
    for case in sizes.cases:
        for precision in ("fp32", "bf16"):
            recipe, layout = cell_of(case, 2, precision).recipe, Layout(micro_batch=case.micro)
            estimate = memory(case.shape, case.vocabulary, recipe, layout).total
            if estimate > usable_memory(this_device()):
                continue
            peak = _peak(case, recipe, layout)
            yield {"what": f"{case.name}, {precision}", "bytes": peak, "estimate over it": estimate / peak}
    # Four batches at once, so that the plan has something to divide.
    case, place = sizes.cases[-1], this_device()
    recipe = Recipe(steps=2, batch=4 * case.batch, context=case.context, precision="bf16")
    planner = LayoutPlanner(ResourcesSection(device=place.name), place, 1, recipe, case.vocabulary)
    layout = planner.choose(case.shape).cost.layout
    yield {
        "what": f"{case.name}, the largest that fits",
        "sequences": layout.sequences(recipe),
        "bytes": _peak(case, recipe, layout),
        "of": planner.usable,
    }


def _peak(case: Case, recipe: Recipe, layout: Layout) -> int:
    return peak_of_a_new_process(measure_memory, 0, case.shape, case.vocabulary, recipe, layout)


def throughput(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Tokens per second and MFU of the trainer, of a plain loop of its model, and of a compiled nanoGPT-like loop.

    In random order, and the first once more at the end: the clock of a GPU falls as it heats up.
    """
    variants = [(case, who) for case in sizes.cases for who in WHO]
    random.Random(0).shuffle(variants)
    for variant in (*variants, variants[0]):
        yield _throughput(sizes, root, *variant)


def _throughput(sizes: Sizes, root: Path, case: Case, who: str) -> Row:
    compiled = who == "ours, compiled"
    cell, layout = cell_of(case, sizes.steps), Layout(micro_batch=case.micro, compiled=compiled)
    join()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if who.startswith("ours"):
        rate = _rate(cell, root, layout, sizes.compiler)
    else:
        other = (
            rival.plain(cell, root) if who == "plain torch" else rival.compiled(cell, root, sizes.compiler)
        )
        rate = case.batch * case.context / rival.run(cell, root, other, layout)[1]
        del other
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    read = gpu_readings(device())
    release()
    torch.compiler.reset()
    cost = Cost(case.shape, case.vocabulary, cell.recipe, layout, this_device())
    mfu = rate * cost.flops.training / this_device().peak["bf16"]
    return {"what": case.name, "who": who, "tokens/s": rate, "MFU": mfu, "peak bytes": peak, **read}


def _rate(cell: Cell, root: Path, layout: Layout = Layout(), compiler: str = engine.COMPILER) -> float:
    """Tokens per second of the second half of a cell; the curve of a short cell waits for the device in every step."""
    with mock.patch.object(loop, "CURVE_POINTS", 2), mock.patch.object(engine, "COMPILER", compiler):
        return train(cell, data_root=root, layout=layout, evaluations=1).points[-1].tokens_per_second


def attention(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Time of causal attention by the width of a head, and whether a flash kernel takes it."""
    for context in sizes.contexts:
        for head in sizes.heads:
            heads = max(1, 1024 // head)
            shape = (max(1, sizes.attended // context), heads, context, head)
            q, k, v = (
                torch.randn(shape, device=device(), dtype=torch.bfloat16, requires_grad=True)
                for _ in range(3)
            )

            def both(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v) -> None:
                functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

            flash = None
            if torch.cuda.is_available():
                params = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, True, False)
                flash = torch.backends.cuda.can_use_flash_attention(params)
            work = 3 * 4 * shape[0] * heads * context**2 * head / 2
            yield {"what": f"{head} wide, {context} tokens", "FLOP/s": work / timed(both), "flash": flash}


def packing(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Tokens per second of several processes in sum that train the smallest case side by side."""
    cell = cell_of(sizes.cases[0], 10 * sizes.steps)
    open_store(cell.data, context=cell.recipe.context, root=root, key=cell.data_key)
    context, alone = multiprocessing.get_context("spawn"), 0.0
    for count in sizes.processes:
        barrier, rates = context.Barrier(count), context.Queue()
        processes = [
            context.Process(target=_put_rate, args=(cell, root, barrier, rates), daemon=True)
            for _ in range(count)
        ]
        for process in processes:
            process.start()
        total = sum(rates.get(timeout=300) for _ in processes)
        for process in processes:
            process.join(30)
        alone = alone or total
        yield {"what": f"{count} processes", "tokens/s": total, "over one": total / alone}


def _put_rate(cell: Cell, root: Path, barrier: Any, rates: Any) -> None:
    join()
    barrier.wait(300)
    rates.put(_rate(cell, root))


def checkpoints(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Bytes and seconds of a checkpoint of the largest case, from the pause of training to its end."""
    case, folder = sizes.cases[-1], root / "checkpoints"
    seconds: list[float] = []
    save = loop._Training._save

    def timed_save(training: Any) -> None:
        rival.wait()
        start = time.perf_counter()
        save(training)
        training._finish_save()
        seconds.append(time.perf_counter() - start)

    with mock.patch.object(loop._Training, "_save", timed_save):
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


def kernel_counts(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Operations and reads of the device per layer and step, and the share of a step in which the GPU computes."""
    for name, count in (
        ("ours", lambda depth, steps: kernels.of_cell(depth, steps, root, Layout(), {"precision": "bf16"})),
        ("plain torch", lambda depth, steps: kernels.of_plain_torch(depth, steps, "bf16")),
    ):
        operations, reads = kernels.per_layer(count)
        yield {"what": f"{name}, per layer", "operations": operations, "reads": reads}
    cell = cell_of(sizes.cases[0], sizes.steps)
    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with profile(activities=[activity]) as found:
        result = train(cell, data_root=root, evaluations=1)
    events = [
        event for event in found.key_averages() if torch.cuda.is_available() == (event.device_time_total > 0)
    ]
    busy = sum(event.self_device_time_total for event in events) / 1e6
    starts = sum(event.count for event in events)
    yield {
        "what": f"{sizes.cases[0].name}, profiled",
        "kernels per step": starts / sizes.steps,
        "busy": busy / result.train_seconds,
    }


def constants(sizes: Sizes, root: Path) -> Iterator[Row]:
    """The constants of `study.spec.devices` that plans of this device should have, from the steps of all cases."""
    place, costs, seconds = this_device(), [], []
    for case in (*sizes.cases, *sizes.life):
        cell, layout = cell_of(case, sizes.steps), Layout(micro_batch=case.micro)
        costs.append(Cost(case.shape, case.vocabulary, cell.recipe, layout, place))
        seconds.append(case.batch * case.context / _rate(cell, root, layout))
        release()
    step, layer, work = fitted(costs, seconds)
    found = replace(
        place,
        seconds_per_step=step,
        seconds_per_step_layer=layer,
        seconds_per_value=place.seconds_per_value * work,
        utilisation=place.utilisation / work,
    )
    names = ("seconds_per_step", "seconds_per_step_layer", "utilisation")
    yield {"what": place.name, **{name: getattr(found, name) for name in names}}
    for case, cost, second in zip((*sizes.cases, *sizes.life), costs, seconds, strict=True):
        planned, new = cost.step_seconds, replace(cost, device=found).step_seconds
        yield {"what": case.name, "seconds": second, "plan over it": planned / second, "new": new / second}


def release() -> None:
    """Give back what a cell held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


#: In the order in which they run, with the seconds after which a stage is ended.
STAGES: dict[str, tuple[Callable[[Sizes, Path], Iterator[Row]], float]] = {
    "ceilings": (ceilings, 60),
    "agreement": (agreement, 90),
    "life": (life, 180),
    "gangs": (gangs, 180),
    "memory": (memory_use, 300),
    "throughput": (throughput, 420),
    "attention": (attention, 60),
    "packing": (packing, 180),
    "checkpoints": (checkpoints, 180),
    "kernels": (kernel_counts, 120),
    "constants": (constants, 180),
}
