"""What a recipe may set of DeepSpeed itself: the keys of `zero_optimization`, which DeepSpeed checks.

DeepSpeed ignores an unknown top-level key, and `training` and `resources` set the others.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from core.errors import InputError

#: The one section that is passed on.
ZERO = "zero_optimization"
#: Its keys that are refused; the message below has the reasons.
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


def check_names(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options; a ValueError if one is not allowed. Does not import DeepSpeed."""
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"DeepSpeed's options must be plain JSON ({error})") from None
    if other := sorted(set(options) - {ZERO}):
        raise ValueError(
            f"`{other[0]}` is not an allowed option of DeepSpeed. Options of ZeRO go into `{ZERO}`; the keys of "
            "`training` and `resources` set the rest (such as `training.grad_clip`, `training.precision`, "
            "`resources.micro_batch`)"
        )
    zero = options.get(ZERO, {})
    if not isinstance(zero, Mapping):
        raise ValueError(f"`{ZERO}` should be a section of keys, such as {{overlap_comm: true}}")
    if refused := ZERO_REFUSED & set(zero):
        raise ValueError(
            f"`{ZERO}.{min(refused)}` is not allowed: `resources.zero` sets the stage, and the others would break "
            "recorded norms or exact resume, or need a compiler"
        )
    for part in (zero.get("offload_optimizer"), zero.get("offload_param")):
        if isinstance(part, Mapping) and part.get("device") == "nvme":
            raise ValueError(
                f"`{ZERO}` cannot offload to nvme, which needs a compiled kernel; use `device: cpu`"
            )
    return options


def check_options(options: dict[str, Any], zero: int) -> None:
    """Raise an InputError for options of a recipe that DeepSpeed refuses at a ZeRO stage; imports DeepSpeed."""
    from trainables.ranks.process_group import import_deepspeed

    deepspeed = import_deepspeed()
    stages = {ZERO: {**options.get(ZERO, {}), "stage": zero}}
    try:
        deepspeed.DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **stages})
    except (ValueError, AssertionError, deepspeed.DeepSpeedConfigError) as error:
        text = str(error).rstrip(".")
        if isinstance(error, ValidationError):
            wrong = [f"`{'.'.join(map(str, e['loc']))}`: {e['msg']}" for e in error.errors(include_url=False)]
            text = f"{error.title}: {'; '.join(wrong)}"
        raise InputError(
            f"DeepSpeed refuses `training.deepspeed` at ZeRO stage {zero}: {text or type(error).__name__}."
        ) from error
