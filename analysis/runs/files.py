"""Read files of runs (CSV, TSV, JSON Lines and Parquet) before any typing."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from analysis.errors import InputError
from analysis.runs.columns import OPTIONAL_TEXT, TEXT, common_names

#: Suffixes of the tables that `read_file` reads, in lower case.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq")

#: Words for an empty cell of a CSV file; in the column of the loss "nan" is the loss of a diverged run instead.
_EMPTY = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "None", "null", "NULL", "nan", "NaN", "-nan", "-NaN")


def read_file(path: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return the raw rows of a file; in CSV and TSV files a loss of nan is text, and differs from a missing one.

    Args:
        path: a file with an ending of `SUFFIXES`.
        columns: name of the column in a run table -> the file's name.

    Raises:
        InputError: the file is missing, empty, broken or of another kind.
    """
    if not path.exists():
        raise InputError(
            f"There is no file {path}. Give a CSV, JSONL or Parquet file, "
            "or mlflow:EXPERIMENT for an MLflow experiment."
        )
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the run table itself, such as {path / 'runs.csv'}.")
    # A cell key such as 12e4567890123456 would otherwise be read as a number.
    text = [columns.get(name, name) for name in (*TEXT, *OPTIONAL_TEXT)]
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{path} has the ending {path.suffix or '(none)'!r}. A run table ends in {', '.join(SUFFIXES)}."
        )
    try:
        if suffix in (".csv", ".tsv"):
            return _read_separated(path, "," if suffix == ".csv" else "\t", text, columns)
        return (
            _read_jsonl(path)
            if suffix in (".jsonl", ".ndjson")
            else pd.read_parquet(path).reset_index(drop=True)
        )
    except pd.errors.EmptyDataError as error:
        raise InputError(
            f"{path} is empty. A run table needs a header and one row for every model."
        ) from error
    except (OSError, pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}.") from error


def _read_separated(path: Path, separator: str, text: list[str], columns: Mapping[str, str]) -> pd.DataFrame:
    header = pd.read_csv(path, sep=separator, nrows=0).columns
    loss = columns.get("loss") or common_names(header, columns).get("loss", "loss")
    # No word is empty in the column of the loss, which becomes text if it has anything but numbers.
    empty = {name: [] if name == loss else list(_EMPTY) for name in header}
    with warnings.catch_warnings():
        # Values beyond the header would be lost with a warning only.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        frame: pd.DataFrame = pd.read_csv(
            path,
            sep=separator,
            dtype=dict.fromkeys(text, str),
            keep_default_na=False,
            na_values=empty,
            # A separator at the end of every line must not make a column of row names.
            index_col=False,
            low_memory=False,
        )
    return frame


def _read_jsonl(path: Path) -> pd.DataFrame:
    with path.open(encoding="utf-8") as lines:
        rows = [_object(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise InputError(f"{path} is empty. A run table needs one JSON object for every model.")
    return pd.DataFrame(rows)


def _object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}, line {number}, is not JSON: {error}. Give one object per line.") from error
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {number}, is not a JSON object. Give one object per line.")
    return row
