"""Files of token ids."""

import hashlib
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

#: Ids gathered before they are written.
BUFFER = 1 << 20

Ids = NDArray[Any]


def token_type(values: int) -> np.dtype[Any]:
    """Return the smallest unsigned integer type that holds `values` different ids."""
    return np.dtype(np.uint8 if values <= 1 << 8 else np.uint16 if values <= 1 << 16 else np.uint32)


class TokenFile:
    """A growing file of token ids, up to a limit."""

    def __init__(self, path: Path, dtype: np.dtype[Any], limit: int | None = None) -> None:
        self._file: BinaryIO = path.open("wb")
        self._dtype, self._limit = dtype, limit
        self._hash = hashlib.sha256()
        self._waiting: list[Ids] = []
        self._buffered = 0
        self.tokens = 0

    def add(self, ids: Ids) -> int:
        """Append ids as far as the limit allows, and return how many were taken."""
        if self._limit is not None:
            ids = ids[: self._limit - self.tokens]
        self._waiting.append(ids.astype(self._dtype))
        self.tokens += len(ids)
        self._buffered += len(ids)
        if self._buffered >= BUFFER:
            self._flush()
        return len(ids)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.tokens >= self._limit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def close(self) -> str:
        """Write everything and return the SHA-256 of the file."""
        self._flush()
        self._file.close()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        if self._waiting:
            raw = np.concatenate(self._waiting).astype(self._dtype.newbyteorder("<")).tobytes()
            # Written, not mapped: a full disk raises an error here, and kills a process that maps.
            self._file.write(raw)
            self._hash.update(raw)
            self._waiting, self._buffered = [], 0
