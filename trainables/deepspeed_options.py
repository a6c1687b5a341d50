"""DeepSpeed's own options in a recipe: which are known, which Interplay sets itself, and whether DeepSpeed takes them.

DeepSpeed ignores a top-level key it does not know, and takes any value of some it does; only the keys inside its
pydantic sections are checked. So the top level is checked here, by a table, and the rest by DeepSpeed itself.
`tests/trainables/test_deepspeed_options.py` compares the tables with what DeepSpeed reads, so that an upgrade is
noticed.
"""

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from trainables.errors import InputError

#: Top-level keys that are passed on, and what their value is: a section that DeepSpeed checks (None), the types of a
#: plain value, the names inside a section that DeepSpeed does not check, or the only values that make sense here.
PASSED: Mapping[str, Any] = MappingProxyType(
    {
        "zero_optimization": None,
        "communication_data_type": ("fp32", "bf16", "fp16"),
        "prescale_gradients": bool,
        "gradient_predivide_factor": float,
        # The weights' own precision is the default; fp16 is not trained, and bf16 sums of fp32 gradients are refused.
        "data_types": {"grad_accum_dtype": ("fp32",)},
        "zero_allow_untested_optimizer": bool,
        "zero_force_ds_cpu_optimizer": bool,
        "disable_python_gc": bool,
        "timers": {"throughput": None},
    }
)

_BATCH = "`training.batch`, with `resources.data_parallel` and `resources.micro_batch`, sets it"
_PRECISION = "`training.precision` sets it"
_MLFLOW = "Interplay writes to MLflow itself (`tracking`)"
_CHECKPOINT = "Interplay writes checkpoints itself (`resources.checkpoint_every_seconds`)"
_ORDER = "the order of the data is a function of seed and step, the same for all compared cells"
_LOG = "it writes to DeepSpeed's log, of which only errors are kept; time and peak memory are recorded with each result"
_NOT_THIS_MODEL = "it is for another kind of model or engine than the one that is trained here"
_LOSS_BY_RANKS = "the loss of a cell would depend on how many ranks train it"

#: Top-level keys DeepSpeed knows and a recipe may not have, with the reason or the key of the spec that sets it.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "train_batch_size": _BATCH,
        "train_micro_batch_size_per_gpu": _BATCH,
        "gradient_accumulation_steps": _BATCH,
        "managed_gradient_accumulation": _BATCH,
        "optimizer": "`training.optimizer`, `training.lr`, `training.betas`, `training.epsilon` and "
        "`training.weight_decay` set it",
        "scheduler": "`training.lr`, `training.warmup` and `training.min_lr_ratio` set it",
        "gradient_clipping": "`training.grad_clip` sets it",
        "bf16": _PRECISION,
        "bfloat16": _PRECISION,
        "fp16": _PRECISION,
        "torch_autocast": _PRECISION,
        "tensor_parallel": "`resources.tensor_parallel` and `resources.shard_vocabulary` set it",
        "activation_checkpointing": "it changes nothing for this model; `resources.activation_checkpointing` does it",
        "steps_per_print": "Interplay shows progress itself",
        "log_level": _LOG,
        "wall_clock_breakdown": _LOG,
        "memory_breakdown": _LOG,
        "dump_state": _LOG,
        "comms_logger": _LOG,
        "flops_profiler": _LOG,
        "checkpoint": _CHECKPOINT,
        "datastates_ckpt": _CHECKPOINT,
        "tensorboard": _MLFLOW,
        "wandb": _MLFLOW,
        "csv_monitor": _MLFLOW,
        "comet": _MLFLOW,
        "data_efficiency": _ORDER,
        "dataloader_drop_last": _ORDER,
        "gradient_allreduce_op": _LOSS_BY_RANKS,
        "aio": "it needs a kernel that would be compiled first, and nothing is compiled in a trial",
        "compile": "models are not compiled here, so it would change nothing",
        "autotuning": "it starts jobs of its own; `interplay plan` chooses the layout",
        "disable_allgather": "DeepSpeed reads it and does nothing with it",
        "vocabulary_size": "the data's tokenizer sets it",
        "pipeline": _NOT_THIS_MODEL,
        "hybrid_engine": _NOT_THIS_MODEL,
        "expert_parallel": _NOT_THIS_MODEL,
        "use_data_before_expert_parallelism": _NOT_THIS_MODEL,
        "weight_quantization": _NOT_THIS_MODEL,
        "sequence_parallel_size": _NOT_THIS_MODEL,
        "data_parallel_size": "`resources.data_parallel` sets it",
        "seq_parallel_communication_data_type": _NOT_THIS_MODEL,
    }
)

_GONE = "DeepSpeed has taken it out"
#: Top-level keys of older versions, which DeepSpeed refuses by name.
REMOVED = frozenset(
    {
        "amp",
        "compression_training",
        "curriculum_learning",
        "eigenvalue",
        "elasticity",
        "graph_harvesting",
        "nebula",
        "progressive_layer_drop",
        "quantize_training",
        "sparse_attention",
        "sparse_gradients",
    }
)

_KERNEL = "it needs a kernel that would be compiled first, and nothing is compiled in a trial"
_RESUME = "a cell that is resumed must end with the same bits, and its checkpoints are Interplay's"
#: Keys inside `zero_optimization` that a recipe may not have.
ZERO_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "stage": "`resources.zero` sets it",
        "compute_grad_norm": "the norm of the gradient is clipped and recorded",
        "load_from_fp32_weights": _RESUME,
        "elastic_checkpoint": _RESUME,
        "legacy_stage1": _GONE,
        "zenflow": _KERNEL,
        "zero_quantized_weights": _KERNEL,
        "zero_quantized_nontrainable_weights": _KERNEL,
        "zero_quantized_gradients": _KERNEL,
        "cpu_offload": "its name is now `offload_optimizer`",
        "cpu_offload_param": "its name is now `offload_param`",
        "cpu_offload_use_pin_memory": "its place is now in `offload_optimizer` and `offload_param`",
        "stage3_gather_fp16_weights_on_model_save": "its name is now `gather_16bit_weights_on_model_save`",
    }
)

#: Every key DeepSpeed reads inside `zero_optimization`: someone who writes one at the top level means this place.
ZERO_OPTIONS = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "allgather_sequential",
        "compute_grad_norm",
        "contiguous_gradients",
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "elastic_checkpoint",
        "enable_sanity_checks",
        "gather_16bit_weights_on_model_save",
        "ignore_unused_parameters",
        "leaf_module",
        "legacy_stage1",
        "load_from_fp32_weights",
        "log_trace_cache_warnings",
        "max_live_parameters",
        "max_reuse_distance",
        "memory_efficient_linear",
        "model_persistence_threshold",
        "module_granularity_threshold",
        "offload_optimizer",
        "offload_param",
        "overlap_comm",
        "override_module_apply",
        "param_persistence_threshold",
        "parameter_alignment",
        "pipeline_loading_checkpoint",
        "prefetch_bucket_size",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "save_muon_momentum_buffer_in_memory",
        "stage",
        "stage3_allgather_sequential",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_model_persistence_threshold",
        "stage3_module_granularity_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "stage3_use_all_reduce_for_fetch_params",
        "sub_group_size",
        "use_all_reduce_for_fetch_params",
        "use_multi_rank_bucket_allreduce",
        "zenflow",
        "zero_hpz_partition_size",
        "zero_quantized_gradients",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_weights",
    }
)


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse options that are unknown to DeepSpeed, or that Interplay sets itself; loads no library.

    Raises:
        ValueError: says which key, why, and what to write instead.
    """
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"DeepSpeed's options must be plain JSON ({error})") from None
    for key, value in options.items():
        if key in REFUSED:
            raise ValueError(f"`{key}` cannot be given as an option of DeepSpeed: {REFUSED[key]}")
        if key in REMOVED:
            raise ValueError(f"`{key}` cannot be given as an option of DeepSpeed: {_GONE}")
        if key not in PASSED:
            raise ValueError(f"`{key}` is no option of DeepSpeed, which would ignore it{_hint(key)}")
        _check_value(key, value, PASSED[key])
    zero = options.get("zero_optimization", {})
    for key in zero:
        if key in ZERO_REFUSED:
            raise ValueError(f"`zero_optimization.{key}` cannot be given: {ZERO_REFUSED[key]}")
    offload = [
        zero[key] for key in ("offload_optimizer", "offload_param") if isinstance(zero.get(key), Mapping)
    ]
    if any(one.get("device") == "nvme" for one in offload):
        raise ValueError(f"`zero_optimization` cannot offload to nvme: {_KERNEL}; take `device: cpu`")
    if zero.get("offload_optimizer") and options.get("zero_force_ds_cpu_optimizer") is not False:
        raise ValueError(
            "`zero_optimization.offload_optimizer` would use DeepSpeed's own optimizer, which would be compiled first; "
            "write `zero_force_ds_cpu_optimizer: false` beside it to keep torch's"
        )


def check_options(options: Mapping[str, Any], zero: int) -> None:
    """Refuse options whose nested keys or values DeepSpeed does not take at a ZeRO stage; imports DeepSpeed.

    Raises:
        InputError: says which key is wrong and which there are.
    """
    from pydantic import ValidationError

    try:
        check_names(options)
    except ValueError as error:
        raise InputError(f"`training.deepspeed`: {error}.") from None
    deepspeed = _quietly_imported()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        **options,
        "zero_optimization": {**options.get("zero_optimization", {}), "stage": zero},
    }
    try:
        deepspeed.DeepSpeedConfig(config)
    except ValidationError as error:
        section, model = _model(error.title)
        wrong = "; ".join(
            _sentence(section, model, dict(details)).rstrip(".")
            for details in error.errors(include_url=False)
        )
        raise InputError(f"DeepSpeed refuses `training.deepspeed` at ZeRO stage {zero}: {wrong}.") from error
    except (ValueError, AssertionError, deepspeed.DeepSpeedConfigError) as error:
        text = str(error).rstrip(".") or type(error).__name__
        raise InputError(f"DeepSpeed refuses `training.deepspeed` at ZeRO stage {zero}: {text}.") from error


def _quietly_imported() -> Any:
    """DeepSpeed, without its word on stdout that there is no accelerator; a later import may find one."""
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
            raise ValueError(f"`{path}` is {value!r}; it should be a section with keys of its own")
        names = wanted or {}
        for key, inner in value.items() if names else ():
            if key not in names:
                raise ValueError(f"`{path}.{key}` is no option of DeepSpeed; it has {', '.join(names)}")
            _check_value(f"{path}.{key}", inner, names[key])
    elif isinstance(wanted, tuple):
        if value not in wanted:
            raise ValueError(f"`{path}` is {value!r}; allowed: {', '.join(wanted)}")
    elif wanted is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"`{path}` is {value!r}; it should be a number above 0")
    elif type(value) is not wanted:
        raise ValueError(f"`{path}` is {value!r}; it should be true or false")


def _hint(key: str) -> str:
    """What was meant by an unknown top-level key."""
    close = _near(key, [*PASSED, *REFUSED])
    if not close:
        close = [f"zero_optimization.{name}" for name in _near(key, ZERO_OPTIONS)]
    if close:
        return " (did you mean " + " or ".join(f"`{name}`" for name in close) + "?)"
    return f". The options are {', '.join(PASSED)}"


def _near(word: str, words: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(word.lower(), list(words), n=3, cutoff=0.75)


def _model(title: str) -> tuple[str, Any]:
    """Where in the options a pydantic model of DeepSpeed is read from, and the model."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

    places = {
        "zero_optimization": DeepSpeedZeroConfig,
        "timers.throughput": DeepSpeedThroughputTimerConfig,
    }
    return next(((place, model) for place, model in places.items() if model.__name__ == title), (title, None))


def _sentence(section: str, model: Any, details: Mapping[str, Any]) -> str:
    """What pydantic found at one place, with the nearest names where a key is unknown."""
    from pydantic import BaseModel

    *parents, key = [str(part) for part in details["loc"]] or [""]
    path = ".".join(filter(None, [section, *parents, key]))
    if details["type"] != "extra_forbidden":
        # A check of a whole section shows the section, not what somebody wrote.
        value = "" if isinstance(details["input"], BaseModel) else f" is {details['input']!r}"
        return f"`{path}`{value}: {details['msg']}"
    for parent in parents:
        annotation = model.model_fields[parent].annotation if model is not None else None
        inner = getattr(annotation, "__args__", (annotation,))
        model = next((one for one in inner if isinstance(one, type) and issubclass(one, BaseModel)), None)
    names = sorted(field_names(model)) if model is not None else []
    close = _near(key, names)
    if close:
        return f"`{path}` is no option (did you mean " + " or ".join(f"`{name}`" for name in close) + "?)"
    return f"`{path}` is no option; there are {', '.join(names)}"


def field_names(model: Any) -> set[str]:
    """Names that a pydantic model reads: of its fields, and their aliases."""
    fields = model.model_fields.items()
    return {name for name, _ in fields} | {field.alias for _, field in fields if field.alias}
