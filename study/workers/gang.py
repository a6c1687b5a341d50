"""A cell over several processes, all of them actors in the placement group of its trial, which supervises them.

Each gang has fresh processes, although they take 6 to 10 s to start: DeepSpeed keeps degrees and counters in its
modules, which a process of an earlier gang could only reset in DeepSpeed's private state.
"""

import importlib
import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from core.errors import InputError
from study.workers.causes import GangError, Place, as_text, describe, loss_cause, message, own_place
from study.workers.environment import ALLOCATOR, COMPILE_CACHE
from study.workers.ray_session import stop_requested
from study.workers.spot_notice import spot_notices
from trainables.cell import Cell
from trainables.errors import InterruptedTrainingError
from trainables.layout import Layout
from trainables.progress import Progress, Result

#: Seconds that starting the processes and importing torch may take; 20 to 30 on a machine at load 15.
START_SECONDS = 300.0
#: Seconds to wait for the real cause when a rank has only lost its peers: Ray reports a dead process about a second
#: after its sockets close.
GRACE_SECONDS = 5.0
#: Ray shows each process its own GPU alone. NCCL's ranks of one machine then cannot reach one another's by NVLink, and
#: their first collective took 30 s (NCCL's issue 1749).
SEE_ALL_GPUS = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}


class Rank:
    """A rank of a gang, as a Ray actor."""

    def __init__(self) -> None:
        self._progress: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self._rendezvous: Any = None

    def ready(self) -> Place:
        """Import what training needs, so that no rank waits for the imports of another; return this process's place."""
        _choose_gpu()
        importlib.import_module("trainables.train.loop")
        importlib.import_module("trainables.ranks.process_group").import_deepspeed()
        return own_place()

    def open_port(self, address: str) -> int:
        """Open the port of rank 0, and return its number."""
        from trainables.ranks.process_group import Rendezvous

        self._rendezvous = Rendezvous(address)
        return int(self._rendezvous.port)

    def train(self, train: Callable[..., Result], cell: Cell, options: dict[str, Any], run: str) -> Result:
        """Train as this rank; each asks whether its machine is at risk, and rank 0 whether the run is to stop."""
        with spot_notices() as at_risk:
            if options["rank_info"].rank:
                return train(cell, **options, at_risk=at_risk)
            with stop_requested(run) as stop:
                callbacks = {"rendezvous": self._rendezvous, "report": self._progress.put}
                return train(cell, **options, **callbacks, interrupted=stop, at_risk=at_risk)

    def progress(self) -> Progress:
        """Wait for the next progress of this rank; a second thread of the process answers while it trains."""
        return self._progress.get()


def train_gang(
    train: Callable[..., Result],
    cell: Cell,
    layout: Layout,
    options: Mapping[str, Any],
    timeout: float,
    report: Callable[[Progress], None],
    run: str,
) -> Result:
    """Train a cell over all ranks of its layout and return rank 0's result.

    The calling process owns no device and is no rank. Every rank passes `options`, the layout among them, to `train`. A
    rank that others wait for longer than `timeout` seconds hangs. `report` is called in this thread with rank 0's
    progress. `run` is the name under which the driver asks its trials to stop. No process of the gang is left
    afterwards.

    Raises:
        InterruptedTrainingError: all ranks were interrupted.
        InputError: a rank found something wrong with the input.
        GangError: a rank died, hangs or raised; the original cause, not the errors of its peers.
    """
    import ray

    actors = _start(layout)
    try:
        ready = [actor.ready.remote() for actor in actors]
        # The import of torch takes seconds, in which a rank's error could not be read: better now than then.
        from trainables.ranks.process_group import RankInfo

        started = _started(ready, layout.ranks)
        order = order_ranks_by_machine(started, layout.tensor_parallel)
        ranks, places = [actors[i] for i in order], [started[i] for i in order]
        alone = len({place.node for place in places}) == 1
        address = "127.0.0.1" if alone else places[0].address
        (port,) = _started([ranks[0].open_port.remote(address)], layout.ranks)
        futures: list[Future[Result]] = []
        for rank, actor in enumerate(ranks):
            rank_options = {**options, "rank_info": RankInfo(rank, layout.ranks, address, port, timeout)}
            futures.append(actor.train.remote(train, cell, rank_options, run).future())

        def lost(rank: int) -> None:
            # Its sockets close, so that ranks that wait for it do not wait for the whole timeout. Rank 0 has the store
            # of the process group, without which the others may crash before the cause is known.
            if rank:
                ray.kill(ranks[rank])

        watch(futures, lambda: ranks[0].progress.remote().future(), report, lost, timeout)
        if failure := verdict(futures, places, timeout):
            raise failure
        return futures[0].result()
    finally:
        for actor in actors:
            ray.kill(actor)


def order_ranks_by_machine(places: Sequence[Place], tensor_parallel: int) -> list[int]:
    """Return the order of the ranks: the machine of the first process first, on each machine in the order of its GPUs.

    A tensor-parallel pair then has two GPUs that are side by side, which some machines connect better than others.

    A tensor-parallel group on two machines, where each layer would wait for the network, is a GangError.
    """
    first = places[0].node

    def key(i: int) -> tuple[bool, str, int, str, int]:
        # Ids of MIG slices are no numbers.
        gpu = places[i].gpu
        return places[i].node != first, places[i].node, int(gpu) if gpu.isdigit() else 0, gpu, i

    order = sorted(range(len(places)), key=key)
    for start in range(0, len(order), tensor_parallel):
        hosts = {places[i].node: places[i].host for i in order[start : start + tensor_parallel]}
        if len(hosts) > 1:
            raise GangError(
                f"ranks {start} to {start + tensor_parallel - 1}, which share every matrix, were started on "
                f"{len(hosts)} machines ({', '.join(sorted(hosts.values()))})."
            )
    return order


def watch(
    futures: Sequence[Future[Any]],
    next_progress: Callable[[], Future[Progress]],
    report: Callable[[Progress], None],
    lost: Callable[[int], None],
    timeout: float,
) -> None:
    """Return when all ranks have ended, or when no better cause of a failure is to be expected.

    Once a rank has ended well, the others may take `timeout` seconds. `report` is called with each result of
    `next_progress`, and `lost` with each rank that failed after another one.
    """
    waiting, deadline = list(range(len(futures))), float("inf")
    progress = next_progress()
    while waiting and (left := deadline - time.monotonic()) > 0:
        pending = [progress, *(futures[rank] for rank in waiting)]
        done, _ = wait(pending, left if left < float("inf") else None, return_when=FIRST_COMPLETED)
        if progress in done:
            if progress.exception():
                # Rank 0 is lost; its own future has the reason.
                progress = Future()
            else:
                report(progress.result())
                progress = next_progress()
        for rank in [rank for rank in waiting if futures[rank] in done]:
            waiting.remove(rank)
            error = futures[rank].exception()
            if error and not is_secondary_failure(error):
                return
            if error:
                lost(rank)
            deadline = min(deadline, time.monotonic() + (GRACE_SECONDS if error else timeout))


def verdict(futures: Sequence[Future[Any]], places: Sequence[Place], timeout: float) -> Exception | None:
    """Return why a gang failed, or None; a rank's own error goes before those of its peers, and one not done hangs."""
    from trainables.ranks.collective import PeerError

    failed = {rank: _origin(f.exception()) for rank, f in enumerate(futures) if f.done() and f.exception()}
    names = [f"rank {rank} of {len(places)} ({place})" for rank, place in enumerate(places)]
    for rank, error in failed.items():
        if isinstance(error, InterruptedTrainingError):
            return error
        if isinstance(error, InputError):
            # An error on one machine only must name the machine.
            return error if rank == 0 else InputError(f"{error} (Reported by {names[rank]}.)")
    for rank, error in failed.items():
        if not is_secondary_failure(error):
            return _lost(names[rank], error, places[rank], is_local=places[rank].node == places[0].node)
    for rank, error in failed.items():
        if isinstance(error, PeerError):
            # The rank that raised has not reported it itself.
            return GangError(f"{names[rank]} reported the failure of {message(error)}")
    if hanging := [names[rank] for rank, future in enumerate(futures) if not future.done()]:
        return GangError(f"{' and '.join(hanging)} hung: the other ranks waited {timeout:g} s")
    for rank, error in failed.items():
        return GangError(f"{names[rank]} lost the connection to the others: {as_text(error)}")
    return None


def is_secondary_failure(error: BaseException) -> bool:
    """Whether an exception, ours or gloo's, only reports that another rank failed or is late."""
    import torch.distributed as dist

    from trainables.ranks.collective import PeerError

    cause = _origin(error)
    is_gloo = isinstance(cause, RuntimeError) and "gloo" in str(cause)
    return is_gloo or isinstance(cause, dist.DistError | PeerError)


def _origin(error: BaseException | None) -> Any:
    """Return the exception of a rank without Ray's wrapper."""
    return getattr(error, "cause", None) or error


def _lost(
    rank: str, error: BaseException, place: Place | None = None, *, is_local: bool = False
) -> GangError:
    """Return the error for a rank that raised, or that Ray has lost."""
    cause = loss_cause(error, place, is_local=is_local)
    lost = GangError(describe(error, cause, rank))
    lost.loss_cause, lost.place = cause, place
    return lost


def _choose_gpu() -> None:
    """Have torch and DeepSpeed use the GPU that Ray gave this rank; see `SEE_ALL_GPUS`."""
    import ray

    if gpus := ray.get_gpu_ids():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        index = visible.split(",").index(str(gpus[0])) if visible else gpus[0]
        os.environ["LOCAL_RANK"] = str(index)


def _start(layout: Layout) -> list[Any]:
    """Start the ranks of a layout in the placement group of this trial; see `study.run.tune_interface`."""
    import ray
    from ray.util.placement_group import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group, together = get_current_placement_group(), layout.tensor_parallel
    # They import torch before they are given a cell.
    inherited = {name: os.environ[name] for name in (ALLOCATOR, COMPILE_CACHE) if name in os.environ}
    variables = {"env_vars": SEE_ALL_GPUS | inherited}
    actors = []
    for index, bundle in enumerate(group.bundle_specs):
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        share = {"num_cpus": bundle.get("CPU", 0) / together, "num_gpus": bundle.get("GPU", 0) / together}
        actor = ray.remote(Rank).options(
            scheduling_strategy=where, max_concurrency=2, runtime_env=variables, **share
        )
        actors += [actor.remote() for _ in range(together)]
    return actors


def _started(calls: list[Any], ranks: int) -> list[Any]:
    """Return the answers of ranks that start, or raise a GangError if one is lost or late."""
    import ray

    try:
        return list(ray.get(calls, timeout=START_SECONDS))
    except ray.exceptions.RayActorError as error:
        raise _lost(f"a rank of {ranks} that was being started", error) from error
    except ray.exceptions.GetTimeoutError as error:
        raise GangError(f"not all of {ranks} ranks have started within {START_SECONDS:g} s") from error
