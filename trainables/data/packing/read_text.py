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
#: Least bytes of a piece. BPE is twice as slow on 64 KiB.
PIECE = 1 << 12
#: The same of training and validation text in a mixture, where documents are cut to keep the shares even.
CUT = (1 << 15, 1 << 11)


@dataclass(frozen=True)
class Part:
    """A source that was read, its share of the tokens, and its training and validation text."""

    weight: float
    source: Source
    texts: tuple[TextBuffer, TextBuffer]


def read_text(
    sources: Sequence[tuple[float, Source]], data: TextData, folder: Path, progress: Progress
) -> list[Part]:
    """Read sources into buffers in `folder`, in blocks small enough that both splits of each source get some.

    Raises:
        DataError: a source has no text, or too little for two splits.
    """
    mixed = len(sources) > 1
    for largest in BLOCKS:
        with contextlib.ExitStack() as buffers:
            parts = []
            for index, (weight, source) in enumerate(sources):
                train, validation = (
                    TextBuffer(folder / f"{index}.{side}", cut if mixed else PIECE, cut_documents=mixed)
                    for side, cut in enumerate(CUT)
                )
                buffers.callback(train.close)
                buffers.callback(validation.close)
                parts.append(Part(weight, source, (train, validation)))
            progress.begin("reading the text")
            ended = _fill(parts, data, largest, progress)
        for part in parts:
            if not any(text.bytes for text in part.texts):
                raise DataError(f"{part.source.name} holds no text; name other files, or another data.field")
        incomplete = [part for part in parts if not all(text.bytes for text in part.texts)]
        if not incomplete:
            return parts
    short = incomplete[0]
    raise _too_short(short, data.validation_fraction, [name for name in ended if name != short.source.name])


def _fill(parts: Sequence[Part], data: TextData, largest: int, progress: Progress) -> list[str]:
    """Fill the buffers, each to its share of the bytes, until enough is read; return the names of exhausted parts."""
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
        part.texts[block.held_out].add(block.content)
        if block.last:
            for text in part.texts:
                text.end_document()
        # End of text counts as one byte.
        read[index] += (len(block.content) + block.last) / part.weight
        size = part.source.bytes
        progress.share(max(read[index] / goal, sum(t.bytes for t in part.texts) / size if size else 0.0))
    return [part.source.name for index, part in enumerate(parts) if index not in running]


def _too_short(part: Part, fraction: float, ended: list[str]) -> DataError:
    train, validation = (text.bytes for text in part.texts)
    holds = (
        f"only {train + validation} bytes of {part.source.name} were used, because {' and '.join(ended)} of the "
        "same mixture ended"
        if ended
        else f"{part.source.name} holds only {train + validation} bytes of text"
    )
    empty, change = ("validation", "raise") if train else ("training", "lower")
    return DataError(
        f"{holds}, too few to split: with data.validation_fraction {fraction:g} the {empty} split is empty; give more "
        f"text, or {change} data.validation_fraction"
    )
