"""A tracker of files: one folder per cell, with a mark that is written last, so that no part passes for the whole."""

import contextlib
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from core.files import write_text
from study.plan.rows import Row
from study.tracking.ledger import CurveUpdate
from study.tracking.mirror import curve_parts, step_times

#: The file in the folder of a cell that says which row the folder is a copy of.
MARK = "interplay.json"

Writer = TypeVar("Writer")


@dataclass
class _OpenCell(Generic[Writer]):
    """A cell that this process writes; `sent` has the kinds and steps of the parts of its curves."""

    writer: Writer
    folder: Path
    sent: set[tuple[str, int]] = field(default_factory=set)


class CellFolders(ABC, Generic[Writer]):
    """A `study.tracking.mirror.Target` whose folders have names that end in the key of their cell.

    A cell is written from its start to its row without an interruption, or its folder is deleted and written again.
    """

    address: str
    hint: tuple[str, str] | None
    refused: str | None = None

    def __init__(self, folder: Path) -> None:
        """Keep the folders of the cells in `folder`, made with the first."""
        self.folder = folder
        self._open: dict[str, _OpenCell[Writer]] = {}

    @abstractmethod
    def begin(self, part: CurveUpdate | Row) -> tuple[Writer, Path]:
        """Begin a cell with its parameters; return what writes it, and the folder, which exists."""

    @abstractmethod
    def log(self, writer: Writer, step: int, when: float, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step, with its time in Unix seconds."""

    @abstractmethod
    def flush(self, writer: Writer) -> None:
        """Show what was written to a reader."""

    @abstractmethod
    def end(self, writer: Writer, row: Row | None) -> None:
        """Write what a row has beside its curves, and close; None is a cell that did not end."""

    def problem(self) -> str | None:
        """Return None: a folder is always there, and errors of writing are those of the other methods."""
        return None

    def open(self) -> None:
        """Nothing is opened before the first cell."""

    def connect(self) -> dict[str, float]:
        """Return when the cells finished whose folders have marks; one that is damaged marks nothing."""
        marks = filter(None, map(_mark, self.folder.glob(f"*/{MARK}")))
        return {mark["cell"]: mark["ended"] for mark in marks}

    def log_curve(self, update: CurveUpdate) -> None:
        """Add the new parts of a curve to the folder of a cell, made if it is missing."""
        now = time.time()
        with self._cell(update) as cell:
            self._log(cell, update, lambda step: now)
            self.flush(cell.writer)

    def log_row(self, row: Row) -> None:
        """Write what of the row was not sent, and the mark."""
        when = step_times(row)
        with self._cell(row) as cell:
            self._log(cell, row, lambda step: when(step) / 1000)
            self.end(cell.writer, row)
            write_text(cell.folder / MARK, json.dumps({"cell": row.cell, "ended": row.ended}))
        del self._open[row.cell]

    def finish(self, status: str, progress: str = "") -> None:
        """Close the folders of the cells that did not end; each is written again by the run that ends its cell."""
        while self._open:
            _, cell = self._open.popitem()
            self.end(cell.writer, None)

    def _log(self, cell: _OpenCell[Writer], part: CurveUpdate | Row, when: Callable[[int], float]) -> None:
        parts = curve_parts(part)
        for kind, step in sorted(
            parts.keys() - cell.sent, key=lambda kind_and_step: (kind_and_step[1], kind_and_step[0])
        ):
            self.log(cell.writer, step, when(step), parts[kind, step])
            cell.sent.add((kind, step))

    @contextlib.contextmanager
    def _cell(self, part: CurveUpdate | Row) -> Iterator[_OpenCell[Writer]]:
        """Give the open folder of a cell, or a new one in place of an old one; after an error it is used no more."""
        if part.cell not in self._open:
            for old in self.folder.glob(f"*{part.cell}"):
                shutil.rmtree(old)
            self._open[part.cell] = _OpenCell(*self.begin(part))
        cell = self._open[part.cell]
        try:
            yield cell
        except Exception:
            del self._open[part.cell]
            # The first error is the one to report; a second one of closing says nothing more.
            with contextlib.suppress(Exception):
                self.end(cell.writer, None)
            raise


def _mark(path: Path) -> dict[str, Any] | None:
    """Return the content of a mark; None if it is damaged, so that its folder is written again."""
    try:
        mark = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return mark if isinstance(mark, dict) and mark.keys() >= {"cell", "ended"} else None
