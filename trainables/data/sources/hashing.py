"""SHA-256 of files, cached within the process while size and modification time stay the same."""

import hashlib
from pathlib import Path

from trainables.errors import DataError

_KNOWN: dict[tuple[str, int, int], str] = {}


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex.

    Raises:
        DataError: the file is missing or may not be read.
    """
    try:
        status = path.stat()
        known = (str(path.resolve()), status.st_size, status.st_mtime_ns)
        if known not in _KNOWN:
            with path.open("rb") as file:
                _KNOWN[known] = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error
    return _KNOWN[known]


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a file that the system does not let us read."""
    if isinstance(error, PermissionError):
        return DataError(
            f"the file {path} may not be read by this user; give read permission (chmod u+r) or a copy"
        )
    return DataError(
        f"the file {path} cannot be read: {error.strerror or error}; check the path and the disk"
    )
