"""The training or the validation text of a source, in pieces that are encoded at once."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainables.data.packing.train_validation_split import BLOCK, Block

#: Least bytes of a piece. BPE is twice as slow on 64 KiB.
PIECE = 1 << 12
#: The same of training and validation text in a mixture, where documents are cut to keep the shares even. They are
#: smaller in the proportion of the blocks, because the shares are off by up to a piece.
CUT = (1 << 15, 1 << 11)


class Piece(NamedTuple):
    """Consecutive UTF-8 text of one document, and whether the document ends here."""

    content: bytes
    last: bool


def read_text(blocks: Iterable[Block], size: int, *, held_out: bool, mixed: bool) -> Iterator[Piece]:
    """Yield the text of one split from blocks of `size` characters; in a mixture every piece becomes a document.

    A document may end in a block of the other split after its last piece here was yielded: an empty piece ends it.
    """
    least = CUT[held_out] * size // BLOCK if mixed else PIECE
    waiting, in_document = b"", False
    for block in blocks:
        if block.held_out == held_out:
            waiting += block.content
            in_document = True
        if len(waiting) >= least or (block.last and in_document):
            in_document = not (block.last or mixed)
            yield Piece(waiting, not in_document)
            waiting = b""
