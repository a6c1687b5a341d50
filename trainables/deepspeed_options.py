"""An allow-list of DeepSpeed's own options in a recipe, because DeepSpeed ignores unknown top-level keys."""

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
#: Keys of `zero_optimization` that are refused; the message below has the reasons.
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


class Options(BaseModel):
    """The allowed keys and their values; DeepSpeed checks the keys inside `zero_optimization`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    zero_optimization: dict[str, Any] = {}
    communication_data_type: Literal["fp32", "bf16", "fp16"] = "fp32"
    prescale_gradients: bool = False
    gradient_predivide_factor: float = Field(default=1.0, gt=0)
    zero_force_ds_cpu_optimizer: bool = True
    disable_python_gc: bool = False


def check_names(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options; a ValueError if one is not allowed. Does not import DeepSpeed."""
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"DeepSpeed's options must be plain JSON ({error})") from None
    for key in options:
        if key in SET_BY:
            raise ValueError(f"`{key}` is not an allowed option of DeepSpeed; set `{SET_BY[key]}` instead")
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
    for part in (zero.get("offload_optimizer"), zero.get("offload_param")):
        if isinstance(part, Mapping) and part.get("device") == "nvme":
            raise ValueError(
                "`zero_optimization` cannot offload to nvme, which needs a compiled kernel; use `device: cpu`"
            )
    if zero.get("offload_optimizer") and checked.zero_force_ds_cpu_optimizer:
        raise ValueError(
            "`zero_optimization.offload_optimizer` would compile DeepSpeed's own optimizer; add "
            "`zero_force_ds_cpu_optimizer: false` to keep torch's"
        )
    return options


def check_options(options: dict[str, Any], zero: int) -> None:
    """Raise an InputError for options of a recipe that DeepSpeed refuses at a ZeRO stage; imports DeepSpeed."""
    from trainables.ranks.process_group import import_deepspeed

    deepspeed = import_deepspeed()
    stages = {"zero_optimization": {**options.get("zero_optimization", {}), "stage": zero}}
    try:
        deepspeed.DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **options, **stages})
    except (ValueError, AssertionError, deepspeed.DeepSpeedConfigError) as error:
        text = str(error).rstrip(".")
        if isinstance(error, ValidationError):
            text = f"{error.title}: {_wrong(error)}"
        raise InputError(
            f"DeepSpeed refuses `training.deepspeed` at ZeRO stage {zero}: {text or type(error).__name__}."
        ) from error


def _wrong(error: ValidationError) -> str:
    """Return every wrong key of a pydantic error with its message."""
    return "; ".join(
        f"`{'.'.join(map(str, details['loc']))}`: {details['msg']}"
        for details in error.errors(include_url=False)
    )
