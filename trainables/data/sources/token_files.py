"""Files of token ids: which files a path names, their formats by their first bytes, and the ids in pieces.

Formats: raw (`.bin` of nanoGPT, `.npy` of OLMo, which has no header, and true `.npy`), llm.c, Megatron's `.bin` with
its `.idx`, and data sets with a column `input_ids` (a folder of `save_to_disk`, or Parquet). Ids are little-endian.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import some
from trainables.data.sources.files import ARCHIVES, COMPRESSIONS, files_of_path, unreadable
from trainables.errors import DataError

IdFormat = Literal["raw", "llm.c", "megatron", "datasets"]
Ids = NDArray[Any]

#: Ids of a piece.
PIECE = 1 << 20
#: The column of a data set that holds the ids.
COLUMN = "input_ids"
#: The column of a data set that is 0 where an id is padding.
MASK = "attention_mask"
#: Endings that are raw ids unless the first bytes are of another format; a file of another ending needs `format`.
RAW = (".bin", ".npy", ".u16", ".u32")
PARQUET = (".parquet", ".pq")
_NUMPY, _MEGATRON, _PARQUET = b"\x93NUMPY", b"MMIDIDX\x00\x00", b"PAR1"
#: The first number of llm.c's header of 256 int32, and the type of the ids behind it.
_LLM_C, _HEADER = {20240520: "uint16", 20240801: "uint32"}, 1024
#: Types of ids in Megatron's index by their code.
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
#: Ids from the beginning of a raw file in which every second uint16 is 0 if they are uint32.
_LOOKED_AT = 1 << 16


class IdFile(NamedTuple):
    """A file of ids, or the folder of a data set; `files` are those that its content is in."""

    path: Path
    format: IdFormat
    dtype: str | None
    files: tuple[Path, ...]


class IdPiece(NamedTuple):
    """Consecutive ids, their place in the file, and whether a document ends here; False also where that is unknown."""

    ids: Ids
    start: int
    last: bool


def list_id_files(
    paths: Sequence[str], form: Literal["auto"] | IdFormat, dtype: str | None, default: str, base: Path
) -> tuple[list[IdFile], list[str]]:
    """Return the files in the order in which they are read, and the names of what is left out of folders.

    `dtype` is that of raw ids; without it, it is `default`, and ids that look otherwise are refused.

    Raises:
        DataError: a path does not exist or names no ids, or a file is not in its format.
    """
    files_by_path: dict[Path, IdFile] = {}
    others: list[str] = []
    for name in paths:
        place = base / Path(name).expanduser()
        if (place / "dataset_dict.json").is_file():
            parts = sorted(entry.name for entry in place.iterdir() if entry.is_dir())
            raise DataError(
                f"{place} holds several data sets; name one of them: {place / (parts[0] if parts else 'train')} (it "
                f"has {some(parts)})"
            )
        if (place / "state.json").is_file():
            files = tuple(sorted(entry for entry in place.iterdir() if _is_content(entry)))
            files_by_path.setdefault(place.resolve(), IdFile(place, "datasets", None, files))
            continue
        if place.is_dir() and not any(place.iterdir()):
            raise DataError(f"data.path: the folder {place} is empty; name the folder of the ids")
        # All files that are named; what each is follows from its first bytes.
        listed, left_out = files_of_path(name, "text", base)
        others += left_out
        for path, _ in listed:
            is_listed = form != "auto" or path.suffix.lower() in (*RAW, *PARQUET) or not place.is_dir()
            if path.suffix.lower() == ".idx" and path.with_suffix(".bin").is_file():
                continue
            if path.suffix.lower() == ".idx" and _is_index(path):
                raise DataError(
                    f"{path} is the index of a Megatron file, and {path.with_suffix('.bin').name} is not beside it; "
                    "copy both files, and name the .bin"
                )
            if is_listed:
                files_by_path.setdefault(path.resolve(), _recognised(path, form, dtype, default))
            else:
                others.append(path.name)
    if not files_by_path:
        raise DataError(
            f"data.path {some(paths) or '[]'} has no files of ids; they end in {', '.join((*RAW, *PARQUET))}: name a "
            "file, or set data.format"
        )
    return list(files_by_path.values()), others


def _is_content(path: Path) -> bool:
    """Whether a file of a saved data set is part of it, and no cache of `datasets`."""
    return path.is_file() and not path.name.startswith(("cache-", "."))


def _is_index(path: Path) -> bool:
    """Whether a file is an index of Megatron."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MEGATRON)) == _MEGATRON
    except OSError as error:
        raise unreadable(path, error) from error


def _recognised(path: Path, form: Literal["auto"] | IdFormat, dtype: str | None, default: str) -> IdFile:
    try:
        with path.open("rb") as file:
            head = file.read(2 * _LOOKED_AT)
    except OSError as error:
        raise unreadable(path, error) from error
    index = path.with_suffix(".idx")
    indexed = path.suffix == ".bin" and index.is_file()
    magic = struct.unpack("<i", head[:4])[0] if len(head) >= 4 else None
    kind: IdFormat | None = None
    if head.startswith(_PARQUET):
        kind = "datasets"
    elif magic in _LLM_C and len(head) >= _HEADER:
        kind = "llm.c"
    elif indexed and form != "raw":
        if not _is_index(index):
            raise DataError(
                f"{index} beside {path.name} is no index of Megatron, or is damaged; copy it again, or set "
                "data.format: raw if it does not belong to these ids"
            )
        kind = "megatron"
    elif head.startswith(_NUMPY) or form == "raw" or path.suffix.lower() in RAW:
        kind = "raw"
    if kind is None and path.suffix.lower() in (*COMPRESSIONS, *ARCHIVES, ".npz"):
        raise DataError(f"the file {path} is compressed; unpack it, and name the file of ids")
    if kind is None and path.suffix.lower() == ".arrow":
        raise DataError(
            f"the file {path} is a part of a data set; name its folder, saved with save_to_disk, or save it as Parquet"
        )
    if kind is None:
        raise DataError(
            f"the file {path} is of no known format of ids; set data.format: raw and data.dtype, or give text with "
            "kind: files"
        )
    if form not in ("auto", kind):
        # Raw ids may begin with any bytes.
        if form != "raw":
            raise DataError(
                f"the file {path} is not of data.format {form}, it is {kind}; take data.format out"
            )
        kind = "raw"
    if kind == "datasets":
        return IdFile(path, kind, None, (path,))
    if kind == "llm.c":
        return _llm_c(path, head)
    if kind == "megatron":
        return IdFile(path, kind, _index(path)[0], (path, index))
    return _raw(path, head, dtype, default)


def _llm_c(path: Path, head: bytes) -> IdFile:
    magic, _, count = struct.unpack("<3i", head[:12])
    dtype = _LLM_C[magic]
    size = path.stat().st_size
    if size != _HEADER + count * np.dtype(dtype).itemsize:
        raise DataError(
            f"the file {path} is damaged: its header has {count:,} ids of {dtype}, and it has {size:,} bytes; make it "
            "again, or copy it again"
        )
    return IdFile(path, "llm.c", dtype, (path,))


def _raw(path: Path, head: bytes, dtype: str | None, default: str) -> IdFile:
    if head.startswith(_NUMPY):
        try:
            ids = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise DataError(
                f"the file {path} is no array of ids, or is damaged ({error}); copy it again, or save whole numbers in "
                "one row: numpy.save(FILE, ids.reshape(-1).astype('uint32'))"
            ) from error
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError(
                f"the file {path} has an array of {ids.dtype} of shape {ids.shape}; save whole numbers in one row: "
                "numpy.save(FILE, ids.reshape(-1).astype('uint32'))"
            )
        return IdFile(path, "raw", "npy", (path,))
    size, item = path.stat().st_size, np.dtype(dtype or default).itemsize
    if size % item:
        raise DataError(
            f"the file {path} has {size:,} bytes, which is no whole number of ids of {dtype or default}; set "
            "data.dtype, or make the file again"
        )
    if _is_wider(head, size, "<u4") and _is_wider(head, size, "<u2") and dtype != "uint16":
        raise DataError(
            f"the file {path} looks like ids of int64: every second uint32 of its beginning is 0; save them with their "
            "type: numpy.save('FILE.npy', numpy.fromfile(FILE, 'int64'))"
        )
    if dtype is None and default == "uint16" and _is_wider(head, size, "<u2"):
        raise DataError(
            f"the file {path} looks like ids of uint32: every second uint16 of its beginning is 0; set data.dtype: "
            "uint32, or uint16 if that is meant"
        )
    return IdFile(path, "raw", dtype or default, (path,))


def _is_wider(head: bytes, size: int, kind: str) -> bool:
    """Whether ids are of twice the width of `kind`, because every second number of the beginning is 0."""
    item = 2 * np.dtype(kind).itemsize
    numbers = np.frombuffer(head[: len(head) // item * item], kind)
    return size % item == 0 and len(numbers) >= 16 and not numbers[1::2].any()


def _index(path: Path) -> tuple[str, NDArray[np.int32], NDArray[np.int64]]:
    """Return the type of the ids of a Megatron file, and length and offset in bytes of each sequence."""
    content = path.with_suffix(".idx").read_bytes()
    try:
        code, count, _ = struct.unpack_from("<BQQ", content, 17)
        lengths = np.frombuffer(content, "<i4", count, 34)
        offsets = np.frombuffer(content, "<i8", count, 34 + 4 * count)
        dtype = _CODES[code]
    except (struct.error, ValueError, KeyError) as error:
        raise DataError(
            f"the index {path.with_suffix('.idx')} cannot be read ({type(error).__name__}: {error}); make it again "
            "with Megatron's preprocess_data.py"
        ) from error
    item, size = np.dtype(dtype).itemsize, path.stat().st_size
    if count and (lengths.min() < 0 or offsets.min() < 0 or (offsets % item).any()):
        raise DataError(
            f"the index {path.with_suffix('.idx')} is damaged: it has lengths or offsets that are no places of ids of "
            f"{dtype}; copy it again, or make it again with Megatron's preprocess_data.py"
        )
    if count and int((offsets + lengths.astype(np.int64) * item).max()) > size:
        raise DataError(
            f"the file {path} has {size:,} bytes, fewer than its index says; copy both files again"
        )
    return dtype, lengths, offsets


def id_count(file: IdFile) -> int | None:
    """Return the number of ids of a file; None if that is unknown unless it is read."""
    if file.format == "megatron":
        return int(_index(file.path)[1].sum(dtype=np.int64))
    return None if file.format == "datasets" else len(_mapped(file))


def _mapped(file: IdFile) -> Ids:
    """Return all ids of a file with one array."""
    if not file.path.stat().st_size:
        return np.empty(0, np.uint16)
    if file.dtype == "npy":
        loaded: Ids = np.load(file.path, mmap_mode="r", allow_pickle=False)
        return loaded
    start = _HEADER if file.format == "llm.c" else 0
    return np.memmap(file.path, np.dtype(file.dtype).newbyteorder("<"), "r", start)


def read_ids(file: IdFile) -> Iterator[IdPiece]:
    """Yield the ids of a file in order; a DataError if a data set has no column of ids."""
    if file.format == "datasets":
        yield from _rows(file)
    elif file.format == "megatron":
        dtype, lengths, offsets = _index(file.path)
        item, ids, start = np.dtype(dtype).itemsize, _mapped(file), 0
        for length, offset in zip(lengths.tolist(), offsets.tolist(), strict=True):
            yield IdPiece(ids[offset // item : offset // item + length], start, last=True)
            start += length
    else:
        ids = _mapped(file)
        for start in range(0, len(ids), PIECE):
            yield IdPiece(ids[start : start + PIECE], start, last=False)


def _rows(file: IdFile) -> Iterator[IdPiece]:
    import pyarrow

    start = done = 0
    for column in _columns(file):
        if not (
            pyarrow.types.is_list(column.type)
            or pyarrow.types.is_large_list(column.type)
            or pyarrow.types.is_fixed_size_list(column.type)
        ) or not pyarrow.types.is_integer(column.type.value_type):
            raise DataError(
                f"the column {COLUMN!r} of {file.path} is of type {column.type}, not lists of ids; tokenize it first"
            )
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        flat = column.flatten()
        if flat.null_count:
            row = int(np.searchsorted(np.cumsum(lengths), flat.is_null().index(True).as_py(), "right"))
            raise DataError(
                f"row {done + row} of {file.path} has an id that is null; take such rows out of the column {COLUMN!r}"
            )
        done += len(lengths)
        ids = flat.to_numpy(zero_copy_only=False)
        for end, length in zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
            yield IdPiece(ids[end - length : end], start, last=True)
            start += length


def _columns(file: IdFile) -> Iterator[Any]:
    """Yield the column of ids of a data set in arrays of PyArrow; a DataError if it cannot be read."""
    import pyarrow

    try:
        yield from _batches(file)
    except DataError:
        raise
    # What `datasets` raises for a damaged folder depends on the file.
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the data set {file.path} cannot be read ({type(error).__name__}: {error}); copy it again, or save it "
            "again"
        ) from error


def _batches(file: IdFile) -> Iterator[Any]:
    if file.path.is_dir():
        import datasets

        rows = datasets.load_from_disk(str(file.path))
        columns = _read_columns(rows.column_names, file.path)
        for table in rows.select_columns(columns).with_format("arrow").iter(batch_size=1000):
            _refuse_padding(table, file.path)
            yield table.column(COLUMN).combine_chunks()
    else:
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(file.path) as parquet:
            columns = _read_columns(parquet.schema_arrow.names, file.path)
            for batch in parquet.iter_batches(batch_size=1000, columns=columns):
                _refuse_padding(batch, file.path)
                yield batch.column(COLUMN)


def _refuse_padding(rows: Any, path: Path) -> None:
    """Refuse rows with padded ids, which would be trained on."""
    import pyarrow.compute
    import pyarrow.types

    if (
        MASK in rows.column_names
        # Another type holds no mark for each id.
        and pyarrow.types.is_nested(rows.column(MASK).type)
        and pyarrow.compute.min(pyarrow.compute.list_flatten(rows.column(MASK))).as_py() == 0
    ):
        raise DataError(
            f"rows of {path} are padded: the column {MASK!r} has zeros, and padding would be trained on; tokenize with "
            "padding=False"
        )


def _read_columns(names: Sequence[str], path: Path) -> list[str]:
    """Return the columns to read: the ids, and the mask of padding if there is one."""
    if COLUMN not in names:
        raise DataError(
            f"{path} has no column {COLUMN!r}; it has {some(sorted(names))}. Rename the column of ids, or give text "
            "with kind: files"
        )
    return [name for name in (COLUMN, MASK) if name in names]
