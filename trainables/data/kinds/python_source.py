"""Python sources and docs of the running interpreter and its packages: real text on every machine."""

import functools
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trainables.data.kind import MOST, TextData, register
from trainables.data.sources.files import counted
from trainables.data.sources.source import Stretch, TextSource
from trainables.errors import DataError

SUFFIXES = (".py", ".rst", ".md", ".txt")
#: Larger files are tables and generated code rather than written text.
LARGEST = 1 << 20
#: Folders that hold copies, caches or records rather than text.
SKIPPED = re.compile(r"__pycache__|(site|dist)-packages|.*\.(dist|egg)-info", re.DOTALL)


@register
class PythonSourceData(TextData):
    """Python sources and docs of the running interpreter and its installed packages: real text on every machine."""

    kind: Literal["python-source"] = "python-source"
    max_bytes: int = Field(
        default=20_000_000, ge=1, le=MOST, description="stop taking files after this many bytes"
    )

    def source_identity(self, base: Path | None) -> dict[str, Any]:
        """The SHA-256 of each file taken."""
        files = base and [file.sha256 for file in take_files(self.max_bytes, roots())]
        return {"kind": self.kind, "max_bytes": self.max_bytes, "files": files}

    def text_bytes(self, base: Path) -> int:
        """The limit; files are taken up to it."""
        return self.max_bytes

    def source(self, base: Path) -> TextSource:
        """Each file is a document; a DataError if there is none (a frozen interpreter)."""
        files = take_files(self.max_bytes, roots())
        listed = [{"path": f.name, "sha256": f.sha256, "bytes": f.size} for f in files]

        def stretches() -> Iterator[Stretch]:
            for file in files:
                content = _read(file.path)
                if content is None or hashlib.sha256(content.encode()).hexdigest() != file.sha256:
                    raise DataError(
                        f"{file.path} changed while it was being packed; run again when no package is being installed"
                    )
                yield Stretch(content, last=True)

        size = sum(f.size for f in files)
        return TextSource(self.kind, stretches, size, {"kind": self.kind, "files": listed}, len(files))


@dataclass(frozen=True)
class SourceText:
    """A file taken; `name` is its path below its root, such as `stdlib/json/decoder.py`."""

    name: str
    path: Path
    sha256: str
    size: int


def roots() -> tuple[tuple[str, Path], ...]:
    """Return labels and folders to search: the standard library and the installed packages."""
    paths = sysconfig.get_paths()
    packages = dict.fromkeys((paths["purelib"], paths["platlib"]))
    return ("stdlib", Path(paths["stdlib"])), *(("packages", Path(path)) for path in packages)


@functools.lru_cache(maxsize=4)
def take_files(max_bytes: int, folders: tuple[tuple[str, Path], ...]) -> tuple[SourceText, ...]:
    """Return files up to `max_bytes` in an order that mixes all packages and is the same on every run.

    The order is by a hash of the name, so a prefix of it is a fair sample. Files that are not UTF-8, are empty, or
    repeat one taken before, are left out. The result is cached for the life of the process.

    Raises:
        DataError: nothing was found.
    """
    named = [(f"{label}/{p.relative_to(root).as_posix()}", p) for label, root in folders for p in _walk(root)]
    named.sort(key=lambda item: (hashlib.sha256(item[0].encode()).digest(), item[0]))
    taken: dict[str, SourceText] = {}
    total = 0
    for name, path in counted(named, "python-source"):
        content = _read(path)
        if not content:
            continue
        raw = content.encode()
        sha256 = hashlib.sha256(raw).hexdigest()
        if sha256 in taken:
            continue
        if total + len(raw) > max_bytes and taken:
            break
        taken[sha256] = SourceText(name, path, sha256, len(raw))
        total += len(raw)
    if not taken:
        raise DataError(
            "python-source found no text below " + ", ".join(str(p) for _, p in folders) + "; use kind: files"
        )
    return tuple(taken.values())


def _walk(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if not SKIPPED.fullmatch(name)]
        yield from (Path(folder, name) for name in files if name.endswith(SUFFIXES))


def _read(path: Path) -> str | None:
    """Return the text of a file, or None if it is too large, a broken link, not readable or not UTF-8."""
    try:
        return None if path.stat().st_size > LARGEST else path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return None
