"""The driver's request to its trials to save and end, which reaches every machine of a Ray cluster."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Seconds between two looks; a trial checks about as often (`trainables.train.loop.CHECK_EVERY`).
POLL_SECONDS = 1.0


class StopRequest:
    """An actor that exists while a run is to stop, under the name of the run."""


def request_stop(run: str) -> Any:
    """Ask all trials of a run to save and end, as long as the result is kept; `run` is unique in the cluster."""
    import ray

    return ray.remote(StopRequest).options(name=run, num_cpus=0).remote()


@contextmanager
def stop_requested(run: str) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether the run is to stop; a thread looks every `POLL_SECONDS`.

    A trial's process serves no calls of other actors while it trains, so it looks for the actor itself.
    """
    import ray

    over, requested = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS) and not requested.is_set():
            try:
                ray.get_actor(run)
            except ValueError:
                continue
            requested.set()

    threading.Thread(target=watch, name="stop request", daemon=True).start()
    try:
        yield requested.is_set
    finally:
        over.set()
