"""Packing text: read and split it, train the tokenizer, encode, and write the ids."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainables.data.kind import TextData
from trainables.data.packing.progress import EncodingShare, Progress
from trainables.data.packing.read_text import Part, read_text
from trainables.data.packing.text_buffer import Text
from trainables.data.packing.token_file import TokenFile, token_type
from trainables.data.packing.tokenizer import Encoder, bytes_encoder, train_bpe
from trainables.data.sources.interleave import interleave


def pack_text(data: TextData, context: int, base: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Write the token files and the tokenizer into `folder`, and return the fields of the manifest about them."""
    work = folder / "work"
    work.mkdir()
    parts = read_text(data.sources(context, base), data, work, progress)
    if data.tokenizer == "bpe":
        progress.begin("learning the vocabulary")
    encoder = _encoder(data, parts)
    hashes, counts, taken = {}, {}, {}
    for split, limit in (("train", data.max_tokens), ("validation", data.validation_tokens)):
        progress.begin(f"encoding the {split} text")
        texts = _texts(parts, held_out=split == "validation")
        weights = [part.weight for part in parts]
        share = EncodingShare(texts, limit)
        taken[split] = [0] * len(parts)
        streams = [encoder.encode(text) for text in texts]
        with TokenFile(folder / f"{split}.bin", token_type(encoder.vocabulary), limit) as file:
            for index, ids in interleave(streams, weights, len):
                taken[split][index] += file.add(ids)
                progress.share(share.after(index, file.tokens))
                if file.full:
                    break
            hashes[split], counts[split] = file.close(), file.tokens
    if encoder.bpe:
        tokenizer = encoder.bpe.to_str(pretty=True)
        (folder / "tokenizer.json").write_text(tokenizer)
        hashes["tokenizer"] = hashlib.sha256(tokenizer.encode()).hexdigest()
    shutil.rmtree(work)
    validation = np.fromfile(folder / "validation.bin", token_type(encoder.vocabulary))
    text_bytes = int(np.bincount(validation, minlength=encoder.vocabulary) @ encoder.lengths)
    return {
        "tokens": counts,
        "sha256": hashes,
        "row": None,
        "bytes_per_token": text_bytes / len(validation),
        "end_of_text": encoder.end_of_text,
        "sources": [_source_record(part, index, counts, taken) for index, part in enumerate(parts)],
        "notes": [note for part in parts for note in part.source.notes],
    }


def _source_record(
    part: Part, index: int, counts: dict[str, int], taken: dict[str, list[int]]
) -> dict[str, Any]:
    return {
        **part.source.record,
        "weight": part.weight,
        "bytes": dict(zip(counts, part.buffer.bytes, strict=True)),
        "tokens": {split: taken[split][index] for split in counts},
        "share": {split: taken[split][index] / max(1, counts[split]) for split in counts},
    }


def _texts(parts: Sequence[Part], *, held_out: bool) -> list[Text]:
    # In a mixture, documents longer than a piece are cut into several, because the shares would be too coarse.
    return [part.buffer.text(held_out=held_out, cut_documents=len(parts) > 1) for part in parts]


def _encoder(data: TextData, parts: Sequence[Part]) -> Encoder:
    if data.tokenizer == "bytes":
        return bytes_encoder()
    texts = [iter(text) for text in _texts(parts, held_out=False)]
    mixed = interleave(texts, [part.weight for part in parts], lambda piece: len(piece.content))
    return train_bpe((piece.content.decode() for _, piece in mixed), data.vocabulary_size)
