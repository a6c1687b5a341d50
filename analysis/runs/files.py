"""Read files of runs (CSV, TSV, JSON, JSON Lines and Parquet) before any typing."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import string
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.runs.columns import OPTIONAL_TEXT, TEXT
from analysis.runs.headings import best_loss, column_of, loss_heading
from analysis.runs.remarks import About, Remark
from core.command_line import call
from core.errors import InputError, shortened
from core.extras import need
from core.numbers import counted

#: Endings of the tables that `read_file` reads, in lower case; text may also be compressed.
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq")
_COMPRESSED: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
#: How compressed files begin.
_STARTS: Mapping[str, bytes] = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ"}
#: Endings of spreadsheets, which hold formats and formulas beside the values.
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
#: Separators of columns, the likeliest first.
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
#: A number with a decimal comma, perhaps with points between thousands.
_COMMA = r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+)?,\d+(?:[eE][+-]?\d+)?"

#: Words for an empty cell of a CSV file; in the column of the loss "nan" is the loss of a diverged run instead.
EMPTY = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "None", "null", "NULL", "nan", "NaN", "-nan", "-NaN")


def is_table(name: str) -> bool:
    """Whether a file's name is that of a table, also of one that cannot be read (a spreadsheet)."""
    suffix, compressed = _ending(Path(name))
    return suffix in (*SUFFIXES, *SPREADSHEETS) or bool(compressed)


def _ending(path: Path) -> tuple[str, str]:
    """The ending in lower case, and that of a compression: `runs.csv.gz` -> .csv, .gz."""
    suffix = path.suffix.lower()
    if suffix in (*_COMPRESSED, ".zip", ".zst"):
        return Path(path.stem).suffix.lower(), suffix
    return suffix, ""


def read_file(path: Path, columns: Mapping[str, str]) -> tuple[pd.DataFrame, list[Remark]]:
    """Return the raw rows of a file, and how it was read where that is not plain.

    In CSV and TSV files a loss of nan is text, and differs from a missing one.

    Args:
        path: a file with an ending of `SUFFIXES`, perhaps compressed.
        columns: name of the column in a run table -> the file's name.

    Raises:
        InputError: the file is missing, empty, broken or of another kind.
    """
    if not path.exists():
        raise InputError(
            f"There is no file {path}. Give a CSV, JSON, JSONL or Parquet file, "
            "or mlflow:EXPERIMENT for an MLflow experiment."
        )
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the run table itself, such as {path / 'runs.csv'}.")
    suffix, compressed = _ending(path)
    if suffix in SPREADSHEETS:
        raise InputError(
            f"{path} is a spreadsheet, which is not read. Save its sheet as CSV (in Excel: File, Save As, CSV UTF-8) "
            "and give that file."
        )
    if suffix not in SUFFIXES:
        raise InputError(
            f"{path} has the ending {path.suffix or '(none)'!r}. A run table ends in {', '.join(SUFFIXES)}, "
            f"perhaps followed by {', '.join(_COMPRESSED)}."
        )
    if suffix in (".parquet", ".pq"):
        need("reading Parquet", "train", "pyarrow")
    try:
        if suffix in (".parquet", ".pq"):
            return pd.read_parquet(path).reset_index(drop=True), []
        text = _text(path, compressed)
        if suffix in (".csv", ".tsv"):
            return _read_separated(path, text, "," if suffix == ".csv" else "\t", columns)
        return (_read_jsonl if suffix in (".jsonl", ".ndjson") else _read_json)(path, text), []
    except pd.errors.EmptyDataError as error:
        raise InputError(
            f"{path} is empty. A run table needs a header and one row for every model."
        ) from error
    except (
        OSError,
        EOFError,
        lzma.LZMAError,
        zlib.error,
        csv.Error,
        pd.errors.ParserError,
        ValueError,
    ) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as {suffix[1:].upper()}: {error}.") from error


def _text(path: Path, compressed: str) -> str:
    """The text of a file, decompressed, without a mark of its byte order."""
    data = path.read_bytes()
    if compressed in _COMPRESSED:
        data = _COMPRESSED[compressed](data)
    elif compressed:
        raise InputError(f"{path} is compressed as {compressed[1:]}, which is not read; decompress it.")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")  # Excel's Unicode text
    if zipfile.is_zipfile(io.BytesIO(data)):
        raise InputError(
            f"{path} is a zip archive or a spreadsheet, not text. Save its sheet as CSV and give that file."
        )
    if ending := next((ending for ending, start in _STARTS.items() if data.startswith(start)), None):
        raise InputError(
            f"{path} is compressed as {ending[1:]}, and its name does not say so: `mv {path} {path}{ending}`."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path} cannot be read: line {line} is not UTF-8 ({error.reason}). Save it in UTF-8, as in "
            f"`iconv -f latin1 -t utf-8 {path.name} > utf8{path.suffix}`."
        ) from error


def _read_separated(
    path: Path, text: str, separator: str, columns: Mapping[str, str]
) -> tuple[pd.DataFrame, list[Remark]]:
    lines, notes = text.splitlines(keepends=True), list[Remark]()
    # Comments, blank lines and Excel's line `sep=;` before the header.
    above = next((i for i, line in enumerate(lines) if line.strip() and not _no_header(line)), len(lines))
    if skipped := [i + 1 for i in range(above) if lines[i].strip()]:
        notes.append(Remark(About.LINES_ABOVE, (skipped[0], skipped[-1])))
    if above == len(lines):
        raise pd.errors.EmptyDataError
    counts = {mark: len(next(csv.reader([lines[above]], delimiter=mark))) for mark in _SEPARATORS}
    best = max(counts, key=lambda mark: (counts[mark], mark == separator))
    if counts[best] > counts[separator]:
        separator = best
        notes.append(Remark(About.SEPARATOR, (_SEPARATORS[best],)))
    # A cell key such as 12e4567890123456 would otherwise be read as a number.
    names = [columns.get(name, name) for name in (*TEXT, *OPTIONAL_TEXT)]
    if not re.match(r"\s*#\s*[,;\t|]", lines[above]):
        lines[above] = re.sub(r"^\s*#\s*", "", lines[above])
    body = "".join(lines[above:])
    header = pd.read_csv(io.StringIO(body), sep=separator, nrows=0).columns
    headings_of_loss = best_loss(map(str, header))
    losses = {columns.get("loss", "loss"), *(item.heading for item in headings_of_loss)}
    # No word is empty in the column of the loss, which becomes text if it has anything but numbers.
    empty = {name: [] if name in losses else list(EMPTY) for name in header}
    with warnings.catch_warnings():
        # Values beyond the header would be lost with a warning only.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame: pd.DataFrame = pd.read_csv(
                io.StringIO(body),
                sep=separator,
                dtype=str if separator == ";" else dict.fromkeys(names, str),
                keep_default_na=False,
                na_values=empty,
                # A separator at the end of every line must not make a column of row names.
                index_col=False,
                low_memory=False,
            )
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            raise InputError(_uneven(path, lines, above, separator)) from error
    if separator == ";":
        frame, changed = _decimal_commas(frame)
        if changed:
            notes.append(Remark(About.DECIMAL_COMMA, tuple(changed)))
    return frame, notes


def _no_header(line: str) -> bool:
    """Whether a line above the table is a comment or Excel's `sep=;`; `#` may also begin a header."""
    first, *others = re.split(r"[,;\t|]", line.strip().removeprefix("#"))
    if not line.lstrip().startswith("#"):
        return re.fullmatch(r"sep=.\s*", line) is not None
    # A column named `#` numbers the rows; `# depth,width,loss` is how NumPy writes a header.
    return not (others and (not first.strip() or _known([first, *others]) >= 3))


def _known(names: Iterable[object]) -> int:
    """How many columns of a run table these names are."""
    columns = {column_of(str(name)) or (loss_heading(str(name)) and "loss") for name in names}
    return len(columns - {None})


def _uneven(path: Path, lines: list[str], above: int, separator: str) -> str:
    """Which row has more values than the header."""
    reader = csv.reader(lines[above:], delimiter=separator)
    header = next(reader)
    for row in reader:
        if len(row) > len(header):
            return (
                f"{path}, line {above + reader.line_num}, has {counted(len(row), 'value')}, but the header in "
                f"line {above + 1} ({shortened(lines[above].strip())}) has {len(header)}. The header must be the first "
                "line, and a value with a separator in it must be quoted."
            )
    return f"{path} cannot be read as CSV: its rows differ from the header in line {above + 1}."


def _decimal_commas(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """A table of texts with points for decimal commas, and the columns that had them.

    In such a table the point stands between thousands.
    """
    stripped = {name: frame[name].str.strip(f"{string.whitespace}\u00a0$€£¥") for name in frame.columns}
    commas = [name for name, texts in stripped.items() if texts.str.fullmatch(_COMMA).any()]
    for name, texts in stripped.items() if commas else ():
        match = texts.str.fullmatch(rf"{_COMMA}|[+-]?\d{{1,3}}(?:\.\d{{3}})+").fillna(False).astype(bool)
        swapped = texts.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        frame = frame.assign(**{name: frame[name].mask(match, swapped)})
    return frame, list(map(str, commas))


def _read_json(path: Path, text: str) -> pd.DataFrame:
    """A list of rows, or columns as pandas writes them; JSON Lines under another name."""
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        if "\n" in text.strip():
            return _read_jsonl(path, text)
        raise InputError(f"{path} is not JSON: {error}.") from error
    if isinstance(document, dict) and {"columns", "data"} <= document.keys():
        rows: Any = _split(path, document["columns"], document["data"])
    elif isinstance(document, dict) and {"crossings", "law"} <= document.keys():
        raise InputError(
            f"{path} is a fit, not a run table. Ask it with `{call('recommend', '1e9', fit=path)}`."
        )
    elif (
        isinstance(document, dict) and len(lists := [item for item in document.values() if _rows(item)]) == 1
    ):
        (rows,) = lists  # {"runs": [...]}, {"data": [...]}
    elif (
        isinstance(document, dict) and document and all(isinstance(v, dict | list) for v in document.values())
    ):
        return _columns(path, document)
    else:
        rows = document
    if not _rows(rows):
        raise InputError(
            f"{path} is no run table: give a list of objects with one object per model, or columns as pandas "
            "writes them."
        )
    return pd.json_normalize(rows)


def _split(path: Path, names: Any, data: Any) -> list[dict[str, Any]]:
    """The rows of a document with its headings and its values apart, as `to_json(orient="split")` writes it."""
    lists = isinstance(names, list) and isinstance(data, list) and all(isinstance(row, list) for row in data)
    if not lists or any(isinstance(name, list | dict) for name in names):
        raise InputError(
            f"{path} is no run table: give its `columns` as a list of names, its `data` as lists."
        )
    return [dict(zip(map(str, names), row, strict=True)) for row in data]


def _rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _columns(path: Path, document: dict[str, Any]) -> pd.DataFrame:
    columns = {
        name: pd.Series(list(values.values()), index=[str(key) for key in values])
        if isinstance(values, dict)
        else pd.Series(values, index=[str(place) for place in range(len(values))], dtype=object)
        for name, values in document.items()
    }
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        raise InputError(
            f"{path} is no run table: its columns have between {min(lengths)} and {max(lengths)} values."
        )
    frame = pd.DataFrame(columns)
    # Rows by their index, as `to_json(orient="index")` writes them, have the columns as keys.
    outer, inner = _known(frame.columns), _known(frame.index)
    if outer < inner or (outer == inner and not all(key.isdecimal() for key in frame.index)):
        frame = frame.T
    return frame.infer_objects().reset_index(drop=True)


def _read_jsonl(path: Path, text: str) -> pd.DataFrame:
    lines = text.split("\n")
    rows = [_object(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise InputError(f"{path} is empty. A run table needs one JSON object for every model.")
    return pd.json_normalize(rows)


def _object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}, line {number}, is not JSON: {error}. Give one object per line.") from error
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {number}, is not a JSON object. Give one object per line.")
    return row
