"""A table of text, built once and rendered by the terminal and by the pages."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

#: Text of an empty cell.
EMPTY = "–"


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: header.
        detail: second line of the header, on a page only.
        under: name of the column whose cells hold this one in small letters on a page; in a terminal it is a separate
            column.
        small: how it is written there, such as `baseline {}`.
        look: `strong`, or `tag` for a state.
        where: `page` or `terminal` if it is shown in one of them only.
    """

    name: str
    detail: str = ""
    right: bool = True
    under: str = ""
    small: str = "{}"
    look: Literal["", "tag", "strong"] = ""
    where: Literal["", "page", "terminal"] = ""


class PageCell(NamedTuple):
    """One cell of a page: its text and the small lines below it."""

    column: Column
    text: str
    small: list[str]


@dataclass(frozen=True)
class Table:
    """A table of text; None is an empty cell.

    Attributes:
        title: above the table in a terminal, `table of TITLE` for screen readers on a page.
        columns: in the order of a terminal.
        note: what a reader needs to understand it.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[str | None]]
    note: str = ""

    @property
    def headed(self) -> bool:
        """Whether any column has a name."""
        return any(column.name for column in self.columns)

    @property
    def page_columns(self) -> list[Column]:
        """The columns of a page."""
        return [column for column in self.columns if not column.under and column.where != "terminal"]

    @property
    def page_rows(self) -> list[list[PageCell]]:
        """The rows of a page, each cell with its small lines."""
        return [[self._cell(column, row) for column in self.page_columns] for row in self.rows]

    def _cell(self, column: Column, row: Sequence[str | None]) -> PageCell:
        below = [
            other.small.format(text)
            for other, text in zip(self.columns, row, strict=True)
            if other.under == column.name and other.under and other.where != "terminal" and text
        ]
        return PageCell(column, row[self.columns.index(column)] or EMPTY, below)

    def records(self) -> list[dict[str, str | None]]:
        """One dictionary per row, by the names of the columns."""
        return [dict(zip((column.name for column in self.columns), row, strict=True)) for row in self.rows]


#: Columns, and the text of an item in each of them.
Columns = dict[Column, Callable[[Any], str | None]]


def table_of(title: str, items: Iterable[Any], columns: Columns, note: str = "") -> Table:
    """A table with one row per item."""
    rows = [tuple(text(item) for text in columns.values()) for item in items]
    return Table(title, tuple(columns), rows, note)
