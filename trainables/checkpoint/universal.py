"""Conversion of checkpoints between layouts through DeepSpeed's universal form (Lian et al. 2024, arXiv 2406.18820).

It has one folder per parameter with its whole weight and moments in fp32.
"""

import contextlib
import importlib
import io
import os
import pkgutil
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainables.layout import Layout

#: Classes in the files of DeepSpeed besides tensors and plain values.
CLASSES = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)
#: Set, it makes `torch.load` refuse classes also where its caller asks for all of them, as DeepSpeed does.
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
#: Its opposite, which some users set for other programs; torch refuses every load with both.
_FORCE_NOT = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
#: Files of a parameter besides its step: the fp32 weight and AdamW's two moments.
STATES = ("fp32", "exp_avg", "exp_avg_sq")
#: Keys of a model file that DeepSpeed reads from a universal checkpoint; the weights are elsewhere.
_COMMON = ("dp_world_size", "global_steps", "global_samples", "skipped_steps", "lr_scheduler")


class UnsupportedError(Exception):
    """DeepSpeed cannot convert this checkpoint to another layout."""


@contextlib.contextmanager
def without_code() -> Iterator[None]:
    """Make `torch.load` raise a pickle.UnpicklingError for a file with other classes than `CLASSES`, and run no code.

    The unpickler itself refuses, so that a file which is replaced after its checksum was verified does no harm either.
    """
    before = {name: os.environ.pop(name) for name in (_FORCE, _FORCE_NOT) if name in os.environ}
    os.environ[_FORCE] = "1"
    try:
        with torch.serialization.safe_globals([(pkgutil.resolve_name(name), name) for name in CLASSES]):
            yield
    finally:
        os.environ.pop(_FORCE)
        os.environ.update(before)


@without_code()
def convert(source: Path, target: Path, layout: Layout) -> None:
    """Write the universal form of a checkpoint that was saved in `layout`; it loads at any degree and ZeRO stage.

    DeepSpeed's converter lacks stage 0, and its output of stage 3 loads at stage 3 only; both are fixed here.
    """
    shutil.rmtree(target, ignore_errors=True)
    (target / "zero").mkdir(parents=True)
    try:
        if layout.zero == 0:
            groups = _merge_plain(source, target, layout.tensor_parallel)
        else:
            groups = _merge_zero(source, target)
        model = _load(next(iter(sorted(source.glob("*mp_rank_*_model_states.pt")))))
        _complete(target, model, groups)
    except (AssertionError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedError(f"{type(error).__name__}: {error}".partition("\n")[0]) from error


@without_code()
def load_plain(engine: Any, folder: Path) -> None:
    """Load a universal checkpoint into an engine of stage 0; DeepSpeed supports only its ZeRO optimizers."""
    library = importlib.import_module("deepspeed.checkpoint.universal_checkpoint")
    degree, place = 1, 0
    if engine.mpu is not None:
        group = engine.mpu.get_tensor_model_parallel_group()
        degree, place = dist.get_world_size(group), dist.get_rank(group)
    with torch.no_grad():
        for parameter, name in engine.param_names.items():
            values = {}
            for state in STATES:
                saved = _load(folder / "zero" / name / f"{state}.pt")
                whole, part = saved["param"], None
                if degree > 1:
                    part = library._resolve_autotp_partition(parameter, saved, whole, place, degree)
                values[state] = (whole if part is None else part).view_as(parameter)
            parameter.copy_(values.pop("fp32"))
            moments = {key: value.to(parameter.device, torch.float32) for key, value in values.items()}
            step = _load(folder / "zero" / name / "step.pt")
            engine.optimizer.state[parameter] = {"step": step.to(parameter.device), **moments}
    common = _load(folder / "mp_rank_00_model_states.pt")
    engine.lr_scheduler.load_state_dict(common["lr_scheduler"])
    engine.global_steps, engine.global_samples = common["global_steps"], common["global_samples"]


@contextlib.contextmanager
def mended(engine: Any) -> Iterator[None]:
    """Restore after loading the options that each group had before, and give each state its own step tensor.

    At stage 3 DeepSpeed gives all groups the options of the first, so that biases and norms would decay, and one
    shared step tensor, which then counts every group.
    """
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    before = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    yield
    rates = engine.lr_scheduler.get_last_lr()
    for group, former, rate in zip(optimizer.param_groups, before, rates, strict=True):
        group.update(former, lr=rate)
    for parameter, state in optimizer.state.items():
        # AdamW's fused kernel needs the step on the device of the weights.
        state["step"] = state["step"].detach().clone().to(parameter.device)


def _merge_zero(source: Path, target: Path) -> list[dict[str, Any]]:
    """Merge the shards of stages 1 to 3; return the options of the optimizer's groups."""
    converter = importlib.import_module("deepspeed.checkpoint.ds_to_universal")
    arguments = Namespace(
        input_folder=str(source),
        output_folder=str(target),
        # Workers would be forked from a process with threads and a process group.
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        # At degree 1 checkpoints have no sharding information, which the converter requires.
        inject_missing_state=True,
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        converter.main(arguments)
    saved = _load(target / "zero" / "optimizer_state.pt")
    for copied in target.glob("*_model_states.pt"):
        copied.unlink()
    groups: list[dict[str, Any]] = saved["param_groups"]
    inner = saved.get("optimizer_state_dict")
    # Stage 3 writes no step with the parameters.
    for folder in _parameters(target / "zero") if inner else ():
        torch.save(next(iter(inner["state"].values()))["step"], folder / "step.pt")
    return groups


def _merge_plain(source: Path, target: Path, degree: int) -> list[dict[str, Any]]:
    """Merge the shards of stage 0, whose optimizer is torch's own; return the options of its groups."""
    converter = importlib.import_module("deepspeed.checkpoint.ds_to_universal")
    pieces = target / "tmp"
    shapes: dict[str, list[Any]] = {}
    info: Any = None
    groups: list[dict[str, Any]] = []
    for rank in range(degree):
        model = _load(source / f"mp_rank_{rank:02d}_model_states.pt")
        optimizer, weights = model["optimizer"], model["module"]
        groups = optimizer["param_groups"]
        if rank == 0:
            info = model.get("universal_checkpoint_info") or {"universal_checkpoint_version": 0.4}
        indices = [index for group in groups for index in group["params"]]
        for index, name in zip(indices, model["parameter_names"], strict=True):
            state = optimizer["state"][index]
            for key in STATES:
                value = weights[name].float() if key == "fp32" else state[key]
                count = value.numel()
                converter.dump_param_fragment(str(pieces), rank, 0, key, value.reshape(-1), name, 0, count)
            converter.dump_param_fragment(str(pieces), rank, 0, "step", state["step"], name, 0, 1)
            shapes.setdefault(name, []).append(weights[name].shape)
    for named in shapes.items():
        converter.merge_tp_slices(info, str(target / "zero"), str(pieces), degree, named)
    shutil.rmtree(pieces)
    return groups


def _complete(target: Path, model: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Bring parameters, and the state that belongs to none, into the form that all stages read."""
    shapes = {name: shape for group in model.get("param_shapes") or [] for name, shape in group.items()}
    step: Any = None
    for place in _parameters(target / "zero"):
        for state in STATES:
            value = _load(place / f"{state}.pt")
            if torch.is_tensor(value):
                # Of stage 3 on one tensor-parallel rank: flat, without metadata.
                torch.save({"param": value.reshape(shapes[place.name]), "cat_dim": 0}, place / f"{state}.pt")
        step = _load(place / "step.pt")
    inner = {"state": {0: {"step": step}}, "param_groups": groups}
    optimizer = {"ds_version": model["ds_version"], "param_groups": groups, "optimizer_state_dict": inner}
    torch.save(optimizer, target / "zero" / "optimizer_state.pt")
    # DeepSpeed expects one such file per saved rank (`mp_world_size`).
    common = {**{key: model[key] for key in _COMMON}, "mp_world_size": 1}
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        torch.save(common, target / name)


def _parameters(folder: Path) -> list[Path]:
    # Those with an optimizer state: the converter also writes the tied head under its second name.
    return sorted(path for path in folder.iterdir() if (path / "exp_avg.pt").is_file())


def _load(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)
