"""`interplay plan`, `try` and `presets`: the cells of a study and their costs, planned and as timed here."""

import math
import sys
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console, Group, RenderableType
from rich.text import Text

from core.command_line import command
from core.extras import need
from core.numbers import duration
from interplay.spec_argument import load
from interplay.terminal import say, show, text_table
from interplay.verbs import series
from study.errors import SpecError
from study.plan.plan import Plan, by_hand, make_plan
from study.plan.prices import money
from study.plan.table import plan_table
from study.spec.study import load_spec, studies
from study.tracking.study_paths import study_paths


def show_plan(spec: str, overrides: Sequence[str], results: Path, *, as_json: bool) -> None:
    """Print the plan of a study or of each study of a series."""
    loaded = load("plan", spec, overrides, results)
    if loaded.vary is None:
        plan = make_plan(loaded)
        show(plan.to_json(), plan_table(plan), as_json=as_json)
        if plan.planner.speed and not as_json:
            say("To time the steps again: ", command("try", spec, *overrides, results=results))
    else:
        show(*series.plan(loaded), as_json=as_json)


def show_cell(spec: str, overrides: Sequence[str], cell: str, results: Path) -> None:
    """Print one cell as JSON, and on stderr the command that trains it."""
    planned = plan_of_one("plan", spec, overrides, results).planned(cell)
    print(planned.cell.model_dump_json(indent=2))
    print(f"{by_hand(planned.layout)}  # trains it, with the cell above in CELL.json", file=sys.stderr)


def plan_of_one(verb: str, spec: str, overrides: Sequence[str], results: Path) -> Plan:
    """Plan a single study; a series is refused."""
    loaded = load(verb, spec, overrides, results)
    series.refuse_series(loaded, f"`{verb}`")
    return make_plan(loaded)


def try_steps(spec: str, overrides: Sequence[str], results: Path, *, as_json: bool) -> None:
    """Pack the data, time a few steps of the cells and print them; later plans on this machine use the times.

    Raises:
        SpecError: a series, or each cell takes several devices, or a cell cannot be trained.
        DataError: the data cannot be used.
    """
    from study.run.preparation import packed, time_steps, tried_cells

    plan = plan_of_one("try", spec, overrides, results)
    loaded, layouts = plan.planner.spec, plan.planner.layouts
    need("timing steps", "train", "torch", "deepspeed", "transformers")
    if not tried_cells(plan):
        raise SpecError(
            f"every cell of {loaded.name!r} takes several devices, and `try` times cells of one device only."
        )
    paths = study_paths(loaded, results.resolve())
    progress = Console(stderr=True, quiet=as_json)
    packed(loaded.data, loaded.training.context, paths.data, plan.cells[0].cell.data_key, progress)
    timed = time_steps(plan, paths.data, progress)
    after = make_plan(loaded)
    cells: list[dict[str, Any]] = []
    rows = []
    for planned, measured in timed.cells:
        seconds = layouts.choose(planned.cell.shape).cost.step_seconds
        utilisation = None
        if layouts.device.is_gpu:
            utilisation = measured.flops_per_second / layouts.device.peak[plan.precision]
        name = f"L{planned.cell.shape.depth} d{planned.cell.shape.width}"
        cells.append(
            {
                "cell": name,
                "step_seconds": measured.step_seconds,
                "planned_step_seconds": seconds,
                "memory_bytes": measured.memory_bytes,
                "planned_memory_bytes": planned.memory_bytes,
                "utilisation": utilisation,
            }
        )
        both_seconds = (f"{1000 * value:.3g} ms" for value in (measured.step_seconds, seconds))
        both_bytes = (f"{value / 1e6:,.0f} MB" for value in (measured.memory_bytes, planned.memory_bytes))
        rows.append((name, *both_seconds, *both_bytes, "-" if utilisation is None else f"{utilisation:.1%}"))
    names = ("cell", "step", "planned", "memory", "planned", "of the peak")
    summary = (
        f"The study takes about {duration(after.hours * 3600)} on {plan.slots} slots (before: "
        f"{duration(plan.hours * 3600)}). Plans on this machine use these times from now on."
    )
    head = {"name": plan.name, "device": plan.device}
    times = {"hours": after.hours, "planned_hours": plan.hours, "busy": timed.speed.busy}
    document = {**head, "cells": cells, **times}
    view = Group(text_table(plan.name, names, rows, left=("cell",)), Text(summary))
    show(document, view, as_json=as_json)
    if timed.speed.busy and not as_json:
        say(
            "The machine was busy meanwhile. When it is quiet: ",
            command("try", spec, *overrides, results=results),
        )


def catalogue() -> list[dict[str, Any]]:
    """Every preset as a record: group, name, description, claim, size, cost, and its recorded result or None."""
    text = (resources.files("interplay") / "verbs" / "presets.yaml").read_text(encoding="utf-8")
    records = []
    for group, presets in yaml.safe_load(text).items():
        for name, result in presets.items():
            spec = load_spec(name)
            plans = [make_plan(one, to_read=True) for one in studies(spec)]
            records.append(
                {
                    "group": group,
                    **{key: getattr(spec, key) for key in ("name", "description", "claim", "vary")},
                    "device": plans[0].device,
                    "slots": plans[0].slots,
                    "cells": sum(plan.cell_count for plan in plans),
                    "flops": math.fsum(plan.flops for plan in plans),
                    "hours": math.fsum(plan.hours for plan in plans),
                    "cost_dollars": None
                    if plans[0].cost is None
                    else math.fsum(plan.cost or 0.0 for plan in plans),
                    "result": result and {**result, "date": result["date"].isoformat()},
                }
            )
    return records


def catalogue_view(records: Sequence[dict[str, Any]]) -> RenderableType:
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
            if record["cost_dollars"] is not None:
                size += f", {money(record['cost_dollars'])}"
            lines.append(f"{record['name']:{width}}  {record['description']}")
            lines.append(f"  [dim]{size}: {result['text'] if result else 'not run yet'}[/]")
    lines += ["", "[dim]Times are as recorded on two CPU cores, else estimates; `--json` has both.[/]"]
    return Group(*(Text.from_markup(line) for line in lines[1:]))
