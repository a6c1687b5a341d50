"""Text that `interplay cluster check` and `interplay jobs` print."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from study.cluster.check import Checked
from study.cluster.cluster_file import Finding
from study.cluster.prices import instance_type, prices
from study.cluster.study_price import Option, StudyPrice
from study.plan.table import duration


def check_view(checked: Checked) -> RenderableType:
    """Lay out the findings, one per line, then the prices."""
    file = checked.file
    lines: list[RenderableType] = [_line("error", "bold red", found) for found in file.errors]
    lines += [_line("warning", "yellow", found) for found in file.warnings]
    lines += [Text.assemble(("note: ", "bold"), f"{note}.") for note in file.notes]
    if checked.pools or checked.head_hour:
        lines += [Text(), _prices(checked)]
    if checked.study and checked.study.options:
        lines += [Text(), *_study(checked.study)]
    if checked.head_hour:
        table = prices()
        lines.append(
            Text(
                f"Prices: {table.region}, {table.date}, with disks, without start-up time, tax and traffic. Spot is "
                f"assumed to cost {table.spot_share:.0%} of on demand. Current prices: {table.page}",
                style="dim",
            )
        )
    verdict = Text(f"{file.name} can be used.", style="bold green")
    if count := len(file.errors):
        verdict = Text(f"{file.name} has {count} error{'s' if count > 1 else ''}.", style="bold red")
    return Group(*lines, Text(), verdict)


def jobs_view(records: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Lay out the records of jobs, one per line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("job", "study", "status", "started", "ran for"):
        table.add_column(title, no_wrap=True)
    for job in records:
        started, ended = job["started"], job["ended"] or time.time()
        when = "" if started is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(started))
        ran = "" if started is None else duration(ended - started)
        table.add_row(job["job"], job["study"] or "", job["status"].lower(), when, ran)
    return table if records else Text("No job was submitted to this cluster.")


def about(dollars: float) -> str:
    """Write a sum of money with two digits, the precision of the estimate."""
    if 0 < dollars < 0.01:
        return "1 cent"
    if dollars >= 100:
        digits = len(str(int(dollars))) - 2
        return f"${round(dollars, -digits):,.0f}"
    return f"${dollars:.2g}" if dollars >= 10 else f"${dollars:.2f}"


def option_text(option: Option) -> str:
    """Machines, time and price of a study on one pool."""
    money = "unknown price" if option.dollars is None else f"about {about(option.dollars)} with the head"
    time = duration(option.hours * 3600)
    return f"on {option.pool} alone, {option.machines} x {option.machine}: {time}, {money}"


def _line(kind: str, style: str, found: Finding) -> Text:
    where = f"line {found.line}" + (f", {found.path}" if found.path else "")
    return Text.assemble((f"{kind}: ", style), (where, "bold"), f": {found.message}.")


def _prices(checked: Checked) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("pool", "machine", "maximum", "one, per hour", "all, per hour"):
        table.add_column(title, justify="left" if title in ("pool", "machine") else "right")
    if checked.head_hour:
        one = f"about {about(checked.head_hour)}"
        table.add_row("head", instance_type(checked.file, checked.file.head), "1", one, "until `ray down`")
    for pool in checked.pools:
        one = f"about {about(pool.hour)}" if pool.hour else "unknown"
        every = f"about {about(pool.hour * pool.most)}" if pool.hour else ""
        table.add_row(pool.name, f"{pool.machine}{', spot' if pool.spot else ''}", str(pool.most), one, every)
    return table


def _study(study: StudyPrice) -> list[Text]:
    lines = [
        f"{study.study}: {study.cells} cells, {study.device_hours:,.3g} device-hours in total (estimated)"
    ]
    lines += [f"  {option_text(option)}" for option in study.options]
    return [Text(line) for line in lines]
