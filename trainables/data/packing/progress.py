"""Reporting how far the packing of text is."""

import time
from collections.abc import Callable, Sequence

from trainables.data.packing.text_buffer import Text

#: Seconds between two reports.
REPORT_SECONDS = 0.5

#: Called with the stage, and the share of it that is done if that is known.
OnProgress = Callable[[str, float | None], None]


def ignore_progress(_stage: str, _share: float | None) -> None:
    """Report to nobody."""


class Progress:
    """Calls an `OnProgress` at the beginning of each stage and then every `REPORT_SECONDS`."""

    def __init__(self, report: OnProgress) -> None:
        self._report, self._stage, self._next = report, "", 0.0

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


class EncodingShare:
    """The share of a split that is encoded: encoding ends with the first exhausted text, or at the token limit."""

    def __init__(self, texts: Sequence[Text], limit: int | None) -> None:
        self._cuts = [text.cuts() for text in texts]
        self._sizes = [text.size for text in texts]
        self._done = [0] * len(texts)
        self._limit = limit
        self._most = 0.0

    def after(self, index: int, tokens: int) -> float:
        """Return the share after one more piece of text `index`, with `tokens` tokens in all."""
        self._done[index] += next(self._cuts[index])[0]
        share = max(self._done[index] / self._sizes[index], tokens / self._limit if self._limit else 0.0)
        self._most = max(self._most, share)
        return self._most
