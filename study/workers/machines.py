"""The machines of a Ray cluster, those that its autoscaler may start included, and what a study may use of them."""

import math
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from study.errors import SpecError
from study.plan.layouts import ClusterCapacity
from study.spec.devices import DEVICES, local_gpus
from study.spec.resources import ResourcesSection
from trainables.layout import Layout

#: Where `ray up` writes the cluster file on the head, with the resources of its machine types filled in.
CLUSTER_FILE = Path("~/ray_bootstrap_config.yaml")
#: Ray's label for the name of a machine's type.
TYPE_LABEL = "ray.io/node-group"
#: The amount that a rank takes of a custom resource, which is only there to choose machines. Ray counts in 1/10,000.
CUSTOM_AMOUNT = 0.001
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
    custom: tuple[str, ...] = ()
    """Custom resources that the machine of a rank must offer: its pool, the model of its GPU."""
    together: int = 1
    """Ranks that the largest machine of a cluster holds."""

    def bundle(self, ranks: int = 1) -> dict[str, float]:
        """Return the resources of ranks on one machine, as Ray wants them."""
        # 3 x 0.1 is slightly more than 0.3; Ray counts in 1/10,000.
        needs = {"CPU": round(ranks * self.cpus, 4), "GPU": round(ranks * self.gpus, 4)}
        return {**dict.fromkeys(self.custom, CUSTOM_AMOUNT), **needs}

    def are_on_one_machine(self, layout: Layout) -> bool:
        """Whether a gang is to be on one machine, because the largest one holds all of its ranks."""
        return 1 < layout.ranks <= self.together

    def may_use(self, machine: Machine) -> bool:
        """Whether a machine offers all the custom resources."""
        return all(machine.resources.get(name, 0) > 0 for name in self.custom)

    def ranks_on(self, machine: Machine) -> int:
        """Return how many ranks a machine holds."""
        if not self.may_use(machine):
            return 0
        needs = (("CPU", self.cpus), ("GPU", self.gpus))
        # 0.3 / 0.1 is slightly less than 3.
        return int(min(machine.resources.get(name, 0) / needed for name, needed in needs if needed) + 1e-4)


@dataclass(frozen=True)
class AutoscalerLimits:
    """The machines that the autoscaler may start, from the cluster file."""

    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name: `resources`, `min_workers`, `max_workers`."""
    most: int = 0
    """Largest number of workers of all types together."""

    @property
    def machines(self) -> list[Machine]:
        """One machine of each type that may be started."""
        kinds = self.kinds.items()
        return [
            Machine(kind.get("resources") or {}, kind=name) for name, kind in kinds if kind.get("max_workers")
        ]


def read_autoscaler_limits() -> AutoscalerLimits:
    """Read the cluster file on the head; without one, no further machine is expected."""
    path = Path(os.environ.get("INTERPLAY_CLUSTER_FILE", CLUSTER_FILE)).expanduser()
    if not path.is_file():
        return AutoscalerLimits()
    raw = yaml.safe_load(path.read_text()) or {}
    head = raw.get("head_node_type")
    kinds = {name: kind for name, kind in raw.get("available_node_types", {}).items() if name != head}
    return AutoscalerLimits(kinds, int(raw.get("max_workers", 0)))


def possible_machines(live: Collection[Machine], limits: AutoscalerLimits, slots: Slots) -> list[Machine]:
    """Return the live machines of a cluster, and those that the autoscaler may start in addition for a study.

    Types without resources in the file (machines reached by SSH) have live machines only. If the types together allow
    more than the cluster's `max_workers`, those that hold the most ranks come first.
    """
    coming = []
    for machine in limits.machines:
        if slots.may_use(machine) and {"CPU", "GPU"} & machine.resources.keys():
            alike = sum(other.kind == machine.kind for other in live)
            coming += [machine] * (int(limits.kinds[machine.kind]["max_workers"]) - alike)
    coming.sort(key=slots.ranks_on, reverse=True)
    workers = sum(machine.kind in limits.kinds for machine in live)
    return [*live, *coming[: max(0, limits.most - workers)]]


def live_machines() -> list[Machine]:
    """Return the machines that are now part of the Ray cluster this process has joined."""
    import ray

    return [
        Machine(node["Resources"], node["NodeID"], node.get("Labels", {}).get(TYPE_LABEL, ""))
        for node in ray.nodes()
        if node["Alive"]
    ]


def awaited_machines(limits: AutoscalerLimits, patience: float) -> list[Machine]:
    """Return the live machines, once the file's `min_workers` have joined, but after `patience` seconds at most."""
    always = sum(int(kind.get("min_workers", 0)) for kind in limits.kinds.values())
    deadline = time.monotonic() + patience
    while True:
        live = live_machines()
        if time.monotonic() >= deadline or sum(machine.kind in limits.kinds for machine in live) >= always:
            return live
        time.sleep(1)


@dataclass(frozen=True)
class Capacity:
    """What a study may use of a cluster."""

    machines: Sequence[Machine]
    slots: Slots
    held: int
    """Ranks that the machines hold at a time, which may be fewer than the slots that a spec sets."""
    capacity: ClusterCapacity
    """The same for `make_plan`."""

    def check(self, layouts: Collection[Layout]) -> None:
        """Refuse layouts that the machines could never hold, as `check_capacity`."""
        check_capacity(self.slots, layouts, self.machines)


def capacity(live: Sequence[Machine], limits: AutoscalerLimits, resources: ResourcesSection) -> Capacity:
    """Return what a study may use of a cluster: the driver uses it, and `cluster check` foretells it.

    Machines without a known memory, such as those that KubeRay may start, do not count for the memory of a rank.
    SpecError if the cluster has not the pool or the GPU of the study, or no machine holds a rank.
    """
    slots = Slots(
        devices=0 if resources.slots == "auto" else resources.slots,
        cpus=resources.cpus_per_trial,
        gpus=resources.gpus_per_trial,
        custom=custom_resources(resources.device, resources.pool, [*live, *limits.machines]),
    )
    machines = possible_machines(live, limits, slots)
    check_capacity(slots, (), machines)
    ranks = [slots.ranks_on(machine) for machine in machines]
    memory = [machine.resources.get("memory", 0) for machine in machines]
    shares = [int(size / count) for size, count in zip(memory, ranks, strict=True) if size and count]
    devices = slots.devices or sum(ranks)
    capacity = ClusterCapacity(devices, min(shares, default=0), max(ranks))
    return Capacity(machines, replace(slots, devices=devices, together=max(ranks)), sum(ranks), capacity)


def custom_resources(device: str, pool: str, machines: Collection[Machine]) -> tuple[str, ...]:
    """Return the resources that a rank's machine must offer: its pool, and its GPU model if all machines name theirs.

    For a study on CPUs, `any` is the pool without GPUs: Ray would start the most expensive machines for their CPUs too.
    SpecError if the cluster has no such pool, or no such GPU, or several pools for a study on CPUs.
    """
    result, planned = [], DEVICES[device]
    if pool != "any":
        if pool not in (pools := _pools(machines)):
            raise SpecError(
                f"`resources.pool` is {pool!r}, and no machine of this Ray cluster has, or may be started with, a "
                f"resource of that name; it has {', '.join(pools) or 'no pools'}. Name one of these, or `any`."
            )
        result.append(pool)
    elif not planned.is_gpu and any(m.node is None and m.resources.get("GPU") for m in machines):
        # Of the machines that are there already, those with GPUs cost no more.
        pools = _pools([m for m in machines if m.resources.get("CPU") and not m.resources.get("GPU")])
        if len(pools) > 1:
            raise SpecError(
                "`resources.device` is cpu and `resources.pool` any, so this cluster might start machines with GPUs "
                f"for it. Name the pool: {', '.join(pools)}."
            )
        result += pools
    models = [
        {name.removeprefix(ACCELERATOR) for name in machine.resources if name.startswith(ACCELERATOR)}
        for machine in machines
        if machine.resources.get("GPU")
    ]
    # KubeRay's machines that are still to come do not name their GPUs.
    if planned.is_gpu and models and all(models):
        if planned.accelerator not in (names := set().union(*models)):
            raise SpecError(
                f"`resources.device` is {device}, and the GPUs of this Ray cluster are {', '.join(sorted(names))}. "
                "Plan for one of these, or add machines that have it to the cluster file."
            )
        result.append(f"{ACCELERATOR}{planned.accelerator}")
    return tuple(result)


def _pools(machines: Collection[Machine]) -> list[str]:
    """Return the resources of machines that are not Ray's own, which are pools."""
    ordinary = ("CPU", "GPU", "memory", "object_store_memory", "head")
    names = {name for machine in machines for name, amount in machine.resources.items() if amount}
    return sorted(name for name in names if name not in ordinary and ":" not in name)


def check_devices(slots: Slots, device: str, layouts: Collection[Layout] = ()) -> None:
    """Refuse what this machine does not have: Ray does not check GPUs, and trials would use the CPU."""
    cpus, needed = math.ceil(slots.devices * slots.cpus), math.ceil(slots.devices * slots.gpus)
    if needed and needed > (gpus := local_gpus()):
        fewer = f"`resources.slots` to {int(gpus / slots.gpus)} or fewer, or " if gpus else ""
        raise SpecError(
            f"`resources.device` {device} with {slots.devices} slots needs {needed} GPUs, and this machine has "
            f"{gpus}. Set {fewer}`resources.device: cpu`, or join a cluster that has them (RAY_ADDRESS)."
        )
    check_capacity(slots, layouts, [Machine({"CPU": cpus, "GPU": needed})])


def check_capacity(slots: Slots, layouts: Collection[Layout], machines: Collection[Machine]) -> None:
    """Raise a SpecError for a rank or a layout that machines could never hold; Tune would wait for it silently."""
    usable = [machine for machine in machines if slots.may_use(machine)]
    sizes = Counter(size for machine in usable if (size := slots.ranks_on(machine)))
    needs = {name: needed for name, needed in (("CPU", slots.cpus), ("GPU", slots.gpus)) if needed}
    one_rank = " and ".join(f"{needed:g} {name}s" for name, needed in needs.items())
    if not sizes:
        which = f" with {' and '.join(slots.custom)}" if slots.custom else ""
        most = {
            name: max((machine.resources.get(name, 0) for machine in usable), default=0) for name in needs
        }
        largest = " and ".join(f"{amount:g} {name}s" for name, amount in most.items())
        raise SpecError(
            f"one rank of a trial needs {one_rank}, and no machine of the Ray cluster{which} has them (the most in one "
            f"machine: {largest}). Lower `resources.cpus_per_trial`, or start machines that have them."
        )
    for layout in layouts:
        wanted, together = layout.data_parallel, layout.tensor_parallel
        gang = f"a cell over {layout.ranks} ranks (tensor_parallel {together} x data_parallel {wanted})"
        if layout.ranks > slots.devices:
            raise SpecError(
                f"{gang} needs {layout.ranks} devices at a time, and `resources.slots` is {slots.devices}. Set it to "
                f"{layout.ranks} or more if there are as many, or lower the degrees."
            )
        groups = sum(count * (size // together) for size, count in sizes.items())
        if wanted > groups:
            each = " + ".join(f"{count} x {size}" for size, count in sorted(sizes.items()))
            fix = (
                f"Lower `resources.data_parallel` to {groups}, choose a `resources.tensor_parallel` that divides the "
                "devices of a machine, or start more machines"
                if groups
                else "Start larger machines, or set `resources.tensor_parallel: auto`, which takes no more than that"
            )
            raise SpecError(
                f"{gang} needs {wanted} groups of {together} devices, each in one machine, because they communicate in "
                f"every layer; the machines of the Ray cluster, which have room for {each} ranks of {one_rank}, hold "
                f"{groups}. {fix}."
            )


class MachineLosses:
    """Counts the trials lost on each machine.

    A machine may be ill without being lost, and would then take cell after cell. A cell that was lost on several
    machines is itself at fault, so it counts against none of them.
    """

    def __init__(self, slots: Slots) -> None:
        """Begin with no loss; `slots` are those of the study."""
        self.slots = slots
        self._losses: list[tuple[str, str]] = []
        """Ray's id of the machine and key of the cell of each lost trial."""

    def add(self, node: str, cell: str) -> bool:
        """Count a trial of a cell that was lost on a machine; return whether the machine is ill only since then."""
        before = self.ill
        self._losses.append((node, cell))
        return node in self.ill and node not in before

    @property
    def ill(self) -> list[str]:
        """Ray's ids of the machines on which `MOST_LOSSES` trials were lost."""
        machines_of = Counter(cell for _, cell in set(self._losses))
        counts = Counter(node for node, cell in self._losses if machines_of[cell] == 1)
        return sorted(node for node, count in counts.items() if count >= MOST_LOSSES)

    def avoided(self, layout: Layout) -> list[str]:
        """Return the ill machines; none if the others, those still to come included, could never hold the layout."""
        ill = self.ill
        if ill:
            machines = possible_machines(live_machines(), read_autoscaler_limits(), self.slots)
            try:
                check_capacity(
                    self.slots, [layout], [machine for machine in machines if machine.node not in ill]
                )
            except SpecError:
                return []
        return ill

    def live_ranks(self) -> int:
        """Return how many ranks the live machines hold, without those that are ill."""
        ill = self.ill
        return sum(self.slots.ranks_on(machine) for machine in live_machines() if machine.node not in ill)
