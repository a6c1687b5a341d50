"""Which files a `files` source names, in which order, and how each is read; no content is looked at."""

import glob
from pathlib import Path
from typing import Literal, NamedTuple

from trainables.data.spec import FilesData
from trainables.errors import DataError, near_misses

Format = Literal["text", "jsonl", "parquet"]

#: Formats by suffix. In a folder, `auto` takes these and leaves the rest alone.
SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".rst": "text",
    ".raw": "text",
    ".tokens": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
#: Suffixes that `datasets` takes off while reading; Parquet compresses by itself.
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


class ListedFile(NamedTuple):
    """A file and the format it is read in."""

    path: Path
    format: Format


def list_files(spec: FilesData, base: Path) -> list[ListedFile]:
    """Files of a spec in the order in which they are packed: as listed, and within a folder or glob by path.

    The order depends on the names inside a folder and not on where the folder is. A file met twice counts once.

    Raises:
        DataError: a path does not exist (near misses are named), or nothing usable is there.
    """
    paths = (spec.path,) if isinstance(spec.path, str) else spec.path
    found: dict[Path, ListedFile] = {}
    for name in paths:
        for listed in _expand(name, spec, base):
            found.setdefault(listed.path.resolve(), listed)
    if not found:
        raise DataError("data.path is an empty list; name at least one file, folder or glob")
    return list(found.values())


def _expand(name: str, spec: FilesData, base: Path) -> list[ListedFile]:
    path = base / Path(name).expanduser()
    if path.is_dir():
        below = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
        listed = [ListedFile(p, f) for p in below if (f := _format(p, spec, named=False))]
        if not listed:
            raise DataError(_unusable(path, below))
        return listed
    if path.exists():
        return [ListedFile(path, _format(path, spec, named=True) or "text")]
    if glob.has_magic(name):
        matches = sorted(p for m in glob.glob(str(path), recursive=True) if (p := Path(m)).is_file())  # noqa: PTH207
        if not matches:
            raise DataError(f"no file matches data.path {name!r} (looked for {path}); mend the pattern")
        return [ListedFile(p, _format(p, spec, named=True) or "text") for p in matches]
    raise DataError(_missing(name, path))


def _format(path: Path, spec: FilesData, *, named: bool) -> Format | None:
    """The format of a file; None when `auto` does not know the suffix. A named Parquet file needs no suffix."""
    if spec.format != "auto":
        return spec.format
    suffixes = [s.lower() for s in path.suffixes]
    while suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    known = SUFFIXES.get(suffixes[-1]) if suffixes else None
    return known or ("text" if named else None)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _unusable(folder: Path, files: list[Path]) -> str:
    there = sorted({p.suffix or "no suffix" for p in files})
    return (
        f"the folder {folder} has no usable file: "
        + (f"it holds {len(files)} files with {', '.join(there[:8])}" if files else "it is empty")
        + f"; usable are {', '.join(SUFFIXES)} (and {', '.join(COMPRESSIONS)} of them). Rename the files, name one, "
        "or set data.format"
    )


def _missing(name: str, path: Path) -> str:
    parent = path.parent
    while not parent.is_dir():
        path, parent = parent, parent.parent
    names = [p.name for p in parent.iterdir()]
    near = near_misses(path.name, names, most=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(str(parent / n) for n in near)}?"
        if near
        else (f"{parent} holds {', '.join(sorted(names)[:8]) or 'nothing'}")
    )
    return f"data.path {name!r} does not exist: there is no {path.name!r} in {parent}; {hint}"
