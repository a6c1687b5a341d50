"""The packed token store: built once, whole or not at all, by whichever process comes first; then only mapped."""

import contextlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from trainables.data.hashing import FULL, unreadable
from trainables.data.identity import DATA_VERSION, data_key, outline
from trainables.data.spec import DataSpec
from trainables.errors import DataError

Tokens = NDArray[Any]

_LOG = logging.getLogger(__name__)
#: Where stores are built, below the root and so on the same file system: a finished one is moved in one step.
_BUILDING = "tmp"


@dataclass(frozen=True)
class TokenStore:
    """Packed tokens of one data set.

    Attributes:
        path: folder of the store.
        vocabulary: number of token ids.
        train: read-only memory map of the training ids, unsigned integers [tokens].
        validation: the same for the fixed validation set.
        floor: entropy of the data in nats a predicted token, exact, where it is known (hierarchy); else None.
        bytes_per_token: mean bytes of text of a validation token, so that bits per byte is
            loss / ln 2 / bytes_per_token; None where tokens are not text.
        row: tokens of a row where the data is made of rows (hierarchy: context + 1); None for running text.
        manifest: everything recorded when it was packed.
    """

    path: Path
    vocabulary: int
    train: Tokens
    validation: Tokens
    floor: float | None
    bytes_per_token: float | None
    row: int | None
    manifest: dict[str, Any]


def open_store(
    spec: DataSpec, *, context: int, root: Path, key: str | None = None, base: Path = Path()
) -> TokenStore:
    """Open the store of a data set below `root`, packing it first when it is not there or damaged.

    Safe when several processes want it at once: one packs, the others wait. A process killed while packing leaves
    nothing that could be mistaken for a store.

    Args:
        spec: the data.
        context: tokens of a sequence.
        root: folder of all stores.
        key: the `data_key` that was planned with. A store packed under it is opened without a look at the source,
            because it holds exactly what was planned; without one, the source must still have that key.
        base: folder that relative paths of the spec start from.

    Raises:
        DataError: the data cannot be used, changed since it was planned, is too short for one window, or the disk
            is full.
        InputError: the grammar is impossible, or does not fit the context.
    """
    if key is not None:
        store = _opened(root / key, spec, context, key)
        if store is not None:
            return _usable(store, context)
    found = data_key(spec, context, base)
    if key is not None and found != key:
        raise DataError(
            f"the data changed since it was planned: its key was {key} and is {found} now, and no store of the old "
            f"content is in {root}; plan again (cells of the changed data are new cells), or bring the old data back"
        )
    store = _opened(root / found, spec, context, found)
    if store is None:
        _build(spec, context, base, root, found)
        store = _opened(root / found, spec, context, found)
        if store is None:
            raise DataError(f"the store {root / found} was damaged just after it was packed; check that disk")
    return _usable(store, context)


def _usable(store: TokenStore, context: int) -> TokenStore:
    # Here because `batches` needs the type of the store.
    from trainables.data.batches import too_short, window_count

    for split, tokens in (("train", store.train), ("validation", store.validation)):
        if not window_count(len(tokens), context, store.row):
            raise too_short(store, split, len(tokens), context)
    return store


def _opened(path: Path, spec: DataSpec, context: int, key: str) -> TokenStore | None:
    """The store at a path, or None when there is none, or it is damaged or not what the spec describes."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        dtype = np.dtype(manifest["dtype"])
        if (manifest["version"], manifest["key"], manifest["outline"]) != (
            DATA_VERSION,
            key,
            outline(spec, context),
        ):
            return None
        maps = []
        for split in ("train", "validation"):
            file, tokens = path / f"{split}.bin", manifest["tokens"][split]
            if file.stat().st_size != tokens * dtype.itemsize:
                _LOG.warning("%s is damaged (%d tokens expected); it is packed again", file, tokens)
                return None
            # An empty file cannot be mapped.
            maps.append(np.memmap(file, dtype, "r") if tokens else np.empty(0, dtype))
        if manifest["spec"].get("tokenizer") == "bpe" and not (path / "tokenizer.json").is_file():
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path / "manifest.json", error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.warning("%s has no readable manifest (%s); it is packed again", path, error)
        return None
    return TokenStore(
        path=path,
        vocabulary=manifest["vocabulary"],
        train=maps[0],
        validation=maps[1],
        floor=manifest["floor"],
        bytes_per_token=manifest["bytes_per_token"],
        row=manifest["row"],
        manifest=manifest,
    )


def _build(spec: DataSpec, context: int, base: Path, root: Path, key: str) -> None:
    """Pack under a lock and move the result into place.

    Raises:
        DataError: the data cannot be used, or the disk is full or may not be written.
    """
    # Imported here: opening a store that exists needs no tokenizer and no `datasets`.
    from trainables.data.pack import estimate_bytes, pack

    folder = root / _BUILDING / f"{key}.{uuid.uuid4().hex[:8]}"
    try:
        (root / _BUILDING).mkdir(parents=True, exist_ok=True)
        with FileLock(root / _BUILDING / f"{key}.lock"):
            if _opened(root / key, spec, context, key) is not None:
                return
            _remove_stale(root, key)
            start = time.monotonic()
            _LOG.info("packing %s data into %s", spec.kind, root / key)
            try:
                folder.mkdir()
                pack(spec, context, base, key, folder)
                if data_key(spec, context, base) != key:
                    raise DataError(
                        f"the data of {spec.kind} changed while it was being packed; run again when nothing writes "
                        "to it"
                    )
                _settle(folder)
                if (root / key).exists():
                    (root / key).rename(root / _BUILDING / f"{key}.{uuid.uuid4().hex[:8]}.damaged")
                folder.rename(root / key)
            finally:
                _remove_stale(root, key)
            _LOG.info("packed %s in %.1f s", root / key, time.monotonic() - start)
    except OSError as error:
        needed = estimate_bytes(spec, context, base) if error.errno in FULL else None
        raise _cannot_write(root, error, needed) from error


def _cannot_write(root: Path, error: OSError, needed: int | None) -> DataError:
    if error.errno in FULL:
        free = shutil.disk_usage(root).free
        need = f"about {_size(needed)}" if needed is not None else "more than was free"
        return DataError(
            f"the disk is full: packing the data into {root} needs {need} there, and {_size(free)} is free; make "
            "room, set max_tokens, or put the results on another disk (--results). Nothing half-built was left"
        )
    return DataError(
        f"the data cannot be packed into {root}: {error.strerror or error}"
        f"{f' ({error.filename})' if error.filename else ''}; check the folder and its permissions, or choose "
        "another (--results)"
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


def _remove_stale(root: Path, key: str) -> None:
    """Remove what killed builders left: of this key, whose lock we hold, and of keys whose lock nobody holds."""
    for left in (root / _BUILDING).iterdir():
        owner = left.name.split(".")[0]
        if not left.is_dir():
            continue
        if owner == key:
            shutil.rmtree(left)
            continue
        # Somebody packs that one just now when the lock cannot be had.
        with contextlib.suppress(Timeout), _at_once(root / _BUILDING / f"{owner}.lock"):
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _at_once(path: Path) -> Iterator[None]:
    with FileLock(path, timeout=0):
        yield


def _settle(folder: Path) -> None:
    """Have the disk hold every file before the store gets its name, so that a power cut cannot leave a hollow one."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
