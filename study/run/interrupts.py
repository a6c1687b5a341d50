"""Signals that end a study cleanly."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in before.items():
            # Under nohup a closed terminal stops nothing.
            if handler != signal.SIG_IGN:
                signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
