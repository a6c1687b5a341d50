"""Opening the packed token store of a data set: local or shared, packed first if it does not exist."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainables.data.kind import DataKind
from trainables.data.packing import OnProgress
from trainables.data.store.batches import window_count
from trainables.data.store.build import StoreRequest, build, disk_trouble, locked
from trainables.data.store.remote_store import open_shared, published_manifest
from trainables.data.store.token_store import TokenStore, read_store
from trainables.errors import DataError
from trainables.storage.storage import Bucket, open_storage

#: How to choose another disk for local stores.
ADVICE = "put the results on another disk (--results)"


def open_store(
    data: DataKind,
    *,
    context: int,
    root: str | Path,
    key: str | None = None,
    on_progress: OnProgress | None = None,
) -> TokenStore:
    """Open the store of a data set below `root`; pack it first if it does not exist or is damaged.

    Safe when several processes open it at the same time: one packs, the others wait. A process killed while packing
    leaves nothing that could be mistaken for a store. Where `root` is a URI, a store is published there whole or not at
    all, and each machine reads its own copy (see `trainables.data.store.remote_store`).

    Args:
        data: the data.
        context: tokens per sequence.
        root: folder or URI of all stores.
        key: the `data_key` that was planned with. A store packed under it is opened without reading the source,
            because it holds exactly what was planned; without a store, the source must still have that key.
        on_progress: called with the stage of the packing and the share of it that is done.

    Raises:
        DataError: the data cannot be used, changed since it was planned, is too short for one window, or the disk
            is full.
        InputError: the grammar is impossible, or it or the task does not fit the context; or no library here supports
            such a URI.
        ConnectionError: the object store cannot be reached, and this machine has no copy.
        OSError: the root is a URI, and the disk of this machine is full or cannot be written.
    """
    storage = open_storage(root)
    request = StoreRequest(data, context, key, on_progress)
    store = (
        open_shared(storage, request) if isinstance(storage, Bucket) else _open_local(storage.local, request)
    )
    _check_length(store.manifest, store.path, context)
    return store


def packed_windows(data: DataKind, context: int, root: str | Path, key: str) -> int | None:
    """Return the training windows of the store of a key below `root`; None unless it is packed there.

    If `root` is a URI, a store is packed when it is published.

    Raises:
        DataError: it is, and one of its splits is too short for a window.
        ConnectionError: the storage cannot be reached.
    """
    storage = open_storage(root)
    if isinstance(storage, Bucket):
        manifest = published_manifest(storage, data, context, key)
    else:
        store = read_store(storage.local / key, data, context, key)
        manifest = store.manifest if store else None
    if manifest is None:
        return None
    _check_length(manifest, f"{storage.name}/{key}", context)
    return window_count(manifest["tokens"]["train"], context, manifest["row"])


def _check_length(manifest: Mapping[str, Any], where: str | Path, context: int) -> None:
    for split, tokens in manifest["tokens"].items():
        if not window_count(tokens, context, manifest["row"]):
            share = {
                "train": "data.max_tokens or the share kept for training",
                "validation": "data.validation_tokens or data.validation_fraction",
            }[split]
            raise DataError(
                f"the {split} split in {where} has {tokens} tokens, fewer than one window of {context} + 1; give more "
                f"text, raise {share}, or lower the context"
            )


def _open_local(root: Path, request: StoreRequest) -> TokenStore:
    store = request.read(root / request.key, request.key) if request.key else None
    if store is not None:
        return store
    key = request.current_key(str(root))
    try:
        lock = locked(root, key)
    except OSError as error:
        raise DataError(disk_trouble(root, error, ADVICE)) from error
    with lock:
        # Another process may have packed it meanwhile.
        return request.read(root / key, key) or build(request, root, key, ADVICE)
