"""Storage that machines share, by path or URI: a folder, or an object store with a local folder on each machine."""

import contextlib
import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from core.errors import InputError
from core.files import fsync
from trainables.storage import scratch

T = TypeVar("T")

#: Written last: a checkpoint without it, or whose files differ from it, is invalid.
MARKER = "complete.json"
#: Error numbers of a full disk or quota.
FULL = (errno.ENOSPC, errno.EDQUOT)
#: Pyarrow file systems without folders, where a name with a slash is enough.
_OBJECT_STORES = ("s3", "gcs", "abfs")
_COPY_BYTES = 8 << 20
#: Names of files that a record in shared storage may list.
_FILE_NAME = re.compile(r"\w[\w.-]*")
#: Seconds between attempts to reach a store.
PAUSES = (2.0, 8.0, 30.0, 90.0, 170.0)
#: Parts of Arrow's S3 errors that another attempt may resolve.
_PASSING = re.compile(
    "NETWORK_CONNECTION|curlCode|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|TIMEOUT"
)
_WAY_OUT = (
    "Make sure that the bucket exists and that this machine may write to it (for S3 by AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, a profile or the machine's role; `?endpoint_override=HOST:PORT&scheme=http` for a store "
    "other than Amazon's)."
)


def plain_name(name: str) -> str:
    """Return the name of a file; a ValueError for one that leads to another folder, as `../name` and `/name` do."""
    if not _FILE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a file that Interplay writes")
    return name


class Folder:
    """A folder that all ranks of a cell share; checkpoints are written and read in place."""

    #: Whether each machine must fetch its own copy.
    is_remote = False

    def __init__(self, local: Path) -> None:
        #: Where ranks write checkpoints, and read them after `fetch`.
        self.local = local
        #: Held by the one rank per machine that fetches.
        self.lock = local / "lock"
        #: Name for messages, without secrets.
        self.name = str(local)

    def check(self) -> None:
        """Check before training that files can be written; an InputError if not."""
        try:
            self.local.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"The folder {self.local} cannot be made: {error.strerror}. Name another."
            raise InputError(problem) from error
        if not os.access(self.local, os.W_OK):
            raise InputError(
                f"The folder {self.local} cannot be written to; name another, or change its permissions."
            )

    def tags(self) -> list[str]:
        """Return the names of all checkpoints, complete or not."""
        return self._list(is_file=False)

    def names(self) -> list[str]:
        """The names of the files that lie here and in no subfolder."""
        return self._list(is_file=True)

    def _list(self, *, is_file: bool) -> list[str]:
        entries = self.local.iterdir() if self.local.is_dir() else ()
        return [path.name for path in entries if (path.is_file() if is_file else path.is_dir())]

    def read(self, tag: str, name: str) -> bytes | None:
        """Return the contents of a small file of a checkpoint; None if it is missing."""
        path = self.local / tag / name
        return path.read_bytes() if path.is_file() else None

    def write(self, tag: str, name: str, content: bytes) -> None:
        """Write a small file atomically, after everything else of the checkpoint is on disk."""
        target = self.local / tag
        fsync(target)
        part = target / (name + ".part")
        # A new file: in a shared folder others could have put a link there, to a file of this user.
        part.unlink(missing_ok=True)
        with part.open("xb") as file:
            file.write(content)
        fsync(part)
        part.replace(target / name)
        fsync(target)
        fsync(self.local)

    def put(self, tag: str, name: str, source: Path) -> None:
        """Copy a file into the storage, replacing an older one."""
        target = self.local / tag / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # As in `write`: no link is followed.
        target.unlink(missing_ok=True)
        with source.open("rb") as content, target.open("xb") as file:
            shutil.copyfileobj(content, file, _COPY_BYTES)

    def publish(self, tag: str, names: Iterable[str]) -> None:
        """Upload files that this rank has written."""

    def fetch(self, tag: str, names: Iterable[str], into: Path | None = None) -> None:
        """Download files of a checkpoint to its folder in `local`, or in another folder."""

    def release(self, tag: str) -> None:
        """Delete this machine's copy of a checkpoint."""

    def remove(self, tag: str, first: str) -> None:
        """Delete a checkpoint, the file `first` before the others, so that an interrupted removal leaves none valid."""
        (self.local / tag / first).unlink(missing_ok=True)
        shutil.rmtree(self.local / tag, ignore_errors=True)

    def clear(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.local, ignore_errors=True)


class Bucket(Folder):
    """A folder of any file system of pyarrow or fsspec, with a local copy on each machine."""

    is_remote = True

    def __init__(self, uri: str) -> None:
        self.files, self.path = _open(uri, redacted(uri))
        self.uri, self.name = uri, redacted(uri)
        self._copy: scratch.LocalCopy | None = None

    @property
    def _claimed(self) -> scratch.LocalCopy:
        if self._copy is None:
            self._copy = scratch.claim(self.uri)
        return self._copy

    @property
    def local(self) -> Path:  # type: ignore[override]
        """Where ranks write checkpoints, and read them after `fetch`; claimed from its first use to `release`."""
        return self._claimed.files

    @property
    def lock(self) -> Path:  # type: ignore[override]
        """Held by the one rank per machine that fetches; neither `release` nor `clear` removes it under a waiter."""
        return self._claimed.lock

    def check(self) -> None:
        """Write a file, to check that this is allowed; an error as of `unusable` if not."""
        try:
            self.write("", "writable", b"")
            self.files.delete_file(self._path("", "writable"))
        except (OSError, ValueError, ImportError) as error:
            raise unusable(self.name, error) from error

    def read(self, tag: str, name: str) -> bytes | None:
        """Return the contents of a small file of a checkpoint; None if it is missing."""
        try:
            with self.files.open_input_stream(self._path(tag, name)) as source:
                return bytes(source.read())
        except FileNotFoundError:
            return None

    def write(self, tag: str, name: str, content: bytes) -> None:
        """Write a small file; object stores do it atomically."""
        self._make(tag)
        with self.files.open_output_stream(self._path(tag, name)) as target:
            target.write(content)

    def put(self, tag: str, name: str, source: Path) -> None:
        """Upload a file, replacing an older one."""
        self._make(tag)
        with source.open("rb") as content, self.files.open_output_stream(self._path(tag, name)) as target:
            shutil.copyfileobj(content, target, _COPY_BYTES)

    def publish(self, tag: str, names: Iterable[str]) -> None:
        """Upload files that this rank has written."""
        for name in names:
            self.put(tag, name, self.local / tag / name)

    def fetch(self, tag: str, names: Iterable[str], into: Path | None = None) -> None:
        """Download files of a checkpoint to its folder in `local`, or in another folder."""
        folder = (into or self.local) / tag
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = folder / plain_name(name)
            with self.files.open_input_stream(self._path(tag, name)) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)

    def release(self, tag: str) -> None:
        """Delete this machine's copy of a checkpoint."""
        shutil.rmtree(self.local / tag, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.local.rmdir()
        self._claimed.users.close()
        self._copy = None

    def remove(self, tag: str, first: str) -> None:
        """Delete a checkpoint, the file `first` before the others."""
        with contextlib.suppress(FileNotFoundError):
            self.files.delete_file(self._path(tag, first))
        with contextlib.suppress(FileNotFoundError):
            self.files.delete_dir(self._path(tag, ""))

    def clear(self) -> None:
        """Delete everything in the store and on this machine."""
        with contextlib.suppress(FileNotFoundError):
            self.files.delete_dir(self.path)
        super().clear()

    def _list(self, *, is_file: bool) -> list[str]:
        from pyarrow.fs import FileSelector

        entries = self.files.get_file_info(FileSelector(self.path, allow_not_found=True))
        return [info.base_name for info in entries if info.is_file == is_file]

    def _path(self, tag: str, name: str) -> str:
        return "/".join(filter(None, (self.path, tag, name)))

    def _make(self, folder: str) -> None:
        if self.files.type_name not in _OBJECT_STORES:
            self.files.create_dir(self._path(folder, ""), recursive=True)


def path_or_uri(where: str | Path) -> str | Path:
    """Return a URI as `str` and anything else as `Path`."""
    return where if isinstance(where, str) and "://" in where else Path(where).expanduser()


def open_storage(where: str | Path) -> Folder:
    """Return the storage of a path or `file://`, written in place, or of a URI, written through a local folder.

    URIs are those that `pyarrow.fs.FileSystem.from_uri` or fsspec support, such as
    `s3://BUCKET/FOLDER?endpoint_override=HOST:PORT&scheme=http`; for others an InputError is raised.
    """
    where = path_or_uri(where)
    if isinstance(where, Path):
        return Folder(where)
    if where.startswith("file://"):
        return Folder(Path(urlsplit(where).path))
    return Bucket(where)


def copy_into(where: str | Path, paths: Iterable[Path]) -> None:
    """Copy files and folders to a path or URI, replacing older ones; missing paths are skipped."""
    storage = open_storage(where)
    for path in paths:
        files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
        for file in files:
            tag, _, name = str(file.relative_to(path.parent)).rpartition("/")
            storage.put(tag, name, file)


def joined(where: str | Path, name: str) -> str | Path:
    """Join a path or URI with a name; a URI keeps its options."""
    where = path_or_uri(where)
    if isinstance(where, Path):
        return where / name
    # Not urlunsplit, which makes `hdfs:/a` of `hdfs:///a`: a path of this machine.
    place, mark, options = where.partition("?")
    return f"{place.rstrip('/')}/{name}{mark}{options}"


def redacted(uri: str) -> str:
    """Return a URI without user, password and options, which may be secret."""
    if "://" not in uri:
        return uri
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def unusable(name: str, error: Exception) -> InputError | ConnectionError:
    """Return the error for a store that refuses files: a ConnectionError if another attempt may help."""
    kind = ConnectionError if _PASSING.search(str(error)) else InputError
    return kind(f"Nothing can be written to {name}: {reason(error)} {_WAY_OUT}")


def with_retries(work: Callable[[], T]) -> T:
    """Return the result of `work`; on a ConnectionError retry for five minutes before it is raised.

    Otherwise a short outage would use up the retries of all cells that begin or end in it.
    """
    for pause in PAUSES:
        try:
            return work()
        except ConnectionError:
            time.sleep(pause)
    return work()


def _open(uri: str, name: str) -> tuple[Any, str]:
    """Return the file system of a URI and the path in it."""
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    try:
        files, path = FileSystem.from_uri(uri)
        return files, path.rstrip("/")
    except OSError as error:
        # An S3 URI without a region requests the region from the store.
        raise unusable(name, error) from None
    except ArrowInvalid as error:
        # The message may quote the URI with a password.
        problem = str(error).replace(uri, name)
        if "Unrecognized filesystem" not in problem:
            raise InputError(f"{name} cannot store files: {problem}") from None
    try:
        from fsspec.core import url_to_fs

        files, path = url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{name} cannot store files: {problem}; fsspec: {str(error).replace(uri, name)}. Use a folder, or a URI "
            "such as s3://BUCKET/FOLDER."
        ) from None
    return PyFileSystem(FSSpecHandler(files)), path.rstrip("/")


def discard(where: str | Path) -> None:
    """Delete all checkpoints of a finished cell; an unreachable store only gives a warning."""
    try:
        open_storage(where).clear()
    except OSError as error:
        log = logging.getLogger(__name__)
        log.warning("The checkpoints in %s could not be deleted: %s", redacted(str(where)), reason(error))


def reason(error: Exception) -> str:
    """Return an object store's message as a sentence, without the request's id."""
    return str(error).partition(" (Request ID")[0].rstrip(".") + "."
