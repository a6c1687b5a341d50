"""Mirrors the ledger of a running study to its tracker, from a thread, so that the driver never waits for it."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path

from study.errors import SpecError
from study.tracking.ledger import Ledger
from study.tracking.mlflow_client import first_line
from study.tracking.rows import CurveUpdate, Row
from study.tracking.tracker import Tracker

#: Seconds between two batches of live curves, and between two attempts to reach an unreachable server.
BATCH_SECONDS = 5.0

#: An item that the driver queues: the key of a cell whose row is in the ledger, or a live curve.
Item = str | CurveUpdate


class Mirror:
    """Sends rows and live curves to a tracker, and at the start the rows that it lacks.

    Every error of the tracker is kept in `problem`. Live curves may be lost, because the row has the whole curve, and
    rows that cannot be sent are sent at the next start.
    """

    def __init__(self, tracker: Tracker, ledger: Ledger, rows: Iterable[Row]) -> None:
        """Begin with the study's `rows` from earlier runs."""
        self.tracker, self.ledger = tracker, ledger
        self.problem: str | None = None
        self._ended = {row.cell: f"{row.ended:.3f}" for row in rows}
        self._connected = False
        self._missing: list[str] = []
        """The cells whose rows the tracker lacked when it was last connected, in the order in which they finished."""
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stuck = False

    def open(self) -> str | None:
        """Open the tracker; return why it cannot be used now. After a SpecError it never can."""
        self.problem = self.tracker.problem()
        if self.problem is None:
            try:
                self.tracker.open()
            except SpecError:
                raise
            except Exception as error:  # noqa: BLE001 - no failure of the tracker may fail a study
                self.problem = f"{self.tracker.address}: {first_line(error)}"
        return self.problem

    def start(self) -> None:
        """Begin to send, the rows that the tracker lacks first."""
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._thread.start()

    def put(self, update: CurveUpdate) -> None:
        """Queue a live curve."""
        # A cell that failed is trained again, so its old row must not be sent.
        self._ended.pop(update.cell, None)
        self._queue.put(update)

    def ended(self, row: Row) -> None:
        """Queue the row of a finished cell, which is in the ledger."""
        self._ended[row.cell] = f"{row.ended:.3f}"
        self._queue.put(row.cell)

    def close(self, patience: float = 60.0) -> None:
        """Send what is queued and stop. Safe to call again."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            self.problem, self._stuck = f"{self.tracker.address} took more than {patience:.0f} s", True
        self._thread = None

    def finish(self, status: str, artifacts: Iterable[Path]) -> None:
        """After `close`: attach the files and end the study, if the tracker can be used."""
        if self._stuck or self.tracker.problem():
            return
        try:
            self.tracker.finish(status, artifacts)
        except Exception as error:  # noqa: BLE001 - no failure of the tracker may fail a study
            self.problem = first_line(error)

    def _run(self) -> None:
        """Send until closed: live curves merged by cell every few seconds, rows as they come."""
        self._send([])
        closing = False
        while not closing:
            items: list[Item | None] = [self._queue.get()]
            if isinstance(items[0], CurveUpdate):
                time.sleep(BATCH_SECONDS)
            with contextlib.suppress(queue.Empty):
                while True:
                    items.append(self._queue.get_nowait())
            closing = None in items
            self._send([item for item in items if item is not None])

    def _send(self, items: Sequence[Item]) -> None:
        """Send a batch; if the tracker was unreachable or failed, connect again and send all rows that it lacks."""
        cells = list(dict.fromkeys(item for item in items if isinstance(item, str)))
        if not self._connected:
            if (problem := self.tracker.problem()) or not self._attempt(self._connect):
                self.problem = problem or self.problem
                return
            cells, self.problem, self._connected = self._missing, None, True
        for cell in cells:
            if not self._attempt(self._send_row, cell) and self.tracker.problem():
                return
        for update in _merged(items, skip=set(cells)):
            if not self._attempt(self.tracker.log_curve, update):
                return

    def _send_row(self, cell: str) -> None:
        if row := self.ledger.get(cell):
            self.tracker.log_row(row)

    def _connect(self) -> None:
        ended = dict(self._ended)
        recorded = self.tracker.connect()
        missing = [cell for cell in ended if recorded.get(cell) != ended[cell]]
        self._missing = sorted(missing, key=lambda cell: (ended[cell], cell))

    def _attempt(self, send: Callable[..., None], *arguments: object) -> bool:
        """Whether a call succeeds. After an error the mirror connects again, and reads which rows the tracker has."""
        try:
            send(*arguments)
        except Exception as error:  # noqa: BLE001 - no failure of the tracker may fail a study
            self.problem, self._connected = first_line(error), False
            return False
        return True


def _merged(items: Iterable[Item], skip: Set[str]) -> list[CurveUpdate]:
    """Return one update for each cell, but for those to skip."""
    merged: dict[str, CurveUpdate] = {}
    for item in items:
        if isinstance(item, CurveUpdate) and item.cell not in skip:
            update = merged.setdefault(item.cell, CurveUpdate(item.cell, item.name, item.parameters))
            update.points += item.points
            update.evaluations += item.evaluations
            update.start |= item.start
            update.lost = item.lost or update.lost
    return list(merged.values())
