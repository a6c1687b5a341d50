"""MLflow, written from the driver: study run > trial runs, in batches, and never in the way of a trial."""

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from study.tracking.mlflow_store import CurveUpdate, Outbox, Row, SearchUpdate, Store, sentence
from study.tracking.sender import Address, Batch, InProcessSender, Sender, SubprocessSender

#: Devices in use at a time from which a study lets a process of its own write to MLflow.
MANY_DEVICES = 8
#: Seconds between two batches of live curves, and between two tries to reach a server that is away.
BATCH_SECONDS = 5.0


class Tracker:
    """Sends a running study to MLflow from a thread; the driver only ever puts things into a queue."""

    def __init__(
        self,
        store: Store | None,
        uri: str,
        experiment: str,
        outbox: Outbox,
        artifacts: Path | None,
        problem: str | None,
        *,
        apart: bool = False,
    ) -> None:
        """`store` is None where the server was away at the start, for the reason in `problem`; it is tried again.

        Args:
            store: the experiment.
            uri: of the server.
            experiment: its name.
            outbox: ended rows that the server does not have.
            artifacts: where a local store keeps files.
            problem: of the server.
            apart: whether a process of its own does the sending.
        """
        self.uri, self.experiment, self.outbox, self.artifacts = uri, experiment, outbox, artifacts
        self.store, self.problem, self.apart = store, problem, apart
        self._address = self._address_of("", {})
        self._parent: str | None = None
        #: Curves and news to send, keys of cells whose row is in the outbox, and None to stop.
        self._queue: queue.SimpleQueue[CurveUpdate | SearchUpdate | str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stuck = False

    def start(self, study: str, tags: Mapping[str, str]) -> None:
        """Open the study run (if the server is there) and begin sending, what waits in the outbox first."""
        self._address = self._address_of(study, tags)
        if self.store:
            try:
                self._parent = self.store.begin_study(study, tags)
                self.store.end_stale(self._parent)
            except Exception as error:  # noqa: BLE001 - whatever the server does, the study runs without it
                self.problem = sentence(error)
        for cell in self.outbox.rows():
            self._queue.put(cell)
        here = InProcessSender(self._address, self.store, self._parent, self.problem)
        sender = SubprocessSender(self._address) if self.apart else here
        self._thread = threading.Thread(target=self._send_all, args=(sender,), name="tracking", daemon=True)
        self._thread.start()

    def live(self, live: CurveUpdate) -> None:
        """Queue new parts of a running cell's curve; they may be dropped, because its row will have them all."""
        self._queue.put(live)

    def ended(self, row: Row) -> None:
        """Record an ended cell: on disk before this returns, in MLflow soon after."""
        self.outbox.put(row)
        self._queue.put(row.cell)

    def news(self, news: SearchUpdate) -> None:
        """Queue what a search came to know; it may be dropped, because the rows say it all."""
        self._queue.put(news)

    def close(self, patience: float = 60.0) -> None:
        """Send what is queued and stop; rows that cannot be sent stay in the outbox. Safe to call again."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            self.problem, self._stuck = f"{self.uri} took more than {patience:.0f} s.", True
        self._thread = None

    def finish(self, status: str, artifacts: Iterable[Path]) -> None:
        """After `close`: end what still runs, attach the files and end the study run, if the server is there."""
        store = self.usable_store
        if not store:
            return
        try:
            # A server that was away at the start may have come since.
            parent = self._parent or store.begin_study(self._address.study, self._address.tags)
            store.end_stale(parent)
            store.end_study(parent, status, artifacts)
        except Exception as error:  # noqa: BLE001 - whatever the server does, the study's files are on disk
            self.problem = sentence(error)

    @property
    def usable_store(self) -> Store | None:
        """After `close`: the store, unless the sender still works in it."""
        return None if self._stuck else self.store

    def _address_of(self, study: str, tags: Mapping[str, str]) -> Address:
        return Address(
            uri=self.uri,
            experiment=self.experiment,
            outbox=self.outbox.folder,
            artifacts=self.artifacts,
            study=study,
            tags=dict(tags),
        )

    def _send_all(self, sender: Sender) -> None:
        """Send until told to stop: live curves merged by cell every few seconds, ended rows as they come."""
        closing = False
        while not closing:
            items: list[CurveUpdate | SearchUpdate | str | None] = [self._queue.get()]
            if isinstance(items[0], CurveUpdate | SearchUpdate):
                time.sleep(BATCH_SECONDS)
            with contextlib.suppress(queue.Empty):
                while True:
                    items.append(self._queue.get_nowait())
            closing = None in items
            ended = list(dict.fromkeys(item for item in items if isinstance(item, str)))
            merged: dict[str, CurveUpdate] = {}
            for item in items:
                if isinstance(item, CurveUpdate) and item.cell not in ended:
                    live = merged.setdefault(item.cell, CurveUpdate(item.cell, item.name, item.params))
                    live.points += item.points
                    live.evaluations += item.evaluations
                    live.start |= item.start
                    live.tags |= item.tags
            news = [item for item in items if isinstance(item, SearchUpdate)]
            self.problem = sender.send(Batch(ended=ended, live=list(merged.values()), news=news))
        sender.close()
        if isinstance(sender, InProcessSender):
            self.store = sender.store
        elif self.store is None and self.problem is None:
            self.store = self._opened()

    def _opened(self) -> Store | None:
        """The store of a server that was away when the study began."""
        try:
            return Store(self.uri, self.experiment, self.artifacts)
        except Exception as error:  # noqa: BLE001 - as above; it was there for the last row
            self.problem = sentence(error)
            return None
