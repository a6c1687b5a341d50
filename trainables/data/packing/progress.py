"""Reporting how far the packing of text is."""

import time
from collections.abc import Callable

#: Seconds between two reports.
REPORT_SECONDS = 0.5

#: Called with the stage, and the share of it that is done if that is known.
OnProgress = Callable[[str, float | None], None]


class Progress:
    """Calls an `OnProgress` at the beginning of each stage and then every `REPORT_SECONDS`."""

    def __init__(self, report: OnProgress | None) -> None:
        self._report, self._stage, self._next = report or (lambda *_: None), "", 0.0

    def begin(self, stage: str) -> None:
        """Begin a stage."""
        self._stage = stage
        self._report(stage, None)
        self._next = time.monotonic() + REPORT_SECONDS

    def share(self, share: float) -> None:
        """Report the share of the stage that is done; 0 if it is unknown."""
        if time.monotonic() >= self._next:
            self._report(self._stage, min(1.0, share) or None)
            self._next = time.monotonic() + REPORT_SECONDS
