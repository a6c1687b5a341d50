"""Work that ranks do each for themselves, and then all know of: files written, read, checked, converted."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainables.errors import InputError
from trainables.ranks.process_group import device, timeout

#: Most seconds between signs of life of a rank at work. A checkpoint of a large model takes minutes to read or to
#: upload, and a collective in which the other ranks waited for it would time out.
HEARTBEAT = 5.0
#: So many signs of life in a group's timeout: ranks come to them up to one interval apart.
_SIGNS = 4
#: Seconds work may take: an hour uploads 360 GB at 100 MB/s. A file server that never answers, or a lock that is never
#: freed, would hold the gang for ever, because its rank goes on to give signs of life.
LIMIT = 3600.0

T = TypeVar("T")


class PeerError(RuntimeError):
    """The work of another rank failed, which the message names; that rank raises its own error."""


def run_on_all_ranks(
    work: Callable[[], T], what: str = "working with files", limit: float | None = None
) -> list[T]:
    """Do the work of this rank, wait for all others, and return what each rank's returned, by rank.

    What is returned must be picklable. A rank that is lost ends the wait at once or at the process group's timeout, one
    that is slow at the limit. A rank that is alone waits for itself without one.

    Args:
        work: of this rank.
        what: for the message: what a rank at work is doing.
        limit: seconds the work may take by rank 0's clock; by default `LIMIT`.

    Raises:
        InputError: the work of any rank raised one; all ranks raise it.
        PeerError: the work of another rank raised, or was not done at the limit; this rank's own error is raised as it
            is.
        RuntimeError: this rank's own work was not done at the limit; it is left to itself.
    """
    if dist.get_world_size() == 1:
        return [work()]
    done = threading.Event()
    answer: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        if torch.cuda.is_available():
            # Each thread has a current device of its own; a context on another rank's would take half a GiB there.
            torch.cuda.set_device(device())
        try:
            answer.append(work())
        except Exception as error:  # noqa: BLE001  # raised below, in the thread that waits
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    interval = min(HEARTBEAT, timeout() / _SIGNS)
    limit = LIMIT if limit is None else limit
    start, rank, size = time.monotonic(), dist.get_rank(), dist.get_world_size()
    busy, is_over = list(range(size)), False
    while busy and not is_over:
        done.wait(interval)
        # Who is at work, and whether it is too late: rank 0's clock decides, so that all end in the same round.
        signs = torch.zeros(size + 1, device=device())
        signs[rank] = float(not done.is_set())
        signs[size] = float(rank == 0 and time.monotonic() - start > limit)
        dist.all_reduce(signs)
        *at_work, over = signs.tolist()
        busy, is_over = [i for i, sign in enumerate(at_work) if sign], bool(over)
    if busy:
        hosts: list[Any] = [None] * size
        dist.all_gather_object(hosts, socket.gethostname())
        who = ", ".join(f"rank {i} (host {hosts[i]})" for i in busy)
        # Only a rank at work is the cause: the others have heard of it.
        raise (RuntimeError if rank in busy else PeerError)(
            f"still {what} after {limit:g} s: {who}. Its disk or store does not answer, or a lock is never freed."
        )
    said = (answer[0], None) if answer else (None, (isinstance(errors[0], InputError), _told(errors[0])))
    all_said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_said, said)
    if errors:
        raise errors[0]
    for rank, (_, failure) in enumerate(all_said):
        if failure is not None:
            is_input, text = failure
            raise InputError(text) if is_input else PeerError(f"rank {rank}: {text}")
    return [value for value, _ in all_said]


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
