"""`interplay presets`: every preset, what it costs, and what it came out as here."""

import math
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from study.commands.preset_outcomes import identity, outcomes, preset_plans
from study.plan.table import duration
from study.spec.study import load_spec
from study.spec.yaml_file import preset_names


def catalogue() -> list[dict[str, Any]]:
    """Every preset as a record: name, description, claim, cells, hours here, device, and its outcome or None."""
    known = outcomes()
    records = []
    for name in preset_names():
        spec, plans = load_spec(name), preset_plans(name)
        outcome = known.get(name)
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
                "outcome": None
                if outcome is None
                else {**outcome.model_dump(mode="json"), "current": outcome.identity == identity(spec)},
            }
        )
    return records


def catalogue_view(records: list[dict[str, Any]]) -> RenderableType:
    """The presets for a terminal: a line each, and below it what was seen here, when, with which seeds."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1))
    for name in ("preset", "cells", "time"):
        table.add_column(name, justify="left" if name == "preset" else "right", no_wrap=True, vertical="top")
    table.add_column("what it asks, and what was seen here")
    for record in records:
        table.add_row(
            Text(record["name"], style="bold"),
            f"{record['cells']:,}",
            duration(record["hours"] * 3600),
            Group(Text(record["description"]), *_seen(record)),
        )
    on = sorted({f"{record['slots']} slots of {record['device']}" for record in records})
    foot = f"Time is an estimate for {', '.join(on)}. `interplay run PRESET` runs one; `--json` tells more."
    return Group(table, Text(foot, style="dim"))


def _seen(record: dict[str, Any]) -> list[Text]:
    found = record["outcome"]
    if found is None:
        return [Text("Not run here.", style="dim")]
    seeds = found["seeds"]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    earlier = "" if found["current"] else ", an earlier form of this preset"
    when = f"{found['date']}, {which}, in {duration(found['seconds'])}{earlier}"
    return [Text(f"{found['words'][0]} ({when})", style="dim")]
