"""`interplay presets`: the built-in studies, their cost and their recorded results."""

import math
from importlib import resources
from itertools import groupby
from typing import Any

import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from study.plan.plan import make_plan
from study.plan.table import duration
from study.spec.study import load_spec, studies


def catalogue() -> list[dict[str, Any]]:
    """Every preset as a record: group, name, description, claim, size, cost, and its recorded result or None."""
    text = (resources.files("study") / "commands" / "presets.yaml").read_text(encoding="utf-8")
    records = []
    for group, presets in yaml.safe_load(text).items():
        for name, result in presets.items():
            spec = load_spec(name)
            plans = [make_plan(one, to_read=True) for one in studies(spec)]
            records.append(
                {
                    "group": group,
                    "name": name,
                    "description": spec.description,
                    "claim": spec.claim,
                    "vary": spec.vary,
                    "device": plans[0].device,
                    "slots": plans[0].slots,
                    "cells": sum(plan.cell_count for plan in plans),
                    "flops": math.fsum(plan.flops for plan in plans),
                    "hours": math.fsum(plan.hours for plan in plans),
                    "cost": None if plans[0].cost is None else math.fsum(plan.cost or 0.0 for plan in plans),
                    "result": result and {**result, "date": result["date"].isoformat()},
                }
            )
    return records


def catalogue_view(records: list[dict[str, Any]]) -> RenderableType:
    """The presets for a terminal, two lines each in 80 columns: what it asks, and its size and recorded result."""
    width = max(len(record["name"]) for record in records)
    lines = []
    for group, members in groupby(records, key=lambda record: record["group"]):
        lines += ["", f"[bold]{group}[/]"]
        for record in members:
            result = record["result"]
            seconds = result["seconds"] if result else record["hours"] * 3600
            size = f"{record['cells']:,} cells, {duration(seconds)}"
            if not record["device"].startswith("cpu"):
                size += f" on {record['slots']} {record['device']}"
            found = result["text"] if result else "not run yet"
            lines.append(f"{record['name']:{width}}  {record['description']}")
            lines.append(f"  [dim]{size}: {found}[/]")
    lines += ["", "[dim]Times are as recorded on two CPU cores, else estimates; `--json` has both.[/]"]
    return Group(*(Text.from_markup(line) for line in lines[1:]))
