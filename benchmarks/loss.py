"""The head's loss with a vocabulary of 50,257: time, bytes moved and peak memory of forward and backward.

Ours against HuggingFace's loss of whole logits, chunks whose logits backward computes again, and torch's
`linear_cross_entropy`.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._inductor.metrics
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from benchmarks.figure import Figure
from benchmarks.kernels import is_view
from tests.trainables.memory_cells import keep_no_freed_blocks, peak_of_a_new_process
from trainables.model.head import Head, scored
from trainables.train.memory_meter import MemoryMeter

Tensor = torch.Tensor
VOCABULARY, WIDTH = 50_257, 256
#: Tokens whose loss is timed and counted, and whose peak is measured.
TIMED, HELD = 2048, 4096
ROUNDS = 3
#: Logits of a chunk of those that are computed again: as many as the trainer's chunks had before it had one pass.
CHUNK_LOGITS = 1 << 27
#: Bytes of a token and symbol that a compiled pass over bf16 logits moves: three reads (two on a GPU, where the largest
#: logit and the sum are found at once) and the gradient, besides the products of the head.

COMPILED_BYTES = 8.1


def ours(hidden: Tensor, head: Head, targets: Tensor) -> Tensor:
    """one pass"""
    return head(hidden, targets)


def whole(hidden: Tensor, head: Head, targets: Tensor) -> Tensor:
    """whole logits"""
    return functional.cross_entropy(head(hidden).float(), targets, reduction="sum")


def computed_again(hidden: Tensor, head: Head, targets: Tensor) -> Tensor:
    """chunks computed again"""
    number = -(-len(hidden) * VOCABULARY // CHUNK_LOGITS)
    parts = zip(hidden.chunk(number), targets.chunk(number), strict=True)
    sums = [checkpoint(whole, part, head, some, use_reentrant=False) for part, some in parts]
    return torch.stack(sums).sum()


def of_torch(hidden: Tensor, head: Head, targets: Tensor) -> Tensor:
    """torch's linear_cross_entropy"""
    if torch.is_autocast_enabled("cpu"):
        hidden, weight = hidden.bfloat16(), head.weight.bfloat16()
    else:
        weight = head.weight
    options = torch.nn.LinearCrossEntropyOptions()
    return functional.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)


Loss = Callable[[Tensor, Head, Tensor], Tensor]
RIVALS: tuple[Loss, ...] = (whole, computed_again, of_torch)


def _inputs(tokens: int) -> tuple[Tensor, Head, Tensor]:
    generator = torch.Generator().manual_seed(0)
    head = Head(WIDTH, VOCABULARY, bias=False)
    with torch.no_grad():
        head.weight.normal_(0.0, 0.02, generator=generator)
    hidden = torch.randn(tokens, WIDTH, generator=generator).requires_grad_()
    return hidden, head, torch.randint(0, VOCABULARY, (tokens,), generator=generator)


def _run(loss: Loss, inputs: tuple[Tensor, Head, Tensor], precision: str) -> float:
    hidden, head, _ = inputs
    hidden.grad = head.weight.grad = None
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        value = loss(*inputs)
    value.backward()
    return time.perf_counter() - start


#: Operations on the rows of a matrix of logits that read or write one value of each.
PICKING = ("gather", "index", "index_put_", "_index_put_impl_", "nll_loss_forward")


class _Bytes(TorchDispatchMode):
    """Bytes that operations read and write, without products of matrices and what only allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket._qualified_op_name
        if is_view(func) or name.endswith(("mm", "mm_", "empty", "empty_like")):
            return result
        kind = name.partition("::")[2]
        # The backward of picking writes zeros everywhere.
        parts = (
            []
            if kind in PICKING
            else [result]
            if kind == "nll_loss_backward"
            else [args, kwargs or {}, result]
        )
        self.moved += sum(t.numel() * t.element_size() for t in tensors(parts))
        return result


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a value, in dictionaries, lists and tuples too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from tensors(inner)


def bytes_moved(loss: Loss, precision: str, tokens: int = TIMED) -> float:
    """Return bytes per token and symbol of the operations of forward and backward besides products of matrices."""
    inputs = _inputs(tokens)
    with _Bytes() as counting:
        _run(loss, inputs, precision)
    return counting.moved / (tokens * VOCABULARY)


def compiled_bytes(tokens: int = 512) -> float:
    """Return bytes per token and symbol of the compiled pass over bf16 logits, as its compiler counts them."""
    torch._inductor.metrics.reset()
    torch._logging.set_logs(inductor_metrics=True)
    logits, targets = torch.randn(tokens, VOCABULARY).bfloat16(), torch.zeros(tokens, dtype=torch.long)
    with torch._inductor.config.patch(force_disable_caches=True):
        torch.compile(scored, dynamic=False)(logits, targets, VOCABULARY)
    torch._logging.set_logs()
    torch.compiler.reset()
    return torch._inductor.metrics.num_bytes_accessed / logits.numel()


def _peak(parent: Connection, name: str, precision: str) -> None:
    torch.set_num_threads(1)
    keep_no_freed_blocks()
    inputs = _inputs(HELD)
    # Imports that the first backward does.
    _run(globals()[name], _inputs(2), precision)
    meter = MemoryMeter(torch.device("cpu"))
    _run(globals()[name], inputs, precision)
    parent.send(meter.peak())


def measure(folder: Path) -> list[Figure]:
    """Return figures of time, bytes and peak against each rival, and the bytes of the compiled pass."""
    torch.set_num_threads(1)
    figures = []
    for precision in ("fp32", "bf16"):
        inputs = _inputs(TIMED)
        # In turn: the machine's speed drifts, and all must see the same of it.
        seconds = [[_run(loss, inputs, precision) for loss in (ours, *RIVALS)] for _ in range(ROUNDS)]
        moved = [bytes_moved(loss, precision) for loss in (ours, *RIVALS)]
        peaks = [peak_of_a_new_process(_peak, loss.__name__, precision) for loss in (ours, *RIVALS)]
        for index, loss in enumerate(RIVALS, 1):
            what = f"loss of {VOCABULARY:,} symbols, {precision}"
            for name, value, mine, theirs, limit in (
                (
                    "time",
                    statistics.median(row[0] / row[index] for row in seconds),
                    f"{statistics.median(row[0] for row in seconds):.2f} s",
                    f"{statistics.median(row[index] for row in seconds):.2f} s",
                    None if loss is of_torch else 1.0,
                ),
                ("bytes", moved[0] / moved[index], f"{moved[0]:.0f} B", f"{moved[index]:.0f} B", 1.0),
                (
                    "peak",
                    peaks[0] / peaks[index],
                    f"{peaks[0] / 1e9:.2f} GB",
                    f"{peaks[index] / 1e9:.2f} GB",
                    None if loss is of_torch else 1.0,
                ),
            ):
                # torch's is one operation, whose bytes cannot be counted from outside.
                if not (loss is of_torch and name == "bytes"):
                    rival = f"{theirs} ({loss.__doc__})"
                    figures.append(Figure(f"{what}: {name}", value, "ratio", limit, mine, rival))
    whole_bytes = bytes_moved(whole, "bf16")
    compiled = compiled_bytes()
    return [
        *figures,
        Figure(
            f"loss of {VOCABULARY:,} symbols, bf16, compiled: bytes",
            compiled,
            "B",
            COMPILED_BYTES,
            f"{compiled:.1f} B",
            f"{whole_bytes:.0f} B (whole logits)",
        ),
    ]
