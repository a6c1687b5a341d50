"""Reading the sources of text into buffers, split into training and validation text."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainables.data.kind import TextData
from trainables.data.packing.progress import Progress
from trainables.data.packing.text_buffer import TextBuffer
from trainables.data.packing.train_validation_split import BLOCKS, split
from trainables.data.sources.source import Source
from trainables.errors import DataError

#: Bytes of text read per token of `max_tokens`; with BPE more than a token of a common vocabulary holds.
BYTES_PER_TOKEN = {"bytes": 1.02, "bpe": 8.0}
#: How much more than its share of bytes is read of a part, because with BPE parts differ in bytes per token.
SLACK = {"bytes": 1.02, "bpe": 4.0}


@dataclass(frozen=True)
class Part:
    """A source that was read, and its share of the tokens."""

    weight: float
    source: Source
    buffer: TextBuffer


def read_text(
    sources: Sequence[tuple[float, Source]], data: TextData, folder: Path, progress: Progress
) -> list[Part]:
    """Read sources into buffers, in blocks small enough that both splits of each source get some.

    Args:
        sources: shares and sources.
        data: with the limits.
        folder: for the buffers.
        progress: reports how far it is.

    Raises:
        DataError: a source has no text, or too little for two splits.
    """
    for largest in BLOCKS:
        for _, source in sources:
            source.notes.clear()
        with contextlib.ExitStack() as buffers:
            parts = [
                Part(weight, source, buffers.enter_context(TextBuffer(folder, str(index))))
                for index, (weight, source) in enumerate(sources)
            ]
            progress.begin("reading the text")
            ended = _fill(parts, data, largest, progress)
        for part in parts:
            _check_not_empty(part)
        if all(all(part.buffer.bytes) for part in parts):
            return parts
    short = next(part for part in parts if not all(part.buffer.bytes))
    raise _too_short(short, data.validation_fraction, [name for name in ended if name != short.source.name])


def _fill(parts: Sequence[Part], data: TextData, largest: int, progress: Progress) -> list[str]:
    """Fill the buffers, each part to its share of the bytes, until one is exhausted or enough is read.

    Returns:
        names of the exhausted parts.
    """
    streams = [split(part.source.stretches(), data.validation_fraction, largest) for part in parts]
    # What is compared is bytes over weight; the goal is the same for all parts.
    goal = float("inf")
    if data.max_tokens is not None:
        held_out = data.validation_fraction
        tokens = max(data.max_tokens / (1 - held_out), data.validation_tokens / held_out)
        goal = tokens * BYTES_PER_TOKEN[data.tokenizer]
    read = [0.0] * len(parts)
    running = set(range(len(parts)))
    while running:
        index = min(running, key=read.__getitem__)
        if read[index] >= goal:
            break
        part, block = parts[index], next(streams[index], None)
        if block is None:
            running.discard(index)
            goal = min(goal, read[index] * SLACK[data.tokenizer])
            continue
        part.buffer.add(block)
        # End of text counts as one byte.
        read[index] += (len(block.content) + block.last) / part.weight
        size = part.source.bytes
        progress.share(max(read[index] / goal, sum(part.buffer.bytes) / size if size else 0.0))
    return [part.source.name for index, part in enumerate(parts) if index not in running]


def _check_not_empty(part: Part) -> None:
    if not any(part.buffer.bytes):
        reason = f" ({'; '.join(part.source.notes)})" if part.source.notes else ""
        raise DataError(f"{part.source.name} holds no text{reason}; name other files or another field")


def _too_short(part: Part, fraction: float, ended: list[str]) -> DataError:
    train, validation = part.buffer.bytes
    holds = (
        f"only {train + validation} bytes of {part.source.name} were used, because {' and '.join(ended)} of the "
        "same mixture ended"
        if ended
        else f"{part.source.name} holds only {train + validation} bytes of text"
    )
    return DataError(
        f"{holds}, too few to split: with data.validation_fraction {fraction:g} the "
        f"{'validation' if train else 'training'} split is empty; give more text, or "
        f"{'raise' if train else 'lower'} data.validation_fraction"
    )
