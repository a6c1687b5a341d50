"""A plan as a table for the terminal: one line per shape, its seeds and learning rates together."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, islice

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from analysis.units import budget_number
from core.command_line import option
from core.numbers import duration, listed, prefixed, short
from study.plan.cells import PlannedCell
from study.plan.plan import Plan
from study.plan.prices import money
from trainables.cell import Shape

#: Most shapes that are listed; rich takes a second for a thousand lines.
MOST_LINES = 1000


#: Columns that a narrow terminal does not show, the first one first: shape and budget give them. No number is cut.
DROPPED = ("params", "N")


def plan_table(plan: Plan) -> Group:
    """Return the plan for rich to print: one line per shape, totals in the footer, notes below."""
    unit = plan.planner.spec.frontier.compute_unit
    place = {None: "budget", "FLOPs": "compute", "minutes": "training"}[unit]
    columns = {
        place: "total",
        "shape": "",
        "N": "",
        "params": "",
        "rate": "",
        "cells": f"{plan.cell_count:,}",
        "tokens": prefixed(plan.tokens),
        "FLOPs": prefixed(plan.flops),
        "memory": "",
        "TP": "",
        "time": duration(plan.hours * 3600),
    }
    if plan.cost is not None:
        columns["price"] = money(plan.cost)
    if len({planned.tokens for planned in plan.cells}) == 1:
        del columns["tokens"]
    if all(planned.layout.ranks == 1 for planned in plan.cells):
        del columns["TP"]
    flags: dict[str, str] = {}
    rows = []
    before = None
    groups = groupby(
        plan.cells, key=lambda planned: (planned.compared_at, planned.cell.shape, planned.tokens)
    )
    for _, members in islice(groups, MOST_LINES):
        group = list(members)
        at = group[0].compared_at
        written = "" if at == before else _count(at) if unit is None else budget_number(at, unit, 3)
        rows.append({place: written, **_row(plan, group, flags)})
        before = at
    if more := sum(1 for _ in groups):
        rows.append({place: "...", "shape": f"{more:,} more shapes, see {option('json')}"})
    return Group(_Cells(plan.name, columns, rows), *(Text(line, style="dim") for line in _below(plan, flags)))


@dataclass(frozen=True)
class _Cells:
    """The table of the cells, without some columns where the terminal is too narrow for all.

    Attributes:
        columns: name -> footer.
        rows: by the names of the columns, as markup.
    """

    title: str
    columns: dict[str, str]
    rows: list[dict[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = dict(self.columns)
        table = self._table(shown)
        for name in DROPPED:
            if Measurement.get(console, options.update(max_width=10**4), table).maximum <= options.max_width:
                break
            del shown[name]
            table = self._table(shown)
        yield table

    def _table(self, shown: dict[str, str]) -> Table:
        table = Table(title=self.title, box=box.SIMPLE, show_footer=True, pad_edge=False, padding=0)
        for name, total in shown.items():
            table.add_column(name, total, justify="left" if name == "shape" else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(row.get(name, "") for name in shown))
        return table


def _row(plan: Plan, group: list[PlannedCell], flags: dict[str, str]) -> dict[str, str]:
    first = group[0]
    shape = first.cell.shape
    groups = f"x{first.layout.data_parallel}" if first.layout.data_parallel > 1 else ""
    marks = ",".join(flags.setdefault(flag, _mark(len(flags))) for flag in first.flags)
    return {
        "shape": f"L{shape.depth} d{shape.width} {_heads(shape)}" + (f" [dim]{marks}[/]" if marks else ""),
        "N": _count(shape.budget_params),
        "params": _count(first.parameters.total),
        "rate": _rates(planned.cell.lr for planned in group),
        "cells": str(len(group)),
        "tokens": prefixed(first.tokens),
        "FLOPs": prefixed(first.flops),
        "memory": f"{prefixed(first.memory_bytes)}B",
        "TP": f"{first.layout.tensor_parallel}{groups}",
        "time": duration(first.seconds),
        "price": money(sum(planned.cost or 0.0 for planned in group)),
    }


def _heads(shape: Shape) -> str:
    """Return the number of heads, and their width and that of key-value heads if these do not follow from it."""
    width = "" if shape.head_dim is None else f"×{shape.head_dim}"
    return f"h{shape.heads}{width}" + ("" if shape.kv_heads is None else f" kv{shape.kv_heads}")


def _below(plan: Plan, flags: dict[str, str]) -> list[str]:
    spec = plan.planner.spec
    gangs = [planned.layout for planned in plan.cells if planned.layout.ranks > 1]
    groups = " (x groups that share its batch)" if any(gang.data_parallel > 1 for gang in gangs) else ""
    workers = f"{plan.slots} {'device' if gangs else 'worker'}{'s' if plan.slots > 1 else ''}"
    lines = [
        *([spec.description] if spec.description else []),
        f"{_tokens(plan)}, {_count(plan.tokens)} in total",
        f"time: per cell; total: estimated wall clock with {workers} on {plan.device}, {plan.precision}",
    ]
    if gangs:
        lines.append(f"TP: devices that share each matrix of a cell{groups}; memory: per device")
    lines += plan.search.describe(plan.cells, plan.more)
    if spec.sensitivity:
        factors = " and ".join(f"{factor:g}" for factor in spec.sensitivity.lr_factors)
        lines.append(
            f"afterwards, cells next to each crossing are trained again at {factors} times their learning rate; the "
            "totals do not include them, because they depend on where depths cross"
        )
    lines += [f"{mark}: {flag}" for flag, mark in flags.items()]
    return [*lines, *plan.notes]


def _tokens(plan: Plan) -> str:
    """The training tokens of a cell and how often it reads the data."""
    each, ratio = [planned.tokens for planned in plan.cells], plan.planner.spec.training.tokens_per_parameter
    epochs = plan.planner.epochs_words
    frontier = plan.planner.spec.frontier
    if unit := frontier.compute_unit:
        by = "over the FLOPs per token" if unit == "FLOPs" else "at the measured speed"
        return (
            f"{_count(min(each))} to {_count(max(each))} training tokens per cell ({frontier.compute_words} {by} of "
            f"its shape; the longest cell: {epochs})"
        )
    if min(each) == max(each):
        rule = "" if ratio is None else f"{ratio:g} per parameter, "
        return f"{_count(each[0])} training tokens per cell ({rule}{epochs})"
    if ratio is None:
        levels = listed([_count(tokens) for tokens in sorted(set(each))])
        return f"{levels} training tokens per cell (the largest number: {epochs}), of which one is compared"
    return (
        f"{_count(min(each))} to {_count(max(each))} training tokens per cell ({ratio:g} per parameter N; the largest "
        f"cell: {epochs})"
    )


def _count(number: float) -> str:
    """Return a number of parameters or tokens: all digits below 100 thousand, else three; B is 10⁹ as in specs."""
    return f"{number:,.0f}" if number < 1e5 else short(number, 3)


def _mark(number: int) -> str:
    """Return a, b, … z, aa, ab and so on."""
    above, letter = divmod(number, 26)
    return (_mark(above - 1) if above else "") + chr(ord("a") + letter)


def _rates(rates: Iterable[float]) -> str:
    values = sorted(set(rates))
    return (
        f"{values[0]:.2g}".replace("e-0", "e-") if len(values) == 1 else f"{values[0]:.1g}..{values[-1]:.1g}"
    )
