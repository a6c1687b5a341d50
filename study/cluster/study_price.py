"""Check that a study fits the machines of a cluster file, and estimate its price on them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from study.cluster.cluster_file import ClusterFile
from study.cluster.prices import InstanceType, Pool, hour, instance_type, prices
from study.plan.plan import Plan, make_plan
from study.plan.planner import with_trials_per_gpu
from study.spec.devices import DEVICES
from study.spec.resources import ResourcesSection
from study.spec.study import StudySpec, load_spec, studies
from study.workers.machines import (
    ACCELERATOR,
    AutoscalerLimits,
    Capacity,
    Machine,
    capacity,
)
from trainables.errors import InputError

#: Share of a machine's memory that Ray gives to processes; the rest is its object store (ray 2.60).
PROCESS_SHARE = 0.7

_TYPES = "available_node_types"


@dataclass(frozen=True)
class Option:
    """The study on the machines of one pool, all busy from start to end."""

    pool: str
    machine: str
    machines: int
    hours: float
    dollars: float | None
    """With the head for the same time; None if the machine has no price."""


@dataclass(frozen=True)
class StudyPrice:
    """Estimated time and price of a study on a cluster."""

    study: str
    cells: int
    device_hours: float
    options: tuple[Option, ...]


def price_study(
    file: ClusterFile, pools: Sequence[Pool], name: str, overrides: Sequence[str]
) -> StudyPrice | None:
    """Plan a study for the machines of a file as its driver does on the head, and price it.

    A series is priced as the sum of its studies. If the study does not fit, the file gets an error. Returns None then,
    and if the machines are not in the price table.

    Raises:
        SpecError: the spec itself is wrong.
    """
    spec = load_spec(name, overrides)
    if file.provider == "local":
        file.notes.append(
            f"whether {spec.name} fits is not checked: the sizes of these machines are known once Ray runs there"
        )
        return None
    each = [_price(file, pools, study) for study in studies(spec)]
    known = [price for price in each if price is not None]
    if len(known) < len(each):
        return None
    by_pool = [{option.pool: option for option in price.options} for price in known]
    # A pool must be able to train every study of a series.
    common = [pool for pool in by_pool[0] if all(pool in one for one in by_pool)]
    return StudyPrice(
        study=spec.name,
        cells=sum(price.cells for price in known),
        device_hours=math.fsum(price.device_hours for price in known),
        options=tuple(_one_after_the_other([one[pool] for one in by_pool]) for pool in common),
    )


def _one_after_the_other(several: Sequence[Option]) -> Option:
    costs = [option.dollars for option in several]
    return replace(
        several[0],
        machines=max(option.machines for option in several),
        hours=math.fsum(option.hours for option in several),
        dollars=None if None in costs else math.fsum(cost or 0.0 for cost in costs),
    )


def _price(file: ClusterFile, pools: Sequence[Pool], spec: StudySpec) -> StudyPrice | None:
    try:
        found = capacity_of(file, pools, with_trials_per_gpu(spec).resources)
        plan = make_plan(spec, room=found.room)
        found.check({planned.layout for planned in plan.main})
    except InputError as error:
        wanted = spec.resources.pool
        if unknown := {pool.machine for pool in pools if pool.what is None and wanted in ("any", pool.name)}:
            file.notes.append(
                f"the price table has no {' and '.join(sorted(unknown))}, so whether {spec.name} fits is not checked"
            )
        else:
            file.error((_TYPES,), f"the study {spec.name} does not fit: {str(error).rstrip('.')}")
        return None
    if found.slots.devices > found.held:
        file.warning(
            (_TYPES,),
            f"`resources.slots` of {spec.name} is {found.slots.devices}, and the machines hold {found.held} of its "
            "ranks at a time; raise `max_workers`, or lower the slots",
        )
    options = []
    for pool in pools:
        if pool.what and (ranks := found.slots.ranks_on(_machine(file, pool.node_type, pool.what))):
            _check_device(file, spec, pool)
            options.append(_option(file, plan, found, pool, ranks))
    return StudyPrice(spec.name, plan.cell_count, plan.device_hours, tuple(options))


def capacity_of(file: ClusterFile, pools: Sequence[Pool], resources: ResourcesSection) -> Capacity:
    """Return the capacity that the driver will find on the head, as far as the table has the machines.

    Raises:
        SpecError: the driver will refuse the study.
    """
    kinds = {
        pool.node_type: {
            "resources": _machine(file, pool.node_type, pool.what).resources,
            "max_workers": pool.most,
        }
        for pool in pools
        if pool.what
    }
    head = _machine(file, file.head, prices().types.get(instance_type(file, file.head)))
    return capacity([head], AutoscalerLimits(kinds, file.most), resources)


def _machine(file: ClusterFile, node_type: str, what: InstanceType | None) -> Machine:
    own = file.mapping(_TYPES, node_type, "resources")
    numbers = {name: amount for name, amount in own.items() if isinstance(amount, int)}
    return Machine(detected_resources(what) | numbers, kind=node_type)


def detected_resources(what: InstanceType | None) -> dict[str, float]:
    """Resources of a machine by Ray's names, as Ray fills them in from EC2's data; none of an unknown machine."""
    if what is None:
        return {}
    found: dict[str, float] = {"CPU": what.cpus, "memory": what.memory_gib * 2**30 * PROCESS_SHARE}
    if what.gpus:
        found |= {"GPU": what.gpus, f"{ACCELERATOR}{DEVICES[what.device].accelerator}": 1}
    return found


def _check_device(file: ClusterFile, spec: StudySpec, pool: Pool) -> None:
    """Compare the GPU of a pool with the planned device, which Ray does not do."""
    planned, held = spec.resources.device, pool.what.device if pool.what else "cpu"
    if planned == "cpu" or held in ("cpu", planned):
        return
    having = [name for name, machine in prices().types.items() if machine.device == planned]
    fix = f" or use a machine with {planned} ({', '.join(having[:3])})" if having else ""
    file.error(
        (_TYPES, pool.node_type, "node_config", "InstanceType"),
        f"the study {spec.name} is planned for {planned}, and {pool.machine} has {held}, which Ray cannot "
        f"distinguish; add `resources.device={held}`{fix}",
    )


def _option(file: ClusterFile, plan: Plan, found: Capacity, pool: Pool, ranks: int) -> Option:
    count = min(pool.most, math.ceil(found.slots.devices / ranks))
    hours = plan.hours_on(max(1, min(found.slots.devices, count * ranks)))
    head = hour(file, file.head)
    dollars = None if pool.hour is None or head is None else hours * (count * pool.hour + head)
    return Option(pool.name, pool.machine, count, hours, dollars)
