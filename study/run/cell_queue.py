"""The cells of a run in the order in which they start, those that are running, and those to try again."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from study.plan import PlannedCell
from study.plan.rows import Row
from study.run.interrupts import StopSignals
from study.run.trial import TrialSettings, saved_step, trial_config
from study.search import Source
from study.workers.causes import Place
from study.workers.machines import MachineLosses
from trainables.layout import Layout
from trainables.progress import Progress, Result

#: Seconds for which no other cell is started because a gang waits for room on the live machines. Devices
#: that other studies hold may be why it waits, and free ones are then better used.
HOLD_SECONDS = 3600.0


class CellCallback(Protocol):
    """Events of cells; called in the driver's main thread, so they must return quickly."""

    def started(self, planned: PlannedCell) -> None:
        """A trial of this cell has an actor."""

    def progress(self, planned: PlannedCell, progress: Progress) -> None:
        """A running cell has reported."""

    def ended(self, planned: PlannedCell, result: Result) -> object:
        """A cell is done or diverged."""

    def failed(self, planned: PlannedCell, reason: str) -> object:
        """A cell failed and will not be tried again in this run."""

    def retried(self, planned: PlannedCell, reason: str) -> None:
        """A trial was lost; the cell is tried again from its checkpoint."""

    def notice(self, text: str) -> None:
        """Something happened to the run that the user should read."""


class CellRecorder(CellCallback, Protocol):
    """The first to learn of each event: it makes the rows of cells, which the source is told next."""

    def ended(self, planned: PlannedCell, result: Result) -> Row:
        """Record a cell that is done or diverged, and return its row."""

    def failed(self, planned: PlannedCell, reason: str) -> Row:
        """Record a cell that failed, and return its row."""


@dataclass
class Attempt:
    """A trial of a cell."""

    planned: PlannedCell
    since: float
    """When it began to wait for its devices."""
    started: bool = False
    """Whether it has them."""
    place: Place | None = None
    """Where its process is."""
    save_seconds: float = 0.0
    """Seconds of its last checkpoint; estimated before the first one."""


class CellQueue:
    """Gives the cells of a source to Tune's trials, and starts no cell before its whole gang has devices.

    Left to Tune, a gang would wait for as long as there are narrower cells to take each free device. Even if enough
    are free, they may be on several machines, without room for ranks that must be on one. So nothing is started while
    such a gang waits, unless it waits for machines that are still to come.

    A cell waits while a shorter one of its trunk runs or waits, so that it can continue from its checkpoint. The
    shortest never waits, and one that has ended in any way is no longer waited for.

    A cell may be tried as often as it progresses: `retries` limits the losses since its newest checkpoint.
    """

    def __init__(
        self,
        source: Source,
        settings: TrialSettings,
        losses: MachineLosses,
        retries: int = 0,
        trunks: Mapping[str, Sequence[PlannedCell]] | None = None,
    ) -> None:
        """Begin with no trial; see `run_cells`."""
        self.source, self.settings, self.losses, self.retries = source, settings, losses, retries
        self.trunks = trunks or {}
        self.next: list[PlannedCell] = []
        """Cells to start before those of the source: one that waits for devices, those that wait for a shorter one of
        their trunk, and those that were lost."""
        self.attempts: dict[str, Attempt] = {}
        """The running cells, by Tune's id of the trial."""
        self.signals = StopSignals()
        self._lost: dict[str, tuple[int, int]] = {}
        """The step of the newest checkpoint and the losses since then of each cell that was lost, by key."""

    @property
    def is_done(self) -> bool:
        """Whether all cells have ended and the source has no more."""
        return self.source.done and not self.next and not self.attempts

    def suggest(self, trial_id: str) -> dict[str, str] | str | None:
        """Return the configuration of a trial, "FINISHED" after the last one, None if nothing can be started now."""
        busy = sum(attempt.planned.layout.ranks for attempt in self.attempts.values())
        if self.signals.came or self._is_held(busy):
            return None
        while (planned := self._ready()) is None:
            if not (taken := self.source.take()):
                return "FINISHED" if self.is_done else None
            self.next.append(taken)
        layout = planned.layout
        if busy + layout.ranks > self.losses.slots.devices:
            return None
        self.next.remove(planned)
        self.attempts[trial_id] = Attempt(planned, time.monotonic(), save_seconds=planned.save_seconds)
        sharing = self.trunks.get(planned.cell.trunk or "", ())
        lengths = [other.cell.recipe.steps for other in sharing]
        return trial_config(planned.cell, layout, self.settings, self.losses.avoided(layout), lengths)

    def _ready(self) -> PlannedCell | None:
        """Return the first of the next cells that waits for no shorter one of its trunk; None if there is none."""
        shortest: dict[str | None, int] = {}
        for planned in (*self.next, *(attempt.planned for attempt in self.attempts.values())):
            trunk, steps = planned.cell.trunk, planned.cell.recipe.steps
            shortest[trunk] = min(steps, shortest.get(trunk, steps))
        for planned in self.next:
            trunk, steps = planned.cell.trunk, planned.cell.recipe.steps
            if trunk is None or steps <= shortest[trunk]:
                return planned
        return None

    def _is_held(self, busy: int) -> bool:
        """Whether a gang whose ranks must be together waits for devices that the live machines have."""
        since = time.monotonic() - HOLD_SECONDS
        waits = any(
            not attempt.started and attempt.since > since and self._is_together(attempt.planned.layout)
            for attempt in self.attempts.values()
        )
        return waits and self.losses.live_ranks() >= busy

    def _is_together(self, layout: Layout) -> bool:
        return layout.tensor_parallel > 1 or self.losses.slots.are_on_one_machine(layout)

    def end(self, trial_id: str, row: Row) -> None:
        """Forget a trial and pass the row of its cell to the source."""
        del self.attempts[trial_id]
        self.source.tell(row)

    def lose(self, trial_id: str) -> bool:
        """Count a trial whose process was lost; return whether its cell is tried again. If not, it has failed."""
        planned = self.attempts[trial_id].planned
        key = planned.cell.key
        step, losses = self._lost.get(key, (0, 0))
        saved = saved_step(self.settings, key)
        self._lost[key] = (saved, 0) if saved > step else (step, losses + 1)
        if self._lost[key][1] > self.retries:
            return False
        del self.attempts[trial_id]
        self.next.append(planned)
        return True
