"""Local text, JSONL and Parquet."""

import codecs
import importlib.util
import io
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trainables.data.kind import TextData, register
from trainables.data.sources.files import (
    COMPRESSIONS,
    ListedFile,
    files_sha256,
    left_out,
    list_files,
    refuse_binary,
    unreadable,
)
from trainables.data.sources.source import NO_FIELD, Counts, Stretch, TextSource, check_field, rows_of_text
from trainables.errors import DataError

#: Bytes of a file read at once.
READ = 1 << 20


@register
class FilesData(TextData):
    """Local text, JSONL or Parquet; `path` is a file, a folder, a glob or a list of these.

    Links to folders are followed. Of a folder, hidden files, other endings and what describes a data set of the hub
    (README.md, dataset_infos.json) are not read; a plan names them. Archives are refused.
    """

    kind: Literal["files"] = "files"
    path: str | tuple[str, ...] = Field(
        description="a file, a folder, a pattern, or a list of these; a relative path starts from the file of the spec"
    )
    format: Literal["auto", "text", "jsonl", "parquet"] = Field(
        default="auto", description="of the files; auto is by their endings"
    )
    field: str = Field(default="text", description="the field that holds the text (JSONL, Parquet)")

    @property
    def _paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path

    def source_identity(self, base: Path | None) -> dict[str, Any]:
        """Format, field and SHA-256 of each file."""
        files = base and [
            [file.format, None if file.format == "text" else self.field, sha256]
            for file, sha256 in self._hashed(base)
        ]
        return {"kind": self.kind, "files": files}

    def _hashed(self, base: Path) -> list[tuple[ListedFile, str]]:
        files = list_files(self._paths, self.format, base)
        return list(zip(files, files_sha256([file.path for file in files], "data.path"), strict=True))

    def text_bytes(self, base: Path) -> int | None:
        """The size of plain text files; None if a file is compressed or has fields."""
        files = list_files(self._paths, self.format, base)
        if any(f.format != "text" or f.path.suffix.lower() in COMPRESSIONS for f in files):
            return None
        return sum(f.path.stat().st_size for f in files)

    def source(self, base: Path) -> TextSource:
        """A text file is one document; in JSONL and Parquet each row is one. Line ends become `\\n`.

        Raises:
            DataError: see `list_files`; or, from the stream, a file is not in its format or lacks the field.
        """
        hashed = self._hashed(base)
        files = [file for file, _ in hashed]
        listed = [{"path": str(f.path), "format": f.format, "sha256": sha256} for f, sha256 in hashed]
        sizes = [f.path.stat().st_size for f in files]
        texts = sum(map(bool, sizes)) if all(f.format == "text" for f in files) else None

        counts = Counts()

        def stretches() -> Iterator[Stretch]:
            add = counts.reading()
            for file in files:
                if file.path.stat().st_size:
                    yield from _read(file, self.field, add)

        record = {"kind": self.kind, "files": listed}
        return TextSource(str(self.path), stretches, sum(sizes), record, texts, counts)

    def notes(self, base: Path) -> list[str]:
        """The files of folders that are left out."""
        return left_out(self._paths, self.format, base)

    def describe(self) -> str:
        """File names only, because folders may name their owner."""
        return "files " + ", ".join(Path(path).name for path in self._paths)


def _read(file: ListedFile, field: str, add: Callable[[str, int], None]) -> Iterator[Stretch]:
    try:
        if file.format == "text":
            for text in _decoded(file.path):
                yield Stretch(text, last=False)
            yield Stretch("", last=True)
        else:
            values = _json_values if file.format == "jsonl" else _parquet_values
            yield from rows_of_text(values(file.path, field), field, str(file.path), add)
    except DataError:
        raise
    except (OSError, ValueError, TypeError, EOFError, RuntimeError) as error:
        # An error of the decompressor has no number.
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(file.path, error) from error
        raise DataError(
            f"the file {file.path} cannot be read as {file.format}: {type(error).__name__}: {error}; repair the file, "
            "or set data.format to its format"
        ) from error


def _decoded(path: Path) -> Iterator[str]:
    """Yield the text of a file, decompressed by its suffix, in pieces; a DataError if it is not UTF-8."""
    import fsspec

    if path.suffix.lower() == ".zst" and importlib.util.find_spec("zstandard") is None:
        raise DataError(
            f"the file {path} is compressed with Zstandard, which needs the package zstandard: pip install zstandard, "
            "or decompress the file"
        )
    utf8 = codecs.getincrementaldecoder("utf-8")()
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    done = 0
    with fsspec.open(str(path.resolve()), "rb", compression="infer", expand=False) as stream:
        while True:
            piece = stream.read(READ)
            if not done:
                refuse_binary(path, piece)
            waiting = len(utf8.getstate()[0])
            try:
                yield decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"the file {path} is not UTF-8 text: byte {done - waiting + error.start} "
                    f"(0x{error.object[error.start]:02x}) is invalid; convert it, for example with iconv -t UTF-8, "
                    "or leave it out"
                ) from error
            done += len(piece)
            if not piece:
                return


def _json_values(path: Path, field: str) -> Iterator[object]:
    """Yield a field of all rows of JSON Lines, or of a JSON list."""
    columns: set[str] = set()
    for line, row in _json_rows(path):
        if not isinstance(row, dict):
            raise _broken(path, line, f"it is of type {type(row).__name__} and not an object with fields")
        columns.update(row)
        yield row.get(field, NO_FIELD)
    check_field(field, columns, str(path))


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each row with its line, of a list the line where the list begins; a DataError names a broken line."""
    rest, is_list, line = "", None, 0

    def row(text: str) -> Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            why = f"{error.msg} at column {error.colno}"
            raise _broken(path, line + error.lineno, why) from error

    for text in _decoded(path):
        rest += text
        if is_list is None and rest.strip():
            is_list = rest.lstrip()[0] == "["
        if not is_list:
            *lines, rest = rest.split("\n")
            for entry in lines:
                if entry.strip():
                    yield line + 1, row(entry)
                line += 1
    if rest.strip():
        last = row(rest)
        yield from ((line + 1, entry) for entry in (last if is_list else [last]))


def _broken(path: Path, line: int, why: str) -> DataError:
    """Return the error for a line that holds no row."""
    show = (
        "" if path.suffix.lower() in COMPRESSIONS else f" (sed -n {line}p {shlex.quote(str(path))} shows it)"
    )
    return DataError(
        f"the file {path} cannot be read as jsonl: line {line} is no row: {why}; repair or remove that line{show}, or "
        "set data.format to the file's format"
    )


def _parquet_values(path: Path, field: str) -> Iterator[object]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        check_field(field, file.schema_arrow.names, str(path))
        for batch in file.iter_batches(batch_size=256, columns=[field]):
            column = batch.column(0)
            try:
                values = column.to_pylist()
            except UnicodeDecodeError:
                # Not every writer checks its text. Surrogates are replaced like those of JSON; the rest is an error.
                raw = column.view("binary" if column.type == "string" else "large_binary").to_pylist()
                values = [None if value is None else value.decode(errors="surrogatepass") for value in raw]
            yield from values
