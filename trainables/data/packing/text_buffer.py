"""Text that is read once and used twice, to train a tokenizer and to be packed; kept in plain files in between."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Piece(NamedTuple):
    """Consecutive UTF-8 text of one document, and whether the document ends here."""

    content: bytes
    last: bool


class TextBuffer:
    """The training or validation text of a source. Iterate it for its pieces, any number of times, after `close`.

    Args:
        path: file of the text.
        piece: least bytes of a piece, unless its document is shorter.
        cut_documents: whether every piece becomes a document.
    """

    def __init__(self, path: Path, piece: int, *, cut_documents: bool) -> None:
        self._path, self._piece, self._cut_documents = path, piece, cut_documents
        self._file = path.open("wb")
        self._lengths, self._ends = array("q"), bytearray()
        self._waiting = 0
        self._in_document = False
        self.bytes = 0
        self.read = 0
        """Bytes that the present or last iteration has read."""

    def add(self, content: bytes) -> None:
        """Append text of the present document."""
        self._file.write(content)
        self.bytes += len(content)
        self._waiting += len(content)
        self._in_document = True
        if self._waiting >= self._piece:
            self._end_piece(last=self._cut_documents)

    def end_document(self) -> None:
        """End the document; nothing happens if it has no text here."""
        if self._waiting:
            self._end_piece(last=True)
        elif self._in_document:
            self._ends[-1] = True
        self._in_document = False

    def close(self) -> None:
        """Write everything; the document ends here unless it has just been cut."""
        if self._waiting:
            self._end_piece(last=True)
        self._file.close()

    def __iter__(self) -> Iterator[Piece]:
        self.read = 0
        with self._path.open("rb") as file:
            for length, last in zip(self._lengths, self._ends, strict=True):
                self.read += length
                yield Piece(file.read(length), bool(last))

    def _end_piece(self, *, last: bool) -> None:
        self._lengths.append(self._waiting)
        self._ends.append(last)
        self._waiting = 0
