"""A plan as a table for people: one line a shape, its seeds and learning rates together."""

from collections.abc import Iterable
from itertools import groupby

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from study.plan.plan import Plan, PlannedCell
from trainables.layout import Layout

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
        # In a narrow terminal the counts give way, which shape and budget say as well, and not degree, memory or time.
        gives_way = name in ("N=12Ld²", "params", "rate")
        table.add_column(
            name,
            total,
            justify="left" if name == "shape" else "right",
            no_wrap=not gives_way,
            overflow="ellipsis",
        )

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
    marks = ",".join(flags.setdefault(flag, _mark(len(flags))) for flag in first.flags)
    row = [
        short(first.budget) if is_new_budget else "",
        f"L{shape.depth} d{shape.width} h{shape.heads}" + (f" [dim]{marks}[/]" if marks else ""),
        _count(shape.budget_params),
        _count(first.parameters.total),
        _rates(planned.cell.lr for planned in group),
        str(len(group)),
        short(first.flops),
        f"{short(first.memory_bytes)}B",
        _degrees(first.layout),
        duration(first.seconds),
    ]
    if plan.cost is not None:
        row.append(f"{sum(planned.cost or 0.0 for planned in group):,.0f}")
    return row


def _below(plan: Plan, flags: dict[str, str]) -> list[str]:
    each = plan.cells[0].tokens if plan.cells else 0
    gangs = [planned.layout for planned in plan.cells if planned.layout.ranks > 1]
    groups = " (x groups that share its batch)" if any(one.data_parallel > 1 for one in gangs) else ""
    lines = [
        *([plan.description] if plan.description else []),
        f"each cell trains on {short(each)} tokens, all of them on {short(plan.tokens)}",
        f"time is of one cell; the total is from start to end with {plan.slots} "
        f"{'devices' if gangs else 'at a time'} on {plan.device}, {plan.precision} (an estimate)",
    ]
    if gangs:
        lines.append(f"TP: devices that share each matrix of a cell{groups}; memory is of one device")
    if plan.candidates is not None:
        lines.append(
            f"the search ({plan.sampler}) tries {plan.candidates} candidates of each budget: "
            f"{plan.cell_count} of the "
            f"{len(plan.cells)} cells listed; totals are for an average choice"
        )
    if plan.sampler == "crossing":
        lines.append(_search_line(plan))
    if arm := plan.planner.spec.sensitivity:
        factors = " and ".join(f"{factor:g}" for factor in arm.lr_factors)
        lines.append(
            f"after these, cells about each crossing are trained again at {factors} times their rate; which depends "
            "on where depths cross, so that they are in no total"
        )
    lines.extend(f"{mark}: {flag}" for flag, mark in flags.items())
    lines.extend(plan.notes)
    return lines


def _search_line(plan: Plan) -> str:
    """What a search by crossings chooses from, and what ends it."""
    listed = {planned.cell.shape for planned in plan.cells}
    added = {planned.cell.shape for planned in plan.more} - listed
    seeds = len({planned.cell.seed for planned in plan.pool})
    sizes = f" and {len(added)} at other budgets" if added else ""
    first = "" if plan.stop_when is None else f" when {plan.stop_when}, at the latest"
    limits = [
        *([f"{short(plan.max_flops)} FLOPs"] if plan.max_flops else []),
        *([f"{plan.max_cells:,} cells"] if plan.max_cells else []),
    ]
    last = f" at {' or '.join(limits)}" if limits else " with all of them trained"
    return (
        f"the search (crossing) has {len(plan.pool):,} cells for choice: these {len(listed)} shapes{sizes} with up to "
        f"{seeds} seeds each, and ends{first}{last}; totals are upper bounds"
    )


def _count(number: int) -> str:
    """Every digit while they fit a terminal, then three; the plan as JSON has them all."""
    return f"{number:,}" if number < 1e7 else short(number)


def _mark(number: int) -> str:
    """Return a, b, … z, aa, ab and so on."""
    above, letter = divmod(number, 26)
    return (_mark(above - 1) if above else "") + chr(ord("a") + letter)


def _degrees(layout: Layout) -> str:
    """Tensor parallel, and where there are several such groups, how many: 4, or 4x2."""
    groups = f"x{layout.data_parallel}" if layout.data_parallel > 1 else ""
    return f"{layout.tensor_parallel}{groups}"


def _rates(rates: Iterable[float]) -> str:
    values = sorted(set(rates))
    return (
        f"{values[0]:.2g}".replace("e-0", "e-") if len(values) == 1 else f"{values[0]:.1g}..{values[-1]:.1g}"
    )


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
