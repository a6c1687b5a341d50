"""The signals that end a study cleanly: SIGINT (Ctrl-C), SIGTERM (a scheduler's stop), SIGHUP (a closed terminal)."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class StopSignals:
    """The signals that ask for the end and have come."""

    came: bool = False
    """Whether any has come."""
    again: bool = False
    """Whether Ctrl-C has come after that. A scheduler may repeat its SIGTERM, which is no impatience."""

    def check(self) -> None:
        """Raise KeyboardInterrupt if any has come."""
        if self.came:
            raise KeyboardInterrupt


@contextmanager
def stop_signals(*, raises: bool = False) -> Iterator[StopSignals]:
    """Note the signals that ask for the end, for code that looks at them often; elsewhere also raise KeyboardInterrupt.

    Python raises it at any point of the program. In a destructor or the callback of a weak reference (SQLAlchemy
    has many of these while a store opens) it cannot be caught: Python would print that it was ignored, and continues.
    So code that `raises` must call `check` at times. Only the main thread handles signals; in others nothing is noted.
    """
    signals, hook = StopSignals(), sys.unraisablehook
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    # A terminal that is gone is no longer found to be one.
    terminals = [file for file in (1, 2) if os.isatty(file)]

    def handler(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            # Writing to a closed terminal is an error, which would end the study before its cells have saved.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for file in terminals:
                os.dup2(nowhere, file)
            os.close(nowhere)
        signals.again |= signals.came and number == signal.SIGINT
        signals.came = True
        if raises:
            raise KeyboardInterrupt

    def quiet(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if raises:
        sys.unraisablehook = quiet
    try:
        for number in before:
            # Under nohup a closed terminal stops nothing.
            if before[number] != signal.SIG_IGN or number != signal.SIGHUP:
                signal.signal(number, handler)
        yield signals
    finally:
        for number in before:
            signal.signal(number, before[number])
        sys.unraisablehook = hook
