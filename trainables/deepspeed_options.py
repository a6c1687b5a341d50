"""Check of DeepSpeed's own options in a recipe.

DeepSpeed ignores unknown top-level keys and checks only the keys inside its pydantic sections. So the top level is
checked here against a list of allowed keys, and the rest by DeepSpeed.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from trainables.errors import InputError, did_you_mean

#: Allowed top-level keys and their values: a section that DeepSpeed checks (None), a type, the keys of a section that
#: DeepSpeed does not check, or the allowed values.
ALLOWED: Mapping[str, Any] = {
    "zero_optimization": None,
    "communication_data_type": ("fp32", "bf16", "fp16"),
    "prescale_gradients": bool,
    "gradient_predivide_factor": float,
    # The default is the precision of the weights; fp16 is not supported, and bf16 sums of fp32 gradients are refused.
    "data_types": {"grad_accum_dtype": ("fp32",)},
    "zero_allow_untested_optimizer": bool,
    "zero_force_ds_cpu_optimizer": bool,
    "disable_python_gc": bool,
    "timers": {"throughput": None},
}

_BATCH = "`training.batch`, `resources.data_parallel` and `resources.micro_batch`"
#: Keys of DeepSpeed that other keys of a spec set.
SET_BY: Mapping[str, str] = {
    "train_batch_size": _BATCH,
    "train_micro_batch_size_per_gpu": _BATCH,
    "gradient_accumulation_steps": _BATCH,
    "optimizer": "`training.optimizer`, `training.lr`, `training.betas`, "
    "`training.epsilon` and `training.weight_decay`",
    "scheduler": "`training.lr`, `training.warmup` and `training.min_lr_ratio`",
    "gradient_clipping": "`training.grad_clip`",
    "bf16": "`training.precision`",
    "fp16": "`training.precision`",
    "torch_autocast": "`training.precision`",
    "tensor_parallel": "`resources.tensor_parallel` and `resources.shard_vocabulary`",
    "data_parallel_size": "`resources.data_parallel`",
    "activation_checkpointing": "`resources.activation_checkpointing`",
    "checkpoint": "`resources.checkpoint_every_seconds`",
    "zero_optimization.stage": "`resources.zero`",
}

#: Keys of `zero_optimization` that are refused: they would break recorded gradient norms or exact resume, or need a
#: compiler.
ZERO_REFUSED = frozenset(
    {
        "compute_grad_norm",
        "load_from_fp32_weights",
        "elastic_checkpoint",
        "zenflow",
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients",
    }
)


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse options that are not allowed, without importing DeepSpeed.

    Raises:
        ValueError: names the key, the reason and the fix.
    """
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"DeepSpeed's options must be plain JSON ({error})") from None
    for key, value in options.items():
        if key in SET_BY:
            raise ValueError(f"`{key}` is set by {SET_BY[key]}; remove it from DeepSpeed's options")
        if key not in ALLOWED:
            raise ValueError(f"`{key}` is not an allowed option of DeepSpeed{_nearest(key)}")
        _check_value(key, value, ALLOWED[key])
    zero = options.get("zero_optimization", {})
    for key in zero:
        if (path := f"zero_optimization.{key}") in SET_BY:
            raise ValueError(f"`{path}` is set by {SET_BY[path]}; remove it from DeepSpeed's options")
        if key in ZERO_REFUSED:
            raise ValueError(
                f"`{path}` is not allowed: it would break recorded norms, exact resume or needs a compiler"
            )
    offload = [
        part for key in ("offload_optimizer", "offload_param") if isinstance(part := zero.get(key), Mapping)
    ]
    if any(part.get("device") == "nvme" for part in offload):
        raise ValueError(
            "`zero_optimization` cannot offload to nvme, which needs a compiled kernel; use `device: cpu`"
        )
    if zero.get("offload_optimizer") and options.get("zero_force_ds_cpu_optimizer") is not False:
        raise ValueError(
            "`zero_optimization.offload_optimizer` would compile DeepSpeed's own optimizer; add "
            "`zero_force_ds_cpu_optimizer: false` to keep torch's"
        )


def check_options(options: Mapping[str, Any], zero: int) -> None:
    """Refuse options that DeepSpeed itself refuses at a ZeRO stage; imports DeepSpeed.

    Raises:
        InputError: names the wrong key.
    """
    from pydantic import ValidationError

    try:
        check_names(options)
    except ValueError as error:
        raise InputError(f"`training.deepspeed`: {error}.") from None
    deepspeed = _imported_quietly()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        **options,
        "zero_optimization": {**options.get("zero_optimization", {}), "stage": zero},
    }
    try:
        deepspeed.DeepSpeedConfig(config)
    except ValidationError as error:
        wrong = "; ".join(
            f"`{'.'.join(map(str, details['loc']))}`: {details['msg']}" if details["loc"] else details["msg"]
            for details in error.errors(include_url=False)
        )
        raise InputError(
            f"DeepSpeed refuses `training.deepspeed` at ZeRO stage {zero}: {error.title}: {wrong}."
        ) from error
    except (ValueError, AssertionError, deepspeed.DeepSpeedConfigError) as error:
        text = str(error).rstrip(".") or type(error).__name__
        raise InputError(f"DeepSpeed refuses `training.deepspeed` at ZeRO stage {zero}: {text}.") from error


def _imported_quietly() -> Any:
    """Import DeepSpeed without its message on stdout about a missing accelerator."""
    import torch

    from trainables.ranks.process_group import import_deepspeed

    if torch.cuda.is_available() or "DS_ACCELERATOR" in os.environ:
        return import_deepspeed()
    os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        return import_deepspeed()
    finally:
        del os.environ["DS_ACCELERATOR"]


def _check_value(path: str, value: Any, wanted: Any) -> None:
    if wanted is None or isinstance(wanted, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"`{path}` is {value!r}; it should be a section with keys")
        names: Mapping[str, Any] = wanted or {}
        for key, inner in value.items() if names else ():
            if key not in names:
                raise ValueError(
                    f"`{path}.{key}` is not an allowed option of DeepSpeed; allowed: {', '.join(names)}"
                )
            _check_value(f"{path}.{key}", inner, names[key])
    elif isinstance(wanted, tuple):
        if value not in wanted:
            raise ValueError(f"`{path}` is {value!r}; allowed: {', '.join(wanted)}")
    elif wanted is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"`{path}` is {value!r}; it should be a number above 0")
    elif type(value) is not wanted:
        raise ValueError(f"`{path}` is {value!r}; it should be true or false")


def _nearest(key: str) -> str:
    """Return a hint with the nearest allowed key, else all of them."""
    allowed = f"; allowed: {', '.join(ALLOWED)}. Options of ZeRO go into `zero_optimization`"
    return did_you_mean(key, [*ALLOWED, *SET_BY]) or allowed
