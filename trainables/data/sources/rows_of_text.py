"""Rows of one field as documents."""

from collections.abc import Iterable, Iterator

from trainables.data.sources.source import Stretch
from trainables.errors import DataError


def rows_of_text(values: Iterable[object], field: str, where: str, notes: list[str]) -> Iterator[Stretch]:
    """Yield the values of a field as documents; count rows without text in `notes`.

    Raises:
        DataError: a value is not text.
    """
    empty, row = 0, -1
    for row, text in enumerate(values):
        if text is not None and not isinstance(text, str):
            raise DataError(
                f"the field {field!r} of {where} holds {type(text).__name__}, not text, in row {row}; "
                "name a field of text with data.field"
            )
        if text:
            yield Stretch(text, last=True)
        else:
            empty += 1
    if empty:
        notes.append(f"{empty} of {row + 1} rows of {where} have no text in {field!r}")


def check_field(field: str, columns: Iterable[str], where: str) -> None:
    """Refuse a field that does not exist.

    Raises:
        DataError: names the fields that exist.
    """
    if field not in (names := sorted(columns)):
        raise DataError(
            f"{where} has no field {field!r}; it has {', '.join(map(repr, names))}: set data.field to the one that "
            "holds the text"
        )
