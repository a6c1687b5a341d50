"""Training and validation text that never overlap: a hash assigns whole documents, or blocks of a few long ones."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainables.data.sources.source import Stretch, TextSource
from trainables.errors import DataError

#: Least expected number of documents in the smaller split if whole documents are split: 1,000 documents at a fraction
#: of 0.05. Then 50 are held out with a standard deviation of 7.
DOCUMENTS_PER_SPLIT = 50
#: Characters from the beginning of a document that its hash covers; they wait in memory until it is computed.
HASHED = 1 << 20
#: Characters of a block in a large corpus, and in the smallest.
BLOCK, SMALLEST_BLOCK = 4096, 64
#: Block sizes tried in turn while a split of a source is empty.
BLOCKS = (BLOCK, 512, SMALLEST_BLOCK)
#: Least expected number of blocks in the smaller split.
BLOCKS_PER_SPLIT = 32
#: Least bytes of a piece. BPE is twice as slow on 64 KiB.
PIECE = 1 << 12
#: The same of training and validation text in a mixture, where documents are cut to keep the shares even. They are
#: smaller in the proportion of the blocks, because the shares are off by up to a piece.
CUT = (1 << 15, 1 << 11)


class Block(NamedTuple):
    """Consecutive UTF-8 text of one document, whether it is validation text, and whether its document ends here."""

    content: bytes
    held_out: bool
    last: bool


class Piece(NamedTuple):
    """Consecutive UTF-8 text of one document, and whether the document ends here."""

    content: bytes
    last: bool


class Units(NamedTuple):
    """What the text of a source is assigned to the splits in: blocks of so many characters, or whole documents."""

    size: int
    whole: bool = False


def choose_units(source: TextSource, fraction: float) -> Units:
    """Return the units that give both splits some text of a source.

    Whole documents are assigned if the source has `DOCUMENTS_PER_SPLIT` divided by the share of the smaller split, and
    both splits get some (copies of one document do not). Blocks are 4096 characters, and fewer in corpora below a few
    megabytes, where one split might otherwise be empty.

    The choice must not depend on the order of the documents, so it cannot follow from the first megabytes. It takes a
    pass of its own, which ends with the last document that is needed: of most sources a few megabytes.

    Raises:
        DataError: the source has no text, or too little for two splits.
    """
    share = min(fraction, 1 - fraction)
    # Beyond 64 MiB the corpus is large, however small the share.
    length, large = 0, min(BLOCK * BLOCKS_PER_SPLIT / share, 64 << 20)
    for stretch in source.stretches():
        length += len(stretch.text)
        if length >= large:
            break
    fitting = BLOCK if length >= large else max(SMALLEST_BLOCK, int(length * share / BLOCKS_PER_SPLIT))
    count, needed, sides = source.documents or 0, math.ceil(DOCUMENTS_PER_SPLIT / share), set()
    # A text of 60 GB that is known to be one file need not be read for this.
    if source.documents is None or count >= needed:
        for block in split(source.stretches(), fraction, Units(fitting, whole=True)):
            sides.add(block.held_out)
            count += block.last
            if count >= needed and len(sides) == 2:
                return Units(fitting, whole=True)
    for size in dict.fromkeys(min(fitting, largest) for largest in BLOCKS):
        counts = [0, 0]
        for block in split(source.stretches(), fraction, Units(size)):
            counts[block.held_out] += len(block.content)
            if all(counts):
                return Units(size)
    if not any(counts):
        raise DataError(f"{source.name} holds no text; name other files, or another data.field")
    empty, change = ("validation", "raise") if counts[0] else ("training", "lower")
    raise DataError(
        f"{source.name} holds only {sum(counts)} bytes of text, too few to split: with data.validation_fraction "
        f"{fraction:g} the {empty} split is empty; give more text, or {change} data.validation_fraction"
    )


def split(stretches: Iterable[Stretch], fraction: float, units: Units) -> Iterator[Block]:
    """Cut text into blocks at line breaks and hold out a fraction, chosen by a hash of each block or document.

    Equal units are in the same split wherever they occur, so the split depends only on the text. The hash of a document
    is that of its first 2^20 characters.
    """
    size = units.size
    rest, side = "", None
    for stretch in stretches:
        rest += stretch.text
        if units.whole and side is None:
            if len(rest) < HASHED and not stretch.last:
                continue
            side = _held_out(rest[:HASHED].encode(), fraction)
        # The last block is kept back until the document ends, so that it can be marked.
        start, least = 0, size if stretch.last else 2 * size
        while len(rest) - start > least and (end := _cut(rest, start, size)) < len(rest):
            yield _block(rest[start:end], fraction, side, last=False)
            start = end
        rest = rest[start:]
        if stretch.last:
            if rest:
                yield _block(rest, fraction, side, last=True)
            rest, side = "", None


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


def _cut(text: str, start: int, size: int) -> int:
    """Return the end of a block: at a line break after `size` characters, else at a space, else after `size`."""
    target, limit = start + size, min(len(text), start + 2 * size)
    for mark in ("\n", " "):
        place = text.find(mark, target - 1, limit)
        if place >= 0:
            return place + 1
    return min(target, len(text))


def _block(text: str, fraction: float, side: bool | None, *, last: bool) -> Block:
    content = text.encode()
    return Block(content, _held_out(content, fraction) if side is None else side, last)


def _held_out(content: bytes, fraction: float) -> bool:
    # White space at the ends does not count.
    digest = hashlib.blake2b(content.strip(), digest_size=8).digest()
    return int.from_bytes(digest) < fraction * 2**64
