"""Check that a study fits the machines of a cluster file, and estimate its price on them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from study.cluster.cluster_file import ClusterFile
from study.cluster.prices import Pool, hour, prices
from study.plan.plan import Plan, make_plan, wall_seconds
from study.spec.devices import DEVICES
from study.spec.study import StudySpec, load_spec, studies
from study.workers.machines import ACCELERATOR, Promised, Slots, check_capacity, machines, marks, room
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
        plan, slots = _plan(spec, file, [pool for pool in pools if pool.what is not None])
    except InputError as error:
        wanted = spec.resources.pool
        if unknown := {pool.machine for pool in pools if pool.what is None and wanted in ("any", pool.name)}:
            file.notes.append(
                f"the price table has no {' and '.join(sorted(unknown))}, so whether {spec.name} fits is not checked"
            )
        else:
            file.error((_TYPES,), f"the study {spec.name} does not fit: {str(error).rstrip('.')}")
        return None
    options = []
    for pool in pools:
        ranks = slots.ranks_on(resources(pool, {pool.name: 1})) if pool.what else 0
        if ranks:
            _check_device(file, spec, pool)
            options.append(_option(file, plan, slots, pool, ranks))
    return StudyPrice(spec.name, plan.cell_count, plan.device_hours, tuple(options))


def resources(pool: Pool, file_resources: Mapping[str, Any]) -> dict[str, float]:
    """Resources of one machine of a pool by Ray's names: those of its type, as Ray fills them in, and the file's."""
    filled: dict[str, float] = {}
    if pool.what is not None:
        filled = {"CPU": pool.what.cpus, "memory": pool.what.memory_gib * 2**30 * PROCESS_SHARE}
        if pool.what.gpus:
            filled |= {"GPU": pool.what.gpus, f"{ACCELERATOR}{DEVICES[pool.what.device].accelerator}": 1}
    return filled | {key: value for key, value in file_resources.items() if isinstance(value, int)}


def _plan(spec: StudySpec, file: ClusterFile, pools: Sequence[Pool]) -> tuple[Plan, Slots]:
    kinds = {}
    for pool in pools:
        offered = resources(pool, file.mapping(_TYPES, pool.node_type, "resources"))
        kinds[pool.node_type] = {"resources": offered, "max_workers": pool.most}
    found = machines([], Promised(kinds, file.most))
    wanted = spec.resources
    asked = 0 if wanted.slots == "auto" else wanted.slots
    marked = marks(DEVICES[wanted.device], wanted.pool, found)
    slots = Slots(asked, wanted.cpus_per_trial, wanted.gpus_per_trial, marked)
    has = room(found, slots)
    slots = replace(slots, devices=asked or has.devices)
    if asked > has.devices:
        file.warning(
            (_TYPES,),
            f"`resources.slots` of {spec.name} is {asked}, and the machines hold {has.devices} of its ranks at a time; "
            "raise `max_workers`, or lower the slots",
        )
    plan = make_plan(spec, room=replace(has, devices=slots.devices))
    check_capacity(slots, {planned.layout for planned in plan.main}, [machine.resources for machine in found])
    return plan, slots


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
        f"distinguish; add `--set resources.device={held}`{fix}",
    )


def _option(file: ClusterFile, plan: Plan, slots: Slots, pool: Pool, ranks: int) -> Option:
    count = min(pool.most, math.ceil(slots.devices / ranks))
    work = [(plan.trained_shares[p.budget] * p.seconds, p.layout.ranks) for p in plan.main]
    longest = max((p.seconds for p in plan.main), default=0.0)
    hours = max(wall_seconds(work, max(1, min(slots.devices, count * ranks))), longest) / 3600
    head = hour(file, file.head)
    dollars = None if pool.hour is None or head is None else hours * (count * pool.hour + head)
    return Option(pool.name, pool.machine, count, hours, dollars)
