"""Signals that end a study cleanly."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@contextmanager
def remembered_interrupt() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if a Ctrl-C came before and was lost.

    Python raises it at any point of the program. In a destructor or the callback of a weak reference (SQLAlchemy
    has many of these while a store opens) it cannot be caught: Python prints that it was ignored, and continues.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came = threading.Event()

    def remember(number: int, frame: FrameType | None) -> None:
        came.set()
        signal.default_int_handler(number, frame)

    def quiet(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    def check() -> None:
        if came.is_set():
            raise KeyboardInterrupt

    before, hook = signal.signal(signal.SIGINT, remember), sys.unraisablehook
    sys.unraisablehook = quiet
    try:
        yield check
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, before)


@contextmanager
def term_is_interrupt() -> Iterator[None]:
    """Let SIGTERM (a scheduler's stop) and SIGHUP (a closed terminal) end the study as cleanly as Ctrl-C does."""

    def interrupt(number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with _handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@dataclass
class StopSignals:
    """The signals that ask for the end and have come."""

    came: bool = False
    """Whether any has come: SIGINT (Ctrl-C), SIGTERM or SIGHUP."""
    again: bool = False
    """Whether Ctrl-C has come after that. A scheduler may repeat its SIGTERM, which is no impatience."""


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Only note the signals that ask for the end, for code that looks at them often."""
    signals = StopSignals()

    def note(number: int) -> None:
        signals.again |= signals.came and number == signal.SIGINT
        signals.came = True

    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), note):
        yield signals


@contextmanager
def _handled(numbers: Sequence[int], handle: Callable[[int], None]) -> Iterator[None]:
    """Handle these signals in the main thread; in other threads, which cannot, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
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
        handle(number)

    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            # Under nohup a closed terminal stops nothing.
            if before[number] != signal.SIG_IGN or number != signal.SIGHUP:
                signal.signal(number, handler)
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
