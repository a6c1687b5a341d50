"""A trained cell as a plain HuggingFace folder: what `AutoModelForCausalLM.from_pretrained` loads, from any layout."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
from transformers.initialization import no_init_weights
from transformers.pytorch_utils import Conv1D

from trainables.cell import Cell
from trainables.data.store.token_store import TokenStore
from trainables.export.tokenizer import huggingface_tokenizer
from trainables.layout import Layout
from trainables.model.gpt2 import model_config
from trainables.model.parametrisation import fold_attention
from trainables.progress import Result
from trainables.record import RECORD, Keep, Record, sum_files, versions
from trainables.storage.disk import FULL, fsync_files
from trainables.storage.storage import Folder, open_storage, patiently, reason

WEIGHTS = "model.safetensors"
#: The embedding under its second name; the config says that they are one.
_TIED = "lm_head.weight"


def whole_state(engine: Any, layout: Layout) -> dict[str, torch.Tensor] | None:
    """Return all weights of a model that is spread over ranks; every rank calls this, rank 0 gets them, others None.

    Under tensor parallelism and ZeRO stage 3 DeepSpeed gathers them, one layer at a time, in their own precision
    (`16bit` in the name is history). It refuses elsewhere, where rank 0 has all of them. Its public
    `save_16bit_model` is of no use: under tensor parallelism it writes the shard of rank 0 and reports success.
    """
    state: dict[str, torch.Tensor] | None
    if layout.tensor_parallel > 1 or layout.zero == 3:
        state = engine._consolidated_16bit_state_dict()
    else:
        state = engine.module.state_dict() if dist.get_rank() == 0 else None
    return state


def keep(
    weights: Keep,
    state: Mapping[str, torch.Tensor],
    cell: Cell,
    layout: Layout,
    store: TokenStore,
    result: Result,
) -> str | None:
    """Write the final weights of a done cell; return a note for the row if they could not be kept, else None.

    A full disk, or an object store that is away, costs the weights and not the row: what was half written is removed.
    """
    assert result.loss is not None
    record = Record(
        key=cell.key,
        cell=cell,
        loss=result.loss,
        step=result.step,
        tokens=result.tokens,
        vocabulary=result.vocabulary,
        params=result.params,
        total_params=result.total_params,
        entropy=result.entropy,
        bytes_per_token=result.bytes_per_token,
        tokenizer=store.manifest["spec"].get("tokenizer"),
        layout=layout,
        revision=weights.revision,
        versions=versions(),
        files={},
    )
    try:
        storage = patiently(lambda: open_storage(weights.folder))
    except ConnectionError as error:
        return f"the final weights were not kept ({error})"
    try:
        write(storage.local, state, record, store)
    except (OSError, SafetensorError) as error:
        if not _disk_full(error):
            raise
        return f"the final weights were not kept: the disk of {storage.local} is full"
    if not storage.is_remote:
        return None
    try:
        _publish(storage)
    except OSError as error:
        return f"the final weights were not kept: {storage.name} took no file ({reason(error)})"
    finally:
        storage.release("")
    return None


def _publish(storage: Folder) -> None:
    """Upload what was written, the record last: weights without one do not count."""
    names = [path.name for path in storage.local.iterdir() if path.name != RECORD]
    storage.publish("", names)
    storage.publish("", [RECORD])


def write(folder: Path, state: Mapping[str, torch.Tensor], record: Record, store: TokenStore) -> None:
    """Write weights, config, tokenizer and record as one HuggingFace folder: whole, or not at all.

    Args:
        folder: replaced where it is there; of a link, what it names.
        state: the whole state of the model `trainables.model.gpt2.build_model` makes, by name, in the precision to keep.
        record: what the weights are; its `files` are set here.
        store: the cell's data, for its tokenizer.

    Raises:
        RuntimeError: the state is not that of the cell's whole model (a shard, for example).
        OSError: the folder cannot be written; safetensors raises a SafetensorError of its own.
    """
    cell = record.cell
    config = export_config(cell, store)
    tensors = as_conv1d(fold_attention(state, cell.shape, cell.recipe), config)
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}.*.part"):
        # Of a process that was killed while it wrote the same cell.
        shutil.rmtree(left, ignore_errors=True)
    part = folder.parent / f".{folder.name}.{os.getpid()}.part"
    try:
        part.mkdir()
        save_file(tensors, part / WEIGHTS, metadata={"format": "pt"})
        config.save_pretrained(part)
        generation_config(config).save_pretrained(part)
        tokenizer = huggingface_tokenizer(store, cell.recipe.context)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
            _name_the_common_class(part / "tokenizer_config.json")
        record = record.model_copy(update={"files": sum_files(part)})
        (part / RECORD).write_text(record.model_dump_json(indent=2) + "\n")
        fsync_files(part)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def export_config(cell: Cell, store: TokenStore) -> GPT2Config:
    """Return the config of an exported model: the one it was trained with, and what generation needs."""
    config = model_config(cell.shape, cell.recipe, store.vocabulary)
    start, end = cell.data.boundaries
    config.bos_token_id, config.eos_token_id = start, end
    config.use_cache = True
    config.architectures = ["GPT2LMHeadModel"]
    config.dtype = torch.bfloat16 if cell.recipe.precision == "bf16" else torch.float32
    return config


def generation_config(config: GPT2Config) -> GenerationConfig:
    """Return how `generate` works by default: as far as the learned positions reach."""
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.eos_token_id,
        max_length=config.n_positions,
        use_cache=True,
    )


def as_conv1d(state: Mapping[str, torch.Tensor], config: GPT2Config) -> dict[str, torch.Tensor]:
    """Turn the weights of our model into those of HuggingFace's `GPT2LMHeadModel`, on the CPU.

    Linear weights [out, in] become Conv1D's [in, out]; the tied head is left out, as HuggingFace does.

    Raises:
        RuntimeError: a weight is missing, unknown, or has another shape.
    """
    with torch.device("meta"), no_init_weights():
        model = GPT2LMHeadModel(config)
    transposed = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
    wanted = {name: value.shape for name, value in model.state_dict().items() if name != _TIED}
    tensors = {
        name: (value.detach().cpu().t() if name in transposed else value.detach().cpu()).contiguous()
        for name, value in state.items()
        if name != _TIED
    }
    wrong = [
        f"{name} is {list(tensors[name].shape) if name in tensors else 'missing'}, not {list(shape)}"
        for name, shape in wanted.items()
        if name not in tensors or tensors[name].shape != shape
    ] + [f"{name} is unknown" for name in tensors.keys() - wanted.keys()]
    if wrong:
        raise RuntimeError(
            f"the weights are not those of the whole model ({len(wrong)} differ): {'; '.join(wrong[:3])}"
        )
    return tensors


def _name_the_common_class(path: Path) -> None:
    """Transformers 5 writes the name of a class that version 4 does not have; both read the older name."""
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n")


def _disk_full(error: Exception) -> bool:
    """Whether a write failed for want of space; safetensors gives the system's number in its text only."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    return any(f"(os error {number})" in str(error) for number in FULL)
