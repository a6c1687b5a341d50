"""Packing for a study, in this process or on the machines of a cluster, with a line that says how long it will take."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from study.errors import SpecError
from study.plan.table import duration
from study.workers.distributed_encoding import Workers, spread
from study.workers.machines import Machine, Slots
from trainables.data.packing.pack import Watch
from trainables.data.spec import DataSpec, HierarchyData
from trainables.data.store.open import open_store
from trainables.data.store.remote_store import is_packed
from trainables.data.tasks.spec import TaskData

#: Seconds between two lines where nothing can be drawn over.
LINE_SECONDS = 30.0


def packed(
    data: DataSpec,
    context: int,
    *,
    root: str | Path,
    key: str,
    base: Path,
    console: Console,
    slots: Slots | None = None,
    machines: Sequence[Machine] = (),
) -> None:
    """See to it that the data of a study is packed below `root`; returns at once if it is.

    Text with a BPE vocabulary is encoded by the machines that the study's slots are on, where Ray is connected to a
    cluster with more than this machine. Bytes, the hierarchy and tasks cost less than they would to send, and stay
    here.

    Args:
        data: of the study.
        context: tokens of a sequence.
        root: folder or URI of all stores.
        key: the `data_key` that was planned with.
        base: folder that relative paths of the data start from.
        console: shows how far it has come, and how long it will take.
        slots: what the study takes of a cluster that was joined; None on one machine.
        machines: of that cluster, those its autoscaler may start among them.

    Raises:
        DataError: the data cannot be used, or the disk is full.
        InputError: nothing can be written to the storage.
        SpecError: the storage cannot be reached.
    """
    try:
        if is_packed(data, context, root, key):
            return
        workers = None
        if slots and not isinstance(data, HierarchyData | TaskData) and data.tokenizer == "bpe":
            workers = workers_of(slots, machines)
        encode = spread(workers) if workers else None
        with shown(console) as watch:
            open_store(data, context=context, root=root, key=key, base=base, encode=encode, watch=watch)
    except ConnectionError as error:
        raise SpecError(str(error)) from error


def workers_of(slots: Slots, machines: Sequence[Machine]) -> Workers | None:
    """As many as the study's share of the joined cluster has CPUs; None where that is this machine alone."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    rooms = [(machine, slots.ranks_on(machine.resources)) for machine in machines]
    rooms = [(machine, ranks) for machine, ranks in rooms if ranks]
    if all(machine.node == here for machine, _ in rooms):
        return None
    share = min(1.0, slots.devices / sum(ranks for _, ranks in rooms))
    cpus = sum(machine.resources.get("CPU", 0) for machine, _ in rooms)
    return Workers(max(1, int(share * cpus)), slots.marks)


@contextmanager
def shown(console: Console) -> Iterator[Watch]:
    """Yield a `Watch` that shows one line: drawn over in a terminal, said again every half minute anywhere else."""
    began = said = time.monotonic()
    now_doing, first = "", (began, 0.0)

    with console.status("packing the data") as status:

        def watch(stage: str, share: float | None) -> None:
            nonlocal now_doing, first, said
            now = time.monotonic()
            if stage != now_doing:
                now_doing, first = stage, (now, 0.0)
            elif share is not None and not first[1]:
                # Machines may have had to start before: what is left is reckoned from the first that was done.
                first = (now, share)
            text = f"packing the data: {stage}"
            if share is not None:
                text += f", {share:.0%}"
                if share > first[1] > 0:
                    left = (now - first[0]) / (share - first[1]) * (1 - share)
                    text += f", about {duration(left)} left"
            if console.is_terminal:
                status.update(Text(text))
            elif now - said >= LINE_SECONDS:
                said = now
                console.print(Text(text), soft_wrap=True)

        yield watch
    spent = time.monotonic() - began
    if spent >= LINE_SECONDS:
        console.print(Text(f"packed the data in {duration(spent)}", style="dim"))
