"""Stages about speed: tokens per second, where the time goes, kernels, processes that share the GPU, plan constants."""

import collections
import multiprocessing
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from benchmarks import kernels as bench
from benchmarks.gpu import rival
from benchmarks.gpu.common import cell_of, quick_weights, release, this_device
from benchmarks.gpu.processes import Row
from benchmarks.gpu.sizes import Case, Sizes
from study.plan.cost import Cost
from study.plan.speed import fitted
from trainables.cell import Cell
from trainables.data.store.open import open_store
from trainables.layout import Layout
from trainables.ranks.process_group import device, join
from trainables.train import engine, loop, trunk
from trainables.train.gpu_readings import gpu_readings
from trainables.train.loop import train

#: Sequences that a timed run trains on, again and again: packing 1,300 of 1,024 tokens takes 4 s.
SEQUENCES = 256
#: Steps of a timed run at least. The first compile and fill caches, and the second half is timed.
LEAST_STEPS = 8
#: Steps of a profiled run: a third warms up, waits of the host are counted in the next, the last is profiled.
PROFILED_STEPS = 12
#: Kernels that a profile names, the longest first.
LONGEST = 14
#: Kinds of kernels by their names, on a GPU and on a CPU. The first that matches counts.
KINDS = (
    ("compiled", r"^triton"),
    ("attention", r"flash|fmha|sdpa|attention|mha"),
    ("optimizer", r"adam|muon"),
    ("products", r"gemm|nvjet|cutlass|xmma|cublas|addmm|::mm|bmm|linear"),
    ("copies", r"memcpy|memset|copy_device|_to_copy|CatArray|aten::copy_|aten::cat"),
    ("softmax and loss", r"softmax|nll|cross_entropy|gather|index_select"),
    ("norms of layers", r"layer_?norm|GammaBeta"),
    ("gradient norm", r"lpnorm|multi_tensor|foreach|norm"),
    ("sums", r"reduce|sum"),
    ("embedding", r"embedding|index"),
    ("elementwise", r"elementwise|vectorized|gelu|aten::add|aten::mul"),
)


def speed_cell(sizes: Sizes, case: Case, who: str = "ours") -> tuple[Cell, Layout]:
    """The cell and layout of a timed run: steps for `sizes.seconds` by the plan's estimate, few sequences."""
    layout = Layout(micro_batch=case.micro, compiled=who == "ours, compiled")
    recipe = cell_of(case, 1).recipe
    planned = Cost(case.shape, case.vocabulary, recipe, layout, this_device()).step_seconds
    steps = max(LEAST_STEPS, int(sizes.seconds / planned))
    optimizer = "muon" if who == "ours, muon" else "adamw"
    return cell_of(case, steps, max(SEQUENCES, case.batch), optimizer=optimizer), layout


def throughput(sizes: Sizes, root: Path, case: str, who: str) -> Iterator[Row]:
    """Tokens per second and MFU of the trainer, of a plain loop of its model, or of a compiled nanoGPT-like loop.

    The clock of a GPU falls as it heats up, so the row has its temperature and clock.
    """
    begun, what = time.perf_counter(), sizes.cases[case]
    cell, layout = speed_cell(sizes, what, who)
    tokens = what.batch * what.context
    join()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with quick_weights():
        if who.startswith("ours"):
            rate = _rate(cell, root, layout, sizes.compiler)
        else:
            other = (
                rival.plain(cell, root)
                if who == "plain torch"
                else rival.compiled(cell, root, sizes.compiler)
            )
            rate = tokens / rival.run(cell, root, other, layout)[1]
            del other
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    read = gpu_readings(device())
    release()
    torch.compiler.reset()
    cost = Cost(what.shape, what.vocabulary, cell.recipe, layout, this_device())
    yield {
        "what": what.name,
        "who": who,
        "tokens/s": rate,
        "ms per step": 1e3 * tokens / rate,
        "MFU": rate * cost.flops.training / this_device().peak["bf16"],
        "steps": cell.recipe.steps,
        "whole seconds": time.perf_counter() - begun,
        "peak bytes": peak,
        "estimate over peak": cost.memory.total / peak if peak and who.startswith("ours") else None,
        **read,
    }


def _rate(cell: Cell, root: Path, layout: Layout = Layout(), compiler: str = engine.COMPILER) -> float:
    """Tokens per second of the second half of a cell; the curve of a short cell waits for the device in every step."""
    with mock.patch.object(trunk, "CURVE_POINTS", 2), mock.patch.object(engine, "COMPILER", compiler):
        return train(cell, data_root=root, layout=layout, evaluations=1).points[-1].tokens_per_second


def profile(sizes: Sizes, root: Path, case: str, who: str) -> Iterator[Row]:
    """Where the time of steady steps goes, by kind of kernel and by kernel, and the lines that make the host wait."""
    gpu, what = torch.cuda.is_available(), sizes.cases[case]
    (cell, layout), third = speed_cell(sizes, what, who), PROFILED_STEPS // 3
    cell = cell.model_copy(update={"recipe": cell.recipe.model_copy(update={"steps": PROFILED_STEPS})})
    train_steps, profiles, seconds = loop._Training._steps, [], 0.0

    def steps(training: Any, until: int, end: int) -> float:
        nonlocal seconds
        first = training.state.step
        if gpu:
            # Also the reads between two runs of steps count.
            torch.cuda.set_sync_debug_mode("warn" if third <= first < 2 * third else "default")
        if first < 2 * third:
            return train_steps(training, until, end)
        with torch_profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as profiled:
            # All at once: the host reads losses late, and waits for the device only at `end`.
            lasted = train_steps(training, end, end)
        profiles.append(profiled)
        seconds += lasted
        return lasted

    with (
        warnings.catch_warnings(record=True) as caught,
        mock.patch.object(trunk, "CURVE_POINTS", 3),
        mock.patch.object(engine, "COMPILER", sizes.compiler),
        mock.patch.object(loop._Training, "_steps", steps),
        quick_weights(),
    ):
        warnings.simplefilter("always")
        train(cell, data_root=root, layout=layout, evaluations=1)
    yield from _kernels_by_time(profiles, seconds, PROFILED_STEPS - 2 * third)
    lines = collections.Counter(
        f"{'/'.join(Path(warning.filename).parts[-2:])}:{warning.lineno}"
        for warning in caught
        if "synchroniz" in str(warning.message)
    )
    for line, count in lines.most_common():
        yield {"what": "the host waits", "calls per step": count / third, "name": line}


def _kernels_by_time(profiles: list[Any], seconds: float, steps: int) -> Iterator[Row]:
    """Rows of all kernels, of each kind, and of the longest; operations on a CPU."""
    spent: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for event in (event for profiled in profiles for event in profiled.key_averages()):
        microseconds = (
            event.self_device_time_total if torch.cuda.is_available() else event.self_cpu_time_total
        )
        if microseconds:
            spent[event.key] += microseconds
            calls[event.key] += event.count
    busy = spent.total()

    def row(what: str, names: list[str]) -> Row:
        time_of_names = sum(spent[name] for name in names)
        return {
            "what": what,
            "ms per step": time_of_names / steps / 1e3,
            "share": time_of_names / busy,
            "calls per step": sum(calls[name] for name in names) / steps,
        }

    yield row("all kernels", list(spent)) | {
        "wall ms per step": 1e3 * seconds / steps,
        "busy": busy / seconds / 1e6,
    }
    kinds: dict[str, list[str]] = {}
    for name in spent:
        kind = next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), "other")
        kinds.setdefault(kind, []).append(name)
    for kind, names in sorted(kinds.items(), key=lambda pair: -sum(spent[name] for name in pair[1])):
        yield row(kind, names)
    for name, _ in spent.most_common(LONGEST):
        yield row("kernel", [name]) | {"name": name[:110]}


def kernels(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Operations and reads of the device per layer and step, of the trainer and of a plain loop on the same device."""
    for name, count in (
        ("ours", lambda depth, steps: bench.of_cell(depth, steps, root, Layout(), {"precision": "bf16"})),
        ("plain torch", lambda depth, steps: bench.of_plain_torch(depth, steps, "bf16")),
    ):
        operations, reads = bench.per_layer(count)
        yield {"what": f"{name}, per layer", "operations": operations, "reads": reads}


def packing(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Tokens per second of several processes in sum that train the smallest case side by side."""
    cell, _ = speed_cell(sizes, next(iter(sizes.cases.values())))
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


def constants(sizes: Sizes, root: Path) -> Iterator[Row]:
    """The constants of `study.spec.devices` that plans of this device should have, from the steps of small cases."""
    cases = [*list(sizes.cases.values())[:3], *sizes.life]
    place, costs, seconds = this_device(), [], []
    for case in cases:
        cell, layout = speed_cell(sizes, case)
        costs.append(Cost(case.shape, case.vocabulary, cell.recipe, layout, place))
        with quick_weights():
            seconds.append(case.batch * case.context / _rate(cell, root, layout))
        release()
    step, layer, work = fitted(costs, seconds)
    measured = replace(
        place,
        seconds_per_step=step,
        seconds_per_step_layer=layer,
        seconds_per_value=place.seconds_per_value * work,
        utilisation=place.utilisation / work,
    )
    names = ("seconds_per_step", "seconds_per_step_layer", "utilisation")
    yield {"what": place.name, **{name: getattr(measured, name) for name in names}}
    for case, cost, second in zip(cases, costs, seconds, strict=True):
        planned, new = cost.step_seconds, replace(cost, device=measured).step_seconds
        yield {"what": case.name, "seconds": second, "plan over it": planned / second, "new": new / second}
