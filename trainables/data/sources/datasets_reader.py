"""Reading rows through `datasets`, with errors that name the fix."""

import contextlib
from collections.abc import Iterator
from typing import Any

from trainables.data.sources.source import Stretch
from trainables.errors import DataError

#: Rows converted at a time.
ROWS = 256


@contextlib.contextmanager
def quiet_datasets() -> Iterator[Any]:
    """Yield the `datasets` module without progress bars and error logs; restore its settings afterwards."""
    import datasets

    bars = datasets.are_progress_bars_disabled()
    level = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    # Its loaders log an error and then raise it; the raised one is reported.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield datasets
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


def rows_of_text(data: Any, field: str, where: str, notes: list[str]) -> Iterator[Stretch]:
    """Yield the texts of one field of a `datasets` data set as documents; count rows without text in `notes`.

    Raises:
        DataError: the field is missing, or holds something other than text.
    """
    columns = data.column_names
    if columns is not None:
        _check_field(field, list(columns), where)
        data = data.select_columns([field])
    empty = row = 0
    for piece in data.iter(batch_size=ROWS):
        if columns is None:
            _check_field(field, list(piece), where)
        for text in piece[field]:
            if text is not None and not isinstance(text, str):
                raise DataError(
                    f"the field {field!r} of {where} holds {type(text).__name__}, not text, in row {row}; "
                    "name a field of text with data.field"
                )
            if text:
                yield Stretch(text, last=True)
            else:
                empty += 1
            row += 1
    if empty:
        notes.append(f"{empty} of {row} rows of {where} have no text in {field!r}")


def _check_field(field: str, columns: list[str], where: str) -> None:
    if field not in columns:
        raise DataError(
            f"{where} has no field {field!r}; it has {', '.join(map(repr, sorted(columns)))}: set data.field to "
            "the one that holds the text"
        )
