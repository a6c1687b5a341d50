"""Training and validation text that never overlap: documents are cut into blocks, a block's hash decides its side."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainables.data.sources.source import Stretch

#: Characters of a block in a corpus that is large enough; the smallest blocks for a small one.
BLOCK, SMALLEST_BLOCK = 4096, 64
#: Blocks tried in turn when a side of a source got none, as in a mixture that ends with its smallest part.
BLOCKS = (BLOCK, 512, SMALLEST_BLOCK)
#: Blocks that the smaller side should have at least, in expectation.
BLOCKS_A_SIDE = 32


class Block(NamedTuple):
    """Consecutive UTF-8 text of one document, the side it is on, and whether it ends its document."""

    content: bytes
    held_out: bool
    last: bool


def split(stretches: Iterable[Stretch], fraction: float, largest: int = BLOCK) -> Iterator[Block]:
    """Cut text into blocks at line breaks and give each a side by a hash of its content.

    Equal blocks are on one side wherever they occur, so no block of the validation text is in the training text,
    and the split depends on nothing but the text. Blocks are 4096 characters and more, smaller in corpora of less
    than some megabytes, where otherwise one side might get none.

    Args:
        stretches: the documents.
        fraction: share held out for validation.
        largest: characters of a block in a large corpus.
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


def held_out(content: bytes, fraction: float) -> bool:
    """Whether text is on the validation side. White space at its ends does not count."""
    digest = hashlib.blake2b(content.strip(), digest_size=8).digest()
    return int.from_bytes(digest) < fraction * 2**64


def _head(stream: Iterator[Stretch], fraction: float, largest: int) -> tuple[list[Stretch], int]:
    """Enough of the text to know the size of the blocks."""
    share = min(fraction, 1 - fraction)
    head, length = [], 0
    for stretch in stream:
        head.append(stretch)
        length += len(stretch.text)
        # Beyond 64 MiB the corpus is large, however small the share.
        if length * share >= largest * BLOCKS_A_SIDE or length >= 64 << 20:
            return head, largest
    return head, max(SMALLEST_BLOCK, min(largest, int(length * share / BLOCKS_A_SIDE)))


def _cut(text: str, start: int, size: int) -> int:
    """End of the block that starts at `start`: a line break after `size` characters, else a space, else just there."""
    target, limit = start + size, min(len(text), start + 2 * size)
    for mark in ("\n", " "):
        found = text.find(mark, target - 1, limit)
        if found >= 0:
            return found + 1
    return min(target, len(text))


def _block(text: str, fraction: float, *, last: bool) -> Block:
    content = text.encode()
    return Block(content, held_out(content, fraction), last)
