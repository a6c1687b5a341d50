"""The interface of a source of text for the packer, and rows of one field as documents."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainables.errors import DataError


class Stretch(NamedTuple):
    """Consecutive text of a document, so that a file larger than memory can be one document."""

    text: str
    last: bool


_SURROGATE = re.compile("[\ud800-\udfff]")
#: In place of the value of a row that lacks the field.
NO_FIELD = object()
#: What a source counts while it is read, in sentences.
_COUNTED = {
    "surrogates": "{} characters of {} are halves of surrogate pairs, which no text has, and were replaced by U+FFFD",
    "without": "{} rows of {} lack the field and were left out",
    "empty": "{} rows of {} are empty and were left out",
}


class Counts:
    """What was replaced or left out while a source was read; of several readings the longest counts."""

    def __init__(self) -> None:
        self._most: Counter[str] = Counter()

    def reading(self) -> Callable[[str, int], None]:
        """Begin to read from the start; return the function that takes what is counted and by how much."""
        now: Counter[str] = Counter()

        def add(what: str, number: int) -> None:
            now[what] += number
            self._most[what] = max(self._most[what], now[what])

        return add

    def notes(self, name: str) -> list[str]:
        """Return one sentence for each thing that was counted; `name` is that of the source."""
        return [
            text.format(f"{self._most[what]:,}", name) for what, text in _COUNTED.items() if self._most[what]
        ]


@dataclass(frozen=True)
class TextSource:
    """A source of text, ready to be read any number of times.

    Attributes:
        name: for messages and the manifest.
        stretches: opens the stream.
        bytes: size of the text if it is known beforehand, for the estimate of disk space.
        record: what the manifest keeps about the source: kind, files with their hashes, revision.
        documents: number of documents if it is known without reading them.
        counts: what its readings so far replaced or left out.
    """

    name: str
    stretches: Callable[[], Iterator[Stretch]]
    bytes: int | None
    record: dict[str, Any]
    documents: int | None = None
    counts: Counts = field(default_factory=Counts)


def rows_of_text(
    values: Iterable[object], field: str, where: str, add: Callable[[str, int], None]
) -> Iterator[Stretch]:
    """Yield the values of a field as documents, without empty ones; a DataError if one is not text.

    `add` counts what is left out, and the lone surrogates that are replaced: JSON can have them, UTF-8 cannot.
    """
    for row, text in enumerate(values):
        if text is NO_FIELD:
            add("without", 1)
            continue
        if text is not None and not isinstance(text, str):
            raise DataError(
                f"the field {field!r} of {where} holds {type(text).__name__}, not text, in row {row}; "
                "name a field of text with data.field"
            )
        if not text:
            add("empty", 1)
            continue
        try:
            text.encode()
        except UnicodeEncodeError:
            text, number = _SURROGATE.subn("\ufffd", text)
            add("surrogates", number)
        yield Stretch(text, last=True)


def check_field(field: str, columns: Iterable[str], where: str) -> None:
    """Raise a DataError that names the fields that exist if `field` does not."""
    if field not in (names := sorted(columns)):
        raise DataError(
            f"{where} has no field {field!r}; it has {', '.join(map(repr, names))}: set data.field to the one that "
            "holds the text"
        )
