"""The packed token store: built once, whole or not at all, by whichever process comes first; then only mapped."""

import contextlib
import json
import logging
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from trainables.data.packing.data_key import DATA_VERSION, data_key, outline
from trainables.data.sources.hashing import unreadable
from trainables.data.spec import DataSpec
from trainables.data.store.checksums import ReadLock
from trainables.errors import DataError
from trainables.storage.disk import FULL, fsync_files
from trainables.storage.storage import Bucket, open_storage

if TYPE_CHECKING:
    from trainables.data.packing.pack import Encode, Watch

Tokens = NDArray[Any]

_LOG = logging.getLogger(__name__)
#: Where stores are built, below the root and so on the same file system: a finished one is moved in one step.
BUILDING = "tmp"


@dataclass(frozen=True)
class TokenStore:
    """Packed tokens of one data set.

    Attributes:
        path: folder of the store.
        vocabulary: number of token ids.
        train: read-only memory map of the training ids, unsigned integers [tokens].
        validation: the same for the fixed validation set.
        entropy: entropy of the data in nats a predicted token, exact, where it is known (hierarchy, and 0 for tasks);
            else None.
        bytes_per_token: mean bytes of text of a validation token, so that bits per byte is
            loss / ln 2 / bytes_per_token; None where tokens are not text.
        row: tokens of a row where the data is made of rows (hierarchy: context + 1, tasks: 2·context); None for
            running text.
        manifest: everything recorded when it was packed.
        targets: whether a row is inputs and then a target for each, the id one past the vocabulary where there is
            none to score; else targets are the inputs one token later.
        hold: keeps a machine's copy from making room for others while this object lives; None for a store that
            nobody deletes.
    """

    path: Path
    vocabulary: int
    train: Tokens
    validation: Tokens
    entropy: float | None
    bytes_per_token: float | None
    row: int | None
    manifest: dict[str, Any]
    targets: bool = False
    read_lock: ReadLock | None = field(default=None, repr=False, compare=False)


def open_store(
    spec: DataSpec,
    *,
    context: int,
    root: str | Path,
    key: str | None = None,
    base: Path = Path(),
    encode: "Encode | None" = None,
    watch: "Watch | None" = None,
) -> TokenStore:
    """Open the store of a data set below `root`, packing it first when it is not there or damaged.

    Safe when several processes want it at once: one packs, the others wait. A process killed while packing leaves
    nothing that could be mistaken for a store. Where `root` is a URI, a store is published there whole or not at all,
    and each machine has a copy of its own to read (`trainables.data.store.remote_store`).

    Args:
        spec: the data.
        context: tokens of a sequence.
        root: folder or URI of all stores.
        key: the `data_key` that was planned with. A store packed under it is opened without a look at the source,
            because it holds exactly what was planned; without one, the source must still have that key.
        base: folder that relative paths of the spec start from.
        encode: encodes the text in the place of this process, should the store be packed.
        watch: told how far the packing has come.

    Raises:
        DataError: the data cannot be used, changed since it was planned, is too short for one window, or the disk
            is full.
        InputError: the grammar is impossible, or it or the task does not fit the context; or no library here knows
            such a URI.
        ConnectionError: the object store cannot be reached, and this machine has no copy.
        OSError: the store is published, and the disk of this machine is full or takes no copy of it.
    """
    storage = open_storage(root)
    if isinstance(storage, Bucket):
        # Imported here, because it imports this module.
        from trainables.data.store.remote_store import open_shared

        return usable(open_shared(storage, spec, context, key, base, encode, watch), context)
    place = storage.local
    if key is not None:
        store = opened(place / key, spec, context, key)
        if store is not None:
            return usable(store, context)
    found = planned(spec, context, base, key, str(place))
    store = opened(place / found, spec, context, found)
    if store is None:
        build(spec, context, base, place, found, encode, watch)
        store = opened(place / found, spec, context, found)
        if store is None:
            raise DataError(
                f"the store {place / found} was damaged just after it was packed; check that disk"
            )
    return usable(store, context)


def planned(spec: DataSpec, context: int, base: Path, key: str | None, root: str) -> str:
    """The key of the data as it lies there now, which must be the one that was planned with.

    Raises:
        DataError: it is another, or the data cannot be read.
    """
    found = data_key(spec, context, base)
    if key is not None and found != key:
        raise DataError(
            f"the data changed since it was planned: its key was {key} and is {found} now, and no store of the old "
            f"content is in {root}; plan again (cells of the changed data are new cells), or bring the old data back"
        )
    return found


def usable(store: TokenStore, context: int) -> TokenStore:
    """The store itself, if both its sides hold a window."""
    check_length(store.manifest, store.path, context)
    return store


def check_length(manifest: Mapping[str, Any], where: str | Path, context: int) -> None:
    """Refuse a store one of whose sides holds no window.

    Raises:
        DataError: names the side.
    """
    # Here because `batches` needs the type of the store.
    from trainables.data.store.batches import too_short, window_count

    for split in ("train", "validation"):
        tokens = manifest["tokens"][split]
        if not window_count(tokens, context, manifest["row"]):
            raise too_short(where, split, tokens, context)


def describes(manifest: Mapping[str, Any], spec: DataSpec, context: int, key: str) -> bool:
    """Whether a manifest is of what the spec describes."""
    return (manifest["version"], manifest["key"], manifest["outline"]) == (
        DATA_VERSION,
        key,
        outline(spec, context),
    )


def opened(path: Path, spec: DataSpec, context: int, key: str) -> TokenStore | None:
    """The store at a path, or None when there is none, or it is damaged or not what the spec describes."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        dtype = np.dtype(manifest["dtype"])
        if not describes(manifest, spec, context, key):
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
        entropy=manifest["entropy"],
        bytes_per_token=manifest["bytes_per_token"],
        row=manifest["row"],
        manifest=manifest,
        targets=manifest.get("targets", False),
    )


def build(
    spec: DataSpec,
    context: int,
    base: Path,
    root: Path,
    key: str,
    encode: "Encode | None" = None,
    watch: "Watch | None" = None,
    advice: str = "put the results on another disk (--results)",
) -> None:
    """Pack under a lock and move the result into place.

    Args:
        spec: the data.
        context: tokens of a sequence.
        base: folder that relative paths of the spec start from.
        root: folder of all stores.
        key: of the store.
        encode: encodes the text; by default this process does.
        watch: told how far it has come; by default nobody is.
        advice: how to choose another disk.

    Raises:
        DataError: the data cannot be used, or the disk is full or may not be written.
    """
    # Imported here: opening a store that exists needs no tokenizer and no `datasets`.
    from trainables.data.packing.pack import encode_here, estimate_bytes, pack, unwatched

    folder = root / BUILDING / f"{key}.{uuid.uuid4().hex[:8]}"
    try:
        (root / BUILDING).mkdir(parents=True, exist_ok=True)
        with FileLock(root / BUILDING / f"{key}.lock"):
            if opened(root / key, spec, context, key) is not None:
                return
            remove_stale(root, key)
            start = time.monotonic()
            _LOG.info("packing %s data into %s", spec.kind, root / key)
            try:
                folder.mkdir()
                pack(spec, context, base, key, folder, encode or encode_here, watch or unwatched)
                if data_key(spec, context, base) != key:
                    raise DataError(
                        f"the data of {spec.kind} changed while it was being packed; run again when nothing writes "
                        "to it"
                    )
                fsync_files(folder)
                if (root / key).exists():
                    (root / key).rename(root / BUILDING / f"{key}.{uuid.uuid4().hex[:8]}.damaged")
                folder.rename(root / key)
            finally:
                remove_stale(root, key)
            _LOG.info("packed %s in %.1f s", root / key, time.monotonic() - start)
    except OSError as error:
        needed = estimate_bytes(spec, context, base) if error.errno in FULL else None
        raise cannot_write(root, error, needed, advice) from error


def cannot_write(root: Path, error: OSError, needed: int | None, advice: str) -> DataError:
    """The error for a folder of stores that is full or takes nothing."""
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
    """Bytes free on the disk of a folder, which need not be there: a full disk may not even take the folder."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


def remove_stale(root: Path, key: str) -> None:
    """Remove what killed builders left: of this key, whose lock we hold, and of keys whose lock nobody holds."""
    for left in (root / BUILDING).iterdir():
        owner = left.name.split(".")[0]
        if not left.is_dir():
            continue
        if owner == key:
            shutil.rmtree(left)
            continue
        # Somebody packs that one just now when the lock cannot be had.
        with contextlib.suppress(Timeout), at_once(root / BUILDING / f"{owner}.lock"):
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def at_once(path: Path) -> Iterator[None]:
    """Hold a lock, or raise `Timeout` where somebody else holds it."""
    with FileLock(path, timeout=0):
        yield
