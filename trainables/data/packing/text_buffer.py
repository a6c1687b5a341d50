"""Text that is read once and used twice (to train a tokenizer, to be packed), kept in plain files meanwhile."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from trainables.data.packing.train_validation_split import Block

#: Bytes of a piece handed on at once, at least, when its document is that long. BPE is twice as slow on 64 KiB.
PIECE = 1 << 12
#: The same where every piece is a document: small enough that the shares of a mixture come out even.
CUT = {False: 1 << 15, True: 1 << 11}


class Piece(NamedTuple):
    """Consecutive UTF-8 text of one document, and whether the document ends here."""

    content: bytes
    last: bool


class TextBuffer:
    """The two sides of one source. A document that lies on one side only in part ends there all the same."""

    def __init__(self, folder: Path, name: str) -> None:
        self._paths = [folder / f"{name}.train.text", folder / f"{name}.validation.text"]
        self._files: list[BinaryIO] = [path.open("wb") for path in self._paths]
        # Length of each block, and whether a document ends with it.
        self._lengths = [array("q"), array("q")]
        self._ends = [bytearray(), bytearray()]
        self._open = [False, False]
        self.bytes = [0, 0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, block: Block) -> None:
        """Append a block to its side."""
        side = int(block.held_out)
        self._files[side].write(block.content)
        self._lengths[side].append(len(block.content))
        self._ends[side].append(0)
        self._open[side] = True
        self.bytes[side] += len(block.content)
        if block.last:
            for each in (0, 1):
                if self._open[each]:
                    self._ends[each][-1] = 1
                    self._open[each] = False

    def close(self) -> None:
        """Write everything out; the text can be read from now on."""
        for file in self._files:
            file.close()

    def text(self, *, held_out: bool, cut_documents: bool = False) -> "Text":
        """The text of one side in order, in pieces that never span documents. The spool must be closed before.

        Args:
            held_out: the side.
            cut_documents: cut long documents and make every piece a document of its own.
        """
        side = int(held_out)
        return Text(
            self._paths[side],
            self._lengths[side],
            self._ends[side],
            CUT[held_out] if cut_documents else PIECE,
            cut_documents,
            self.bytes[side],
        )


@dataclass(frozen=True)
class Text:
    """One side of a spool, which can be read again and again."""

    path: Path
    lengths: "array[int]"
    """Of each block, in bytes."""
    ends: bytearray
    """Whether a document ends with the block."""
    piece: int
    """Bytes of a piece at least, where the document is that long."""
    cut_documents: bool
    """Whether every piece is a document of its own."""
    size: int
    """Bytes of the whole text."""

    def __iter__(self) -> Iterator[Piece]:
        with self.path.open("rb") as file:
            for length, last in self.cuts():
                yield Piece(file.read(length), last)

    def cuts(self) -> Iterator[tuple[int, bool]]:
        """The bytes of each piece, and whether a document ends with it."""
        waiting = 0
        for length, end in zip(self.lengths, self.ends, strict=True):
            waiting += length
            if end or waiting >= self.piece:
                yield waiting, bool(end) or self.cut_documents
                waiting = 0
        if waiting:
            yield waiting, True

    def chunks(self, least: int) -> Iterator["Chunk"]:
        """The same pieces in order, in chunks of `least` bytes and at most a piece more, not yet read."""
        offset = held = 0
        lengths, lasts = array("q"), bytearray()
        for length, last in self.cuts():
            lengths.append(length)
            lasts.append(last)
            held += length
            if held >= least:
                yield Chunk(self.path, offset, lengths, lasts)
                offset, held = offset + held, 0
                lengths, lasts = array("q"), bytearray()
        if lengths:
            yield Chunk(self.path, offset, lengths, lasts)


@dataclass(frozen=True)
class Chunk:
    """Consecutive pieces of a text: where they lie, and how long each is."""

    path: Path
    offset: int
    lengths: "array[int]"
    lasts: bytearray

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(self.lengths)

    def content(self) -> bytes:
        """The text of all pieces."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def cut(content: bytes, lengths: Iterable[int], lasts: Iterable[int]) -> Iterator[Piece]:
    """The pieces of a chunk, from its content."""
    start = 0
    for length, last in zip(lengths, lasts, strict=True):
        yield Piece(content[start : start + length], bool(last))
        start += length
