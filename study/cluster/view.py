"""What `interplay cluster check` prints."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from study.cluster.check import Checked
from study.cluster.findings import Finding
from study.cluster.prices import prices
from study.cluster.study_price import Option, StudyPrice
from study.plan.table import duration


def check_view(checked: Checked) -> RenderableType:
    """Lay out the findings, one line each, and the prices below."""
    lines: list[RenderableType] = []
    lines += [_line("error", "bold red", found) for found in checked.errors]
    lines += [_line("warning", "yellow", found) for found in checked.warnings]
    lines += [Text.assemble(("note: ", "bold"), f"{note}.") for note in checked.notes]
    if any(pool.hour for pool in checked.pools) or checked.head_hour:
        lines += [Text(), _prices(checked)]
    if checked.study and checked.study.options:
        lines += [Text(), *_study(checked.study)]
    if checked.head_hour:
        table = prices()
        lines.append(
            Text(
                f"Prices: {table.region}, {table.date}, with disks; without the start-up of machines, tax and traffic; "
                f"spot taken as {table.spot_share:.0%} of the price on demand, an assumption. Look up "
                f"your own: {table.page}",
                style="dim",
            )
        )
    lines += [Text(), _verdict(checked)]
    return Group(*lines)


def about(dollars: float) -> str:
    """Two digits of a sum of money: more would be invented."""
    if 0 < dollars < 0.01:
        return "1 cent"
    if dollars >= 100:
        digits = len(str(int(dollars))) - 2
        return f"${round(dollars, -digits):,.0f}"
    return f"${dollars:.2g}" if dollars >= 10 else f"${dollars:.2f}"


def option_text(option: Option) -> str:
    """What a study takes on one pool: machines, time and money."""
    money = (
        f"about {about(option.dollars)} with the head" if option.dollars is not None else "price not known"
    )
    time = duration(option.hours * 3600)
    return f"on {option.pool} alone, {option.machines} x {option.machine}: {time}, {money}"


def _line(kind: str, style: str, found: Finding) -> Text:
    where = f"line {found.line}" + (f", {found.path}" if found.path else "")
    return Text.assemble((f"{kind}: ", style), (where, "bold"), f": {found.message}.")


def _prices(checked: Checked) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("pool", "machine", "at most", "an hour of one", "an hour of all"):
        table.add_column(title, justify="left" if title in ("pool", "machine") else "right")
    if checked.head_hour:
        table.add_row(
            "head", checked.head_machine or "", "1", f"about {about(checked.head_hour)}", "until `ray down`"
        )
    for pool in checked.pools:
        one = f"about {about(pool.hour)}" if pool.hour else "not known"
        every = f"about {about(pool.hour * pool.most)}" if pool.hour else ""
        table.add_row(pool.name, f"{pool.machine}{', spot' if pool.spot else ''}", str(pool.most), one, every)
    return table


def _study(study: StudyPrice) -> list[Text]:
    lines = [
        Text(
            f"{study.study}: {study.cells} cells, {study.device_hours:,.3g} hours of one device in all (estimated)"
        )
    ]
    lines += [Text(f"  {option_text(option)}") for option in study.options]
    if study.stored_gb >= 1:
        lines.append(
            Text(
                f"  final weights in the bucket: {study.stored_gb:,.0f} GB, about {about(study.stored_month)} a month"
            )
        )
    return lines


def _verdict(checked: Checked) -> Text:
    if not checked.errors:
        return Text(f"{checked.file} can be used.", style="bold green")
    count = len(checked.errors)
    return Text(f"{checked.file} has {count} error{'s' if count > 1 else ''}.", style="bold red")
