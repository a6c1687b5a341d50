"""Packing: from data to two files of token ids and a manifest, in a folder that becomes the store.

Text is read and split, the tokenizer is trained, and its ids are written; rows are ids already.
"""

import contextlib
import hashlib
import itertools
import json
import marshal
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from trainables.data.kind import DataKind, TextData, data_key
from trainables.data.packing import OnProgress
from trainables.data.packing.tokenizer import LONGEST, Encoder, Ids, bytes_encoder, file_encoder, train_bpe
from trainables.data.packing.train_validation_split import Piece, choose_units, read_text, split
from trainables.data.sources.tokenizer_file import load_tokenizer
from trainables.errors import DataError

T = TypeVar("T")

#: Most bytes of training text, from its beginning, that a BPE vocabulary is learnt from.
BPE_TEXT = 1 << 28
#: Bytes of training text per packed token that a BPE vocabulary is learnt from: more than a common token holds.
BPE_BYTES_PER_TOKEN = 8
#: Bytes of training text with which it is checked that the user's own tokenizer loses no text.
CHECKED = 1 << 20
#: Seconds between two reports of progress.
REPORT_SECONDS = 0.5


class PackingProgress:
    """Calls an `OnProgress` at the beginning of each stage and then every `REPORT_SECONDS`."""

    def __init__(self, report: OnProgress | None) -> None:
        self._report, self._stage, self._next = report or (lambda *_: None), "", 0.0

    def begin(self, stage: str) -> None:
        """Begin a stage."""
        self._stage = stage
        self._report(stage, None)
        self._next = time.monotonic() + REPORT_SECONDS

    def share(self, share: float) -> None:
        """Report the share of the stage that is done; 0 if it is unknown."""
        if time.monotonic() >= self._next:
            self._report(self._stage, min(1.0, share) or None)
            self._next = time.monotonic() + REPORT_SECONDS


def pack(data: DataKind, context: int, key: str, folder: Path, on_progress: OnProgress | None = None) -> None:
    """Write `train.bin`, `validation.bin`, `manifest.json` and, where a tokenizer is not bytes, `tokenizer.json`.

    The folder must be empty.

    Text is read and split (270 MB/s of lines, 70 MB/s of JSONL) while it is encoded. A BPE vocabulary is learnt from at
    most 256 MiB before (8 MB/s), and BPE encodes 4 MB/s per core on all cores.

    Raises:
        DataError: the data cannot be used.
        OSError: the folder cannot be written, for example because the disk is full.
    """
    packed = data.packed(
        context, Writer(folder, token_type(data.stored_values), PackingProgress(on_progress))
    )
    manifest = {
        "version": data.version,
        "key": key,
        "outline": data_key(data, context, None),
        "spec": data.model_dump(mode="json"),
        "context": context,
        "vocabulary": data.vocabulary_size,
        "dtype": token_type(data.stored_values).name,
        "entropy": data.entropy,
        **packed,
    }
    # Written last: a folder with a manifest is complete, and a file that is newer than it was changed.
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def estimate_bytes(data: DataKind, context: int) -> int | None:
    """Return the disk space that packing needs at its peak; None if it is unknown beforehand."""
    item = token_type(data.stored_values).itemsize
    most = data.most_packed(context, Path())
    if most is None:
        return None
    # The text that a BPE vocabulary is learnt from is kept until it is packed.
    return most * item + (min(most, BPE_TEXT) if data.learns_vocabulary else 0)


class Writer:
    """Writes the two splits of a data set into a folder; the `Packer` of `DataKind.packed`."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], progress: PackingProgress) -> None:
        self._folder, self._dtype, self._progress = folder, dtype, progress

    def text(self, data: TextData) -> dict[str, Any]:
        """Split, tokenize and write text; return the fields of the manifest about it."""
        return _pack_text(data, self._folder, self._progress)

    def ids(
        self, splits: Mapping[str, Iterable[Ids]], limits: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Write pieces of ids as they are, each split up to its limit; return tokens and hashes for the manifest."""
        counts, hashes = {}, {}
        for name, pieces in splits.items():
            self._progress.begin(f"copying the {name} ids")
            limit = (limits or {}).get(name)
            with contextlib.closing(TokenFile(self._folder / f"{name}.bin", self._dtype, limit)) as file:
                for piece in pieces:
                    file.add(piece)
                    self._progress.share(file.tokens / (limit or np.inf))
                    if file.full:
                        break
                hashes[name], counts[name] = file.close(), file.tokens
        return {"tokens": counts, "sha256": hashes}

    def tokenizer(self, file: Path) -> str:
        """Keep the user's own tokenizer in the store, for the export; return the SHA-256 of the copy."""
        return _write_tokenizer(load_tokenizer(file), self._folder)


def _pack_text(data: TextData, folder: Path, progress: PackingProgress) -> dict[str, Any]:
    """Write the token files and the tokenizer into `folder`, and return the fields of the manifest about them.

    Each split is read from the sources by itself. So text is encoded while it is read, no validation text waits in
    memory, and the second reading is short: it ends with the limit of the validation tokens.

    Raises:
        DataError: a source has no text, or too little for two splits or its share; or the vocabulary is too large.
    """
    weighted = data.sources(Path())
    weights, sources = zip(*weighted, strict=True)
    fraction, mixed = data.validation_fraction, len(sources) > 1
    progress.begin("reading the text")
    units = [choose_units(source, fraction) for source in sources]
    # The smallest part ends a mixture, so all are cut as finely as it is.
    size = min(unit.size for unit in units)
    units = [unit._replace(size=size) for unit in units]
    train, validation = (
        [
            read_text(split(source.stretches(), fraction, unit), size, held_out=held_out, mixed=mixed)
            for source, unit in zip(sources, units, strict=True)
        ]
        for held_out in (False, True)
    )
    encoder = bytes_encoder()
    tokenizer = data.tokenizer_file(Path())
    if tokenizer:
        encoder = file_encoder(tokenizer)
    dtype = token_type(data.vocabulary_size)
    checked, text_bytes, is_lossy = 0, 0, False
    hashes, counts = {}, {}
    records = [source.record | {"weight": weight, "tokens": {}} for weight, source in weighted]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        if data.tokenizer == "bpe":
            progress.begin("learning the vocabulary")
            encoder, train = _learn(data, train, weights, Path(work))
        for name, texts, limit, share in (
            ("train", train, data.max_tokens, 1 - fraction),
            ("validation", validation, data.validation_tokens, fraction),
        ):
            progress.begin(f"encoding the {name} text")
            # Encoding ends with the first exhausted text, or at the limit.
            lengths = [share * source.bytes if source.bytes else np.inf for source in sources]
            read, taken = [0] * len(sources), [0] * len(sources)
            streams = [encoder.encode(_counted(text, index, read)) for index, text in enumerate(texts)]
            with contextlib.closing(TokenFile(folder / f"{name}.bin", dtype, limit)) as file:
                for index, encoded in interleave(streams, weights, lambda encoded: len(encoded.ids)):
                    if encoder.is_own and checked < CHECKED:
                        checked += len(encoded.piece.content)
                        is_lossy = is_lossy or encoder.loses(encoded)
                    added = file.add(encoded.ids)
                    taken[index] += added
                    if name == "validation":
                        text_bytes += encoded.text_bytes(added)
                    progress.share(max(file.tokens / (limit or np.inf), read[index] / lengths[index]))
                    if file.full:
                        break
                hashes[name], counts[name] = file.close(), file.tokens
            for record, source, weight, tokens in zip(records, sources, weights, taken, strict=True):
                record["tokens"][name] = tokens
                if not file.full and tokens < weight / 2 * file.tokens:
                    raise DataError(
                        f"{source.name} has only {tokens} of the {file.tokens} tokens of the {name} split, where the "
                        f"mixture gives it a share of {weight:.2g}, because its text ended; give more of it, or take "
                        "it out of the mixture"
                    )
    if encoder.tokenizer:
        hashes["tokenizer"] = _write_tokenizer(encoder.tokenizer, folder)
    return {
        "tokens": counts,
        "sha256": hashes,
        "row": None,
        "bytes_per_token": None if is_lossy else text_bytes / counts["validation"],
        "end_of_text": encoder.end_of_text,
        "sources": records,
        "notes": [
            *data.notes(Path()),
            *(note for source in sources for note in source.counts.notes(source.name)),
            *_tokenizer_notes(encoder, is_lossy=is_lossy),
        ],
    }


def _tokenizer_notes(encoder: Encoder, *, is_lossy: bool) -> list[str]:
    """Return what the user's own tokenizer does to the text, in sentences."""
    notes = []
    if is_lossy:
        notes.append(
            "data.tokenizer: the text does not come back from its ids, so that there are no bits per byte; compare "
            "losses of this tokenizer only"
        )
    if ends := encoder.counts["ends"]:
        notes.append(
            f"data.end_of_text: the tokenizer gives its id also to text that spells it, {ends:,} times, and documents "
            "end there too; remove it from the text if that is not meant"
        )
    if cuts := encoder.counts["cuts"]:
        notes.append(
            f"data.tokenizer: documents of more than {LONGEST:,} bytes were cut at {cuts:,} line breaks, each of which "
            "the tokenizer treats as the beginning of a text"
        )
    return notes


def _write_tokenizer(tokenizer: Any, folder: Path) -> str:
    """Write `tokenizer.json` and return its SHA-256."""
    text = tokenizer.to_str(pretty=True)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def _learn(
    data: TextData, texts: Sequence[Iterator[Piece]], weights: Sequence[float], work: Path
) -> tuple[Encoder, list[Iterator[Piece]]]:
    """Return the encoder that the beginning of the texts gives, and the texts from the beginning again.

    What is learnt from is kept in `work`, at most `BPE_TEXT` bytes; the rest is read once, while it is encoded.
    """
    most = float(BPE_TEXT)
    if data.max_tokens is not None:
        tokens = max(data.max_tokens, data.validation_tokens / data.validation_fraction)
        most = min(most, tokens * BPE_BYTES_PER_TOKEN)
    paths = [work / str(index) for index in range(len(texts))]
    for path in paths:
        # Learning may end before it comes to the last source.
        path.touch()
    kept_now = [_keep(text, path) for text, path in zip(texts, paths, strict=True)]

    def beginning() -> Iterator[str]:
        size = 0
        for _, piece in interleave(kept_now, weights, lambda piece: len(piece.content)):
            if size >= most:
                return
            size += len(piece.content)
            yield piece.content.decode()

    encoder = train_bpe(beginning(), data.vocabulary_size)
    for pieces in kept_now:
        pieces.close()
    return encoder, [itertools.chain(_kept(path), text) for path, text in zip(paths, texts, strict=True)]


def _counted(text: Iterator[Piece], index: int, read: list[int]) -> Iterator[Piece]:
    """Yield pieces and add their bytes to `read[index]`."""
    for piece in text:
        read[index] += len(piece.content)
        yield piece


def _keep(pieces: Iterator[Piece], path: Path) -> Generator[Piece, None, None]:
    """Yield pieces and write each to a new file, which is complete when this iterator is closed."""
    with path.open("wb") as file:
        for piece in pieces:
            marshal.dump(tuple(piece), file)
            yield piece


def _kept(path: Path) -> Iterator[Piece]:
    """Yield the pieces that `_keep` wrote."""
    with path.open("rb") as file, contextlib.suppress(EOFError):
        while True:
            yield Piece(*marshal.load(file))


def interleave(
    streams: Sequence[Iterator[T]], weights: Sequence[float], size: Callable[[T], int]
) -> Iterator[tuple[int, T]]:
    """Merge streams to (index of the stream, item), so that the summed sizes stay in proportion to the weights.

    The next item always comes from the stream whose share lags furthest behind its weight. Ends with the first
    stream that is exhausted, so the proportion holds up to the end.
    """
    total = sum(weights)
    taken = [0] * len(streams)
    while True:
        done = sum(taken)
        deficits = [weight / total * done - share for weight, share in zip(weights, taken, strict=True)]
        part = deficits.index(max(deficits))
        item = next(streams[part], None)
        if item is None:
            return
        taken[part] += size(item)
        yield part, item


def token_type(values: int) -> np.dtype[Any]:
    """Return the smallest unsigned integer type that holds `values` different ids."""
    return np.dtype(np.uint8 if values <= 1 << 8 else np.uint16 if values <= 1 << 16 else np.uint32)


class TokenFile:
    """A growing file of token ids, up to a limit."""

    def __init__(self, path: Path, dtype: np.dtype[Any], limit: int | None = None) -> None:
        # Written, not mapped: a full disk raises an error here, and kills a process that maps.
        self._file = path.open("wb", buffering=1 << 20)
        self._dtype, self._limit = dtype.newbyteorder("<"), limit
        self._hash = hashlib.sha256()
        self.tokens = 0

    def add(self, ids: Ids) -> int:
        """Append ids as far as the limit allows, and return how many were taken."""
        if self._limit is not None:
            ids = ids[: self._limit - self.tokens]
        raw = ids.astype(self._dtype).tobytes()
        self._file.write(raw)
        self._hash.update(raw)
        self.tokens += len(ids)
        return len(ids)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.tokens >= self._limit

    def close(self) -> str:
        """Write everything and return the SHA-256 of the file."""
        self._file.close()
        return self._hash.hexdigest()
