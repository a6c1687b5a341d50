"""Run work, such as reading and writing files, on all ranks and share its results and errors."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from core.errors import InputError
from trainables.ranks.process_group import device, timeout

#: Seconds between heartbeats of working ranks: a collective that waits for a large checkpoint would time out.
HEARTBEAT = 5.0
#: Heartbeats in a group's timeout.
_BEATS = 4
#: Seconds that work may take, because a rank with a hanging file server still beats; 360 GB at 100 MB/s.
LIMIT = 3600.0

T = TypeVar("T")


class PeerError(RuntimeError):
    """The work of another rank failed; that rank raises the original error."""


def run_on_all_ranks(
    work: Callable[[], T], what: str = "working with files", limit: float = LIMIT
) -> list[T]:
    """Run this rank's work, wait for the others, and return the picklable results by rank.

    A lost rank ends the wait at the process group's timeout at the latest, a slow one after `limit` seconds of
    rank 0's clock. A single rank has no limit. `what` is for the message.

    Raises:
        InputError: the work of any rank raised one.
        PeerError: the work of another rank failed or exceeded the limit; this rank's own error is re-raised.
        RuntimeError: this rank's work exceeded the limit; its thread is abandoned.
    """
    if dist.get_world_size() == 1:
        return [work()]
    done = threading.Event()
    answer: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        if torch.cuda.is_available():
            # A thread has its own current device; a context on another rank's GPU would take 0.5 GiB there.
            torch.cuda.set_device(device())
        try:
            answer.append(work())
        except Exception as error:  # noqa: BLE001  # re-raised below in the waiting thread
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    interval = min(HEARTBEAT, timeout() / _BEATS)
    start, rank, size = time.monotonic(), dist.get_rank(), dist.get_world_size()
    busy, over = list(range(size)), 0.0
    while busy and not over:
        done.wait(interval)
        # One flag per busy rank, and one for the limit: rank 0's clock decides, so that all end in the same round.
        flags = torch.zeros(size + 1, device=device())
        flags[rank] = float(not done.is_set())
        flags[size] = float(rank == 0 and time.monotonic() - start > limit)
        dist.all_reduce(flags)
        *working, over = flags.tolist()
        busy = [i for i, flag in enumerate(working) if flag]
    if busy:
        hosts: list[Any] = [None] * size
        dist.all_gather_object(hosts, socket.gethostname())
        who = ", ".join(f"rank {i} (host {hosts[i]})" for i in busy)
        raise (RuntimeError if rank in busy else PeerError)(
            f"still {what} after {limit:g} s: {who}. Its disk or store does not answer, or a lock is never freed."
        )
    # Some errors cannot be pickled, so the others get the text.
    failures = [(type(e).__name__, str(e), isinstance(e, InputError)) for e in errors]
    outcomes: list[Any] = [None] * size
    dist.all_gather_object(outcomes, (answer[0] if answer else None, failures))
    if errors:
        raise errors[0]
    for rank, (_, failures) in enumerate(outcomes):
        for name, text, is_input in failures:
            raise InputError(text) if is_input else PeerError(f"rank {rank}: {name}: {text}")
    return [value for value, _ in outcomes]
