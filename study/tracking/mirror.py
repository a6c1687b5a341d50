"""Copies of a study's rows in other trackers: what a tracker must do, and the threads that send to each of them.

The rows of the ledger are the record; a copy can be made again from them at any time.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Protocol

from analysis.runs.mlflow import MEASURE
from study.errors import SpecError
from study.plan.rows import Row
from study.tracking.ledger import CurveUpdate, Ledger
from study.tracking.mlflow_store import first_line

#: Seconds between two batches of live curves, and between two attempts to reach an unreachable server.
BATCH_SECONDS = 5.0
#: Seconds that all targets together may take to end the study.
FINISH_SECONDS = 300.0
#: The tag with the time at which a cell finished, in Unix seconds.
ENDED = "interplay.ended"
#: Final metrics of a cell that have the name of the field of its row and no curve.
FINAL = ("bits_per_byte", "train_seconds", "utilisation", "memory_bytes", "epochs", "trained_share")
#: Parts of a training curve. None may be the name of a final metric: MLflow shows the value of the highest step.
CURVES = ("train_loss", "lr", "grad_norm", "tokens_per_second")
#: Prefix of the metrics that MLflow's page of a run shows as those of the system.
SYSTEM = "system/"

#: An item that the driver queues: the key of a cell whose row is in the ledger, or a live curve.
Item = str | CurveUpdate


class Target(Protocol):
    """A tracker that gets a copy of the rows. All methods but `problem` may raise any error, or wait."""

    @property
    def address(self) -> str:
        """The place of the copy for messages, without anything secret."""

    @property
    def refused(self) -> str | None:
        """What the copy lacks although it can be used, in a sentence without its full stop."""

    @property
    def hint(self) -> tuple[str, str] | None:
        """What the user can do with the copy, in words that end in a colon and a blank, and the command for it."""

    def problem(self) -> str | None:
        """Return why the tracker cannot be used now, None if it can."""

    def open(self) -> None:
        """Check at the start of a study that the tracker can be used; a SpecError if a retry cannot open it."""

    def connect(self) -> Mapping[str, float]:
        """Begin to write, also again after an error; return when the cells finished whose copies are complete."""

    def log_curve(self, update: CurveUpdate) -> None:
        """Add the new parts of a curve to the copy of a cell, made if it is missing."""

    def log_row(self, row: Row) -> None:
        """Complete the copy of a cell."""

    def finish(self, status: str, progress: str = "") -> None:
        """End the copy of the study; `progress` is how much of an unfinished study is done, in a sentence."""


class Mirror:
    """Sends rows and live curves to each target from a thread of its own, so that no target waits for another.

    Nor does the driver wait for one. Every error of a target is kept in `problems`. Live curves may be lost, because
    the row has the whole curve, and rows that cannot be sent are sent at the next start.
    """

    def __init__(self, targets: Sequence[Target], ledger: Ledger, rows: Iterable[Row]) -> None:
        """Begin with the study's `rows` from earlier runs; those that a target lacks are sent first."""
        ended = {row.cell: row.ended for row in rows}
        self.targets = tuple(targets)
        self._senders = [_Sender(target, ledger, dict(ended)) for target in targets]

    @property
    def problems(self) -> list[str]:
        """Why targets lack something, one sentence per target without its full stop."""
        return [sender.problem for sender in self._senders if sender.problem]

    def open(self) -> list[str]:
        """Open all targets; return why some cannot be used now. After a SpecError one never can."""
        for sender in self._senders:
            sender.open()
        return self.problems

    def start(self) -> None:
        """Begin to send."""
        for sender in self._senders:
            sender.start()

    def put(self, update: CurveUpdate) -> None:
        """Queue a live curve."""
        for sender in self._senders:
            sender.put(update)

    def ended(self, row: Row) -> None:
        """Queue the row of a finished cell, which is in the ledger."""
        for sender in self._senders:
            sender.ended(row)

    def close(self, patience: float | None = 60.0) -> None:
        """Send what is queued and stop, all targets within `patience` seconds. Safe to call again."""
        for sender in self._senders:
            sender.stop()
        self._await(patience)

    def finish(self, status: str, progress: str = "", patience: float | None = FINISH_SECONDS) -> None:
        """After `close`: end the study in all targets that can be used, within `patience` seconds.

        `progress` is how much of an unfinished study is done, in a sentence.
        """
        for sender in self._senders:
            sender.finish(status, progress)
        self._await(patience)

    def _await(self, patience: float | None) -> None:
        deadline = None if patience is None else time.monotonic() + patience
        for sender in self._senders:
            sender.join(patience, deadline)


class _Sender:
    """The thread that sends to one target; see `Mirror`."""

    def __init__(self, target: Target, ledger: Ledger, ended: dict[str, float]) -> None:
        self.target, self.ledger = target, ledger
        self.problem: str | None = None
        self._ended = ended
        self._connected = False
        self._missing: list[str] = []
        """The cells whose rows the target lacked when it was last connected, in the order in which they finished."""
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stuck = False

    def open(self) -> None:
        self.problem = self.target.problem()
        if self.problem is None:
            try:
                self.target.open()
            except SpecError:
                raise
            except Exception as error:  # noqa: BLE001 - no failure of a tracker may fail a study
                self.problem = self._words(error)

    def start(self) -> None:
        self._begin(self._run)

    def put(self, update: CurveUpdate) -> None:
        # A cell that failed is trained again, so its old row must not be sent.
        self._ended.pop(update.cell, None)
        self._queue.put(update)

    def ended(self, row: Row) -> None:
        self._ended[row.cell] = row.ended
        self._queue.put(row.cell)

    def stop(self) -> None:
        if self._thread:
            self._queue.put(None)

    def finish(self, status: str, progress: str) -> None:
        if not self._stuck and not self.target.problem():
            self._begin(lambda: self._attempt(self.target.finish, status, progress))

    def join(self, patience: float | None, deadline: float | None) -> None:
        """Wait for what the thread does until the deadline; a target that needs longer is used no more."""
        if self._thread is None:
            return
        self._thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self.problem, self._stuck = f"{self.target.address} took more than {patience:.0f} s", True
        self._thread = None

    def _begin(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work, name="tracking", daemon=True)
        self._thread.start()

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
        """Send a batch; if the target was unreachable or failed, connect again and send all rows that it lacks."""
        cells = list(dict.fromkeys(item for item in items if isinstance(item, str)))
        if not self._connected:
            if (problem := self.target.problem()) or not self._attempt(self._connect):
                self.problem = problem or self.problem
                return
            cells, self.problem, self._connected = self._missing, self.target.refused, True
        for cell in cells:
            if not self._attempt(self._send_row, cell) and self.target.problem():
                return
        for update in _merged(items, skip=set(cells)):
            if not self._attempt(self.target.log_curve, update):
                return

    def _send_row(self, cell: str) -> None:
        if row := self.ledger.get(cell):
            self.target.log_row(row)

    def _connect(self) -> None:
        ended, recorded = dict(self._ended), self.target.connect()
        missing = [cell for cell in ended if recorded.get(cell) != ended[cell]]
        self._missing = sorted(missing, key=lambda cell: (ended[cell], cell))

    def _attempt(self, send: Callable[..., None], *arguments: object) -> bool:
        """Whether a call succeeds. After an error the sender connects again, and reads which rows the target has."""
        try:
            send(*arguments)
        except Exception as error:  # noqa: BLE001 - no failure of a tracker may fail a study
            self.problem, self._connected = self._words(error), False
            return False
        return True

    def _words(self, error: Exception) -> str:
        return f"{self.target.address}: {first_line(error).rstrip('.')}"


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


def curve_parts(part: CurveUpdate | Row) -> dict[tuple[str, int], dict[str, float]]:
    """Return the metrics of a curve by kind (`point` or `evaluation`) and step; measures of the start have step 0."""
    parts = {
        ("point", item.step): {
            **{name: getattr(item, name) for name in CURVES},
            **{f"{SYSTEM}{name}": value for name, value in item.gpu.items()},
        }
        for item in part.points
    }
    parts |= {
        ("evaluation", item.step): {"loss": item.loss, **_validation(item.measures)}
        for item in part.evaluations
    }
    if part.start:
        parts["evaluation", 0] = _validation(part.start)
    return parts


def _validation(measures: Mapping[str, float]) -> dict[str, float]:
    """Return the measures of an evaluation by the names of their curves."""
    return {f"validation_{name}": value for name, value in measures.items()}


def last_step(row: Row) -> int:
    """Return the last step of the curves of a row, 1 if it has none."""
    return max((item.step for curve in (row.points, row.evaluations) for item in curve), default=1)


def step_times(row: Row) -> Callable[[int], int]:
    """Return the time of each step in Unix ms, interpolated between the start and the end of the cell."""
    end, seconds, last = int(row.ended * 1000), row.train_seconds or 0.0, last_step(row)

    def when(step: int) -> int:
        return int(end - 1000 * seconds * (1 - step / last))

    return when


def final_metrics(row: Row) -> dict[str, float]:
    """Return the numbers of a row that have no curve, by their names in MLflow; its loss ends the curve `loss`."""
    values = {name: getattr(row, name) for name in FINAL} if row.status != "failed" else {}
    return {
        **{name: float(value) for name, value in values.items() if value is not None},
        **{f"{MEASURE}{name}": value for name, value in row.measures.items()},
    }


def row_tags(row: Row) -> dict[str, str]:
    """Return the texts of a row by their names in MLflow."""
    tags = {
        "interplay.status": row.status,
        "interplay.protocol": row.protocol,
        "interplay.reason": row.reason or "",
        "interplay.revision": row.revision,
        "interplay.device": row.device,
        "interplay.resumed_from": str(row.resumed_from or ""),
        "interplay.notes": " ".join(row.notes),
        "interplay.purpose": row.purpose,
        **lost_tags(row.lost),
        ENDED: f"{row.ended:.3f}",
    }
    return {name: text for name, text in tags.items() if text}


def lost_tags(lost: Sequence[str]) -> dict[str, str]:
    """Return the causes of lost trials as a tag, none without one."""
    return {"interplay.lost_trials": " | ".join(lost)} if lost else {}
