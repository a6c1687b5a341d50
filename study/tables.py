"""A plan as a table for people: one line a shape, its seeds and learning rates together."""

from collections.abc import Iterable
from itertools import groupby

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from study.plan import Plan, PlannedCell

_PREFIXES = (
    (1e24, "Y"),
    (1e21, "Z"),
    (1e18, "E"),
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
)


def plan_table(plan: Plan) -> Group:
    """Return the plan for rich to print: a line a shape, totals in the footer, notes below."""
    table = Table(title=plan.name, box=box.SIMPLE, show_footer=True, pad_edge=False, padding=0)
    columns = {
        "budget": "total",
        "shape": "",
        "N=12Ld²": "",
        "params": "",
        "rate": "",
        "cells": f"{plan.cell_count:,}",
        "FLOPs": short(plan.flops),
        "memory": "",
        "TP": "",
        "time": duration(plan.hours * 3600),
    }
    if plan.cost is not None:
        columns["cost"] = f"{plan.cost:,.0f}"
    for name, total in columns.items():
        table.add_column(name, total, justify="left" if name == "shape" else "right", no_wrap=True)

    flags: dict[str, str] = {}
    budget = None
    for _, members in groupby(plan.cells, key=lambda planned: (planned.budget, planned.cell.shape)):
        group = list(members)
        table.add_row(*_row(plan, group, flags, is_new_budget=group[0].budget != budget))
        budget = group[0].budget
    return Group(table, *(Text(line, style="dim") for line in _below(plan, flags)))


def _row(plan: Plan, group: list[PlannedCell], flags: dict[str, str], *, is_new_budget: bool) -> list[str]:
    first = group[0]
    shape = first.cell.shape
    marks = "".join(flags.setdefault(flag, chr(ord("a") + len(flags))) for flag in first.flags)
    row = [
        short(first.budget) if is_new_budget else "",
        f"L{shape.depth} d{shape.width} h{shape.heads}" + (f" [dim]{marks}[/]" if marks else ""),
        f"{shape.budget_params:,}",
        f"{first.parameters.total:,}",
        _rates(planned.cell.lr for planned in group),
        str(len(group)),
        short(first.flops),
        f"{short(first.memory_bytes)}B",
        str(first.tensor_parallel),
        duration(first.seconds),
    ]
    if plan.cost is not None:
        row.append(f"{sum(planned.cost or 0.0 for planned in group):,.0f}")
    return row


def _below(plan: Plan, flags: dict[str, str]) -> list[str]:
    each = plan.cells[0].tokens if plan.cells else 0
    lines = [
        *([plan.description] if plan.description else []),
        f"each cell trains on {short(each)} tokens, all of them on {short(plan.tokens)}",
        f"time is of one cell; the total is from start to end with {plan.slots} at a time on {plan.device}, "
        f"{plan.precision} (an estimate)",
    ]
    if plan.candidates is not None:
        lines.append(
            f"the search ({plan.sampler}) tries {plan.candidates} candidates of each budget: "
            f"{plan.cell_count} of the "
            f"{len(plan.cells)} cells listed; totals are for an average choice"
        )
    lines.extend(f"{mark}: {flag}" for flag, mark in flags.items())
    lines.extend(plan.notes)
    return lines


def _rates(rates: Iterable[float]) -> str:
    values = sorted(set(rates))
    return f"{values[0]:.2g}" if len(values) == 1 else f"{values[0]:.1g}..{values[-1]:.1g}"


def short(value: float) -> str:
    """A number in three digits with its decimal prefix, such as 1.23M."""
    for size, prefix in _PREFIXES:
        if value >= size:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it, such as 45 s, 12 min, 2.4 h or 31 days."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:,.0f} days"
