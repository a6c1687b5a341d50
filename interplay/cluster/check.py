"""`interplay cluster check`: the mistakes in a cluster file and the price of a study on it, without the network."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from core.extras import need
from core.numbers import duration
from interplay.cluster.cluster_file import TYPES, ClusterFile, Finding, read
from interplay.cluster.prices import Pool, PoolOffer, StudyPrice, hour, pools, price_study
from interplay.cluster.rules import check_any, check_aws, check_local, check_schema, refuse_legacy
from study.errors import SpecError
from study.plan.prices import money, prices
from study.spec.study import load_spec

#: Values of `provider.type` that this command supports, and their rules.
PROVIDERS = {"aws": check_aws, "local": check_local}


@dataclass(frozen=True)
class Checked:
    """A file with its findings, and the prices of its machines."""

    file: ClusterFile
    head_hour: float | None
    """Dollars per hour of the head with its disk and address; None if it has no known price."""
    pools: list[Pool]
    study: StudyPrice | None

    def to_json(self) -> dict[str, Any]:
        """Return one JSON document."""
        return {
            "file": self.file.name,
            "errors": [asdict(finding) for finding in self.file.errors],
            "warnings": [asdict(finding) for finding in self.file.warnings],
            "notes": self.file.notes,
            "price": {
                "region": prices().region,
                "head_machine": self.file.get(TYPES, self.file.head, "node_config", "InstanceType"),
                "head_dollars_per_hour": self.head_hour,
                "pools": [
                    {
                        "pool": pool.name,
                        **{name: getattr(pool, name) for name in ("machine", "most", "market")},
                        "dollars_per_hour": pool.hour,
                        "holds": pool.what and pool.what.model_dump(exclude={"hour"}),
                    }
                    for pool in self.pools
                ],
                "study": self.study and _study_json(self.study),
            },
        }


def check(name: str, spec: str | None = None, overrides: Sequence[str] = ()) -> Checked:
    """Check a cluster file and, with a spec, whether it fits; SpecError if one cannot be read."""
    if spec is not None and "=" in spec and not Path(spec).is_file():
        raise SpecError(f"`{spec}` overrides a key of a spec, and none is given; write the spec before it.")
    file = read(name)
    refuse_legacy(file)
    if file.provider not in PROVIDERS:
        raise SpecError(
            f"{name} has `provider.type: {file.provider}`; this command supports {' and '.join(PROVIDERS)}."
        )
    need("checking a cluster file", "cluster", "botocore")
    check_schema(file)
    PROVIDERS[file.provider](file)
    check_any(file)
    workers = pools(file)
    if blocks := [pool.name for pool in workers if pool.market == "capacity-block"]:
        file.notes.append(
            f"the machines of {' and '.join(blocks)} are of a Capacity Block, which is paid when it is bought; its "
            "price is not that on demand, is not known here, and is in no sum below"
        )
    study = None if spec is None else price_study(file, load_spec(spec, overrides))
    file.errors.sort()
    file.warnings.sort()
    return Checked(file, hour(file, file.head), workers, study)


def check_view(checked: Checked) -> RenderableType:
    """Lay out the findings, one per line, then the prices."""
    file = checked.file
    lines: list[RenderableType] = [_line("error", "bold red", finding) for finding in file.errors]
    lines += [_line("warning", "yellow", finding) for finding in file.warnings]
    lines += [Text.assemble(("note: ", "bold"), f"{note}.") for note in file.notes]
    if checked.pools or checked.head_hour:
        lines += [Text(), _prices(checked)]
    if (study := checked.study) and study.options:
        plan = study.plan
        hours = f"{plan.device_hours:,.3g} device-hours in total (estimated)"
        if plan.cost is not None:
            hours += f", {money(plan.cost)} for these alone on demand, as `interplay plan` has it"
        lines += [Text(), Text(f"{plan.name}: {plan.cell_count} cells, {hours}")]
        lines += [Text(f"  {option_text(option)}") for option in study.options]
    if checked.head_hour:
        table, region = prices(), file.get("provider", "region")
        elsewhere = "" if region == table.region else f" and not of {region}, where they may be higher"
        lines.append(
            Text(
                f"Prices: of {table.region}{elsewhere}, {table.date}, with disks and public addresses, without "
                f"start-up time, the bucket, tax and traffic. Spot is assumed to cost {table.spot:.0%} of on "
                f"demand. Current prices: {table.page}",
                style="dim",
            )
        )
    verdict = Text(f"{file.name} can be used.", style="bold green")
    if count := len(file.errors):
        verdict = Text(f"{file.name} has {count} error{'s' if count > 1 else ''}.", style="bold red")
    return Group(*lines, Text(), verdict)


def _study_json(study: StudyPrice) -> dict[str, Any]:
    """The price of a study as JSON; `devices_dollars` is without head, disks and idle devices."""
    plan = study.plan
    return {
        "study": plan.name,
        "cells": plan.cell_count,
        "device_hours": plan.device_hours,
        "options": [asdict(option) for option in study.options],
        "devices_dollars": plan.cost,
    }


def option_text(option: PoolOffer) -> str:
    """Machines, time and price of a study on one pool."""
    price = "unknown price" if option.dollars is None else f"about {money(option.dollars)} with the head"
    time = duration(option.hours * 3600)
    return f"on {option.pool} alone, {option.machines} x {option.machine}: {time}, {price}"


def _line(kind: str, style: str, finding: Finding) -> Text:
    where = f"line {finding.line}" + (f", {finding.path}" if finding.path else "")
    return Text.assemble((f"{kind}: ", style), (where, "bold"), f": {finding.message}.")


def _prices(checked: Checked) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("pool", "machine", "maximum", "one, per hour", "all, per hour"):
        table.add_column(title, justify="left" if title in ("pool", "machine") else "right")
    if checked.head_hour:
        each, machine = f"about {money(checked.head_hour)}", checked.file.machine(checked.file.head)
        table.add_row("head", machine, "1", each, "until `ray down`")
    for pool in checked.pools:
        each, every = (f"about {money(pool.hour * n)}" if pool.hour else "" for n in (1, pool.most))
        unknown = "paid in advance" if pool.market == "capacity-block" else "unknown"
        machine = pool.machine if pool.market == "on-demand" else f"{pool.machine}, {pool.market}"
        table.add_row(pool.name, machine, str(pool.most), each or unknown, every)
    return table
