"""Packing text: read and split it, train the tokenizer, encode, and write the ids."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from trainables.data.kind import TextData
from trainables.data.packing.progress import Progress
from trainables.data.packing.read_text import read_text
from trainables.data.packing.token_file import TokenFile, token_type
from trainables.data.packing.tokenizer import bytes_encoder, train_bpe
from trainables.data.sources.interleave import interleave


def pack_text(data: TextData, base: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Write the token files and the tokenizer into `folder`, and return the fields of the manifest about them."""
    work = folder / "work"
    work.mkdir()
    parts = read_text(data.sources(base), data, work, progress)
    weights = [part.weight for part in parts]
    if data.tokenizer == "bpe":
        progress.begin("learning the vocabulary")
        mixed = interleave([iter(part.texts[0]) for part in parts], weights, lambda piece: len(piece.content))
        encoder = train_bpe((piece.content.decode() for _, piece in mixed), data.vocabulary_size)
    else:
        encoder = bytes_encoder()
    dtype = token_type(data.vocabulary_size)
    hashes, counts = {}, {}
    records = [part.source.record | {"weight": part.weight, "tokens": {}} for part in parts]
    for side, (split, limit) in enumerate(
        (("train", data.max_tokens), ("validation", data.validation_tokens))
    ):
        progress.begin(f"encoding the {split} text")
        texts = [part.texts[side] for part in parts]
        taken = [0] * len(parts)
        with TokenFile(folder / f"{split}.bin", dtype, limit) as file:
            for index, ids in interleave([encoder.encode(text) for text in texts], weights, len):
                taken[index] += file.add(ids)
                # Encoding ends with the first exhausted text, or at the limit.
                progress.share(max(file.tokens / (limit or np.inf), *(t.read / t.bytes for t in texts)))
                if file.full:
                    break
            hashes[split], counts[split] = file.close(), file.tokens
        for record, tokens in zip(records, taken, strict=True):
            record["tokens"][split] = tokens
    if encoder.bpe:
        tokenizer = encoder.bpe.to_str(pretty=True)
        (folder / "tokenizer.json").write_text(tokenizer)
        hashes["tokenizer"] = hashlib.sha256(tokenizer.encode()).hexdigest()
    shutil.rmtree(work)
    validation = np.fromfile(folder / "validation.bin", dtype)
    text_bytes = int(np.bincount(validation, minlength=data.vocabulary_size) @ encoder.lengths)
    return {
        "tokens": counts,
        "sha256": hashes,
        "row": None,
        "bytes_per_token": text_bytes / len(validation),
        "end_of_text": encoder.end_of_text,
        "sources": records,
    }
