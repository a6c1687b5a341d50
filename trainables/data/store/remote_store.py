"""Token stores on storage that machines share: published whole or not at all, and fetched by each machine for itself.

On the storage a store is a folder `KEY` of the packed files, whose names contain their SHA-256, and a manifest, which
is written last; without it the store does not count. A machine keeps its copies in INTERPLAY_CACHE, by default in
`interplay/data` of the user's cache folder; nothing deletes old ones. One process fetches, and the others of that
machine wait. A copy counts once every file has the SHA-256 of the manifest.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from trainables.data.kind import DataKind, data_key
from trainables.data.sources.files import file_sha256
from trainables.data.store.build import StoreRequest, build, disk_trouble, locked, new_store
from trainables.data.store.token_store import FILES, TokenStore, describes
from trainables.errors import DataError
from trainables.storage.storage import Bucket, reason

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
#: Bytes read from the object store at once.
READ = 8 << 20
#: How to choose another disk for the cache.
ADVICE = "set INTERPLAY_CACHE to a folder on another disk"


class _DamagedError(Exception):
    """The published store differs from its manifest."""


def cache_folder() -> Path:
    """Return the folder of this machine's copies: INTERPLAY_CACHE, or one in the user's cache folder."""
    named = os.environ.get("INTERPLAY_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "interplay" / "data"


def open_shared(bucket: Bucket, request: StoreRequest) -> TokenStore:
    """Open this machine's copy of a store; fetch it first or, if it is not published, pack and publish it.

    Raises:
        DataError: as `open_store`; also if the store is not published and cannot be packed here.
        InputError: the data would have to be published, and the storage cannot be written.
        ConnectionError: the storage cannot be reached, and this machine has no copy.
        OSError: the disk of this machine is full or cannot be written.
    """
    cache = cache_folder()
    key = request.key or data_key(request.data, request.context)
    try:
        lock = locked(cache, key)
    except OSError as error:
        raise _cannot_keep(cache, error) from error
    with lock:
        store = request.read(cache / key, key)
        try:
            manifest = published_manifest(bucket, request.data, request.context, key)
        except ConnectionError as error:
            if store is None:
                raise
            _LOG.warning("%s The copy in %s is used.", error, store.path)
            return store
        # All machines of a study must train on the same bytes.
        if manifest and store and store.manifest["sha256"] == manifest["sha256"]:
            return store
        if manifest:
            try:
                _fetch(bucket, cache, key, manifest)
                return request.read_new(cache / key, key)
            except _DamagedError as error:
                _LOG.warning("the store %s in %s is damaged (%s)", key, bucket.name, error)
        if store is None:
            try:
                request.current_key(bucket.name)
            except DataError as error:
                raise DataError(
                    f"the data is not packed in {bucket.name}, and it cannot be packed on this machine: {error}"
                ) from error
            # Before hours of packing that could not be published.
            bucket.check()
            store = build(request, cache, key, ADVICE)
        _publish(bucket, store, key)
        return store


def published_manifest(bucket: Bucket, data: DataKind, context: int, key: str) -> dict[str, Any] | None:
    """Return the manifest of a published store, None if none describes the data; ConnectionError without network."""
    content = _reaching(bucket, lambda: bucket.read(key, "manifest.json"))
    if content is None:
        return None
    try:
        manifest: dict[str, Any] = json.loads(content)
        if unknown := manifest["sha256"].keys() - FILES.keys():
            raise ValueError(f"it lists {min(unknown)!r}")
        return manifest if describes(manifest, data, context, key) else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.warning("%s/%s has no readable manifest (%s)", bucket.name, key, error)
        return None


def _remote_name(name: str, sha256: str) -> str:
    return f"{name}-{sha256[:16]}{Path(FILES[name]).suffix}"


def _fetch(bucket: Bucket, cache: Path, key: str, manifest: dict[str, Any]) -> None:
    """Download a store, verify it, and move it into place."""
    start = time.monotonic()
    try:
        with new_store(cache, key) as folder:
            for name, sha256 in manifest["sha256"].items():
                _download(bucket, f"{bucket.path}/{key}/{_remote_name(name, sha256)}", folder / FILES[name])
                if file_sha256(folder / FILES[name]) != sha256:
                    raise _DamagedError(f"{FILES[name]} has another SHA-256 than {sha256}")
            (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    except ConnectionError:
        raise
    except OSError as error:
        tokens = sum(manifest["tokens"].values())
        raise _cannot_keep(cache, error, tokens * np.dtype(manifest["dtype"]).itemsize) from error
    _LOG.info("fetched %s in %.1f s", cache / key, time.monotonic() - start)


def _download(bucket: Bucket, remote: str, path: Path) -> None:
    try:
        with (
            _reaching(bucket, lambda: bucket.files.open_input_stream(remote)) as source,
            path.open("wb") as target,
        ):
            while content := _reaching(bucket, lambda: source.read(READ)):
                target.write(content)
    except FileNotFoundError:
        raise _DamagedError(f"{remote} is missing") from None


def _publish(bucket: Bucket, store: TokenStore, key: str) -> None:
    """Upload a packed store, its manifest last."""
    try:
        for name, sha256 in store.manifest["sha256"].items():
            bucket.put(key, _remote_name(name, sha256), store.path / FILES[name])
        bucket.put(key, "manifest.json", store.path / "manifest.json")
    except OSError as error:
        raise ConnectionError(
            f"the packed data cannot be published in {bucket.name}: {reason(error)} It is kept in {store.path}, and "
            "the next run publishes it."
        ) from error


def _reaching(bucket: Bucket, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConnectionError(
            f"the packed data in {bucket.name} cannot be reached: {reason(error)} Make sure that the bucket exists, "
            "that this machine may read it and that it has a network."
        ) from error


def _cannot_keep(cache: Path, error: OSError, needed: int | None = None) -> OSError:
    """Return the error for a cache that is full or cannot be written.

    Not a DataError, because the fault is the machine's and not the input's: a cell that is not retried elsewhere would
    let one machine with a full disk fail all cells of a study.
    """
    return OSError(error.errno, disk_trouble(cache, error, ADVICE, needed), str(cache))
