"""A pool of processes that are reused between tests as the ranks of gangs.

Importing torch, transformers and DeepSpeed takes six to ten seconds, a case of a few steps one or two. So a folder of
tests shares one pool, and every case makes its own process group. A study starts new processes for every gang; here
`forget` resets what DeepSpeed and torch keep in their modules.
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

#: Seconds that the imports may take on two busy cores.
START_SECONDS = 600.0
#: Seconds a case may take: 2 on quiet cores, 50 beside fifteen other processes.
CASE_SECONDS = 600.0
#: Seconds a rank waits for another inside a case: less than CASE_SECONDS, so that its own error is reported.
RANK_SECONDS = 300.0


class RankError(Exception):
    """Ranks raised; the message holds their tracebacks."""


class Ranks:
    """A pool of rank processes, started at the first call and again after a call without an answer.

    A function sent to a rank, and its arguments' types, must be defined at the top level of a module.
    """

    def __init__(self, size: int, *, on_gpu: bool = False) -> None:
        """`on_gpu`: the processes share the GPU; by default they train on the CPU even where there is one."""
        self.size, self.on_gpu = size, on_gpu
        self._workers: list[tuple[multiprocessing.Process, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty before the first call."""
        return [process.pid or 0 for process, _ in self._workers]

    def alone(self, function: Callable[..., Any], *args: Any, rank: int = 0, **kwargs: Any) -> Any:
        """Return `function(*args)` of one process outside any gang."""
        self._start()
        self._send(rank, function, args, kwargs)
        return self._answers([rank], CASE_SECONDS)[0]

    def gang(
        self,
        size: int,
        function: Callable[..., Any],
        *args: Any,
        timeout: float = RANK_SECONDS,
        patience: float = CASE_SECONDS,
        **kwargs: Any,
    ) -> list[Any]:
        """Return `function(*args, rank_info=..., rendezvous=...)` of each of the first `size` processes.

        Args:
            size: ranks of the gang.
            function: called with each rank's `RankInfo`, and on rank 0 with the `Rendezvous` (None elsewhere).
            args: positional arguments, the same for all.
            timeout: seconds that a rank waits for another.
            patience: seconds until all must have answered.
            kwargs: keyword arguments, the same for all.

        Raises:
            RankError: a rank raised or died.
            TimeoutError: a rank did not answer; all processes were killed.
        """
        self._start()
        port = self.alone(_open_port)
        for rank in range(size):
            self._send(rank, _join, (function, rank, size, port, timeout, args, kwargs), {})
        return self._answers(list(range(size)), patience)

    def close(self) -> None:
        """Kill all processes."""
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
            process = context.Process(target=_serve, args=(theirs, self.on_gpu), daemon=True)
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


#: The open port of this process as rank 0 of the next gang.
_rendezvous: Any = None


def _serve(connection: Connection, on_gpu: bool) -> None:
    """Answer calls until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"
    if on_gpu:
        # NCCL refuses two ranks on one GPU.
        os.environ["INTERPLAY_BACKEND"] = "gloo"
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import trainables.train.loop  # noqa: F401  # import what cases need
    from trainables.ranks.process_group import import_deepspeed, leave

    import_deepspeed()
    connection.send((True, None))
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            sys.exit(0)
        try:
            forget()
            function, args, kwargs = pickle.loads(message)
            answer = pickle.dumps((True, function(*args, **kwargs)))
        except Exception:  # noqa: BLE001  # raised in the test
            answer = pickle.dumps((False, traceback.format_exc()))
            leave()  # so that the others notice at once
        connection.send_bytes(answer)


def forget() -> None:
    """Leave the process group and reset what the next one would find of it, as if this process were new.

    Otherwise a gang fails after one of other degrees, or at ZeRO stage 3 if its ranks have trained unequally often.
    """
    import deepspeed.runtime.tensor_parallel.init_utils as tensor_parallel
    import torch.distributed.distributed_c10d as c10d
    from deepspeed.module_inject import set_autotp_mode
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.partition_parameters import Init

    from trainables.ranks.process_group import leave

    leave()
    # Torch names groups by this counter, which a failed rendezvous increments: ranks would wait under different names.
    c10d._world.group_count = 0
    set_autotp_mode(False)
    tensor_parallel._TP_MODEL_INIT_ARGS = None
    # The numbers of parameters and modules, which must be equal on all ranks.
    Init.param_id = 0
    DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0][0] = 0


def _open_port() -> int:
    from trainables.ranks.process_group import Rendezvous

    global _rendezvous
    _rendezvous = Rendezvous()
    port: int = _rendezvous.port
    return port


def _join(
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
    return function(*args, rank_info=rank_info, rendezvous=None if rank else _rendezvous, **kwargs)
