"""The interface of a source of text for the packer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Stretch(NamedTuple):
    """Consecutive text of a document, so that a file larger than memory can be one document."""

    text: str
    last: bool


@dataclass(frozen=True)
class Source:
    """A source of text, ready to be read once.

    Attributes:
        name: for messages and the manifest.
        stretches: opens the stream.
        bytes: size of the text if it is known beforehand, for the estimate of disk space.
        record: what the manifest keeps about the source: kind, files with their hashes, revision.
        notes: remarks gathered while reading, such as rows that hold no text.
    """

    name: str
    stretches: Callable[[], Iterator[Stretch]]
    bytes: int | None
    record: dict[str, Any]
    notes: list[str] = field(default_factory=list)
