"""The interface of a source of text for the packer, and rows of one field as documents."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainables.errors import DataError


class Stretch(NamedTuple):
    """Consecutive text of a document, so that a file larger than memory can be one document."""

    text: str
    last: bool


@dataclass(frozen=True)
class Source:
    """A source of text, ready to be read any number of times.

    Attributes:
        name: for messages and the manifest.
        stretches: opens the stream.
        bytes: size of the text if it is known beforehand, for the estimate of disk space.
        record: what the manifest keeps about the source: kind, files with their hashes, revision.
        documents: number of documents if it is known without reading them.
    """

    name: str
    stretches: Callable[[], Iterator[Stretch]]
    bytes: int | None
    record: dict[str, Any]
    documents: int | None = None


def rows_of_text(values: Iterable[object], field: str, where: str) -> Iterator[Stretch]:
    """Yield the values of a field as documents, without empty ones; a DataError if one is not text."""
    for row, text in enumerate(values):
        if text is not None and not isinstance(text, str):
            raise DataError(
                f"the field {field!r} of {where} holds {type(text).__name__}, not text, in row {row}; "
                "name a field of text with data.field"
            )
        if text:
            yield Stretch(text, last=True)


def check_field(field: str, columns: Iterable[str], where: str) -> None:
    """Raise a DataError that names the fields that exist if `field` does not."""
    if field not in (names := sorted(columns)):
        raise DataError(
            f"{where} has no field {field!r}; it has {', '.join(map(repr, names))}: set data.field to the one that "
            "holds the text"
        )
