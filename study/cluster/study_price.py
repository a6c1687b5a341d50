"""Whether a study fits the machines of a cluster file, and about what it will cost on them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from study.cluster.findings import Report
from study.cluster.pools import Pool, head_hour
from study.cluster.prices import prices
from study.plan.plan import Plan, make_plan, wall_seconds
from study.spec.devices import DEVICES
from study.spec.study import StudySpec, load_spec, members
from study.workers.machines import ACCELERATOR, Promised, Slots, check_capacity, machines, marks, room
from trainables.errors import InputError

#: The share of a machine's memory that Ray gives to processes; the rest is its object store (ray 2.60).
PROCESS_SHARE = 0.7


@dataclass(frozen=True)
class Option:
    """The study on the machines of one pool alone, all of them busy from start to end."""

    pool: str
    machine: str
    machines: int
    hours: float
    dollars: float | None
    """With the head for as long; None where the machine has no price."""


@dataclass(frozen=True)
class StudyPrice:
    """What a study would take on a cluster."""

    study: str
    cells: int
    device_hours: float
    options: tuple[Option, ...]
    stored_gb: float
    """Final weights, at the most that `resources.keep_weights` leaves."""
    stored_month: float
    """Dollars for a month of these in the bucket."""

    def to_json(self) -> dict[str, Any]:
        """Return it as a record."""
        return {**asdict(self), "options": [asdict(option) for option in self.options]}


def price_study(
    report: Report, pools: Sequence[Pool], name: str, overrides: Sequence[str]
) -> StudyPrice | None:
    """Plan a study for the machines of a file as its driver will on the head, and price it; of a series, all of it.

    What does not fit is an error of the report.

    Args:
        report: of the file.
        pools: its pools; none where the machines are there already, and only they know what they hold.
        name: the spec.
        overrides: `section.key=value` for it.

    Returns:
        None where it does not fit, or nothing is known of the machines.

    Raises:
        SpecError: the spec itself is wrong.
    """
    spec = load_spec(name, overrides)
    if spec.vary is None:
        return _price(report, pools, spec)
    each = [_price(report, pools, member.spec) for member in members(spec)]
    known = [price for price in each if price is not None]
    return _sum(spec.name, known) if len(known) == len(each) else None


def _sum(series: str, each: Sequence[StudyPrice]) -> StudyPrice:
    """The price of studies that run one after the other."""
    options = []
    by_pool = [{option.pool: option for option in price.options} for price in each]
    # A pool that one of the studies does not take cannot train the series alone.
    for pool in (name for name in by_pool[0] if all(name in one for one in by_pool)):
        several = [one[pool] for one in by_pool]
        costs = [option.dollars for option in several]
        options.append(
            replace(
                several[0],
                machines=max(option.machines for option in several),
                hours=math.fsum(option.hours for option in several),
                dollars=None if None in costs else math.fsum(cost or 0.0 for cost in costs),
            )
        )
    return StudyPrice(
        study=series,
        cells=sum(price.cells for price in each),
        device_hours=math.fsum(price.device_hours for price in each),
        options=tuple(options),
        stored_gb=math.fsum(price.stored_gb for price in each),
        stored_month=math.fsum(price.stored_month for price in each),
    )


def _price(report: Report, pools: Sequence[Pool], spec: StudySpec) -> StudyPrice | None:
    """Price one study; None where it does not fit, or nothing is known of the machines."""
    if report.file.provider == "local":
        report.notes.append(
            f"what these machines hold is only known once Ray runs on them, so whether {spec.name} fits was not checked"
        )
        return None
    unknown = sorted(
        {pool.machine for pool in pools if pool.what is None and spec.resources.pool in ("any", pool.name)}
    )
    try:
        plan, slots = _plan(spec, report, [pool for pool in pools if pool.what is not None])
    except InputError as error:
        if unknown:
            report.notes.append(
                f"what {' and '.join(unknown)} holds is not in our table, so whether {spec.name} fits was not checked"
            )
            return None
        report.error(
            ("available_node_types",), f"the study {spec.name} does not fit: {str(error).rstrip('.')}"
        )
        return None
    _doubts(report, spec, pools, slots)
    options = [_option(report, plan, slots, pool) for pool in pools if _ranks(pool, slots)]
    tried = math.fsum(plan.trained_shares[p.budget] * p.parameters.total for p in plan.main)
    kept = tried * (2 if plan.precision == "bf16" else 4)
    stored = kept / 1e9 if spec.resources.keep_weights == "final" else 0.0
    return StudyPrice(
        study=spec.name,
        cells=plan.cell_count,
        device_hours=plan.device_hours,
        options=tuple(options),
        stored_gb=stored,
        stored_month=stored * prices().s3_gb_month,
    )


def resources(pool: Pool, file_resources: Mapping[str, Any]) -> dict[str, float]:
    """What one machine of a pool offers, by Ray's names: from its type as Ray fills it in, and the file's own."""
    filled: dict[str, float] = {}
    if pool.what is not None:
        filled = {"CPU": pool.what.cpus, "memory": pool.what.memory_gib * 2**30 * PROCESS_SHARE}
        if pool.what.gpus:
            filled |= {"GPU": pool.what.gpus, f"{ACCELERATOR}{DEVICES[pool.what.device].accelerator}": 1}
    return filled | {key: value for key, value in file_resources.items() if isinstance(value, int)}


def _plan(spec: StudySpec, report: Report, pools: Sequence[Pool]) -> tuple[Plan, Slots]:
    kinds = {
        str(pool.path[-1]): {
            "resources": resources(pool, report.file.mapping(*pool.path, "resources")),
            "max_workers": pool.most,
        }
        for pool in pools
    }
    most = report.file.document.get("max_workers")
    found = machines([], Promised(kinds, most if isinstance(most, int) else sum(pool.most for pool in pools)))
    wanted = spec.resources
    marked = marks(DEVICES[wanted.device], wanted.pool, found)
    asked = 0 if wanted.slots == "auto" else wanted.slots
    slots = Slots(asked, wanted.cpus_per_trial, wanted.gpus_per_trial, marked)
    has = room(found, slots)
    slots = replace(slots, devices=asked or has.devices)
    if asked > has.devices:
        report.warning(
            ("available_node_types",),
            f"`resources.slots` of {spec.name} is {asked}, and the machines hold {has.devices} of its ranks at a time, "
            "so the others wait. Raise `max_workers`, or lower the slots",
        )
    plan = make_plan(spec, room=replace(has, devices=slots.devices))
    layouts = {planned.layout for planned in plan.main}
    check_capacity(slots, layouts, [machine.resources for machine in found])
    return plan, slots


def _doubts(report: Report, spec: StudySpec, pools: Sequence[Pool], slots: Slots) -> None:
    """What Ray would not mind and the user may."""
    wanted = spec.resources
    taken = [pool for pool in pools if _ranks(pool, slots) and wanted.pool in ("any", pool.name)]
    other = [pool for pool in taken if pool.what and pool.what.gpus and pool.what.device != wanted.device]
    if wanted.device != "cpu":
        for pool in other:
            held = pool.what.device if pool.what else ""
            report.error(
                (*pool.path, "node_config", "InstanceType"),
                f"the study {spec.name} is planned for {wanted.device}, and {pool.machine} has {held}, which Ray "
                f"cannot tell apart; add `--set resources.device={held}`, or {_machine_with(wanted.device)}",
            )
    elif other and wanted.pool == "any":
        names = " and ".join(sorted({pool.name for pool in other}))
        report.warning(
            ("available_node_types",),
            f"the study {spec.name} trains on CPUs, and only machines with GPUs can take it ({names}), which cost "
            "far more; add a pool without GPUs",
        )


def _machine_with(device: str) -> str:
    found = [name for name, machine in prices().types.items() if machine.device == device and machine.gpus]
    return (
        f"take a machine that has it ({', '.join(found[:3])})"
        if found
        else "no machine of our table has that"
    )


def _ranks(pool: Pool, slots: Slots) -> int:
    """Ranks that one machine of a pool holds, 0 for a pool that the study does not take."""
    if pool.what is None:
        return 0
    return slots.ranks_on(resources(pool, {pool.name: 1}))


def _option(report: Report, plan: Plan, slots: Slots, pool: Pool) -> Option:
    ranks = _ranks(pool, slots)
    count = min(pool.most, math.ceil(slots.devices / ranks))
    work = [(plan.trained_shares[p.budget] * p.seconds, p.layout.ranks) for p in plan.main]
    longest = max((p.seconds for p in plan.main), default=0.0)
    hours = max(wall_seconds(work, max(1, min(slots.devices, count * ranks))), longest) / 3600
    head = head_hour(report.file)
    dollars = None if pool.hour is None or head is None else hours * (count * pool.hour + head)
    return Option(pool.name, pool.machine, count, hours, dollars)
