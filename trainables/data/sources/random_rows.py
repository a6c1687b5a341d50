"""Reproducible random numbers, and a hash that splits rows drawn from them."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Symbols = NDArray[np.int64]

#: Rows generated at a time. The rows depend on it: a change needs a new `RowData.version`.
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


def held_out(candidates: Symbols, share: float) -> NDArray[np.bool_]:
    """Return whether each row belongs to validation, by a 64-bit polynomial hash of its symbols and a mixer."""
    powers = Draws("row hash").raw(candidates.shape[1]) | np.uint64(1)
    hashed = ((candidates.astype(np.uint64) + np.uint64(1)) * powers).sum(axis=1, dtype=np.uint64)
    hashed = (hashed ^ (hashed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    hashed ^= hashed >> np.uint64(32)
    held: NDArray[np.bool_] = hashed.astype(np.float64) / 2.0**64 < share
    return held
