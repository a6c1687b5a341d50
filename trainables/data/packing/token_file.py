"""Files of token ids."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[Any]


def token_type(values: int) -> np.dtype[Any]:
    """Return the smallest unsigned integer type that holds `values` different ids."""
    return np.dtype(np.uint8 if values <= 1 << 8 else np.uint16 if values <= 1 << 16 else np.uint32)


class TokenFile:
    """A growing file of token ids, up to a limit."""

    def __init__(self, path: Path, dtype: np.dtype[Any], limit: int | None = None) -> None:
        # Written, not mapped: a full disk raises an error here, and kills a process that maps.
        self._file = path.open("wb", buffering=1 << 20)
        self._dtype, self._limit = dtype.newbyteorder("<"), limit
        self._hash = hashlib.sha256()
        self.tokens = 0

    def add(self, ids: Ids) -> int:
        """Append ids as far as the limit allows, and return how many were taken."""
        if self._limit is not None:
            ids = ids[: self._limit - self.tokens]
        raw = ids.astype(self._dtype).tobytes()
        self._file.write(raw)
        self._hash.update(raw)
        self.tokens += len(ids)
        return len(ids)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.tokens >= self._limit

    def close(self) -> str:
        """Write everything and return the SHA-256 of the file."""
        self._file.close()
        return self._hash.hexdigest()
