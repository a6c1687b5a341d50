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
from transformers import GenerationConfig

from trainables.cell import Cell
from trainables.data.store.token_store import TokenStore
from trainables.export.tokenizer import huggingface_tokenizer
from trainables.layout import Layout
from trainables.model.family import family
from trainables.progress import Result
from trainables.record import RECORD, Keep, Record, sum_files, versions
from trainables.storage.disk import FULL, fsync_files
from trainables.storage.storage import Folder, open_storage, patiently, reason

WEIGHTS = "model.safetensors"


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
        state: the whole state of the model `trainables.model.family.build_model` makes, by name, in the precision to keep.
        record: what the weights are; its `files` are set here.
        store: the cell's data, for its tokenizer.

    Raises:
        RuntimeError: the state is not that of the cell's whole model (a shard, for example).
        OSError: the folder cannot be written; safetensors raises a SafetensorError of its own.
    """
    cell = record.cell
    config, tensors = exported(cell, state, store)
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
        generation_config(config, cell.recipe.context).save_pretrained(part)
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


def exported(
    cell: Cell, state: Mapping[str, torch.Tensor], store: TokenStore
) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the config of training with what generation needs, and the weights in HuggingFace's layout."""
    model_family = family(cell.recipe.network)
    config, tensors = model_family.exported(state, cell.shape, cell.recipe, store.vocabulary)
    config.bos_token_id, config.eos_token_id = cell.data.boundaries
    config.use_cache = True
    config.dtype = torch.bfloat16 if cell.recipe.precision == "bf16" else torch.float32
    return config, tensors


def generation_config(config: Any, context: int) -> GenerationConfig:
    """Return how `generate` works by default: as far as the learned positions reach."""
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.eos_token_id,
        max_length=context,
        use_cache=True,
    )


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
