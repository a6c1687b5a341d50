"""A Ctrl-C that cannot get lost."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def remembered_interrupt() -> Iterator[Callable[[], None]]:
    """Yield a check that raises KeyboardInterrupt if one came before and was lost.

    Python raises it wherever the program happens to be. In a destructor or the callback of a weak reference (SQLAlchemy
    has many of these while a store opens) nobody can catch it: it is printed as ignored, and the study would go on.
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
