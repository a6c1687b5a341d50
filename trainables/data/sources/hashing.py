"""SHA-256 of files."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from trainables.errors import DataError

#: From as many bytes or files on it is announced that they will be hashed: about a second of work.
ANNOUNCED_BYTES, ANNOUNCED_FILES = 1 << 30, 10_000

#: Hashes by path, size and time of modification.
_known: dict[tuple[Path, int, int], str] = {}


def files_sha256(paths: Sequence[Path], origin: str) -> list[str]:
    """Return the SHA-256 of files; if that takes long, their number and size are printed on stderr first.

    Args:
        paths: the files.
        origin: the key of the spec that names them.

    Raises:
        DataError: a file is missing or may not be read.
    """
    keys = [_key(path) for path in paths]
    sizes = [key[1] for key in keys if key not in _known]
    if sum(sizes) >= ANNOUNCED_BYTES or len(sizes) >= ANNOUNCED_FILES:
        print(
            f"{origin}: hashing {len(sizes):,} files of {sum(sizes) / 1e9:.1f} GB, because every cell depends on "
            "their content; Ctrl-C ends it",
            file=sys.stderr,
        )
    return [file_sha256(path) for path in paths]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex, cached while its size and modification time stay the same.

    Raises:
        DataError: the file is missing or may not be read.
    """
    key = _key(path)
    if key not in _known:
        try:
            with path.open("rb") as file:
                _known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise unreadable(path, error) from error
    return _known[key]


def _key(path: Path) -> tuple[Path, int, int]:
    try:
        status = path.stat()
        return path.resolve(), status.st_size, status.st_mtime_ns
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a file that the system does not let us read."""
    if isinstance(error, PermissionError):
        return DataError(
            f"the file {path} may not be read by this user; give read permission (chmod u+r) or a copy"
        )
    return DataError(
        f"the file {path} cannot be read: {error.strerror or error}; check the path and the disk"
    )
