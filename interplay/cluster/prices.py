"""The pools of a cluster file with their approximate prices, and whether a study fits them and what it costs."""

import math
from dataclasses import dataclass

from core.errors import InputError
from interplay.cluster.cluster_file import TYPES, ClusterFile
from study.plan.cells import with_trials_per_gpu
from study.plan.plan import Plan, make_plan
from study.plan.prices import InstanceType, prices
from study.spec.devices import DEVICES
from study.spec.resources import ResourcesSection
from study.spec.study import StudySpec
from study.workers.machines import ACCELERATOR, AutoscalerLimits, Capacity, Machine, capacity

#: Hours per month in AWS's disk prices.
MONTH_HOURS = 730
#: Share of a machine's memory that Ray gives to processes; the rest is its object store (ray 2.60).
PROCESS_SHARE = 0.7


@dataclass(frozen=True)
class Pool:
    """One node type of workers."""

    name: str
    """Its name in `resources.pool` of a spec."""
    node_type: str
    machine: str
    """The instance type."""
    most: int
    """Maximum number of machines at a time."""
    market: str
    """How it buys them: on-demand, spot or capacity-block."""
    what: InstanceType | None
    """None if the table does not have the type."""
    hour: float | None
    """Dollars per hour of one machine with its disk and address; None without a price in the table."""


def pools(file: ClusterFile) -> list[Pool]:
    """Return the pools of a file for AWS; existing machines have no price and no pools."""
    listed = []
    for node_type in file.mapping(TYPES) if file.provider == "aws" else ():
        if node_type == file.head:
            continue
        name = str(file.get(TYPES, node_type, "labels", "pool") or node_type)
        machine, most_of_type = file.machine(node_type), file.get(TYPES, node_type, "max_workers")
        most = min(most_of_type, file.most) if isinstance(most_of_type, int) else file.most
        what, market = prices().types.get(machine), file.market(node_type)
        listed.append(Pool(name, node_type, machine, most, market, what, hour(file, node_type)))
    return listed


def hour(file: ClusterFile, node_type: str) -> float | None:
    """Dollars per hour of a machine with its disk and public address; None if it has no known price.

    A machine of a Capacity Block has none: AWS quotes the block's price when it is bought, and it is paid then.
    """
    table, market = prices(), file.market(node_type)
    what = table.types.get(file.machine(node_type)) if file.provider == "aws" else None
    if what is None or what.hour is None or market not in ("on-demand", "spot"):
        return None
    share = table.spot if market == "spot" else 1.0
    month = math.fsum(
        max(0, disk.get(key, 0) - price.free) * price.month
        for disk in file.disks(node_type)
        for key, price in table.gp3.items()
    )
    return what.hour * share + month / MONTH_HOURS + table.address


@dataclass(frozen=True)
class PoolOffer:
    """A study on the machines of one pool, all busy from start to end."""

    pool: str
    machine: str
    machines: int
    hours: float
    dollars: float | None
    """With the head for the same time; None if the machine has no price."""


@dataclass(frozen=True)
class StudyPrice:
    """Estimated time and price of a study on a cluster."""

    plan: Plan
    """As the driver plans it on the head. Its cost is that of the devices alone while they train."""
    options: tuple[PoolOffer, ...]


def price_study(file: ClusterFile, spec: StudySpec) -> StudyPrice | None:
    """Plan a study for the machines of a file as its driver does on the head, and price it.

    Returns None, with an error or a note in the file, if the study cannot be planned or the machines are not in the
    price table.
    """
    if file.provider == "local":
        file.notes.append(
            f"whether {spec.name} fits is not checked: the sizes of these machines are known once Ray runs there"
        )
        return None
    try:
        capacities = capacity_of(file, with_trials_per_gpu(spec).resources)
        plan = make_plan(spec, capacity=capacities.capacity).trainable()
        capacities.check({planned.layout for planned in plan.pool})
    except InputError as error:
        wanted = [pool for pool in pools(file) if spec.resources.pool in ("any", pool.name)]
        if unknown := {pool.machine for pool in wanted if not pool.what}:
            file.notes.append(
                f"the price table has no {' and '.join(sorted(unknown))}, so whether {spec.name} fits is not checked"
            )
        else:
            file.error(
                (TYPES,),
                f"the study {spec.name} cannot be planned on these machines: {str(error).rstrip('.')}",
            )
        return None
    devices, head = capacities.slots.devices, hour(file, file.head)
    if devices > capacities.held:
        file.add(
            file.warnings,
            (TYPES,),
            f"`resources.slots` of {spec.name} is {devices}, and the machines hold {capacities.held} of its ranks at a "
            "time; raise `max_workers`, or lower the slots",
        )
    options, planned = [], spec.resources.device
    having = [name for name, machine in prices().types.items() if machine.device == planned]
    for pool in pools(file):
        if pool.what and (ranks := capacities.slots.ranks_on(_machine(file, pool.node_type))):
            if planned != "cpu" and pool.what.device not in ("cpu", planned):
                fix = f" or use a machine with {planned} ({', '.join(having[:3])})" if having else ""
                file.error(
                    (TYPES, pool.node_type, "node_config", "InstanceType"),
                    f"the study {spec.name} is planned for {planned}, and {pool.machine} has {pool.what.device}, which "
                    f"Ray cannot distinguish; add `resources.device={pool.what.device}`{fix}",
                )
            count = min(pool.most, math.ceil(devices / ranks))
            hours = plan.hours_on(max(1, min(devices, count * ranks)))
            dollars = None if pool.hour is None or head is None else hours * (count * pool.hour + head)
            options.append(PoolOffer(pool.name, pool.machine, count, hours, dollars))
    return StudyPrice(plan, tuple(options))


def capacity_of(file: ClusterFile, resources: ResourcesSection) -> Capacity:
    """Return what the driver will find on the head, as far as the table has the machines; SpecError if it refuses."""
    kinds = {
        pool.node_type: {"resources": _machine(file, pool.node_type).resources, "max_workers": pool.most}
        for pool in pools(file)
        if pool.what
    }
    return capacity([_machine(file, file.head)], AutoscalerLimits(kinds, file.most), resources)


def _machine(file: ClusterFile, node_type: str) -> Machine:
    what = prices().types.get(file.machine(node_type))
    stated = file.mapping(TYPES, node_type, "resources")
    numbers = {name: amount for name, amount in stated.items() if isinstance(amount, int)}
    return Machine((detected_resources(what) if what else {}) | numbers, kind=node_type)


def detected_resources(what: InstanceType) -> dict[str, float]:
    """Resources of a machine by Ray's names, as Ray fills them in from EC2's data."""
    amounts: dict[str, float] = {"CPU": what.cpus, "memory": what.memory_gib * 2**30 * PROCESS_SHARE}
    if what.gpus:
        amounts |= {"GPU": what.gpus, f"{ACCELERATOR}{DEVICES[what.device].accelerator}": 1}
    return amounts
