"""Text that is read once and used twice, to train a tokenizer and to be packed; kept in plain files in between."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from trainables.data.packing.train_validation_split import Block

#: Least bytes of a piece, unless its document is shorter. BPE is twice as slow on 64 KiB.
PIECE = 1 << 12
#: The same where every piece is a document, by `held_out`: small enough for even shares in a mixture.
CUT = {False: 1 << 15, True: 1 << 11}


class Piece(NamedTuple):
    """Consecutive UTF-8 text of one document, and whether the document ends here."""

    content: bytes
    last: bool


class TextBuffer:
    """The training and validation text of one source. A document with blocks on both sides ends once on each."""

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
        """Write everything; after this the text can be read."""
        for file in self._files:
            file.close()

    def text(self, *, held_out: bool, cut_documents: bool = False) -> "Text":
        """Return the text of one side in order, in pieces that never span documents. Close the buffer first.

        Args:
            held_out: whether it is the validation text.
            cut_documents: cut long documents and make every piece a document.
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
    """One side of a buffer, which can be read any number of times."""

    path: Path
    lengths: "array[int]"
    """Bytes of each block."""
    ends: bytearray
    """Whether a document ends with each block."""
    piece: int
    """Least bytes of a piece, unless its document is shorter."""
    cut_documents: bool
    """Whether every piece is a document."""
    size: int
    """Bytes of the whole text."""

    def __iter__(self) -> Iterator[Piece]:
        with self.path.open("rb") as file:
            for length, last in self.cuts():
                yield Piece(file.read(length), last)

    def cuts(self) -> Iterator[tuple[int, bool]]:
        """Yield the bytes of each piece, and whether a document ends with it."""
        waiting = 0
        for length, end in zip(self.lengths, self.ends, strict=True):
            waiting += length
            if end or waiting >= self.piece:
                yield waiting, bool(end) or self.cut_documents
                waiting = 0
        if waiting:
            yield waiting, True
