"""Token stores on storage that machines share: published whole or not at all, and fetched by each machine for itself.

On the storage a store is a folder `KEY` of parts of at most 64 MiB and a manifest, which is written last: that of the
packed store, with the parts and the SHA-256 of every file. A store without a manifest does not count, and parts that a
killed publisher left are written over by the next one, because their names say what they hold.

A machine keeps its copies in INTERPLAY_CACHE, by default in `interplay/data` of the user's cache folder. They are plain
stores and a seal. One process fetches while the others of that machine wait. A copy counts once every part had its
size and every file its SHA-256; one that is not as it was sealed is fetched again. The stores used longest ago make
room for a new one, only if it needs the room, and only those that no process has open.
"""

import errno
import json
import logging
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock, Timeout

from trainables.data.packing.data_key import data_key
from trainables.data.spec import DataSpec
from trainables.data.store.checksums import (
    CHECKSUMS,
    ReadLock,
    is_held,
    last_used,
    read_checksums,
    touch,
    write_checksums,
)
from trainables.data.store.open import (
    BUILDING,
    TokenStore,
    at_once,
    build,
    cannot_write,
    check_length,
    describes,
    opened,
    planned,
    remove_stale,
    room,
    size,
)
from trainables.errors import DataError
from trainables.storage.disk import FULL, fsync_files
from trainables.storage.storage import Bucket, open_storage, reason

if TYPE_CHECKING:
    from trainables.data.packing.pack import Encode, Watch

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
#: Bytes of a part, and parts on their way at a time: a machine that publishes holds as much as both in memory.
PART = 64 << 20
LINES = 8
#: Bytes read from the object store at once.
READ = 8 << 20
#: How to choose another disk for the cache.
ADVICE = "set INTERPLAY_CACHE to a folder on another disk"


def cache_folder() -> Path:
    """Where this machine keeps its copies, from INTERPLAY_CACHE or the user's cache folder."""
    named = os.environ.get("INTERPLAY_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "interplay" / "data"


def open_shared(
    bucket: Bucket,
    spec: DataSpec,
    context: int,
    key: str | None,
    base: Path,
    encode: "Encode | None" = None,
    watch: "Watch | None" = None,
) -> TokenStore:
    """Open the store of a data set by this machine's copy, fetched or, where none is published, packed and published.

    Raises:
        DataError: as `open_store`; also that the store is not published and cannot be packed here.
        InputError: nothing can be written to the storage, though the data would have to be published there.
        ConnectionError: the storage cannot be reached, and this machine has no copy.
        OSError: the data is published, and the disk of this machine is full or takes no copy; another machine may.
    """
    cache = cache_folder()
    key = key or data_key(spec, context, base)
    try:
        (cache / BUILDING).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        published = _reaching(bucket, lambda: _published(bucket, spec, context, key))
        if published is None:
            raise cannot_write(cache, error, None, ADVICE) from error
        raise _cannot_fetch(cache, error, published.size) from error
    damaged = False
    with _locked(cache, key):
        try:
            store = _copy(bucket, cache, spec, context, key)
            if store is not None:
                return store
        except _DamagedError as error:
            _LOG.warning("the store %s in %s is damaged (%s); it is packed again", key, bucket.name, error)
            damaged = True
        ready = (
            read_checksums(cache / key) is not None and opened(cache / key, spec, context, key) is not None
        )
        if not ready and (cache / key / CHECKSUMS).exists():
            shutil.rmtree(cache / key)
    if not ready:
        _check_source(bucket, spec, context, base, key)
        # Before hours of packing end there.
        bucket.check()
        _pack(cache, spec, context, base, key, encode, watch)
    with _locked(cache, key):
        # Another process of this machine may have published while this one waited.
        if damaged or _reaching(bucket, lambda: _published(bucket, spec, context, key)) is None:
            _publish(bucket, cache / key, key, watch)
        store = _copy(bucket, cache, spec, context, key)
    if store is None:
        raise DataError(
            f"the store {key} in {bucket.name} was gone just after it was published; make sure that nothing else "
            "deletes there"
        )
    return store


def is_packed(spec: DataSpec, context: int, root: str | Path, key: str) -> bool:
    """Whether the store of a key is packed below `root`, and published there if that is a URI.

    Raises:
        DataError: it is, and one of its sides is too short for a window.
        ConnectionError: the storage cannot be reached.
    """
    storage = open_storage(root)
    if not isinstance(storage, Bucket):
        store = opened(storage.local / key, spec, context, key)
        if store is not None:
            check_length(store.manifest, store.path, context)
        return store is not None
    published = _reaching(storage, lambda: _published(storage, spec, context, key))
    if published is not None:
        check_length(published.manifest, f"{storage.name}/{key}", context)
    return published is not None


@dataclass(frozen=True)
class _Published:
    """A store on the storage."""

    manifest: dict[str, Any]
    """That of the packed store."""
    files: dict[str, dict[str, Any]]
    """By name: `sha256`, and `parts`, each a name and its bytes."""

    @property
    def sums(self) -> dict[str, str]:
        return {name: file["sha256"] for name, file in self.files.items()}

    @property
    def size(self) -> int:
        return sum(part[1] for file in self.files.values() for part in file["parts"])


class _DamagedError(Exception):
    """What was fetched is not what was published."""


def _locked(cache: Path, key: str) -> FileLock:
    return FileLock(cache / BUILDING / f"{key}.lock")


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


def _published(bucket: Bucket, spec: DataSpec, context: int, key: str) -> _Published | None:
    content = bucket.read(key, "manifest.json")
    if content is None:
        return None
    try:
        manifest = json.loads(content)
        files = manifest.pop("files")
        return _Published(manifest, files) if describes(manifest, spec, context, key) else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.warning("%s/%s has no readable manifest (%s); it is packed again", bucket.name, key, error)
        return None


def _copy(bucket: Bucket, cache: Path, spec: DataSpec, context: int, key: str) -> TokenStore | None:
    """The copy of this machine, fetched if it is missing or not what is published; None if nothing is.

    The caller holds the lock of the key.

    Raises:
        OSError: the disk has no room for it, or takes nothing.
        ConnectionError: the storage cannot be reached, and there is no copy.
        _DamagedError: what is there is not what its manifest says.
    """
    folder = cache / key
    try:
        published = _reaching(bucket, lambda: _published(bucket, spec, context, key))
    except ConnectionError as error:
        store = opened(folder, spec, context, key) if read_checksums(folder) else None
        if store is None:
            raise
        _LOG.warning("%s The copy in %s is used.", error, folder)
        return replace(store, read_lock=ReadLock(folder))
    if published is None:
        return None
    sums = read_checksums(folder)
    if sums is None or published.sums.items() - sums.items():
        if folder.exists():
            _LOG.warning("%s is not what is published in %s; it is fetched again", folder, bucket.name)
            shutil.rmtree(folder)
        _fetch(bucket, cache, key, published)
    store = opened(folder, spec, context, key)
    if store is None:
        return None
    touch(folder)
    return replace(store, read_lock=ReadLock(folder))


def _fetch(bucket: Bucket, cache: Path, key: str, published: _Published) -> None:
    """Fetch into a folder of its own, verify, and move it into place.

    Raises:
        OSError: the disk has no room for it, or takes nothing.
        ConnectionError: the storage cannot be reached.
        _DamagedError: what is there is not what the manifest says.
    """
    start = time.monotonic()
    folder = cache / BUILDING / f"{key}.{uuid.uuid4().hex[:8]}"
    try:
        remove_stale(cache, key)
        if _make_room(cache, key, published.size) < published.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        folder.mkdir()
        try:
            _download(bucket, key, published, folder)
            (folder / "manifest.json").write_text(json.dumps(published.manifest, indent=1) + "\n")
            sums = write_checksums(folder)
            for name, sha256 in published.sums.items():
                if sums[name] != sha256:
                    raise _DamagedError(f"{name} has the SHA-256 {sums[name]} instead of {sha256}")
            fsync_files(folder)
            folder.rename(cache / key)
        finally:
            remove_stale(cache, key)
    except ConnectionError:
        raise
    except OSError as error:
        raise _cannot_fetch(cache, error, published.size) from error
    _LOG.info("fetched %s (%s) in %.1f s", cache / key, size(published.size), time.monotonic() - start)


def _cannot_fetch(cache: Path, error: OSError, needed: int) -> OSError:
    """The error for a cache that is full or takes nothing.

    Not a DataError, because the fault is the machine's and not the input's: a cell that is not tried again elsewhere
    lets one machine with a full disk swallow a study, as fast as cells can be given to it.
    """
    host = socket.gethostname()
    if error.errno in FULL:
        text = (
            f"the disk of {host} is full: fetching the packed data needs {size(needed)} there, and {size(room(cache))} "
            f"is free; make room on that machine, or {ADVICE}"
        )
    else:
        text = (
            f"fetching the packed data fails on {host}: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}; check the folder and its permissions, or {ADVICE}"
        )
    return OSError(error.errno, text, str(cache))


def _download(bucket: Bucket, key: str, published: _Published, folder: Path) -> None:
    jobs = []
    for name, file in published.files.items():
        # Made here, because a file of no bytes has no parts.
        (folder / name).touch()
        offset = 0
        for part, length in file["parts"]:
            jobs.append((part, length, folder / name, offset))
            offset += length

    def get(job: tuple[str, int, Path, int]) -> None:
        part, length, path, offset = job
        path_there = f"{bucket.path}/{key}/{part}"
        got = 0
        with path.open("r+b") as target:
            target.seek(offset)
            try:
                with _reaching(bucket, lambda: bucket.files.open_input_stream(path_there)) as source:
                    while content := _reaching(bucket, lambda: source.read(READ)):
                        got += len(content)
                        if got <= length:
                            target.write(content)
            except FileNotFoundError:
                raise _DamagedError(f"{part} is missing") from None
        if got != length:
            raise _DamagedError(f"{part} has {got} bytes instead of {length}")

    _together(get, jobs)


def _together(
    work: Callable[[T], None], jobs: Iterable[T], done: Callable[[int], None] | None = None
) -> None:
    """Do all jobs, some at a time; the first that fails ends it."""
    pool = ThreadPoolExecutor(LINES)
    try:
        for count, _ in enumerate(pool.map(work, jobs), 1):
            if done:
                done(count)
    finally:
        pool.shutdown(cancel_futures=True)


def _make_room(cache: Path, key: str, needed: int) -> int:
    """Delete stores of other keys that nobody has open, those used longest ago first, until so much is free.

    Returns what is free then, in bytes.
    """
    others = [path for path in cache.iterdir() if path.is_dir() and path.name not in (BUILDING, key)]
    for other in sorted(others, key=last_used):
        if shutil.disk_usage(cache).free >= needed:
            break
        try:
            # Who is about to open it holds this lock, and so does who deletes it.
            with at_once(cache / BUILDING / f"{other.name}.lock"):
                # Its maps would outlive the files, but the tokenizer is read at the end of a cell, for the weights.
                if is_held(other) or not other.is_dir():
                    continue
                _LOG.info("%s is deleted to make room for %s", other, key)
                shutil.rmtree(other)
        except Timeout:
            continue
    return shutil.disk_usage(cache).free


def _check_source(bucket: Bucket, spec: DataSpec, context: int, base: Path, key: str) -> None:
    try:
        planned(spec, context, base, key, bucket.name)
    except DataError as error:
        raise DataError(
            f"the data is not packed in {bucket.name}, and it cannot be packed on this machine: {error}"
        ) from error


def _pack(
    cache: Path,
    spec: DataSpec,
    context: int,
    base: Path,
    key: str,
    encode: "Encode | None",
    watch: "Watch | None",
) -> None:
    """Pack into the cache.

    Raises:
        DataError: the data cannot be used, or the disk is full even without the stores of other keys.
    """
    try:
        build(spec, context, base, cache, key, encode, watch, ADVICE)
    except DataError as error:
        # The cause gets no name here: its frames would keep it, and it them, and with them the maps of the store.
        if getattr(error.__cause__, "errno", None) not in FULL:
            raise
        # How much packing needs is known too roughly to delete anything for it before.
        before = shutil.disk_usage(cache).free
        if _make_room(cache, key, shutil.disk_usage(cache).total) <= before:
            raise
        build(spec, context, base, cache, key, encode, watch, ADVICE)


def _publish(bucket: Bucket, folder: Path, key: str, watch: "Watch | None") -> None:
    """Upload a packed store, its manifest last. The caller holds the lock of the key.

    Raises:
        DataError: the copy on this machine was damaged since it was packed.
        ConnectionError: the storage did not take it.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    sums = read_checksums(folder) or write_checksums(folder)
    for split, sha256 in manifest["sha256"].items():
        if sums[f"{split}.bin"] != sha256:
            shutil.rmtree(folder)
            raise DataError(
                f"the packed data in {folder} was damaged before it was published and is deleted now; check that disk, "
                "and run again"
            )
    files: dict[str, dict[str, Any]] = {}
    jobs = []
    for name, sha256 in sums.items():
        if name == "manifest.json":
            continue
        length = (folder / name).stat().st_size
        stem = f"{Path(name).stem}-{sha256[:16]}"
        parts = [
            (f"{stem}-{number:05d}{Path(name).suffix}", min(PART, length - offset))
            for number, offset in enumerate(range(0, length, PART))
        ]
        files[name] = {"sha256": sha256, "parts": parts}
        jobs += [(folder / name, number * PART, part) for number, (part, _) in enumerate(parts)]

    def send(job: tuple[Path, int, str]) -> None:
        path, offset, part = job
        with path.open("rb") as file:
            file.seek(offset)
            bucket.write(key, part, file.read(PART))

    def told(count: int) -> None:
        if watch:
            watch("publishing", count / len(jobs))

    try:
        _together(send, jobs, told)
        bucket.write(
            key, "manifest.json", (json.dumps({**manifest, "files": files}, indent=1) + "\n").encode()
        )
    except OSError as error:
        raise ConnectionError(
            f"the packed data cannot be published in {bucket.name}: {reason(error)} It is kept in {folder}, and the "
            "next run goes on from there."
        ) from error
