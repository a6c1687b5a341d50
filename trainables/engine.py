"""The DeepSpeed engine of a cell, and the process it runs in."""

import importlib
import logging
import math
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from trainables.cell import Recipe

#: A lost peer must end a collective in minutes; torch's default is half an hour.
COLLECTIVE_TIMEOUT = timedelta(minutes=5)


def device() -> torch.device:
    """The device this process trains on: its first GPU, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def prepare_process() -> None:
    """Make this process ready to build engines: quiet, one thread, a process group of one. Safe to call again.

    One thread a trial and trials side by side give the best throughput of a CPU: two threads cost twice the CPU
    seconds for a third less wall time at these widths.
    """
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
        torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch|deepspeed")
    _deepspeed()
    if not dist.is_initialized():
        # A store in memory: a process group of one needs no port, and DeepSpeed then asks no MPI for the world.
        os.environ.setdefault("LOCAL_RANK", "0")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without saying so
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=COLLECTIVE_TIMEOUT)
        _deepspeed().init_distributed(backend, timeout=COLLECTIVE_TIMEOUT, verbose=False)


def _deepspeed() -> Any:
    """Import DeepSpeed without letting it probe for, or build, any C++ kernel.

    On CPU the first `init_distributed` would compile `deepspeed_shm_comm` (40 to 100 s); only
    `inference_all_reduce` uses it. Naming every op unavailable also spares the probe's compiler subprocesses.
    """
    deepspeed = importlib.import_module("deepspeed")
    ops = importlib.import_module("deepspeed.ops")
    if "__compatible_ops__" not in vars(ops):
        all_ops = importlib.import_module("deepspeed.ops.op_builder.all_ops").ALL_OPS
        vars(ops)["__compatible_ops__"] = dict.fromkeys([*all_ops, "deepspeed_not_implemented"], False)
        deepspeed.utils.logger.setLevel(logging.ERROR)
    return deepspeed


def schedule(recipe: Recipe) -> Callable[[int], float]:
    """Return the learning-rate factor of each step: linear warm-up, then a cosine down to the floor.

    Step 0 already has a rate above zero, and the last step is the first to reach the floor.
    """
    warmup = round(recipe.warmup * recipe.steps)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = min(1.0, (step - warmup + 1) / max(1, recipe.steps - warmup))
        return recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor


def deepspeed_config(recipe: Recipe, micro_batch: int | None = None) -> dict[str, Any]:
    """Return DeepSpeed's configuration of a recipe on one rank; `micro_batch` sequences are worked on at once.

    fp32 runs at ZeRO stage 0, the cheapest step; bf16 at stage 1, because stage 0 trains bf16 badly (loss off by
    3e-2 after 20 steps, against 5e-4).
    """
    micro_batch = micro_batch or recipe.batch
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": recipe.batch // micro_batch,
        "gradient_clipping": recipe.clip,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": 1 if recipe.precision == "bf16" else 0},
        "bf16": {"enabled": recipe.precision == "bf16"},
    }


def build_engine(model: nn.Module, recipe: Recipe, lr: float, micro_batch: int | None = None) -> Any:
    """Return a DeepSpeed engine around the model with AdamW and the recipe's schedule.

    Biases and norms have no weight decay. The optimizer is torch's own: DeepSpeed's AdamW would be compiled first.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.epsilon, fused=True
    )
    engine, *_ = _deepspeed().initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=lambda inner: LambdaLR(inner, schedule(recipe)),
        config=deepspeed_config(recipe, micro_batch),
        dist_init_required=False,
    )
    if dist.get_world_size() == 1 and recipe.precision == "fp32":
        # DeepSpeed would all-reduce the gradients of one rank with itself: 0.8 ms a step, a tenth of a small one.
        engine.enable_backward_allreduce = False
    return engine
