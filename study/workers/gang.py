"""A cell over several processes: rank 0 in the trial's own, the others in actors of its placement group.

The trial is the supervisor: rank 0 trains in a thread of its process, so that the trial can report the failure of any
rank, whichever hangs. The processes of the other ranks are kept for the next cell of the same trial process.
"""

import functools
import importlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from study.workers.process_loss import LossCause, Place, loss_cause_at, own_place
from trainables.cell import Cell
from trainables.errors import InputError, InterruptedTrainingError
from trainables.layout import Layout
from trainables.progress import Progress, Result

#: Seconds that starting the processes and importing torch may take; 20 to 30 on a machine at load 15.
START_SECONDS = 300.0
#: Seconds that a process kept from the last cell may take to answer. It has nothing to load; a frozen one delays the
#: next cell by as much, and a wrong guess costs a start.
WARM_SECONDS = 10.0
#: Seconds to wait for the real cause when a rank has only lost its peers: Ray reports a dead process about a second
#: after its sockets close.
GRACE_SECONDS = 5.0
#: Seconds between two heartbeats of the trial's process.
BEAT_SECONDS = 5.0

#: `trainables.train.loop.train`, or a test's own.
Train = Callable[..., Result]


class GangError(RuntimeError):
    """A gang was lost; the message names the rank and how it was lost."""

    loss_cause: LossCause | None = None
    """How the process of the rank was lost, if that is known."""
    place: Place | None = None
    """Where the rank was, if that is known."""


class Peer:
    """A rank other than the trial's own, as a Ray actor."""

    def ready(self) -> Place:
        """Import what training needs, and return the place of this process."""
        _warm()
        return own_place()

    def train(self, train: Train, cell: Cell, options: Mapping[str, Any], rank_info: Any) -> None:
        """Train as this rank. Rank 0 has the result, so it is not sent again."""
        train(cell, **options, rank_info=rank_info)


#: The warm peers of this process's placement group, from one trial to the next (`reuse_actors`). They end with their
#: placement group, which Tune removes with the trial's process.
_KEPT: list[Any] = []


def train_gang(
    train: Train,
    cell: Cell,
    layout: Layout,
    options: Mapping[str, Any],
    timeout: float,
    report: Callable[[Progress], None],
    alive: Callable[[float], None],
    interrupted: Callable[[], bool] = lambda: False,
) -> Result:
    """Train a cell over all ranks of its layout and return rank 0's result.

    Every rank passes `options`, the layout among them, to `train`. A rank that others wait for longer than `timeout`
    seconds hangs. `report` and `alive` are called in this thread: with rank 0's progress, and with the seconds within
    which the next call is due. `interrupted` is rank 0's argument of `train`. After a failure no peer is left, and the
    trial's process must not be used again.

    Raises:
        InterruptedTrainingError: all ranks were interrupted.
        InputError: a rank found something wrong with the input.
        GangError: a rank died, hangs or raised; the original cause, not the errors of its peers.
    """
    from trainables.ranks.process_group import Rendezvous

    try:
        # Its own imports, then those of the peers.
        alive(2 * START_SECONDS)
        seats = [own_place(), *_peers(layout.ranks)]
        order = seating(seats, layout.tensor_parallel)
        places = [seats[i] for i in order]
        alone = len({place.node for place in places}) == 1
        rendezvous = Rendezvous("127.0.0.1" if alone else places[0].address)
        rank_infos = [rendezvous.rank_info(rank, layout.ranks, timeout) for rank in range(layout.ranks)]
        actors = [None, *(_KEPT[i - 1] for i in order[1:])]
        events: queue.Queue[int | Progress] = queue.Queue()
        own = {"rendezvous": rendezvous, "report": events.put, "interrupted": interrupted}
        leader = _lead(lambda: train(cell, **options, rank_info=rank_infos[0], **own))
        futures: list[Future[Any]] = [leader]
        for actor, rank_info in zip(actors[1:], rank_infos[1:], strict=True):
            futures.append(actor.train.remote(train, cell, dict(options), rank_info).future())

        def lost(rank: int) -> None:
            # Its sockets close, so that ranks that wait for it do not wait for the whole timeout.
            if rank:
                _kill(actors[rank])

        try:
            watch(futures, events, report, lost, timeout, lambda: alive(timeout + 2 * BEAT_SECONDS))
            alive(2 * (timeout + GRACE_SECONDS))
            failure = verdict(futures, places, timeout)
            if failure is not None:
                _disband()
                # After a wrong input the trial's process is used for the next cell, so it must be free.
                if isinstance(failure, InputError) and wait([leader], timeout + GRACE_SECONDS).not_done:
                    raise GangError(f"{failure} Rank 0 does not end after that.")
                raise failure
        finally:
            rendezvous.close()
        result: Result = leader.result()
        return result
    except BaseException:
        # A peer of a gang that failed may hang, or hold memory of the failed cell.
        _disband()
        raise


def seating(places: Sequence[Place], tensor_parallel: int) -> list[int]:
    """Return the order of the ranks: the trial's process first, and the ranks of each machine side by side.

    A tensor-parallel group on two machines, where each layer would wait for the network, is a GangError.
    """
    first = places[0].node
    order = sorted(range(len(places)), key=lambda i: (places[i].node != first, places[i].node, i))
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
    events: "queue.Queue[int | Progress]",
    report: Callable[[Progress], None],
    lost: Callable[[int], None],
    timeout: float,
    alive: Callable[[], None] = lambda: None,
) -> None:
    """Return when all ranks have ended, or when no better cause of a failure is to be expected.

    Once a rank has ended well, the others may take `timeout` seconds. Rank 0 puts its progress into `events`, which
    is passed to `report`; `lost` is called with each rank that failed, `alive` every `BEAT_SECONDS`.
    """

    def put(rank: int, _: Future[Any]) -> None:
        events.put(rank)

    for rank, future in enumerate(futures):
        future.add_done_callback(functools.partial(put, rank))
    waiting, deadline, beat = set(range(len(futures))), float("inf"), 0.0
    while waiting:
        if time.monotonic() >= beat:
            alive()
            beat = time.monotonic() + BEAT_SECONDS
        try:
            event = events.get(timeout=max(0.0, min(deadline, beat) - time.monotonic()))
        except queue.Empty:
            if time.monotonic() >= deadline:
                return
            continue
        if not isinstance(event, int):
            report(event)
            continue
        waiting.discard(event)
        error = futures[event].exception()
        if error is None:
            deadline = min(deadline, time.monotonic() + timeout)
            continue
        if not is_echo(error):
            return
        lost(event)
        deadline = min(deadline, time.monotonic() + GRACE_SECONDS)


def verdict(futures: Sequence[Future[Any]], places: Sequence[Place], timeout: float) -> Exception | None:
    """Return why a gang failed, or None if it did not; a rank's own error goes before those of its peers.

    A rank that has not ended after `timeout` seconds hangs.
    """
    from trainables.ranks.collective import PeerError

    failed = {rank: _origin(f.exception()) for rank, f in enumerate(futures) if f.done() and f.exception()}
    hanging = [rank for rank, future in enumerate(futures) if not future.done()]
    if not failed and not hanging:
        return None
    names = [
        f"rank {rank} of {len(places)} (host {place.host}, pid {place.pid})"
        for rank, place in enumerate(places)
    ]
    for rank, error in failed.items():
        if isinstance(error, InterruptedTrainingError):
            return error
        if isinstance(error, InputError):
            # An error on one machine only must name the machine.
            return error if rank == 0 else InputError(f"{error} (Reported by {names[rank]}.)")
    for rank, error in failed.items():
        if not is_echo(error):
            return _lost(names[rank], error, places[rank], is_local=places[rank].node == places[0].node)
    for rank, error in failed.items():
        if isinstance(error, PeerError):
            # The rank that raised has not reported it itself.
            return GangError(f"{names[rank]} reported the failure of {_message(error)}")
    if hanging:
        who = " and ".join(names[rank] for rank in hanging)
        return GangError(f"{who} hung: the other ranks waited {timeout:g} s")
    rank, error = next(iter(failed.items()))
    return GangError(f"{names[rank]} lost the connection to the others: {_text(error)}")


def is_echo(error: BaseException) -> bool:
    """Whether an exception, ours or gloo's, only reports that another rank failed or is late."""
    import torch.distributed as dist

    from trainables.ranks.collective import PeerError

    cause = _origin(error)
    return isinstance(cause, (dist.DistError, PeerError)) or (
        isinstance(cause, RuntimeError) and "gloo" in str(cause)
    )


def _origin(error: BaseException | None) -> Any:
    """Return the exception of a rank without Ray's wrapper."""
    return getattr(error, "cause", None) or error


def _lost(
    rank: str, error: BaseException, place: Place | None = None, when: str = "", *, is_local: bool = False
) -> GangError:
    """Return the error for a rank that raised, or that Ray has lost."""
    how = loss_cause_at(error, place, is_local=is_local)
    match how:
        case LossCause.MEMORY | None:
            fate = f"failed: {_text(error)}"
        case _:
            fate = f"was lost: {how.value}" if how.of_machine else f"died: {how.value}"
    lost = GangError(f"{rank} {fate}{when}")
    lost.loss_cause, lost.place = how, place
    return lost


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {_message(error)}"[:300]


def _message(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or "no message"


def _warm() -> None:
    """Import what `train` imports, so that no rank waits at the rendezvous for the imports of another."""
    importlib.import_module("trainables.train.loop")
    importlib.import_module("trainables.ranks.process_group").import_deepspeed()


def _peers(ranks: int) -> list[Place]:
    """Return the places of the peers kept from the last trial, or of new ones in this placement group."""
    import ray
    from ray.util.placement_group import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def places(seconds: float) -> list[Place]:
        ready = [actor.ready.remote() for actor in _KEPT]
        _warm()
        return list(ray.get(ready, timeout=seconds))

    if _KEPT:
        try:
            return places(WARM_SECONDS)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            # One died or froze between two cells, which is not the fault of this one.
            _disband()
    group = get_current_placement_group()
    if group is None or ranks % group.bundle_count:
        found = 0 if group is None else group.bundle_count
        raise GangError(f"a gang of {ranks} ranks was started in a placement group of {found} bundles")
    # A bundle of the group holds one rank, or all ranks that share matrices.
    together = ranks // group.bundle_count
    for rank in range(1, ranks):
        index = rank // together
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        bundle = group.bundle_specs[index]
        share = {"num_cpus": bundle.get("CPU", 0) / together, "num_gpus": bundle.get("GPU", 0) / together}
        _KEPT.append(ray.remote(Peer).options(scheduling_strategy=where, **share).remote())
    try:
        return places(START_SECONDS)
    except ray.exceptions.RayActorError as error:
        raise _lost(f"a rank of {ranks}", error, when=" while it was started") from error
    except ray.exceptions.GetTimeoutError as error:
        raise GangError(f"not all of {ranks} ranks have started within {START_SECONDS:g} s") from error


def _kill(actor: Any) -> None:
    import ray

    ray.kill(actor)


def _disband() -> None:
    while _KEPT:
        _kill(_KEPT.pop())


def _lead(work: Callable[[], Result]) -> Future[Any]:
    """Run rank 0 in a thread that does not keep its process alive.

    If it hangs, the process still ends: Tune removes the placement group of a trial that failed, and Ray kills
    the processes left in it.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # the supervisor raises it
            future.set_exception(error)

    threading.Thread(target=run, name="rank 0", daemon=True).start()
    return future
