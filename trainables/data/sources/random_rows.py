"""Rows drawn at random: reproducible numbers, and two splits that share no row."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.errors import InputError

Symbols = NDArray[np.int64]

#: Rows generated at a time. The rows depend on it: a change needs a new `data_key.DATA_VERSION`.
ROWS_AT_A_TIME = 8192
#: Raise an error for a split after drawing this many times the expected number of rows.
PATIENCE = 20


class Draws:
    """Reproducible random numbers: numpy guarantees the stream of a bit generator, not that of its samplers."""

    def __init__(self, seed: str) -> None:
        key = np.frombuffer(hashlib.sha256(seed.encode()).digest()[:16], "<u8")
        self._generator: Any = np.random.Philox(key=key)

    def raw(self, count: int) -> NDArray[np.uint64]:
        """Return `count` numbers, uniform over 64 bits."""
        drawn: NDArray[np.uint64] = self._generator.random_raw(count)
        return drawn

    def below(self, bound: int, shape: tuple[int, ...]) -> Symbols:
        """Return integers from 0 to `bound` - 1, int64 of the given shape."""
        # The bias of the remainder is at most bound / 2^64.
        drawn = self.raw(int(np.prod(shape))) % np.uint64(bound)
        return drawn.astype(np.int64).reshape(shape)

    def orders(self, count: int, size: int) -> Symbols:
        """Return `count` permutations of the integers below `size`, int64 [count, size]."""
        return np.argsort(self.raw(count * size).reshape(count, size), axis=1, kind="stable")


def one_split(
    draw: Callable[[int], Symbols], wanted: int, others: int, *, validation: bool, content: int, too_few: str
) -> Iterator[Symbols]:
    """Yield the rows of one split. A hash of a row decides its split, so equal rows are in the same split.

    Args:
        draw: returns the rows of a piece by its number, int64 [n, columns], at most `ROWS_AT_A_TIME`; the same rows for
            both splits.
        wanted: rows of this split.
        others: rows of the other split.
        validation: whether this is the validation split.
        content: the first columns, which are hashed; the others follow from them.
        too_few: what is too few if the split does not fill, and the fix, for the error.

    Yields:
        pieces of int64 [n, columns], `wanted` rows in all.

    Raises:
        InputError: the split does not fill, because there are too few different rows.
    """
    total = wanted + others
    share = (wanted if validation else others) / total
    found, tried, piece = 0, 0, 0
    while found < wanted:
        if tried > PATIENCE * (total + ROWS_AT_A_TIME):
            raise InputError(
                f"only {found} of the {wanted} {'validation' if validation else 'training'} sequences were found in "
                f"{tried} draws: {too_few}"
            )
        rows = draw(piece)
        chosen = rows[held_out(rows[:, :content], share) == validation][: wanted - found]
        yield chosen
        found, tried, piece = found + len(chosen), tried + ROWS_AT_A_TIME, piece + 1


def held_out(candidates: Symbols, share: float) -> NDArray[np.bool_]:
    """Return whether each row belongs to validation, by a 64-bit polynomial hash of its symbols and a mixer."""
    powers = Draws("row hash").raw(candidates.shape[1]) | np.uint64(1)
    hashed = ((candidates.astype(np.uint64) + np.uint64(1)) * powers).sum(axis=1, dtype=np.uint64)
    hashed = (hashed ^ (hashed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    hashed ^= hashed >> np.uint64(32)
    held: NDArray[np.bool_] = hashed.astype(np.float64) / 2.0**64 < share
    return held
