"""The DeepSpeed engine of a cell."""

import contextlib
import importlib
import math
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from trainables.cell import Recipe, Shape
from trainables.deepspeed_options import check_options
from trainables.layout import Layout
from trainables.model.counts import BUCKET
from trainables.model.family import family
from trainables.model.head import Head, scored
from trainables.model.parametrisation import param_groups
from trainables.ranks.process_group import import_deepspeed, no_broadcast_to_itself
from trainables.train.muon import MuonAndAdamW

LINEAR = functional.linear
#: What compiles layers and the loss.
COMPILER = "inductor"


def schedule(recipe: Recipe) -> Callable[[int], float]:
    """Return the learning-rate factor of each step: linear warm-up from above 0, then down to `min_lr_ratio`.

    `cosine` falls from the end of the warm-up; `wsd` stays at 1 and falls over the last steps by 1 - sqrt of the
    progress (Hägele et al. 2024, arXiv 2405.18392, section 4.1).
    """
    warmup, start = recipe.warmup_end, recipe.decay_start

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if step < start:
            return 1.0
        progress = min(1.0, (step - start + 1) / max(1, recipe.steps - start))
        if recipe.schedule == "wsd":
            return recipe.min_lr_ratio + (1 - recipe.min_lr_ratio) * (1 - math.sqrt(progress))
        return recipe.min_lr_ratio + (1 - recipe.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor


def set_rates(engine: Any, recipe: Recipe, step: int) -> None:
    """Set the learning rates of a step.

    A checkpoint has those of the schedule of the cell that wrote it, and torch computes them anew only after the step.
    """
    scheduler, factor = engine.lr_scheduler, schedule(recipe)(step)
    rates = [base * factor for base in scheduler.base_lrs]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates


def deepspeed_config(recipe: Recipe, layout: Layout, *, universal: bool = False) -> dict[str, Any]:
    """Return DeepSpeed's configuration; `universal` prepares the engine to load a universal checkpoint."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": layout.sequences(recipe),
        "gradient_accumulation_steps": layout.pieces(recipe),
        # At stage 0 `clip_gradients` does it: DeepSpeed would start kernels for each parameter and wait for the norm.
        "gradient_clipping": recipe.grad_clip if layout.zero else 0.0,
        "steps_per_print": 10**9,
        # It would wait for the device before and after each micro-batch.
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": {
            "stage": layout.zero,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            **recipe.deepspeed.get("zero_optimization", {}),
        },
        # DeepSpeed's own optimizer on the CPU needs a compiler.
        "zero_force_ds_cpu_optimizer": False,
        # Weights, their gradients and what ranks send of them stay in fp32; only the passes compute in bf16. DeepSpeed
        # would send the gradients of the modules listed here in bf16.
        "torch_autocast": {
            "enabled": recipe.precision == "bf16",
            "dtype": "bfloat16",
            "lower_precision_safe_modules": [],
        },
    }
    if layout.tensor_parallel > 1:
        config["tensor_parallel"] = {
            "autotp_size": layout.tensor_parallel,
            "partition_config": family(recipe.network).partition_config,
            "vocab_parallel_lm_head": layout.shard_vocabulary,
        }
    if universal:
        config["checkpoint"] = {"load_universal": True}
    return config


def preload(recipe: Recipe, layout: Layout) -> None:
    """Import what the first cell of a process would import later: 33 MB of transformers and 46 MB of DeepSpeed's ZeRO.

    No cell's memory should count them.
    """
    family(recipe.network).build(Shape(depth=1, width=1, heads=1), recipe, 2)
    if layout.zero:
        with contextlib.suppress(ImportError):
            importlib.import_module("deepspeed.runtime.zero.muon.original_muon")


def build_engine(
    model: Any, shape: Shape, recipe: Recipe, lr: float, layout: Layout = Layout(), *, universal: bool = False
) -> Any:
    """Return a DeepSpeed engine around the model, with torch's optimizers (DeepSpeed's need a compiler).

    An option that DeepSpeed refuses is an InputError, a matrix that it does not shard a RuntimeError.
    """
    if recipe.deepspeed:
        check_options(recipe.deepspeed, layout.zero)
    if layout.activation_checkpointing:
        # DeepSpeed's own key `activation_checkpointing` has no effect on HuggingFace's models.
        model.activation_checkpointing_enable()
    groups = param_groups(model.named_parameters(), shape, recipe, lr)
    betas = (recipe.beta1, recipe.beta2)
    muon = recipe.optimizer == "muon"
    optimizer = MuonAndAdamW(groups, betas) if muon else AdamW(groups, betas=betas, fused=True)
    # One of DeepSpeed's optimizers prints the memory in use; stdout may hold a JSON result.
    with contextlib.redirect_stdout(sys.stderr), no_broadcast_to_itself():
        engine, *_ = import_deepspeed().initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=lambda inner: LambdaLR(inner, schedule(recipe)),
            config=deepspeed_config(recipe, layout, universal=universal),
            dist_init_required=False,
        )
    if layout.tensor_parallel > 1:
        model_family = family(recipe.network)
        for name, parameter in engine.module.named_parameters():
            role, is_sharded = model_family.role(name), getattr(parameter, "tensor_model_parallel", False)
            if role.is_matrix and role.layer is not None and not is_sharded:
                # It ignores a pattern without a match.
                raise RuntimeError(f"DeepSpeed did not shard {name}")
        model_family.finish_sharding(engine.module, layout)
    if layout.compiled:
        compile_model(engine.module, layout, recipe)
    if layout.data_parallel == 1 and layout.zero == 0:
        # DeepSpeed would sum the gradients of one group with itself, through a copy of all of them.
        engine.enable_backward_allreduce = False
    return engine


def missing_for_compiler() -> str | None:
    """Return what this machine lacks to compile layers: Triton and Inductor build C code at run time."""
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")))):
        return "a C compiler"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return None if headers.is_file() else f"{headers} (Debian: python3-dev)"


def compile_model(model: Any, layout: Layout, recipe: Recipe) -> None:
    """Compile each layer of a HuggingFace model, which share the code of the first, and the loss of its head.

    `Layout.compiles_layers` says where layers are left as they are.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    for module in model.modules():
        if isinstance(module, Head):
            module.score = torch.compile(scored, backend=COMPILER, dynamic=False)
        elif isinstance(module, GradientCheckpointingLayer) and layout.compiles_layers(recipe):
            module.compile(backend=COMPILER, dynamic=False)


def close_engine(engine: Any) -> None:
    """Free an engine, and restore torch's `linear`.

    Stage 3 replaces it for the rest of the process, where the loss of a later cell in bf16 differed by 2e-4.
    """
    engine.destroy()
    # torch keeps the code of at most eight shapes of a layer, and runs others without it.
    torch.compiler.reset()
    functional.linear = LINEAR


def whole_state(engine: Any, layout: Layout) -> dict[str, torch.Tensor] | None:
    """Return all weights of a distributed model on rank 0 and None on others; every rank must call this.

    Under tensor parallelism and at ZeRO stage 3 DeepSpeed gathers them layer by layer in their own precision, despite
    `16bit` in the name; elsewhere it refuses, and rank 0 has them. Its public `save_16bit_model` writes the shard of
    rank 0 under tensor parallelism.
    """
    if layout.tensor_parallel == 1 and layout.zero < 3:
        return dict(engine.module.state_dict()) if dist.get_rank() == 0 else None
    gathered: dict[str, torch.Tensor] | None = engine._consolidated_16bit_state_dict()
    return gathered


def clip_gradients(engine: Any, layout: Layout, largest: float) -> torch.Tensor:
    """Scale the gradient to the norm `largest` if it exceeds it (0: never), and return the norm that it had.

    For use after the last `backward` of a step at ZeRO stage 0, where DeepSpeed has no norm (its issue 7255). The norm
    stays on the device, so nothing waits for it.
    """
    parameters = [p for p in engine.module.parameters() if p.grad is not None]
    if layout.tensor_parallel == 1:
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    else:
        gradients: dict[bool, list[torch.Tensor]] = {False: [], True: []}
        for p in parameters:
            gradients[getattr(p, "tensor_model_parallel", False)].append(p.grad)
        local, shared = map(torch.nn.utils.get_total_norm, gradients.values())
        squares = shared.square()
        dist.all_reduce(squares, group=engine.mpu.get_tensor_model_parallel_group())
        norm = (local.square() + squares).sqrt()
    if largest:
        torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return norm
