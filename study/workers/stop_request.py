"""The driver's request to its trials to save and end, which reaches every machine of a Ray cluster."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds between two looks; a trial checks about as often (`trainables.train.loop.CHECK_EVERY`).
POLL_SECONDS = 1.0
_NAMESPACE = b"interplay"


def request_stop(run: str) -> None:
    """Ask all trials of a run to save and end; `run` is unique in the cluster."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(run.encode(), b"stop", namespace=_NAMESPACE)


def withdraw_stop(run: str) -> None:
    """Remove the request of a run that has ended."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(run.encode(), namespace=_NAMESPACE)


@contextmanager
def stop_requested(run: str) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether the run is to stop; a thread looks every `POLL_SECONDS`.

    A trial's process serves no calls of other actors while it trains, so it looks into Ray's key-value store.
    """
    from ray.experimental.internal_kv import _internal_kv_exists

    over, requested = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS) and not requested.is_set():
            if _internal_kv_exists(run.encode(), namespace=_NAMESPACE):
                requested.set()

    threading.Thread(target=watch, name="stop request", daemon=True).start()
    try:
        yield requested.is_set
    finally:
        over.set()
