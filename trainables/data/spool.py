"""Text that is read once and used twice (to train a tokenizer, to be packed), kept in plain files meanwhile."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from trainables.data.split import Block

#: Bytes of a piece handed on at once, at least, when its document is that long. BPE is twice as slow on 64 KiB.
PIECE = 1 << 12
#: The same where every piece is a document: small enough that the shares of a mixture come out even.
CUT = {False: 1 << 15, True: 1 << 11}


class Piece(NamedTuple):
    """Consecutive UTF-8 text of one document, and whether the document ends here."""

    content: bytes
    last: bool


class Spool:
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

    def pieces(self, *, held_out: bool, cut_documents: bool = False) -> Iterator[Piece]:
        """The text of one side in order, in pieces that never span documents.

        Args:
            held_out: the side.
            cut_documents: cut long documents and make every piece a document of its own.
        """
        side = int(held_out)
        size = CUT[held_out] if cut_documents else PIECE
        with self._paths[side].open("rb") as file:
            waiting = 0
            for length, end in zip(self._lengths[side], self._ends[side], strict=True):
                waiting += length
                if end or waiting >= size:
                    yield Piece(file.read(waiting), bool(end) or cut_documents)
                    waiting = 0
            if waiting:
                yield Piece(file.read(waiting), True)
