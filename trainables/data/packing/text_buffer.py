"""Pieces of text, and a copy on disk of those that are needed twice."""

import contextlib
import marshal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple


class Piece(NamedTuple):
    """Consecutive UTF-8 text of one document, and whether the document ends here."""

    content: bytes
    last: bool


def keep(pieces: Iterator[Piece], path: Path) -> Generator[Piece, None, None]:
    """Yield pieces and write each to a new file, which is complete when this iterator is closed."""
    with path.open("wb") as file:
        for piece in pieces:
            marshal.dump(tuple(piece), file)
            yield piece


def kept(path: Path) -> Iterator[Piece]:
    """Yield the pieces that `keep` wrote."""
    with path.open("rb") as file, contextlib.suppress(EOFError):
        while True:
            yield Piece(*marshal.load(file))
