"""The files that a path names, in the order in which they are packed, with the format and the SHA-256 of each."""

import glob
import hashlib
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from core.errors import near_misses, some
from trainables.errors import DataError

Format = Literal["text", "jsonl", "parquet"]

#: Formats by suffix. In a folder, `auto` takes these and ignores the rest.
SUFFIXES: dict[str, Format] = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst", ".raw", ".tokens"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}
#: Suffixes that `datasets` takes off while reading; Parquet compresses by itself.
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
#: Endings of archives, also before one of `COMPRESSIONS`, with the command that unpacks one.
ARCHIVES = {
    **dict.fromkeys((".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst"), "tar -xf {} -C {}"),
    **dict.fromkeys((".7z", ".rar"), "7z x {} -o{}"),
    ".zip": "unzip {} -d {}",
}
#: First bytes of binary formats, with what they are called.
_MAGIC = {
    b"PK\x03\x04": "a ZIP archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"\x1f\x8b": "compressed with gzip",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard",
    b"PAR1": "Parquet",
    b"%PDF-": "PDF",
}
#: Files of a folder that describe a data set and are no rows of it, whatever else is there.
_METADATA = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json")
#: The same, in the folder of a data set of the hub; in a folder of documents they are documents.
_PAGES = ("readme", "license", "licence", "copying", "notice", "citation", "changelog", "contributing")
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
    files_by_path: dict[Path, ListedFile] = {}
    for name in paths:
        for listed in files_of_path(name, form, base)[0]:
            files_by_path.setdefault(listed.path.resolve(), listed)
    if not files_by_path:
        raise DataError("data.path is an empty list; name at least one file, folder or glob")
    return list(files_by_path.values())


def left_out(paths: Sequence[str], form: Literal["auto"] | Format, base: Path) -> list[str]:
    """Return one sentence for each path with files that `list_files` leaves out, with their names.

    These are hidden ones, those of an unknown ending, those that describe a data set, and links to nothing.
    """
    notes = []
    for name in paths:
        others = files_of_path(name, form, base)[1]
        if others:
            notes.append(f"data.path: not read in {name}: {some(others)} ({len(others)} in all)")
    return notes


def files_below(folder: Path, origin: str) -> list[Path]:
    """Return all files below a folder, also behind links to other folders, sorted.

    Raises:
        DataError: it is the whole file system or holds too many files.
    """
    return _below(folder, origin)[0]


def _below(folder: Path, origin: str) -> tuple[list[Path], list[Path]]:
    """Return all files below a folder, and the links to nothing, sorted."""
    if folder.resolve() == Path(folder.resolve().anchor):
        raise DataError(
            f"{origin} {str(folder)!r} is the whole file system; name a file, or the folder of the text"
        )
    paths = sorted(counted(_walk(folder), origin))
    return [path for path in paths if path.is_file()], [path for path in paths if not path.exists()]


def _walk(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder; each folder once, so that a loop of links ends."""
    seen = {folder.resolve()}
    for place, folders, files in os.walk(folder, followlinks=True):
        # In this order a folder that several links name has always the same place.
        folders.sort()
        yield from (Path(place, name) for name in (*folders, *files))
        for name in list(folders):
            real = Path(place, name).resolve()
            if real in seen:
                folders.remove(name)
            seen.add(real)


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


def refuse_binary(path: Path, head: bytes) -> None:
    """Raise a DataError with the fix unless the first bytes of a file, decompressed by its ending, can be text."""
    file = shlex.quote(str(path))
    if head[257:262] == b"ustar":
        raise _is_archive(path, ARCHIVES[".tar"])
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            raise DataError(
                f"the file {path} is no text, it is {kind}; unpack or convert it, or give it the ending of its format"
            )
    if b"\0" not in head:
        return
    # Of text with two bytes per character one byte of each is mostly NUL, if it is Latin.
    first, second = (head[start::2].count(0) > len(head) / 4 for start in (0, 1))
    if first != second:
        order = "BE" if first else "LE"
        raise DataError(
            f"the file {path} is UTF-16 text without a mark of its byte order; convert it: iconv -f UTF-16{order} "
            f"-t UTF-8 {file} > {shlex.quote(f'{path.stem}-utf8{path.suffix}')}"
        )
    raise DataError(
        f"the file {path} is no text: byte {head.index(0)} is NUL. Leave it out, or extract its text. If only its text "
        f"has NUL bytes, remove them: tr -d '\\000' < {file} > {shlex.quote(f'{path.stem}-text{path.suffix}')}"
    )


def _is_archive(path: Path, command: str) -> DataError:
    folder = path.name.split(".")[0] or "unpacked"
    return DataError(
        f"the file {path} is an archive, whose files cannot be read in it; unpack it and name the folder: "
        f"mkdir {shlex.quote(folder)} && {command.format(shlex.quote(str(path)), shlex.quote(folder))}"
    )


def files_of_path(
    name: str, form: Literal["auto"] | Format, base: Path
) -> tuple[list[ListedFile], list[str]]:
    """Return the files of a path, and the names of what is left out; see `list_files`."""
    try:
        return _expand(name, form, base)
    except OSError as error:
        raise unreadable(Path(name), error) from error
    except RuntimeError as error:
        # Python's error for the home folder of an unknown user, as in `~nobody`, and for a loop of links.
        raise DataError(f"data.path {name!r} cannot be followed: {error}; correct the path") from error


def _expand(name: str, form: Literal["auto"] | Format, base: Path) -> tuple[list[ListedFile], list[str]]:
    path = base / Path(name).expanduser()
    if path.is_dir():
        files, dead = _below(path, "data.path")
        inside = {p: p.relative_to(path).parts for p in files}
        starts = {p: [part[0] == "." for part in parts] for p, parts in inside.items()}
        hidden = {p: start.index(True) for p, start in starts.items() if True in start}
        seen = [p for p in files if p not in hidden]
        described = _descriptions(path, seen)
        listed = [
            ListedFile(p, form_of_path)
            for p in seen
            if p not in described and (form_of_path := _format(p) if form == "auto" else form)
        ]
        # Of a hidden folder its name, not those of its files.
        others = {p: "/".join(parts[: hidden.get(p, len(parts)) + 1]) for p, parts in inside.items()}
        for file in listed:
            del others[file.path]
        links = [f"{p.relative_to(path)} (a link to nothing)" for p in dead]
        if not listed:
            suffixes = sorted({p.suffix or "no suffix" for p in seen})
            holds = f"it holds {len(seen)} files with {', '.join(suffixes[:8])}" if seen else "it is empty"
            holds = f"it holds {some(links)}" if links and not seen else holds
            raise DataError(
                f"the folder {path} has no usable file: {holds}; usable are {', '.join(SUFFIXES)} (and "
                f"{', '.join(COMPRESSIONS)} of them). Rename the files, name one, or set data.format"
            )
        return listed, sorted({*others.values(), *links})
    described = set()
    if path.exists():
        named = [path]
    elif glob.has_magic(name):
        matches = map(Path, glob.iglob(str(path), recursive=True))  # noqa: PTH207
        named = sorted(match for match in counted(matches, "data.path") if match.is_file())
        if not named:
            raise DataError(f"no file matches data.path {name!r} (looked for {path}); correct the pattern")
        described = _descriptions(path.parent, named)
        if len(described) == len(named):
            described = set()
    elif path.is_symlink():
        raise DataError(f"data.path {name!r} is a link to nothing ({path.readlink()}); correct the link")
    else:
        raise DataError(_missing(name, path))
    for candidate in named:
        for suffix in candidate.suffixes:
            if _format(candidate) is None and suffix.lower() in ARCHIVES:
                raise _is_archive(candidate, ARCHIVES[suffix.lower()])
    # A file that is named needs no known suffix.
    listed = [
        ListedFile(p, (_format(p) or "text") if form == "auto" else form) for p in named if p not in described
    ]
    return listed, sorted(str(p) for p in described)


def _descriptions(folder: Path, files: Sequence[Path]) -> set[Path]:
    """Return the files that describe a data set; pages such as README.md only in a data set of the hub.

    That has rows in JSONL or Parquet, a file of the hub, or a README that begins with its metadata.
    """
    metadata = {path for path in files if path.name.lower() in _METADATA}
    pages = {path for path in files if path.stem.lower() in _PAGES and _format(path) == "text"}
    if not pages:
        return metadata
    is_data_set = (
        bool(metadata)
        or any((folder / name).exists() for name in (".gitattributes", *_METADATA))
        or any(_format(path) in ("jsonl", "parquet") for path in files)
        or any(_begins_with_metadata(page) for page in pages)
    )
    return metadata | pages if is_data_set else metadata


def _begins_with_metadata(page: Path) -> bool:
    with page.open("rb") as file:
        return file.read(4) in (b"---\n", b"---\r")


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
        else f"{parent} holds {some(sorted(names), 8) or 'nothing'}."
    )
    return (
        f"data.path {name!r} does not exist: there is no {path.name!r} in {parent}; {hint} Give a file, a folder or a "
        "pattern."
    )
