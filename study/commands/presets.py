"""`interplay presets`: the built-in studies, their cost and their recorded results."""

import math
from importlib import resources
from typing import Any

import yaml
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from study.plan.plan import make_plan
from study.plan.table import duration
from study.spec.study import load_spec, studies
from study.spec.yaml_file import preset_names


def catalogue() -> list[dict[str, Any]]:
    """Every preset as a record: name, description, claim, cells, hours, device, and its recorded result or None."""
    text = (resources.files("study") / "commands" / "preset_results.yaml").read_text(encoding="utf-8")
    results = {
        name: {**found, "date": found["date"].isoformat()} for name, found in yaml.safe_load(text).items()
    }
    records = []
    for name in preset_names():
        spec = load_spec(name)
        plans = [make_plan(one, to_read=True) for one in studies(spec)]
        records.append(
            {
                "name": name,
                "description": spec.description,
                "claim": spec.claim,
                "vary": spec.vary,
                "device": plans[0].device,
                "slots": plans[0].slots,
                "cells": sum(plan.cell_count for plan in plans),
                "flops": math.fsum(plan.flops for plan in plans),
                "hours": math.fsum(plan.hours for plan in plans),
                "result": results.get(name),
            }
        )
    return records


def catalogue_view(records: list[dict[str, Any]]) -> RenderableType:
    """A table for a terminal: one row per preset, with its recorded result below the description."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1))
    for name in ("preset", "cells", "time"):
        table.add_column(name, justify="left" if name == "preset" else "right", no_wrap=True, vertical="top")
    table.add_column("question and recorded result")
    for record in records:
        table.add_row(
            Text(record["name"], style="bold"),
            f"{record['cells']:,}",
            duration(record["hours"] * 3600),
            Group(Text(record["description"]), Text(_result(record["result"]), style="dim")),
        )
    on = sorted({f"{record['slots']} workers on {record['device']}" for record in records})
    foot = f"Time is an estimate for {', '.join(on)}. Run a preset with `interplay run PRESET`; `--json` has more."
    return Group(table, Text(foot, style="dim"))


def _result(result: dict[str, Any] | None) -> str:
    if result is None:
        return "No recorded result."
    seeds = result["seeds"]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    return f"{result['text']} ({result['date']}, {which}, in {duration(result['seconds'])})"
