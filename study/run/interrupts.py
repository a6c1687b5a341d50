"""The signals that end a study cleanly: SIGINT (Ctrl-C), SIGTERM (a scheduler's stop), SIGHUP (a closed terminal)."""

import os
import signal
import sys
import threading
from _thread import interrupt_main
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
    """Whether Ctrl-C has come after that. A second SIGTERM does not count: schedulers repeat it."""

    def check(self) -> None:
        """Raise KeyboardInterrupt if any has come."""
        if self.came:
            raise KeyboardInterrupt


#: What `stop_signals` has given to each thread but the main one, by its id.
_OF_THREADS: dict[int, list[StopSignals]] = {}


def request_stop(thread: threading.Thread) -> None:
    """Ask the study of a thread to end, as SIGTERM does; called from another thread."""
    if thread is threading.main_thread():
        interrupt_main(signal.SIGTERM)
    for signals in _OF_THREADS.get(thread.ident or 0, ()):
        signals.came = True


@contextmanager
def stop_signals(*, raises: bool = False) -> Iterator[StopSignals]:
    """Note the signals that ask for the end, for code that looks at them often; elsewhere also raise KeyboardInterrupt.

    Python raises it at any point of the program. In a destructor or the callback of a weak reference (SQLAlchemy
    has many of these while a store opens) it cannot be caught: Python would print that it was ignored, and continues.
    So code that `raises` must call `check` at times. Only the main thread handles signals; in others only
    `request_stop` is noted.
    """
    signals, hook = StopSignals(), sys.unraisablehook
    if threading.current_thread() is not threading.main_thread():
        others = _OF_THREADS.setdefault(threading.get_ident(), [])
        signals.came = any(other.came for other in others)
        others.append(signals)
        try:
            yield signals
        finally:
            others.remove(signals)
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
