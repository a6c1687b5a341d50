"""Processes that stay warm between tests, to be the ranks of one gang after another.

A process takes six to ten seconds to import torch, transformers and DeepSpeed; a case of a few steps takes one or two.
So a whole folder of tests shares one pool, and every case in it meets in a process group of its own: what one case
leaves behind in DeepSpeed's modules is there for the next, as it is for the trials of a study.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Self

#: Seconds to wait for the processes to have imported everything, on two busy cores.
START_SECONDS = 180.0
#: Seconds a case may take.
CASE_SECONDS = 120.0
#: Seconds a rank waits for another inside a case: less than a case may take, so that its own error is what is seen.
SEAT_SECONDS = 60.0


class RankError(Exception):
    """A rank raised; the message holds the traceback of every rank that did."""


class Ranks:
    """A pool of rank processes on this machine, started at the first call and after any that left one unanswered.

    A function sent to a rank must be defined at the top of a module, and so must its arguments' types.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._workers: list[tuple[multiprocessing.Process, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Of the processes, by rank; none before the first call."""
        return [process.pid or 0 for process, _ in self._workers]

    def alone(self, function: Callable[..., Any], *args: Any, rank: int = 0, **kwargs: Any) -> Any:
        """What `function(*args)` returns in one of the processes, which is in no gang."""
        self._start()
        self._send(rank, function, args, kwargs)
        return self._answers([rank], CASE_SECONDS)[0]

    def gang(
        self,
        size: int,
        function: Callable[..., Any],
        *args: Any,
        timeout: float = SEAT_SECONDS,
        patience: float = CASE_SECONDS,
        **kwargs: Any,
    ) -> list[Any]:
        """What `function(*args, seat=..., meeting=...)` returns in each of the first `size` processes.

        Args:
            size: ranks of the gang.
            function: called in each with its seat, and in rank 0 with the meeting (None elsewhere).
            args: positional arguments, the same for all.
            timeout: of the seats, seconds.
            patience: seconds until an answer must have come.
            kwargs: keyword arguments, the same for all.

        Raises:
            RankError: a rank raised, or died.
            TimeoutError: a rank gave no answer; all processes were ended.
        """
        self._start()
        port = self.alone(_open_meeting)
        for rank in range(size):
            self._send(rank, _take_seat, (function, rank, size, port, timeout, args, kwargs), {})
        return self._answers(list(range(size)), patience)

    def close(self) -> None:
        """End all processes, however busy."""
        for process, connection in self._workers:
            connection.close()
            process.kill()
        for process, _ in self._workers:
            process.join()
            process.close()
        self._workers.clear()

    def _start(self) -> None:
        if self._workers and all(process.is_alive() for process, _ in self._workers):
            return
        self.close()
        context = multiprocessing.get_context("spawn")
        for _ in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        self._answers(list(range(self.size)), START_SECONDS)

    def _send(self, rank: int, function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> None:
        self._workers[rank][1].send_bytes(pickle.dumps((function, args, kwargs)))

    def _answers(self, ranks: list[int], seconds: float) -> list[Any]:
        deadline = time.monotonic() + seconds
        answers, failures, lost = [], [], []
        for rank in ranks:
            process, connection = self._workers[rank]
            try:
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    lost.append(rank)
                    continue
                fine, answer = connection.recv()
            except (EOFError, ConnectionResetError):
                process.join()
                failures.append(f"rank {rank} died with exit code {process.exitcode}")
                continue
            if fine:
                answers.append(answer)
            else:
                failures.append(f"rank {rank}: {answer}")
        if lost:
            self.close()
            raise TimeoutError(f"no answer of ranks {lost} within {seconds:.0f} s; {'; '.join(failures)}")
        if failures:
            raise RankError("\n".join(failures))
        return answers


#: The port this process holds as rank 0 of the next gang.
_meeting: Any = None


def _serve(connection: Connection) -> None:
    """Answer calls until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"
    # Four ranks on gloo also where there is one GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import trainables.train.loop  # noqa: F401  # everything a case needs, once
    from trainables.ranks.process_group import import_deepspeed, leave

    import_deepspeed()
    connection.send((True, None))
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            sys.exit(0)
        try:
            function, args, kwargs = pickle.loads(message)
            answer = pickle.dumps((True, function(*args, **kwargs)))
        except Exception:  # noqa: BLE001  # handed to the test, which raises
            answer = pickle.dumps((False, traceback.format_exc()))
            leave()  # so that the others see at once that this rank is gone
        connection.send_bytes(answer)


def _open_meeting() -> int:
    from trainables.ranks.process_group import Rendezvous

    global _meeting
    _meeting = Rendezvous()
    port: int = _meeting.port
    return port


def _take_seat(
    function: Callable[..., Any],
    rank: int,
    size: int,
    port: int,
    timeout: float,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    from trainables.ranks.process_group import RankInfo

    rank_info = RankInfo(rank, size, "127.0.0.1", port, timeout)
    return function(*args, rank_info=rank_info, rendezvous=None if rank else _meeting, **kwargs)
