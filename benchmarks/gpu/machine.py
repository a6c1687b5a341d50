"""Stages about the device itself: what is there, whether training starts, its ceilings, and its attention kernels."""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.common import timed
from benchmarks.gpu.processes import Row
from benchmarks.gpu.sizes import Sizes
from tests.trainables.train import golden
from trainables.ranks.process_group import device
from trainables.train.engine import missing_for_compiler
from trainables.train.loop import train

PACKAGES = (
    "torch", "triton", "deepspeed", "transformers", "tokenizers", "huggingface_hub", "numpy", "pydantic",
    "nvidia-ml-py", "ray", "optuna", "mlflow",
)  # fmt: skip
#: Widths of a head around the limits of torch's kernels: multiples of 4 and of 8, or not, up to and above 128 and 256.
HEADS = (8, 12, 18, 20, 56, 64, 72, 128, 136, 256, 264, 320, 330)


def facts(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Versions, the machine, the device, and the kernel of attention by the width of a head."""
    values: Row = {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
    values |= {
        "cores": len(os.sched_getaffinity(0)),
        "libc": "-".join(platform.libc_ver()),
        "lacks for the compiler": missing_for_compiler() or "nothing",
        "interfaces": ", ".join(sorted(path.name for path in Path("/sys/class/net").iterdir())),
        "free bytes for temporary files": shutil.disk_usage(tempfile.gettempdir()).free,
        "precision of products in fp32": torch.get_float32_matmul_precision(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info()
        values |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "free bytes of the device": free,
            "bytes of the device": total,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    for what, value in values.items():
        yield {"what": what, "value": value}
    for head in HEADS:
        kernels = {
            str(dtype).removeprefix("torch."): attention_kernel(*views(2, 4, 128, head, dtype))
            for dtype in (torch.bfloat16, torch.float32)
        }
        yield {"what": f"attention, {head} wide", **kernels}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def contact(sizes: Sizes, root: Path) -> Iterator[Row]:
    """The first steps of the trainer on this device: process group, engine, steps, evaluation, in both precisions."""
    for precision in ("fp32", "bf16"):
        start = time.perf_counter()
        result = train(golden.cell(precision=precision), data_root=root, evaluations=1)
        yield {
            "what": f"{precision} on {device()}",
            "seconds": time.perf_counter() - start,
            "loss": result.loss,
            "backend": torch.distributed.get_backend(),
            "notes": "; ".join(map(str, result.notes)) or None,
            **result.points[-1].gpu,
        }


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


def attention(sizes: Sizes, root: Path) -> Iterator[Row]:
    """Speed of causal attention by the width of a head, its kernel, and flash's own speed where torch takes cuDNN."""
    for context in sizes.contexts:
        for head in sizes.heads:
            heads, batch = max(1, 1024 // head), max(1, sizes.attended // context)
            q, k, v = views(batch, heads, context, head, torch.bfloat16)

            def both(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v) -> None:
                output = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                output.sum().backward(retain_graph=True)

            # Forward and twice that backward, of two products; causal attention needs half of each.
            work = 3 * 4 * batch * heads * context**2 * head / 2
            row: Row = {"what": f"{head} wide, {context} tokens", "kernel": attention_kernel(q, k, v)}
            row["FLOP/s"] = work / timed(both)
            if row["kernel"] == "cudnn":
                with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    if attention_kernel(q, k, v) == "flash":
                        row["flash FLOP/s"] = work / timed(both)
            yield row


def views(
    batch: int, heads: int, context: int, head: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random queries, keys and values, [B, H, T, d_h] each, as the model has them: views of one matrix."""
    width = heads * head
    matrix = torch.randn(batch, context, 3 * width, device=device(), dtype=dtype, requires_grad=True)
    q, k, v = (part.view(batch, context, heads, head).transpose(1, 2) for part in matrix.split(width, dim=2))
    return q, k, v


def attention_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
    """The kernel that torch takes for causal attention: cudnn, flash, efficient or math."""
    # The public `can_use_flash_attention` and its like answer what torch could take, not what it takes.
    choice = torch._C._SDPBackend(torch._fused_sdp_choice(q, k, v, None, 0.0, True))
    return str(choice.name).removesuffix("_ATTENTION").lower()
