"""The machines of a Ray cluster, those that its autoscaler may start included, and how many ranks they hold."""

import math
import os
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from study.errors import SpecError
from study.plan.layouts import ClusterCapacity
from study.spec.devices import Device, local_gpus
from trainables.layout import Layout

#: Where `ray up` writes the cluster file on the head, with the resources of its machine types filled in.
CLUSTER_FILE = Path("~/ray_bootstrap_config.yaml")
#: Ray's label for the name of a machine's type.
TYPE_LABEL = "ray.io/node-group"
#: The amount that a rank takes of a resource that only marks machines, such as a pool's. Ray counts in 1/10,000.
MARK = 0.001
#: Prefix of Ray's resource for the model of a machine's GPU.
ACCELERATOR = "accelerator_type:"
#: Lost trials from which a machine is avoided.
MOST_LOSSES = 2


@dataclass(frozen=True)
class Machine:
    """One machine of a cluster."""

    resources: Mapping[str, float]
    """By Ray's names; `memory` in bytes."""
    node: str | None = None
    """Ray's id; None for a machine that the autoscaler has not started."""
    kind: str = ""
    """The name of its type in the cluster file."""


@dataclass(frozen=True)
class Slots:
    """The number of devices used at a time, one for each rank of a trial, and the resources of a rank."""

    devices: int
    cpus: float
    gpus: float
    marks: tuple[str, ...] = ()
    """Resources of which the machine of a rank must have some: its pool, the model of its GPU."""

    def bundle(self, ranks: int = 1) -> dict[str, float]:
        """Return the resources of ranks on one machine, as Ray wants them."""
        # 3 x 0.1 is slightly more than 0.3; Ray counts in 1/10,000.
        needs = {"CPU": round(ranks * self.cpus, 4), "GPU": round(ranks * self.gpus, 4)}
        return {**dict.fromkeys(self.marks, MARK), **needs}

    def may_use(self, resources: Mapping[str, float]) -> bool:
        """Whether a machine with these resources has all the marks."""
        return all(resources.get(mark, 0) > 0 for mark in self.marks)

    def ranks_on(self, resources: Mapping[str, float]) -> int:
        """Return how many ranks a machine with these resources holds."""
        if not self.may_use(resources):
            return 0
        needs = (("CPU", self.cpus), ("GPU", self.gpus))
        # 0.3 / 0.1 is slightly less than 3.
        return int(min(resources.get(name, 0) / needed for name, needed in needs if needed) + 1e-4)


@dataclass(frozen=True)
class Promised:
    """The machines that the autoscaler may start, from the cluster file."""

    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name: `resources`, `min_workers`, `max_workers`."""
    most: int = 0
    """Largest number of workers of all types together."""


def promised() -> Promised:
    """Read the cluster file on the head; without one, no further machine is expected."""
    path = Path(os.environ.get("INTERPLAY_CLUSTER_FILE", CLUSTER_FILE)).expanduser()
    if not path.is_file():
        return Promised()
    raw = yaml.safe_load(path.read_text()) or {}
    head = raw.get("head_node_type")
    kinds = {name: kind for name, kind in raw.get("available_node_types", {}).items() if name != head}
    return Promised(kinds, int(raw.get("max_workers", 0)))


def machines(live: Collection[Machine], promise: Promised) -> list[Machine]:
    """Return the live machines of a cluster, and those that the autoscaler may start in addition.

    Types without resources in the file (machines reached by SSH) have live machines only. If the types together allow
    more than the cluster's `max_workers`, the largest come first.
    """
    coming = []
    for name, kind in promise.kinds.items():
        resources = kind.get("resources") or {}
        if not {"CPU", "GPU"} & resources.keys():
            continue
        missing = int(kind.get("max_workers", 0)) - sum(machine.kind == name for machine in live)
        coming += [Machine(resources, None, name)] * max(0, missing)
    coming.sort(key=lambda machine: (-machine.resources.get("GPU", 0), -machine.resources.get("CPU", 0)))
    workers = sum(machine.kind in promise.kinds for machine in live)
    return [*live, *coming[: max(0, promise.most - workers)]]


def live_machines() -> list[Machine]:
    """Return the machines that are now part of the Ray cluster this process has joined."""
    import ray

    return [
        Machine(node["Resources"], node["NodeID"], node.get("Labels", {}).get(TYPE_LABEL, ""))
        for node in ray.nodes()
        if node["Alive"]
    ]


def cluster_machines(patience: float = 0.0) -> list[Machine]:
    """Return the machines of the joined Ray cluster, those that its autoscaler may start included.

    The file's `min_workers`, which join after the head, are waited for at most `patience` seconds.
    """
    promise = promised()
    always = sum(int(kind.get("min_workers", 0)) for kind in promise.kinds.values())
    deadline = time.monotonic() + patience
    while True:
        live = live_machines()
        if time.monotonic() >= deadline or sum(machine.kind in promise.kinds for machine in live) >= always:
            return machines(live, promise)
        time.sleep(1)


def marks(device: Device, pool: str, found: Collection[Machine]) -> tuple[str, ...]:
    """Return what a rank's machine must have: its pool, and its GPU model if all machines name theirs.

    For a study on CPUs, `any` is the pool without GPUs: Ray would start the most expensive machines for their CPUs too.

    Raises:
        SpecError: the cluster has no such pool, or no such GPU, or several pools for a study on CPUs.
    """
    result = []
    if pool != "any":
        if pool not in (pools := _pools(found)):
            raise SpecError(
                f"`resources.pool` is {pool!r}, and no machine of this Ray cluster has, or may be started with, a "
                f"resource of that name; it has {', '.join(pools) or 'no pools'}. Name one of these, or `any`."
            )
        result.append(pool)
    elif not device.is_gpu and (plain := _plain_pool(found)):
        result.append(plain)
    kinds = [
        {name for name in machine.resources if name.startswith(ACCELERATOR)}
        for machine in found
        if machine.resources.get("GPU")
    ]
    # KubeRay's machines that are still to come do not name their GPUs.
    if device.is_gpu and kinds and all(kinds):
        wanted = ACCELERATOR + str(device.accelerator)
        there = set().union(*kinds)
        if wanted not in there:
            names = ", ".join(sorted(kind.removeprefix(ACCELERATOR) for kind in there))
            raise SpecError(
                f"`resources.device` is {device.name}, and the GPUs of this Ray cluster are {names}. Plan for one of "
                "these, or add machines that have it to the cluster file."
            )
        result.append(wanted)
    return tuple(result)


def room(found: Collection[Machine], slots: Slots) -> ClusterCapacity:
    """Return how many ranks a cluster holds, the least memory of a rank, and the ranks of the largest machine.

    Machines without a known memory, such as those that KubeRay may start, do not count for the memory. It is a
    SpecError if no machine holds a rank.
    """
    check_one(slots, [machine.resources for machine in found])
    ranks = [slots.ranks_on(machine.resources) for machine in found]
    memory = [machine.resources.get("memory", 0) for machine in found]
    shares = [int(size / count) for size, count in zip(memory, ranks, strict=True) if size and count]
    return ClusterCapacity(sum(ranks), min(shares, default=0), max(ranks))


def check_devices(slots: Slots, device: str, layouts: Collection[Layout] = ()) -> None:
    """Refuse what this machine does not have: Ray does not check GPUs, and trials would use the CPU."""
    cpus, needed = math.ceil(slots.devices * slots.cpus), math.ceil(slots.devices * slots.gpus)
    if needed and needed > (found := local_gpus()):
        raise SpecError(
            f"`resources.device` {device} with {slots.devices} slots needs {needed} GPUs, and this machine has "
            f"{found}. Set {f'`resources.slots` to {found} or fewer, or ' if found else ''}`resources.device: cpu`, or "
            "join a cluster that has them (RAY_ADDRESS)."
        )
    check_capacity(slots, layouts, [{"CPU": cpus, "GPU": needed}])


def check_one(slots: Slots, machines: Collection[Mapping[str, float]]) -> None:
    """Refuse a rank that no machine holds by a SpecError, which names the resource and the largest machine."""
    marked = [machine for machine in machines if slots.may_use(machine)]
    which = f" with {' and '.join(slots.marks)}" if slots.marks else ""
    for name, needed in (("CPU", slots.cpus), ("GPU", slots.gpus)):
        most = max((machine.get(name, 0) for machine in marked), default=0)
        if most < needed:
            raise SpecError(
                f"one rank of a trial needs {needed:g} {name}s, and the largest machine of the Ray cluster{which} has "
                f"{most:g}. Lower `resources.{name.lower()}s_per_trial`, or start machines that have them."
            )


def check_capacity(
    slots: Slots, layouts: Collection[Layout], machines: Collection[Mapping[str, float]]
) -> None:
    """Refuse a trial that machines of these resources could never hold; Tune would wait for it silently."""
    check_one(slots, machines)
    rooms = [slots.ranks_on(machine) for machine in machines]
    rooms = [room for room in rooms if room] or [0]
    for layout in layouts:
        gang = (
            f"a cell over {layout.ranks} ranks (tensor_parallel {layout.tensor_parallel} x data_parallel "
            f"{layout.data_parallel})"
        )
        if layout.ranks > slots.devices:
            raise SpecError(
                f"{gang} needs {layout.ranks} devices at a time, and `resources.slots` is {slots.devices}. Set it to "
                f"{layout.ranks} or more if there are as many, or lower the degrees."
            )
        if layout.ranks > sum(rooms):
            raise SpecError(
                f"{gang} needs {layout.ranks} devices, and the Ray cluster has room for {sum(rooms)} ranks of "
                f"{slots.cpus:g} CPUs and {slots.gpus:g} GPUs. Start more machines, or lower the degrees."
            )
        if layout.tensor_parallel > max(rooms):
            raise SpecError(
                f"{gang} needs {layout.tensor_parallel} devices in one machine, because they communicate in "
                f"every layer, and the largest machine of the Ray cluster has room for {max(rooms)}. Start larger "
                "machines, or set `resources.tensor_parallel: auto`, which takes no more than that."
            )
        groups = sum(room // layout.tensor_parallel for room in rooms)
        if layout.data_parallel > groups:
            raise SpecError(
                f"{gang} needs {layout.data_parallel} groups of {layout.tensor_parallel} devices, each in one machine, "
                f"and the machines of the Ray cluster, which have room for {' + '.join(map(str, rooms))} ranks, hold "
                f"{groups}. Lower `resources.data_parallel` to {groups}, choose a `resources.tensor_parallel` that "
                "divides the devices of a machine, or start more machines."
            )


class MachineLosses:
    """Counts the trials lost on each machine.

    A machine may be ill without being lost, and would then take cell after cell. A cell that was lost on several
    machines is itself at fault, so it counts against none of them.
    """

    def __init__(self, slots: Slots) -> None:
        """Begin with no loss; `slots` are those of the study."""
        self.slots = slots
        self._cells: dict[str, list[str]] = defaultdict(list)
        """Keys of the cells of the trials lost on each machine, by Ray's id of the machine."""

    def add(self, node: str, cell: str) -> bool:
        """Count a trial of a cell that was lost on a machine; return whether the machine is ill only since then."""
        before = self.ill
        self._cells[node].append(cell)
        return node in self.ill and node not in before

    @property
    def ill(self) -> list[str]:
        """Ray's ids of the machines on which `MOST_LOSSES` trials were lost."""
        return sorted(node for node in self._cells if self._count(node) >= MOST_LOSSES)

    def avoided(self, layout: Layout) -> list[str]:
        """Return the ill machines; none if the others, those still to come included, could never hold the layout."""
        ill = self.ill
        if ill:
            others = [machine.resources for machine in cluster_machines() if machine.node not in ill]
            try:
                check_capacity(self.slots, [layout], others)
            except SpecError:
                return []
        return ill

    def live_ranks(self) -> int:
        """Return how many ranks the live machines hold, without those that are ill."""
        live = [machine for machine in live_machines() if machine.node not in self.ill]
        return sum(self.slots.ranks_on(machine.resources) for machine in live)

    def _count(self, node: str) -> int:
        elsewhere = {cell for other, cells in self._cells.items() if other != node for cell in cells}
        return sum(cell not in elsewhere for cell in self._cells[node])


def _plain_pool(found: Collection[Machine]) -> str | None:
    """Return the pool without GPUs, if the autoscaler might start machines with GPUs for their CPUs."""
    if not any(machine.node is None and machine.resources.get("GPU") for machine in found):
        return None
    pools = _pools([m for m in found if m.resources.get("CPU") and not m.resources.get("GPU")])
    if len(pools) > 1:
        raise SpecError(
            f"`resources.device` is cpu and `resources.pool` any, so this cluster might start machines with GPUs for "
            f"it. Name the pool: {', '.join(pools)}."
        )
    return pools[0] if pools else None


def _pools(found: Collection[Machine]) -> list[str]:
    """Return the resources of machines that are not Ray's own, which are pools."""
    known = ("CPU", "GPU", "memory", "object_store_memory", "head")
    names = {name for machine in found for name, amount in machine.resources.items() if amount}
    return sorted(name for name in names if name not in known and ":" not in name)
