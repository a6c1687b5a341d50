"""Heartbeats of trial processes: a process that is stopped as a whole can report nothing itself."""

from dataclasses import dataclass

#: Seconds between two checks, 0.1 when all is well, beyond which the driver itself was suspended.
AWAKE_SECONDS = 2.0


@dataclass
class Heartbeat:
    """The last heartbeat of a trial's process."""

    place: str
    """Host and process id."""
    timeout: float
    """Seconds within which the next one was due."""
    due: float
    """When it was due, on the clock of `HeartbeatMonitor`."""
    overdue: bool = False


class HeartbeatMonitor:
    """Finds trial processes whose heartbeat is overdue.

    The supervisor of a gang is a thread of the trial's process, so it is stopped with it. Only time in which the
    driver itself runs counts: neither a laptop's sleep nor a driver that was busy makes a trial overdue.
    """

    def __init__(self) -> None:
        self._last: dict[str, Heartbeat] = {}
        self._clock, self._checked = 0.0, 0.0

    def record(self, trial_id: str, place: str, timeout: float) -> None:
        """Record a heartbeat of a trial; the next one is due within `timeout` seconds."""
        self._last[trial_id] = Heartbeat(place, timeout, self._clock + timeout)

    def remove(self, trial_id: str) -> Heartbeat | None:
        """Expect no further heartbeat of a trial; return the last one, if there was one."""
        return self._last.pop(trial_id, None)

    def overdue(self, now: float) -> list[str]:
        """Return the trials that have become overdue, each once; `now` is on a steady clock."""
        self._clock += min(now - self._checked, AWAKE_SECONDS)
        self._checked = now
        late = [name for name, beat in self._last.items() if self._clock > beat.due and not beat.overdue]
        for name in late:
            self._last[name].overdue = True
        return late
