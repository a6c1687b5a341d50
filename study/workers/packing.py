"""Packs the data of a study, in this process or on the machines of a cluster, and shows the progress."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from study.errors import SpecError
from study.plan.table import duration
from study.workers.distributed_encoding import Workers, distributed_encoder
from study.workers.machines import Machine, Slots
from trainables.data.packing.pack import Watch
from trainables.data.spec import DataSpec, HierarchyData
from trainables.data.store.open import open_store
from trainables.data.store.remote_store import is_packed
from trainables.data.tasks.spec import TaskData

#: Seconds between two lines of output without a terminal.
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
    """Pack the data of a study below `root`, unless it is packed.

    On a cluster, text with a BPE vocabulary is encoded by the machines of the study's slots. Bytes, the hierarchy and
    tasks are packed here, because sending them would cost more.

    Args:
        data: of the study.
        context: tokens of a sequence.
        root: folder or URI of all stores.
        key: the `data_key` of the plan.
        base: folder for relative paths of the data.
        console: shows the progress and the time left.
        slots: of the study on the joined cluster; None on one machine.
        machines: of that cluster, those that its autoscaler may start included.

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
        encode = distributed_encoder(workers) if workers else None
        with shown(console) as watch:
            open_store(data, context=context, root=root, key=key, base=base, encode=encode, watch=watch)
    except ConnectionError as error:
        raise SpecError(str(error)) from error


def workers_of(slots: Slots, machines: Sequence[Machine]) -> Workers | None:
    """Return one worker for each CPU in the study's share of the joined cluster; None if that is this machine alone."""
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
    """Yield a function that shows the progress: one updated line in a terminal, else a line every half minute."""
    began = printed = time.monotonic()
    current, first = "", (began, 0.0)

    with console.status("packing the data") as status:

        def watch(stage: str, share: float | None) -> None:
            nonlocal current, first, printed
            now = time.monotonic()
            if stage != current:
                current, first = stage, (now, 0.0)
            elif share is not None and not first[1]:
                # The time until then may have gone into starting machines, so it is not extrapolated.
                first = (now, share)
            text = f"packing the data: {stage}"
            if share is not None:
                text += f", {share:.0%}"
                if share > first[1] > 0:
                    left = (now - first[0]) / (share - first[1]) * (1 - share)
                    text += f", about {duration(left)} left"
            if console.is_terminal:
                status.update(Text(text))
            elif now - printed >= LINE_SECONDS:
                printed = now
                console.print(Text(text), soft_wrap=True)

        yield watch
    spent = time.monotonic() - began
    if spent >= LINE_SECONDS:
        console.print(Text(f"packed the data in {duration(spent)}", style="dim"))
