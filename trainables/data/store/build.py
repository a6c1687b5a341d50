"""Packing a store under a lock: whole or not at all, by whichever process comes first."""

import contextlib
import logging
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from core.files import fsync_files
from trainables.data.kind import DataKind, data_key
from trainables.data.packing import OnProgress
from trainables.data.store.token_store import TokenStore, read_store
from trainables.errors import DataError
from trainables.storage.storage import FULL

_LOG = logging.getLogger(__name__)
#: Folder of unfinished stores, below the root and so on the same file system: a finished store is renamed in one step.
BUILDING = "tmp"


@dataclass(frozen=True)
class StoreRequest:
    """The store that is wanted, and how to pack it; for the attributes see `open_store`."""

    data: DataKind
    context: int
    key: str | None
    on_progress: OnProgress | None

    def read(self, path: Path, key: str) -> TokenStore | None:
        """Read the store if it exists."""
        return read_store(path, self.data, self.context, key)

    def read_new(self, path: Path, key: str) -> TokenStore:
        """Read a store that was just written; a DataError if it is damaged."""
        store = self.read(path, key)
        if store is None:
            raise DataError(f"the store {path} was damaged just after it was written; check that disk")
        return store

    def current_key(self, root: str) -> str:
        """Return the key of the data as it is now; a DataError if it is not the one that was planned with."""
        key, planned = data_key(self.data, self.context), self.key
        if planned is not None and key != planned:
            raise DataError(
                f"the data changed since it was planned: its key was {planned} and is {key} now, and no store of the "
                f"old content is in {root}; plan again (cells of the changed data are new cells), or restore the old "
                "data"
            )
        return key


def locked(root: Path, key: str) -> AbstractContextManager[object]:
    """Acquire the lock of a store, which the context manager returned releases; an OSError if that is not allowed."""
    (root / BUILDING).mkdir(parents=True, exist_ok=True)
    return FileLock(root / BUILDING / f"{key}.lock").acquire()


def build(request: StoreRequest, root: Path, key: str, advice: str) -> TokenStore:
    """Pack a store and move it into place. The caller holds its lock. The advice is how to choose another disk.

    Raises:
        DataError: the data cannot be used, or the disk is full or may not be written.
    """
    # Imported here: opening a store that exists needs no tokenizer.
    from trainables.data.packing.pack import estimate_bytes, pack

    data, context = request.data, request.context
    start = time.monotonic()
    _LOG.info("packing %s data into %s", data.kind, root / key)
    try:
        with new_store(root, key) as folder:
            pack(data, context, key, folder, request.on_progress)
            if data_key(data, context) != key:
                raise DataError(
                    f"the data of {data.kind} changed while it was being packed; run again when nothing writes to it"
                )
    except OSError as error:
        needed = None
        if error.errno in FULL:
            needed, advice = estimate_bytes(data, context), f"set max_tokens, or {advice}"
        raise DataError(disk_trouble(root, error, advice, needed)) from error
    _LOG.info("packed %s in %.1f s", root / key, time.monotonic() - start)
    return request.read_new(root / key, key)


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
            (root / key).rename(folder.with_suffix(".damaged"))
        folder.rename(root / key)
    finally:
        _remove_stale(root, key)


def disk_trouble(folder: Path, error: OSError, advice: str, needed: int | None = None) -> str:
    """Return the message for a folder of stores that is full or cannot be written; `needed` is in bytes."""
    host = socket.gethostname()
    if error.errno in FULL:
        # A full disk may not even take the folder.
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        need = "more" if needed is None else _size(needed)
        return (
            f"the disk of {host} is full: the packed data needs {need} in {folder}, and "
            f"{_size(shutil.disk_usage(existing).free)} is free; make room, or {advice}"
        )
    named = f" ({error.filename})" if error.filename else ""
    return (
        f"the packed data cannot be kept in {folder} on {host}: {error.strerror or error}{named}; check the folder and "
        f"its permissions, or {advice}"
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


def _remove_stale(root: Path, key: str) -> None:
    """Remove what killed processes left: of this key, whose lock we hold, and of keys whose lock nobody holds."""
    for left in filter(Path.is_dir, (root / BUILDING).iterdir()):
        owner = left.name.split(".")[0]
        if owner == key:
            shutil.rmtree(left)
            continue
        # If the lock cannot be acquired, a process is packing that store now.
        with contextlib.suppress(Timeout), FileLock(root / BUILDING / f"{owner}.lock", timeout=0):
            shutil.rmtree(left, ignore_errors=True)
