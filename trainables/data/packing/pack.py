"""Packing: from a source to two files of token ids and a manifest, in a folder that becomes the store."""

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from trainables.data.packing.data_key import DATA_VERSION, outline, vocabulary_size
from trainables.data.packing.text_buffer import Text, TextBuffer
from trainables.data.packing.tokenizer import Encoder, bytes_encoder, train_bpe
from trainables.data.packing.train_validation_split import BLOCKS, Block, split
from trainables.data.sources.files import files_source
from trainables.data.sources.hierarchy import entropy_per_token, random_grammar, rows, strings_per_row
from trainables.data.sources.hub import hub_source
from trainables.data.sources.mixture import hierarchy_text, interleave
from trainables.data.sources.python_source import python_source
from trainables.data.sources.source import Source
from trainables.data.spec import DataSpec, FilesData, HierarchyData, HubData, MixtureData, PythonSourceData
from trainables.data.tasks import rows as tasks
from trainables.data.tasks.spec import AnyTask, TaskData
from trainables.errors import DataError

SPLITS = ("train", "validation")
#: Ids gathered before they are written.
BUFFER = 1 << 20
#: Bytes of text read for each token asked for by `max_tokens`; with BPE more than a token of a common vocabulary holds.
BYTES_A_TOKEN = {"bytes": 1.02, "bpe": 8.0}
#: How much more of a part than its share of bytes is read, because with BPE parts differ in bytes a token.
SLACK = {"bytes": 1.02, "bpe": 4.0}


#: Seconds between two calls of a `Watch`.
WATCH_SECONDS = 0.5

Ids = NDArray[Any]
#: Gives, while its context lasts, the ids of every piece of each text, in order. It is also told the weights by which
#: the streams will be taken, and a folder for temporary files of its own; it may work ahead, and elsewhere.
Encode = Callable[
    [Encoder, Sequence[Text], Sequence[float], Path], AbstractContextManager[list[Iterator[Ids]]]
]
#: Told what is being done, and the share of it that is done where that is known.
Watch = Callable[[str, float | None], None]


@contextlib.contextmanager
def encode_here(
    encoder: Encoder, texts: Sequence[Text], _weights: Sequence[float], _work: Path
) -> Iterator[list[Iterator[Ids]]]:
    """Encode in this process, as far as the streams are read."""
    yield [encoder.encode(text) for text in texts]


def unwatched(_stage: str, _share: float | None) -> None:
    """Tell nobody."""


def token_type(vocabulary: int) -> np.dtype[Any]:
    """The smallest unsigned integer that holds all ids."""
    return np.dtype(np.uint8 if vocabulary <= 1 << 8 else np.uint16 if vocabulary <= 1 << 16 else np.uint32)


def pack(
    spec: DataSpec,
    context: int,
    base: Path,
    key: str,
    folder: Path,
    encode: Encode = encode_here,
    watch: Watch = unwatched,
) -> None:
    """Write `train.bin`, `validation.bin`, `manifest.json` and, for BPE, `tokenizer.json` into an empty folder.

    One process reads and splits the text (50 MB/s of lines, 110 MB/s of JSONL), learns the vocabulary from at most
    256 MiB of it (8 MB/s) and writes the ids (of 800 MB/s of text). What takes longest, the encoding (4 MB/s a core
    with BPE), is done by `encode`, and the files are the same whoever does it.

    Raises:
        DataError: the data cannot be used.
        OSError: the folder cannot be written, for example because the disk is full.
    """
    if isinstance(spec, HierarchyData):
        packed = _pack_hierarchy(spec, context, folder)
    elif isinstance(spec, TaskData):
        packed = _pack_task(spec, context, folder)
    else:
        packed = _pack_text(spec, context, base, folder, encode, _Paced(watch))
    manifest = {
        "version": DATA_VERSION,
        "key": key,
        "outline": outline(spec, context),
        "spec": spec.model_dump(mode="json"),
        "context": context,
        "vocabulary": vocabulary_size(spec),
        "dtype": _stored_type(spec).name,
        **packed,
    }
    # Last, so that a folder with a manifest is complete.
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def estimate_bytes(spec: DataSpec, context: int, base: Path) -> int | None:
    """Disk space that packing needs at its peak, as far as it is known beforehand."""
    item = _stored_type(spec).itemsize
    if isinstance(spec, TaskData):
        return (spec.sequences + spec.validation_sequences) * 2 * context * item
    if isinstance(spec, HierarchyData):
        return (spec.sequences + spec.validation_sequences) * (context + 1) * item
    sizes = [source.bytes for _, source in _sources(spec, context, base)]
    known = [size for size in sizes if size is not None]
    # The text itself, kept until it is packed, and at most one id a byte.
    return sum(known) * (1 + item) if len(known) == len(sizes) else None


class TokenFile:
    """A growing file of token ids, up to a limit."""

    def __init__(self, path: Path, dtype: np.dtype[Any], limit: int | None = None) -> None:
        self._file: BinaryIO = path.open("wb")
        self._dtype, self._limit = dtype, limit
        self._hash = hashlib.sha256()
        self._waiting: list[NDArray[Any]] = []
        self._buffered = 0
        self.tokens = 0

    def add(self, ids: NDArray[Any]) -> int:
        """Append ids as far as the limit allows, and return how many were taken."""
        if self._limit is not None:
            ids = ids[: self._limit - self.tokens]
        self._waiting.append(ids.astype(self._dtype))
        self.tokens += len(ids)
        self._buffered += len(ids)
        if self._buffered >= BUFFER:
            self._flush()
        return len(ids)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.tokens >= self._limit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def close(self) -> str:
        """Write everything out and return the SHA-256 of the file."""
        self._flush()
        self._file.close()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        if self._waiting:
            raw = np.concatenate(self._waiting).astype(self._dtype.newbyteorder("<")).tobytes()
            # Written, not mapped: a full disk is then an error and not a dead process.
            self._file.write(raw)
            self._hash.update(raw)
            self._waiting, self._buffered = [], 0


def _stored_type(spec: DataSpec) -> np.dtype[Any]:
    """Tasks have one value more than ids, for targets that are not scored."""
    return token_type(vocabulary_size(spec) + isinstance(spec, TaskData))


def _write_rows(
    splits: tuple[Iterator[Ids], Iterator[Ids]], dtype: np.dtype[Any], folder: Path
) -> dict[str, Any]:
    counts, hashes = {}, {}
    for name, stream in zip(SPLITS, splits, strict=True):
        with TokenFile(folder / f"{name}.bin", dtype) as file:
            for piece in stream:
                file.add(piece.reshape(-1))
            hashes[name], counts[name] = file.close(), file.tokens
    return {"tokens": counts, "sha256": hashes}


def _pack_task(spec: AnyTask, context: int, folder: Path) -> dict[str, Any]:
    scored = spec.scored(context)

    def checked(stream: Iterator[Ids]) -> Iterator[Ids]:
        for piece in stream:
            # Micro-batches and ranks weigh equally in a step, so each row must have as many targets as the others.
            if ((piece[:, context:] != spec.ids).sum(axis=1) != scored).any():
                raise RuntimeError(f"a row of the task {spec.kind} has other than {scored} scored targets")
            yield piece

    train, validation = tasks.rows(spec, context)
    return {
        **_write_rows((checked(train), checked(validation)), _stored_type(spec), folder),
        "row": 2 * context,
        "targets": True,
        "scored": scored,
        "entropy": 0.0,
        "bytes_per_token": None,
        "notes": [],
    }


def _pack_hierarchy(spec: HierarchyData, context: int, folder: Path) -> dict[str, Any]:
    return {
        **_write_rows(rows(spec, context), _stored_type(spec), folder),
        "row": context + 1,
        "entropy": entropy_per_token(random_grammar(spec)),
        "bytes_per_token": None,
        "start_of_text": spec.vocabulary,
        "strings_per_row": strings_per_row(spec, context),
        "notes": [],
    }


class _Paced:
    """Passes on to a `Watch` what it is told, but not more often than somebody can read."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._stage, self._next = watch, "", 0.0

    def begin(self, stage: str) -> None:
        """Something else is being done from now on."""
        self._stage = stage
        self._watch(stage, None)
        self._next = time.monotonic() + WATCH_SECONDS

    def share(self, share: float) -> None:
        """So much of it is done; 0 where that is not known."""
        if time.monotonic() >= self._next:
            self._watch(self._stage, min(1.0, share) or None)
            self._next = time.monotonic() + WATCH_SECONDS


class _Come:
    """How far the encoding of one side has come: it ends with the first text that is exhausted, or with the limit."""

    def __init__(self, texts: Sequence[Text], limit: int | None) -> None:
        self._cuts = [text.cuts() for text in texts]
        self._sizes = [text.size for text in texts]
        self._done = [0] * len(texts)
        self._limit = limit
        self._most = 0.0

    def after(self, index: int, tokens: int) -> float:
        """The share that is done after one more piece of a text."""
        self._done[index] += next(self._cuts[index])[0]
        come = max(self._done[index] / self._sizes[index], tokens / self._limit if self._limit else 0.0)
        self._most = max(self._most, come)
        return self._most


@dataclass(frozen=True)
class _Part:
    weight: float
    source: Source
    text_buffer: TextBuffer


def _pack_text(
    spec: FilesData | HubData | PythonSourceData | MixtureData,
    context: int,
    base: Path,
    folder: Path,
    encode: Encode,
    watch: _Paced,
) -> dict[str, Any]:
    work = folder / "work"
    work.mkdir()
    parts = _read(_sources(spec, context, base), spec, work, watch)
    if spec.tokenizer == "bpe":
        watch.begin("learning the vocabulary")
    encoder = _encoder(spec, parts, folder)
    dtype = token_type(encoder.vocabulary)
    limits = {"train": spec.max_tokens, "validation": spec.validation_tokens}
    counts, hashes, shares = {}, {}, {}
    for name in SPLITS:
        taken = [0] * len(parts)
        texts = _texts(parts, held_out=name == "validation")
        weights = [part.weight for part in parts]
        come = _Come(texts, limits[name])
        watch.begin(f"encoding the {name} text")
        with (
            TokenFile(folder / f"{name}.bin", dtype, limits[name]) as file,
            encode(encoder, texts, weights, work) as streams,
        ):
            for index, ids in interleave(streams, weights, len):
                taken[index] += file.add(ids)
                watch.share(come.after(index, file.tokens))
                if file.full:
                    break
            hashes[name], counts[name], shares[name] = file.close(), file.tokens, taken
    validation = np.fromfile(folder / "validation.bin", dtype)
    text = int(np.bincount(validation, minlength=encoder.vocabulary) @ encoder.lengths)
    shutil.rmtree(work)
    return {
        "tokens": counts,
        "sha256": hashes,
        "row": None,
        "entropy": None,
        "bytes_per_token": text / len(validation),
        "end_of_text": encoder.end_of_text,
        "sources": [
            {
                **part.source.record,
                "weight": part.weight,
                "bytes": {name: part.text_buffer.bytes[side] for side, name in enumerate(SPLITS)},
                "tokens": {name: shares[name][index] for name in SPLITS},
                "share": {name: shares[name][index] / max(1, counts[name]) for name in SPLITS},
            }
            for index, part in enumerate(parts)
        ],
        "notes": [note for part in parts for note in part.source.notes],
    }


def _sources(
    spec: FilesData | HubData | PythonSourceData | MixtureData, context: int, base: Path
) -> list[tuple[float, Source]]:
    """Sources and their shares."""
    if isinstance(spec, MixtureData):
        total = sum(part.weight for part in spec.parts)
        return [(part.weight / total, _source(part.data, context, base)) for part in spec.parts]
    return [(1.0, _source(spec, context, base))]


def _source(spec: HierarchyData | FilesData | HubData | PythonSourceData, context: int, base: Path) -> Source:
    if isinstance(spec, HierarchyData):
        return hierarchy_text(spec, context)
    if isinstance(spec, FilesData):
        return files_source(spec, base)
    if isinstance(spec, HubData):
        return hub_source(spec, base)
    return python_source(spec)


def _read(
    sources: Sequence[tuple[float, Source]],
    spec: FilesData | HubData | PythonSourceData | MixtureData,
    work: Path,
    watch: _Paced,
) -> list[_Part]:
    """Read the sources into spools, in blocks small enough that both sides of each get some.

    Raises:
        DataError: a source has no text, or too little for two sides.
    """
    for largest in BLOCKS:
        for _, source in sources:
            source.notes.clear()
        with contextlib.ExitStack() as spools:
            parts = [
                _Part(weight, source, spools.enter_context(TextBuffer(work, str(index))))
                for index, (weight, source) in enumerate(sources)
            ]
            watch.begin("reading the text")
            ended = _fill(parts, spec, work, largest, watch)
        for part in parts:
            _check_not_empty(part)
        if all(all(part.text_buffer.bytes) for part in parts):
            return parts
    for part in parts:
        _check_sides(part, spec.validation_fraction, [name for name in ended if name != part.source.name])
    raise AssertionError("a side is empty, or _check_sides has raised")


def _fill(
    parts: Sequence[_Part],
    spec: FilesData | HubData | PythonSourceData | MixtureData,
    work: Path,
    largest: int,
    watch: _Paced,
) -> list[str]:
    """Fill the spools, each part to its share of the bytes, until one is exhausted or enough is read.

    Returns:
        names of the exhausted parts.
    """
    streams = [split(part.source.stretches(work), spec.validation_fraction, largest) for part in parts]
    # Bytes over weight is how far a part has come; the goal is the same for all.
    goal = float("inf")
    if spec.max_tokens is not None:
        held_out = spec.validation_fraction
        tokens = max(spec.max_tokens / (1 - held_out), spec.validation_tokens / held_out)
        goal = tokens * BYTES_A_TOKEN[spec.tokenizer]
    come = [0.0] * len(parts)
    running = set(range(len(parts)))
    while running:
        index = min(running, key=come.__getitem__)
        if come[index] >= goal:
            break
        block = next(streams[index], None)
        if block is None:
            running.discard(index)
            goal = min(goal, come[index] * SLACK[spec.tokenizer])
            continue
        parts[index].text_buffer.add(block)
        come[index] += _weighed(block) / parts[index].weight
        size = parts[index].source.bytes
        watch.share(max(come[index] / goal, sum(parts[index].text_buffer.bytes) / size if size else 0.0))
    return [part.source.name for index, part in enumerate(parts) if index not in running]


def _weighed(block: Block) -> int:
    """Bytes of a block, end of text counted as one."""
    return len(block.content) + block.last


def _check_not_empty(part: _Part) -> None:
    if not any(part.text_buffer.bytes):
        reason = f" ({'; '.join(part.source.notes)})" if part.source.notes else ""
        raise DataError(f"{part.source.name} holds no text{reason}; name other files or another field")


def _check_sides(part: _Part, fraction: float, ended: list[str]) -> None:
    train, validation = part.text_buffer.bytes
    if train and validation:
        return
    holds = (
        f"only {train + validation} bytes of {part.source.name} were used, because {' and '.join(ended)} of the "
        "same mixture ended"
        if ended
        else f"{part.source.name} holds only {train + validation} bytes of text"
    )
    raise DataError(
        f"{holds}, too few to split: with data.validation_fraction {fraction:g} nothing fell to the "
        f"{'validation' if train else 'training'} side; give more text, or {'raise' if train else 'lower'} "
        "data.validation_fraction"
    )


def _texts(parts: Sequence[_Part], *, held_out: bool) -> list[Text]:
    # In a mixture, documents longer than a piece are cut into several, or the shares would be coarse.
    return [part.text_buffer.text(held_out=held_out, cut_documents=len(parts) > 1) for part in parts]


def _encoder(
    spec: FilesData | HubData | PythonSourceData | MixtureData, parts: Sequence[_Part], folder: Path
) -> Encoder:
    if spec.tokenizer == "bytes":
        return bytes_encoder()
    texts = [iter(text) for text in _texts(parts, held_out=False)]
    mixed = interleave(texts, [p.weight for p in parts], lambda piece: len(piece.content))
    encoder = train_bpe((piece.content.decode() for _, piece in mixed), vocabulary_size(spec))
    (folder / "tokenizer.json").write_text(encoder.bpe.to_str(pretty=True))
    return encoder
