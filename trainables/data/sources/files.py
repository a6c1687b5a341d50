"""The files that a path names, in the order in which they are packed, with the format and the SHA-256 of each."""

import glob
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from trainables.errors import DataError, near_misses, some

Format = Literal["text", "jsonl", "parquet"]

#: Formats by suffix. In a folder, `auto` takes these and ignores the rest.
SUFFIXES: dict[str, Format] = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst", ".raw", ".tokens"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}
#: Suffixes that `datasets` takes off while reading; Parquet compresses by itself.
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
#: Most files and folders that one path may name; listing as many takes about a minute.
MOST_PATHS = 1_000_000
#: From as many bytes or files on it is announced that they will be hashed: about a second of work.
ANNOUNCED_BYTES, ANNOUNCED_FILES = 1 << 30, 10_000

#: Hashes by path, size and time of modification.
_known: dict[tuple[Path, int, int], str] = {}

#: A path, or a path with its name.
AnyPath = TypeVar("AnyPath")


class ListedFile(NamedTuple):
    """A file and the format it is read in."""

    path: Path
    format: Format


def list_files(paths: Sequence[str], form: Literal["auto"] | Format, base: Path) -> list[ListedFile]:
    """Return the files in the order in which they are packed: as listed, and within a folder or glob by path.

    The order depends on the names inside a folder and not on where the folder is. A duplicate is left out.

    Raises:
        DataError: a path does not exist (near misses are named), or it has no usable file.
    """
    found: dict[Path, ListedFile] = {}
    for name in paths:
        try:
            for listed in _expand(name, form, base):
                found.setdefault(listed.path.resolve(), listed)
        except OSError as error:
            raise unreadable(Path(name), error) from error
        except RuntimeError as error:
            # Python's error for the home folder of an unknown user, as in `~nobody`, and for a loop of links.
            raise DataError(f"data.path {name!r} cannot be followed: {error}; correct the path") from error
    if not found:
        raise DataError("data.path is an empty list; name at least one file, folder or glob")
    return list(found.values())


def files_below(folder: Path, origin: str) -> list[Path]:
    """Return all files below a folder, sorted; a DataError if it is the whole file system or holds too many files."""
    if folder.resolve() == Path(folder.resolve().anchor):
        raise DataError(
            f"{origin} {str(folder)!r} is the whole file system; name a file, or the folder of the text"
        )
    return sorted(path for path in counted(folder.rglob("*"), origin) if path.is_file())


def counted(paths: Iterable[AnyPath], origin: str) -> Iterator[AnyPath]:
    """Yield paths; their number so far is printed on stderr whenever it has doubled, and too many are a DataError."""
    announced = ANNOUNCED_FILES
    for count, path in enumerate(paths, start=1):
        if count > MOST_PATHS:
            raise DataError(
                f"{origin} names more than {MOST_PATHS:,} files and folders; name the folder of the text, or join "
                "small files to larger ones (JSONL, Parquet)"
            )
        if count == announced:
            announced *= 2
            print(f"{origin}: {count:,} files and folders found so far; Ctrl-C ends it", file=sys.stderr)
        yield path


def files_sha256(paths: Sequence[Path], origin: str) -> list[str]:
    """Return the SHA-256 of files; if that takes long, their number and size are printed on stderr first.

    `origin` is the key of the spec that names them. A file that is missing or may not be read is a DataError.
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
    """Return the SHA-256 of a file in hex, cached by size and modification time; a DataError if it cannot be read."""
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


def _expand(name: str, form: Literal["auto"] | Format, base: Path) -> list[ListedFile]:
    path = base / Path(name).expanduser()
    if path.is_dir():
        files = files_below(path, "data.path")
        seen = [p for p in files if not any(part[0] == "." for part in p.relative_to(path).parts)]
        listed = [ListedFile(p, found) for p in seen if (found := _format(p) if form == "auto" else form)]
        if not listed:
            suffixes = sorted({p.suffix or "no suffix" for p in seen})
            holds = f"it holds {len(seen)} files with {', '.join(suffixes[:8])}" if seen else "it is empty"
            raise DataError(
                f"the folder {path} has no usable file: {holds}; usable are {', '.join(SUFFIXES)} (and "
                f"{', '.join(COMPRESSIONS)} of them). Rename the files, name one, or set data.format"
            )
        return listed
    if path.exists():
        named = [path]
    elif glob.has_magic(name):
        matches = map(Path, glob.iglob(str(path), recursive=True))  # noqa: PTH207
        named = sorted(match for match in counted(matches, "data.path") if match.is_file())
        if not named:
            raise DataError(f"no file matches data.path {name!r} (looked for {path}); correct the pattern")
    else:
        raise DataError(_missing(name, path))
    # A file that is named needs no known suffix.
    return [ListedFile(p, (_format(p) or "text") if form == "auto" else form) for p in named]


def _format(path: Path) -> Format | None:
    """The format by the suffix; None if the suffix is unknown."""
    suffixes = [s.lower() for s in path.suffixes]
    while suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1]) if suffixes else None


def _missing(name: str, path: Path) -> str:
    parent = path.parent
    while not parent.is_dir():
        path, parent = parent, parent.parent
    names = [p.name for p in parent.iterdir()]
    near = near_misses(path.name, names, most=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(str(parent / n) for n in near)}?"
        if near
        else f"{parent} holds {some(sorted(names), 8) or 'nothing'}"
    )
    return f"data.path {name!r} does not exist: there is no {path.name!r} in {parent}; {hint}"
