"""Check of DeepSpeed's own options in a recipe.

DeepSpeed ignores unknown top-level keys and checks only its pydantic sections. So the top level has an allow-list here.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainables.errors import InputError, did_you_mean

#: Keys of DeepSpeed that keys of a spec set.
SET_BY = {
    "train_batch_size": "training.batch",
    "train_micro_batch_size_per_gpu": "resources.micro_batch",
    "gradient_accumulation_steps": "resources.micro_batch",
    "optimizer": "training.optimizer",
    "scheduler": "training.lr",
    "gradient_clipping": "training.grad_clip",
    "bf16": "training.precision",
    "fp16": "training.precision",
    "torch_autocast": "training.precision",
    "tensor_parallel": "resources.tensor_parallel",
    "data_parallel_size": "resources.data_parallel",
    "activation_checkpointing": "resources.activation_checkpointing",
    "checkpoint": "resources.checkpoint_every_seconds",
}
#: Keys of `zero_optimization` that are refused: `resources.zero` sets the stage; the others would break recorded
#: gradient norms or exact resume, or need a compiler.
ZERO_REFUSED = frozenset(
    {
        "stage",
        "compute_grad_norm",
        "load_from_fp32_weights",
        "elastic_checkpoint",
        "zenflow",
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients",
    }
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _DataTypes(_Section):
    # fp16 is not supported, and bf16 sums of fp32 gradients are refused.
    grad_accum_dtype: Literal["fp32"] = "fp32"


class _Timers(_Section):
    throughput: dict[str, Any] = {}


class Options(_Section):
    """The allowed keys and their values; DeepSpeed checks the keys inside `zero_optimization` and `throughput`."""

    zero_optimization: dict[str, Any] = {}
    communication_data_type: Literal["fp32", "bf16", "fp16"] = "fp32"
    prescale_gradients: bool = False
    gradient_predivide_factor: float = Field(default=1.0, gt=0)
    data_types: _DataTypes = _DataTypes()
    zero_allow_untested_optimizer: bool = False
    zero_force_ds_cpu_optimizer: bool = True
    disable_python_gc: bool = False
    timers: _Timers = _Timers()


def check_names(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, or raise a ValueError for one that is not allowed; does not import DeepSpeed."""
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"DeepSpeed's options must be plain JSON ({error})") from None
    for key in options:
        if key in SET_BY:
            raise ValueError(
                f"`{key}` is not an allowed option of DeepSpeed here; set `{SET_BY[key]}` instead"
            )
        if key not in Options.model_fields:
            hint = did_you_mean(key, Options.model_fields) or f"; allowed: {', '.join(Options.model_fields)}"
            raise ValueError(
                f"`{key}` is not an allowed option of DeepSpeed{hint}. Options of ZeRO go into `zero_optimization`; "
                "the keys of `training` and `resources` set the rest"
            )
    try:
        checked = Options.model_validate(options)
    except ValidationError as error:
        raise ValueError(_wrong(error)) from None
    zero = checked.zero_optimization
    if refused := ZERO_REFUSED & set(zero):
        raise ValueError(
            f"`zero_optimization.{min(refused)}` is not allowed: `resources.zero` sets the stage, and the others would "
            "break recorded norms or exact resume, or need a compiler"
        )
    offloads = [zero.get("offload_optimizer"), zero.get("offload_param")]
    if any(isinstance(part, Mapping) and part.get("device") == "nvme" for part in offloads):
        raise ValueError(
            "`zero_optimization` cannot offload to nvme, which needs a compiled kernel; use `device: cpu`"
        )
    if offloads[0] and checked.zero_force_ds_cpu_optimizer:
        raise ValueError(
            "`zero_optimization.offload_optimizer` would compile DeepSpeed's own optimizer; add "
            "`zero_force_ds_cpu_optimizer: false` to keep torch's"
        )
    return options


def check_options(options: dict[str, Any], zero: int) -> None:
    """Raise an InputError for options that DeepSpeed itself refuses at a ZeRO stage; imports DeepSpeed."""
    try:
        check_names(options)
    except ValueError as error:
        raise InputError(f"`training.deepspeed`: {error}.") from None
    from trainables.ranks.process_group import import_deepspeed

    deepspeed = import_deepspeed()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        **options,
        "zero_optimization": {**options.get("zero_optimization", {}), "stage": zero},
    }
    try:
        deepspeed.DeepSpeedConfig(config)
    except (ValueError, AssertionError, deepspeed.DeepSpeedConfigError) as error:
        text = (
            f"{error.title}: {_wrong(error)}"
            if isinstance(error, ValidationError)
            else str(error).rstrip(".")
        )
        raise InputError(
            f"DeepSpeed refuses `training.deepspeed` at ZeRO stage {zero}: {text or type(error).__name__}."
        ) from error


def _wrong(error: ValidationError) -> str:
    """Return every wrong key of a pydantic error with its message."""
    return "; ".join(
        f"`{'.'.join(map(str, details['loc']))}`: {details['msg']}"
        for details in error.errors(include_url=False)
    )
