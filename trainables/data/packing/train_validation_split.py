"""Training and validation text that never overlap: documents are cut into blocks, assigned to a split by a hash."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainables.data.sources.source import Stretch

#: Characters of a block in a large corpus, and in the smallest.
BLOCK, SMALLEST_BLOCK = 4096, 64
#: Block sizes tried in turn while a split of a source is empty, as in a mixture that ends with its smallest part.
BLOCKS = (BLOCK, 512, SMALLEST_BLOCK)
#: Least expected number of blocks in the smaller split.
BLOCKS_PER_SPLIT = 32


class Block(NamedTuple):
    """Consecutive UTF-8 text of one document, whether it is validation text, and whether its document ends here."""

    content: bytes
    held_out: bool
    last: bool


def split(stretches: Iterable[Stretch], fraction: float, largest: int = BLOCK) -> Iterator[Block]:
    """Cut text into blocks at line breaks and hold out a fraction of them, chosen by a hash of their content.

    Equal blocks are in the same split wherever they occur, so no block of the validation text is in the training text,
    and the split depends only on the text. Blocks are 4096 characters and more; they are smaller in corpora below a few
    megabytes, where one split might otherwise be empty.
    """
    stream = iter(stretches)
    head, size = _head(stream, fraction, largest)
    rest = ""
    for stretch in itertools.chain(head, stream):
        rest += stretch.text
        start = 0
        # The last block is kept back until the document ends, so that it can be marked.
        while len(rest) - start > 2 * size:
            end = _cut(rest, start, size)
            yield _block(rest[start:end], fraction, last=False)
            start = end
        rest = rest[start:]
        if stretch.last:
            while len(rest) > size and (end := _cut(rest, 0, size)) < len(rest):
                yield _block(rest[:end], fraction, last=False)
                rest = rest[end:]
            if rest:
                yield _block(rest, fraction, last=True)
            rest = ""


def _head(stream: Iterator[Stretch], fraction: float, largest: int) -> tuple[list[Stretch], int]:
    """Return enough of the text to choose the size of the blocks, and that size."""
    share = min(fraction, 1 - fraction)
    head, length = [], 0
    for stretch in stream:
        head.append(stretch)
        length += len(stretch.text)
        # Beyond 64 MiB the corpus is large, however small the share.
        if length * share >= largest * BLOCKS_PER_SPLIT or length >= 64 << 20:
            return head, largest
    return head, max(SMALLEST_BLOCK, min(largest, int(length * share / BLOCKS_PER_SPLIT)))


def _cut(text: str, start: int, size: int) -> int:
    """Return the end of a block: at a line break after `size` characters, else at a space, else after `size`."""
    target, limit = start + size, min(len(text), start + 2 * size)
    for mark in ("\n", " "):
        found = text.find(mark, target - 1, limit)
        if found >= 0:
            return found + 1
    return min(target, len(text))


def _block(text: str, fraction: float, *, last: bool) -> Block:
    content = text.encode()
    # White space at the ends does not count.
    digest = hashlib.blake2b(content.strip(), digest_size=8).digest()
    return Block(content, int.from_bytes(digest) < fraction * 2**64, last)
