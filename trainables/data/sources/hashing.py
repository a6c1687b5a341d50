"""SHA-256 of files."""

import functools
import hashlib
from pathlib import Path

from trainables.errors import DataError


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex, cached while its size and modification time stay the same.

    Raises:
        DataError: the file is missing or may not be read.
    """
    try:
        status = path.stat()
        return _sha256(path.resolve(), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise unreadable(path, error) from error


@functools.cache
def _sha256(path: Path, _size: int, _mtime: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a file that the system does not let us read."""
    if isinstance(error, PermissionError):
        return DataError(
            f"the file {path} may not be read by this user; give read permission (chmod u+r) or a copy"
        )
    return DataError(
        f"the file {path} cannot be read: {error.strerror or error}; check the path and the disk"
    )
