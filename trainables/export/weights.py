"""Write a trained cell of any layout as a HuggingFace folder that `AutoModelForCausalLM.from_pretrained` loads."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import GenerationConfig

from core.files import fsync_files
from trainables.cell import Cell
from trainables.data.kind import BYTES_END
from trainables.data.packing.tokenizer import END_OF_TEXT
from trainables.data.store.token_store import TokenStore
from trainables.errors import DataError
from trainables.layout import Layout
from trainables.model.family import family
from trainables.progress import Result
from trainables.record import RECORD, Keep, Record, Tokenization, sum_files, versions
from trainables.storage.storage import FULL, open_storage, reason, with_retries


def keep(
    weights: Keep,
    state: Mapping[str, torch.Tensor],
    cell: Cell,
    layout: Layout,
    store: TokenStore,
    result: Result,
) -> str | None:
    """Write the final weights of a done cell; return None, or a note for the row if the disk or store refused them."""
    record = Record(
        **result.model_dump(include=set(Record.model_fields)),
        key=cell.key,
        cell=cell,
        tokenizer=tokenizer_of(store),
        layout=layout,
        revision=weights.revision,
        versions=versions(),
        files={},
    )
    try:
        storage = with_retries(lambda: open_storage(weights.folder))
    except ConnectionError as error:
        return f"the final weights were not kept ({error})"
    try:
        write(storage.local, state, record, store)
    except (OSError, SafetensorError) as error:
        # Safetensors gives the error number only in its text.
        is_full = getattr(error, "errno", None) in FULL or any(f"(os error {n})" in str(error) for n in FULL)
        if not is_full:
            raise
        return f"the final weights were not kept: the disk of {storage.local} is full"
    if not storage.is_remote:
        return None
    try:
        # The record last: weights without a record are invalid.
        storage.publish("", [path.name for path in storage.local.iterdir() if path.name != RECORD])
        storage.publish("", [RECORD])
    except OSError as error:
        return f"the final weights were not kept: {storage.name} refused a file ({reason(error)})"
    finally:
        storage.release("")
    return None


def write(folder: Path, state: Mapping[str, torch.Tensor], record: Record, store: TokenStore) -> None:
    """Write weights, config, tokenizer and record atomically as one HuggingFace folder, replacing an older one.

    `state` has all weights of the model by name, in the precision to keep; the record's `files` are set here.

    Raises:
        RuntimeError: the state is not that of the whole model (for example a shard).
        OSError, SafetensorError: the folder cannot be written.
    """
    cell, recipe = record.cell, record.cell.recipe
    config, tensors = family(recipe.network).exported(state, cell.shape, recipe, store.vocabulary)
    begin, end = config.bos_token_id, config.eos_token_id = store.boundaries
    config.use_cache = True
    config.dtype = torch.float32
    # No `max_length`: `generate(max_new_tokens=…)` would warn of both.
    generation = GenerationConfig(bos_token_id=begin, eos_token_id=end, pad_token_id=end, use_cache=True)
    # Links are followed.
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}.*.part"):
        # Left by a process that was killed while it wrote the same cell.
        shutil.rmtree(left, ignore_errors=True)
    part = folder.parent / f".{folder.name}.{os.getpid()}.part"
    try:
        part.mkdir()
        save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(part)
        generation.save_pretrained(part)
        tokenizer = huggingface_tokenizer(store, recipe.context)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
            # Transformers 4 lacks the class that version 5 writes; both have this one.
            path = part / "tokenizer_config.json"
            options = {**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
            path.write_text(json.dumps(options, indent=2) + "\n")
        record = record.model_copy(update={"files": sum_files(part)})
        (part / RECORD).write_text(record.model_dump_json(indent=2) + "\n")
        fsync_files(part)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def tokenizer_of(store: TokenStore) -> Tokenization | None:
    """Return which tokenizer the ids of a store are of; None if they are symbols."""
    named = store.manifest["spec"].get("tokenizer")
    return named if named in (None, "bytes", "bpe") else "file"


def huggingface_tokenizer(store: TokenStore, context: int) -> Any:
    """Return the tokenizer of a store as HuggingFace's fast tokenizer; None if tokens are symbols.

    It gives the ids of training, also for text that spells the end-of-text token, and adds no token. A damaged
    `tokenizer.json` is a DataError.
    """
    kind, end = tokenizer_of(store), store.boundaries[1]
    if kind is None:
        return None
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    if kind == "bytes":
        # Byte-level BPE without merges: the id of a byte is its value, end of text follows.
        vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
        tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, END_OF_TEXT: BYTES_END}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([END_OF_TEXT])
    else:
        path = store.path / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:
            raise DataError(
                f"the tokenizer {path} cannot be read ({error}); remove the folder {store.path}, and it is packed again"
            ) from error
    end_of_text = None if end is None else tokenizer.id_to_token(end)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=end_of_text,
        eos_token=end_of_text,
        pad_token=end_of_text,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )
