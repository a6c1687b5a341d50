"""Kernels and reads of the device that a layer adds to a training step, and memory of a large vocabulary's loss.

Counted, not timed: on a GPU a kernel of a small cell takes longer to start than to run, and each read of a number waits
for all kernels before it.
"""

import collections
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.figure import Figure
from tests.ranks import Ranks
from tests.trainables.memory_cells import measure as measure_memory
from tests.trainables.memory_cells import peak_of_a_new_process
from tests.trainables.train import golden
from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model import head
from trainables.model.build import build_model
from trainables.ranks.process_group import RankInfo, Rendezvous, device
from trainables.train.loop import train

#: The operation by which the host reads a number of the device.
READ = "aten::_local_scalar_dense"
#: Kernels and reads per layer and step in bf16: on one rank, and at ZeRO-1 on two.
LIMITS = {Layout(): (55, 0), Layout(data_parallel=2, zero=1): (105, 3)}
#: Kernels per layer and step of a network in bf16 on one rank and a CPU, where a norm of Llama is eight operations, and
#: fused kernels with compiled layers. Both have the products and the attention besides: 14 in GPT-2, 23 in the others.
NETWORKS = {"gpt2": (51, 12), "llama": (144, 20), "qwen3": (192, 21)}
FUSED = re.compile(r"^(graph_\d+_cpp|triton_\w+)_fused")
#: A micro-batch of 0.8e9 logits.
LOSS = Shape(depth=1, width=64, heads=2), 50_257, Recipe(steps=2, batch=16, context=1024)


def is_view(operation: Any) -> bool:
    """Whether an operation of the dispatcher returns a view of an argument."""
    returned = [value.alias_info for value in operation._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returned)


class Counting(TorchDispatchMode):
    """Counts the operations that are carried out, by name; views of tensors are none."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_view(func) and not func.namespace.startswith("profiler"):
            self.counts[func.overloadpacket._qualified_op_name] += 1
        return func(*args, **(kwargs or {}))


def of_cell(
    depth: int,
    steps: int,
    root: Path,
    layout: Layout,
    recipe: dict[str, Any],
    rank_info: RankInfo | None = None,
    rendezvous: Rendezvous | None = None,
) -> collections.Counter[str]:
    """Count what a rank does for a whole cell."""
    cell = golden.cell(depth=depth, **recipe)
    cell = cell.model_copy(update={"recipe": cell.recipe.model_copy(update={"steps": steps})})
    with Counting() as counting:
        train(cell, data_root=root, layout=layout, evaluations=1, rank_info=rank_info, rendezvous=rendezvous)
    return counting.counts


def of_compiled_cell(depth: int, steps: int, root: Path, network: str) -> collections.Counter[str]:
    """Count the fused kernels that a cell with compiled layers starts in bf16; products and attention are none."""
    cell = golden.cell(depth=depth, network=network, precision="bf16")
    cell = cell.model_copy(update={"recipe": cell.recipe.model_copy(update={"steps": steps})})
    # On a CPU the compiler names its kernels for the profiler only if asked.
    with inductor_config.patch("cpp.enable_kernel_profile", True), profile() as profiled:
        train(cell, data_root=root, layout=Layout(compiled=True), evaluations=1)
    counts = {event.key: event.count for event in profiled.key_averages()}
    return collections.Counter({key: count for key, count in counts.items() if FUSED.search(key)})


def of_plain_torch(depth: int, steps: int, precision: str, network: str = "gpt2") -> collections.Counter[str]:
    """Count what a plain loop does on the trainer's device, with the same model, fused AdamW, clipping and autocast."""
    cell, place = golden.cell(depth=depth, network=network), device()
    model = build_model(cell.shape, cell.recipe, 9, 0).to(place)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.zeros(cell.recipe.batch, cell.recipe.context, dtype=torch.long, device=place)
    with Counting() as counting:
        for _ in range(steps):
            with torch.autocast(place.type, torch.bfloat16, enabled=precision == "bf16"):
                loss = model(input_ids=tokens, labels=tokens, shift_labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return counting.counts


def per_layer(count: Any, *arguments: Any) -> tuple[float, float]:
    """Return kernels and reads per layer and step, by the differences of two depths and of two numbers of steps."""
    count(2, 2, *arguments)  # what is done once in a process
    layers = []
    for depth in (2, 6):
        steps = count(depth, 8, *arguments)
        steps.subtract(count(depth, 4, *arguments))
        layers.append(steps)
    layers[1].subtract(layers[0])
    return layers[1].total() / 16, layers[1][READ] / 16


def on_ranks(pool: Ranks, layout: Layout, root: Path, **recipe: Any) -> tuple[float, float]:
    """Return kernels and reads per layer and step of rank 0 of a layout."""

    def count(depth: int, steps: int) -> collections.Counter[str]:
        answers: list[collections.Counter[str]] = pool.gang(
            layout.ranks, of_cell, depth, steps, root, layout, recipe
        )
        return answers[0]

    return per_layer(count)


def loss_bytes(*, whole: bool) -> int:
    """Measure the peak of a step in bytes, in a process of its own; with HuggingFace's loss of whole logits or ours."""
    return peak_of_a_new_process(_measure, whole)


def _measure(parent: Any, whole: bool) -> None:
    if whole:
        head.ONE_PASS_LOGITS = 1 << 40
    shape, vocabulary, recipe = LOSS
    measure_memory(parent, 0, shape, vocabulary, recipe, Layout())


def measure(folder: Path) -> list[Figure]:
    """Return the counts of each layout, and the memory of the loss."""
    figures = []
    plain = per_layer(of_plain_torch, "bf16")
    for network, (most, fused) in NETWORKS.items():
        eager, _ = per_layer(of_cell, folder, Layout(), {"precision": "bf16", "network": network})
        compiled, _ = per_layer(of_compiled_cell, folder, network)
        theirs, _ = per_layer(of_plain_torch, "bf16", network)
        what = f"kernels per layer and step, bf16, {network}"
        figures += [
            Figure(what, eager, "kernels", most, "", f"{theirs:g} (plain torch)"),
            Figure(
                f"fused {what}, compiled",
                compiled,
                "kernels",
                fused,
                "",
                f"{theirs:g} (plain torch, all kernels)",
            ),
        ]
    with Ranks(2) as pool:
        for layout, limits in LIMITS.items():
            measured = on_ranks(pool, layout, Path(tempfile.mkdtemp(dir=folder)), precision="bf16")
            where = "one rank" if layout.ranks == 1 else f"{layout.ranks} ranks, ZeRO-{layout.zero}"
            figures += [
                Figure(
                    f"{what} per layer and step, bf16, {where}",
                    ours,
                    what,
                    limit,
                    "",
                    f"{theirs:g} (plain torch)",
                )
                for what, ours, limit, theirs in zip(
                    ("kernels", "reads"), measured, limits, plain, strict=True
                )
            ]
    ours, whole = loss_bytes(whole=False), loss_bytes(whole=True)
    ratio = ours / whole
    what = f"peak of a step, {LOSS[2].batch * LOSS[2].context:,} tokens of {LOSS[1]:,} symbols"
    return [
        *figures,
        Figure(what, ratio, "ratio", 1 / 3, f"{ours / 1e9:.2f} GB", f"{whole / 1e9:.2f} GB (whole logits)"),
    ]
