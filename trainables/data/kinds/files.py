"""Local text, JSONL and Parquet, read through `datasets`."""

import codecs
import glob
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trainables.data.kind import TextData, register
from trainables.data.sources.datasets_reader import quiet_datasets, rows_of_text
from trainables.data.sources.file_listing import COMPRESSIONS, ListedFile, list_files
from trainables.data.sources.hashing import file_sha256, unreadable
from trainables.data.sources.source import Source, Stretch
from trainables.errors import DataError
from trainables.storage.disk import FULL

#: Text files up to this size are read whole, many at a time; larger ones line by line.
SMALL = 4 << 20
#: Small text files handed to `datasets` at once: opening a data set costs some milliseconds.
GROUP = 256
#: Lines of a large file taken at a time.
LINES = 4096


@register
class FilesData(TextData):
    """Local text, JSONL or Parquet; `path` is a file, a folder, a glob or a list of these."""

    kind: Literal["files"] = "files"
    path: str | tuple[str, ...]
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    field: str = Field(default="text", description="the field that holds the text (JSONL, Parquet)")

    @property
    def paths(self) -> tuple[str, ...]:
        """The path or paths."""
        return (self.path,) if isinstance(self.path, str) else self.path

    def list_files(self, base: Path) -> list[ListedFile]:
        """Return the files in the order in which they are packed, see `list_files`."""
        return list_files(self.paths, self.format, base)

    def source_identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """Format, field and SHA-256 of each file."""
        files = base and [
            [file.format, None if file.format == "text" else self.field, file_sha256(file.path)]
            for file in self.list_files(base)
        ]
        return {"kind": self.kind, "files": files}

    def source(self, context: int, base: Path) -> Source:
        """A text file is one document; in JSONL and Parquet each row is one.

        Line ends become `\\n`, as in all text that Python reads.

        Raises:
            DataError: see `list_files`; or a file may not be read; later, from the stream, a file that is not UTF-8,
                is not in its format, or lacks the field.
        """
        files = self.list_files(base)
        _check_zstandard(files)
        notes: list[str] = []
        record = {
            "kind": self.kind,
            "files": [
                {"path": str(f.path), "format": f.format, "sha256": file_sha256(f.path)} for f in files
            ],
        }
        size = sum(f.path.stat().st_size for f in files)

        def stretches(temporary: Path) -> Iterator[Stretch]:
            for group in _groups(files):
                yield from _read(group, self.field, temporary, notes)

        return Source(str(self.path), stretches, size, record, notes)

    def describe(self) -> str:
        """File names only, because folders may name their owner."""
        return "files " + ", ".join(Path(path).name for path in self.paths)


def _check_zstandard(files: list[ListedFile]) -> None:
    compressed = [f.path for f in files if f.path.suffix.lower() == ".zst"]
    if compressed and importlib.util.find_spec("zstandard") is None:
        raise DataError(
            f"the file {compressed[0]} is compressed with Zstandard, which needs the package zstandard: "
            "pip install zstandard, or decompress the file"
        )


def _groups(files: list[ListedFile]) -> Iterator[list[ListedFile]]:
    """Yield neighbouring small text files together, every other file alone."""
    group: list[ListedFile] = []
    for file in files:
        if file.path.stat().st_size == 0:
            continue
        small = _small_text(file)
        if small:
            group.append(file)
        if group and (len(group) == GROUP or not small):
            yield group
            group = []
        if not small:
            yield [file]
    if group:
        yield group


def _small_text(file: ListedFile) -> bool:
    return file.format == "text" and file.path.stat().st_size <= SMALL


def _read(group: list[ListedFile], field: str, temporary: Path, notes: list[str]) -> Iterator[Stretch]:
    first = group[0]
    # Errors of pandas, pyarrow and the codecs under `datasets` are raised here too.
    try:
        with quiet_datasets() as datasets:
            if first.format == "text" and _small_text(first):
                data = _load(datasets, "text", group, temporary, sample_by="document")
                for row in data:
                    yield Stretch(row["text"], last=True)
            elif first.format == "text":
                data = _load(datasets, "text", group, temporary, sample_by="line", keep_linebreaks=True)
                for lines in data.iter(batch_size=LINES):
                    yield Stretch("".join(lines["text"]), last=False)
                yield Stretch("", last=True)
            else:
                loader = "json" if first.format == "jsonl" else "parquet"
                data = _load(datasets, loader, group, temporary)
                yield from rows_of_text(data, field, str(first.path), notes)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise _not_utf8(group, error) from error
    except OSError as error:
        if error.errno in FULL:
            raise
        raise unreadable(first.path, error) from error
    except (ValueError, TypeError, RuntimeError, EOFError, StopIteration, ImportError) as error:
        raise DataError(
            f"the file {first.path} cannot be read as {first.format}: {type(error).__name__}: {error}; repair the "
            "file, or set data.format to its format"
        ) from error


def _load(datasets: Any, loader: str, group: list[ListedFile], temporary: Path, **options: object) -> Any:
    return datasets.load_dataset(
        loader,
        # `datasets` takes names as glob patterns: `a[1].txt` would silently match no file.
        data_files=[glob.escape(str(f.path.resolve())) for f in group],
        split="train",
        streaming=True,
        cache_dir=str(temporary),
        **options,
    )


def _not_utf8(group: list[ListedFile], error: UnicodeDecodeError) -> DataError:
    """Return the error with the file and the offset in it, which `datasets` counts within its own pieces."""
    for file in group:
        if file.path.suffix.lower() in COMPRESSIONS:
            continue
        decoder = codecs.getincrementaldecoder("utf-8")()
        done = 0
        with file.path.open("rb") as stream:
            while True:
                piece = stream.read(1 << 20)
                waiting = len(decoder.getstate()[0])
                try:
                    decoder.decode(piece, final=not piece)
                except UnicodeDecodeError as found:
                    return DataError(
                        f"the file {file.path} is not UTF-8 text: byte {done - waiting + found.start} "
                        f"(0x{found.object[found.start]:02x}) is invalid; convert it, for example with "
                        "iconv -t UTF-8, or leave it out"
                    )
                done += len(piece)
                if not piece:
                    break
    names = ", ".join(str(f.path) for f in group[:3])
    return DataError(f"{names} is not UTF-8 text ({error}); convert it to UTF-8 or leave it out")
