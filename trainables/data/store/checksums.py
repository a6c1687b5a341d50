"""The marks on a cached store: the seal, by which damage is found, when it was last used, and who holds it now."""

import errno
import fcntl
import hashlib
import json
import os
import weakref
from pathlib import Path

CHECKSUMS = "seal.json"
_HELD = "manifest.json"


def write_checksums(folder: Path) -> dict[str, str]:
    """Hash every file of a finished store, write the seal and return the SHA-256 by name."""
    sums = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.name != CHECKSUMS}
    _write(folder, sums)
    return sums


def read_checksums(folder: Path) -> dict[str, str] | None:
    """The SHA-256 by name of the files of a store that is as it was sealed; None if it is not, or never was.

    A file of unchanged size and time is believed; another is hashed again, as long as that takes. So a file that was
    written to is found out, and a bit that fell over on the disk by itself is not.
    """
    try:
        known = json.loads((folder / CHECKSUMS).read_text())
        fresh = True
        for name, mark in known.items():
            status = (folder / name).stat()
            if status.st_size != mark["bytes"]:
                return None
            if status.st_mtime_ns != mark["mtime_ns"]:
                if _sha256(folder / name) != mark["sha256"]:
                    return None
                fresh = False
        sums = {name: str(mark["sha256"]) for name, mark in known.items()}
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not fresh:
        _write(folder, sums)
    return sums


def touch(folder: Path) -> None:
    """Note that a store is in use now."""
    os.utime(folder / CHECKSUMS)


def last_used(folder: Path) -> float:
    """When a store was last in use, in seconds of the system's clock; 0 for one never sealed, or deleted just now."""
    try:
        return (folder / CHECKSUMS).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0


class ReadLock:
    """Holds a store for as long as this object lives, and no longer than its process does, however that ends.

    The lock is on the manifest, because a seal is replaced when files were touched.
    """

    def __init__(self, folder: Path) -> None:
        handle = os.open(folder / _HELD, os.O_RDONLY)
        weakref.finalize(self, os.close, handle)
        _lock(handle, fcntl.LOCK_SH)


def is_held(folder: Path) -> bool:
    """Whether any process holds a store; where the file system has no locks, it may be held.

    The answer stays true only while the caller keeps others from opening the store.
    """
    try:
        # For writing, because an exclusive lock on NFS needs it.
        handle = os.open(folder / _HELD, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)


def _lock(handle: int, how: int) -> bool:
    """Whether a lock was had; the end of the handle is its end."""
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    except OSError as error:
        # Lustre, say, mounted without `flock`.
        if error.errno != errno.ENOSYS:
            raise
        return False
    return True


def _write(folder: Path, sums: dict[str, str]) -> None:
    marks = {}
    for name, digest in sums.items():
        status = (folder / name).stat()
        marks[name] = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": digest}
    part = folder.parent / f"{folder.name}.{CHECKSUMS}"
    part.write_text(json.dumps(marks, indent=1) + "\n")
    part.replace(folder / CHECKSUMS)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
