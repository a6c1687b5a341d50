"""Packing a store under a lock: whole or not at all, by whichever process comes first."""

import contextlib
import logging
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from trainables.data.kind import DataKind
from trainables.data.packing.data_key import data_key
from trainables.data.store.token_store import TokenStore, read_store
from trainables.errors import DataError
from trainables.storage.disk import FULL, fsync_files

if TYPE_CHECKING:
    from trainables.data.packing.progress import OnProgress

_LOG = logging.getLogger(__name__)
#: Folder of unfinished stores, below the root and so on the same file system: a finished store is renamed in one step.
BUILDING = "tmp"


def locked(root: Path, key: str) -> AbstractContextManager[object]:
    """Acquire the lock of a store; the context manager returned releases it.

    Raises:
        OSError: the root cannot be written.
    """
    (root / BUILDING).mkdir(parents=True, exist_ok=True)
    return FileLock(root / BUILDING / f"{key}.lock").acquire()


@dataclass(frozen=True)
class StoreRequest:
    """The store that is wanted, and how to pack it; for the attributes see `open_store`."""

    data: DataKind
    context: int
    base: Path
    key: str | None
    on_progress: "OnProgress | None"

    def read(self, path: Path, key: str) -> TokenStore | None:
        """Read the store if it exists."""
        return read_store(path, self.data, self.context, key)


def current_key(request: StoreRequest, root: str) -> str:
    """Return the key of the data as it is now, which must be the one that was planned with.

    Raises:
        DataError: it is another, or the data cannot be read.
    """
    found, planned = data_key(request.data, request.context, request.base), request.key
    if planned is not None and found != planned:
        raise DataError(
            f"the data changed since it was planned: its key was {planned} and is {found} now, and no store of the old "
            f"content is in {root}; plan again (cells of the changed data are new cells), or restore the old data"
        )
    return found


def build(request: StoreRequest, root: Path, key: str, advice: str) -> None:
    """Pack a store and move it into place. The caller holds its lock.

    Args:
        request: the data, and how to pack it.
        root: folder of all stores.
        key: key of the store.
        advice: how to choose another disk.

    Raises:
        DataError: the data cannot be used, or the disk is full or may not be written.
    """
    # Imported here: opening a store that exists needs no tokenizer.
    from trainables.data.packing.pack import estimate_bytes, pack
    from trainables.data.packing.progress import ignore_progress

    data, context, base = request.data, request.context, request.base
    start = time.monotonic()
    _LOG.info("packing %s data into %s", data.kind, root / key)
    try:
        with new_store(root, key) as folder:
            pack(data, context, base, key, folder, request.on_progress or ignore_progress)
            if data_key(data, context, base) != key:
                raise DataError(
                    f"the data of {data.kind} changed while it was being packed; run again when nothing writes to it"
                )
    except OSError as error:
        needed = estimate_bytes(data, context, base) if error.errno in FULL else None
        raise cannot_write(root, error, needed, advice) from error
    _LOG.info("packed %s in %.1f s", root / key, time.monotonic() - start)


@contextlib.contextmanager
def new_store(root: Path, key: str) -> Iterator[Path]:
    """Yield a folder to fill, and make it the store of `key` afterwards. The caller holds its lock."""
    folder = root / BUILDING / f"{key}.{uuid.uuid4().hex[:8]}"
    _remove_stale(root, key)
    try:
        folder.mkdir()
        yield folder
        fsync_files(folder)
        if (root / key).exists():
            (root / key).rename(root / BUILDING / f"{key}.{uuid.uuid4().hex[:8]}.damaged")
        folder.rename(root / key)
    finally:
        _remove_stale(root, key)


def cannot_write(root: Path, error: OSError, needed: int | None, advice: str) -> DataError:
    """Return the error for a folder of stores that is full or cannot be written."""
    if error.errno in FULL:
        need = f"about {size(needed)}" if needed is not None else "more than was free"
        return DataError(
            f"the disk is full: packing the data into {root} needs {need} there, and {size(room(root))} is free; "
            f"make room, set max_tokens, or {advice}. Nothing half-built was left"
        )
    return DataError(
        f"the data cannot be packed into {root}: {error.strerror or error}"
        f"{f' ({error.filename})' if error.filename else ''}; check the folder and its permissions, or "
        f"{advice}"
    )


def room(folder: Path) -> int:
    """Return the bytes free on the disk of a folder, which need not exist: a full disk may not even take the folder."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def size(count: int) -> str:
    """Return a number of bytes as text."""
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


def _remove_stale(root: Path, key: str) -> None:
    """Remove what killed processes left: of this key, whose lock we hold, and of keys whose lock nobody holds."""
    for left in (root / BUILDING).iterdir():
        owner = left.name.split(".")[0]
        if not left.is_dir():
            continue
        if owner == key:
            shutil.rmtree(left)
            continue
        # If the lock cannot be acquired, a process is packing that store now.
        with contextlib.suppress(Timeout), FileLock(root / BUILDING / f"{owner}.lock", timeout=0):
            shutil.rmtree(left, ignore_errors=True)
