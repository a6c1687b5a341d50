"""`interplay plan`, `try` and `presets`: the cells of a study and their costs, planned and as timed here."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console, Group, RenderableType
from rich.text import Text

from core.command_line import call, option
from core.extras import need
from core.numbers import duration, prefixed
from interplay.result import VerbResult
from interplay.terminal import pasteable, text_table
from interplay.verbs.load_spec import load_spec, name_of
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.plan.prices import money
from study.plan.table import plan_table
from study.spec.study import StudySpec
from study.tracking.study_paths import study_paths

if TYPE_CHECKING:
    # A plan for the terminal needs no tables.
    import pandas as pd


@dataclass(frozen=True, repr=False)
class StudyPlan(VerbResult):
    """The plan of a study.

    Attributes:
        plan: every number.
        again: the command that times its steps again; empty if they have not been timed on this machine.
    """

    plan: Plan
    again: str = ""

    @cached_property
    def cells(self) -> "pd.DataFrame":
        """One row per cell: key, shape, seed, parameters, tokens, FLOPs, bytes of memory and seconds."""
        import pandas as pd

        return pd.json_normalize(self.to_json()["cells"])

    @cached_property
    def totals(self) -> dict[str, Any]:
        """Cells, tokens, FLOPs, hours of a device, hours and cost of the study."""
        totals: dict[str, Any] = self.to_json()["totals"]
        return totals

    def to_json(self) -> dict[str, Any]:
        """Return the document of `interplay plan --json`."""
        return self.plan.to_json()

    def __rich__(self) -> RenderableType:
        hint = [pasteable("To time the steps again: ", self.again)] if self.again else []
        return Group(plan_table(self.plan), *hint)

    def __repr__(self) -> str:
        cells, flops, time = (self.totals[name] for name in ("cells", "flops", "hours"))
        cost = f"{prefixed(flops)} FLOPs, about {duration(time * 3600)} on {self.plan.device}"
        return f"{self.plan.name}: {cells} cells, {cost}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self.cells.to_html(index=False, max_rows=20)}"


def plan(spec: str | Path | StudySpec, *changes: str, results: str | Path = "results") -> StudyPlan:
    """Plan a study: every cell with its parameters, tokens, FLOPs, memory and time. Nothing is trained.

        interplay.plan("quickstart", "training.seeds=5").totals["hours"]

    Raises:
        SpecError: as of `load_spec`, or no cell can be planned.
        DataError: the data cannot be used (an InputError of `trainables.errors`).
    """
    planned = make_plan(load_spec(spec, *changes, results=results)).trainable()
    again = call("try", name_of(spec), *changes, results=Path(results)) if planned.planner.speed else ""
    return StudyPlan(planned, again)


@dataclass(frozen=True, repr=False)
class TimedSteps(VerbResult):
    """The steps of a study's cells as timed on this machine, beside those of its plan.

    Attributes:
        document: all numbers; seconds, bytes and shares of the device's peak.
        slots: devices used at a time.
        again: the command that times them again; empty unless the machine was busy.
    """

    document: dict[str, Any]
    slots: int
    again: str

    def to_json(self) -> dict[str, Any]:
        """Return the document of `interplay try --json`."""
        return self.document

    def __rich__(self) -> RenderableType:
        names = ("cell", "step", "planned", "memory", "planned", "of the peak")
        rows = []
        for cell in self.document["cells"]:
            both_seconds = (
                f"{1000 * cell[name]:.3g} ms" for name in ("step_seconds", "planned_step_seconds")
            )
            both_bytes = (f"{cell[name] / 1e6:,.0f} MB" for name in ("memory_bytes", "planned_memory_bytes"))
            share = cell["utilisation"]
            rows.append((cell["cell"], *both_seconds, *both_bytes, "-" if share is None else f"{share:.1%}"))
        after, before = (duration(self.document[name] * 3600) for name in ("hours", "planned_hours"))
        summary = (
            f"The study takes about {after} on {self.slots} slots (before: {before}). Plans on this machine use these "
            "times from now on."
        )
        busy = "The machine was busy meanwhile. When it is quiet: "
        hint = [pasteable(busy, self.again)] if self.again else []
        return Group(text_table(self.document["name"], names, rows, left=("cell",)), Text(summary), *hint)


def try_steps(
    spec: str | Path | StudySpec,
    *changes: str,
    results: str | Path = "results",
    progress: Console | None = None,
) -> TimedSteps:
    """Pack the data and time a few steps of the cells; later plans on this machine use the times.

        interplay.try_steps("quickstart").to_json()["hours"]

    `progress` shows how far it is.

    Raises:
        SpecError: as of `load_spec`, or each cell takes several devices, or a cell cannot be trained.
        DataError: the data cannot be used.
    """
    from study.run.preparation import packed, time_steps, tried_cells

    loaded = load_spec(spec, *changes, results=results)
    before = make_plan(loaded).trainable()
    layouts = before.planner.layouts
    need("timing steps", "train", "torch", "deepspeed", "transformers")
    if not tried_cells(before):
        raise SpecError(
            f"every cell of {loaded.name!r} takes several devices, and `try` times cells of one device only."
        )
    paths = study_paths(loaded, Path(results).resolve())
    progress = progress or Console(quiet=True)
    packed(loaded.data, loaded.training.context, paths.data, before.cells[0].cell.data_key, progress)
    timed = time_steps(before, paths.data, progress)
    after = make_plan(loaded).trainable()
    cells: list[dict[str, Any]] = []
    for planned, measured in timed.cells:
        utilisation = None
        if layouts.device.is_gpu:
            utilisation = measured.flops_per_second / layouts.device.peak[before.precision]
        cells.append(
            {
                "cell": f"L{planned.cell.shape.depth} d{planned.cell.shape.width}",
                "step_seconds": measured.step_seconds,
                "planned_step_seconds": layouts.choose(planned.cell.shape).cost.step_seconds,
                "memory_bytes": measured.memory_bytes,
                "planned_memory_bytes": planned.memory_bytes,
                "utilisation": utilisation,
            }
        )
    document = {
        "name": before.name,
        "device": before.device,
        "cells": cells,
        "hours": after.hours,
        "planned_hours": before.hours,
        "busy": timed.speed.busy,
    }
    again = call("try", name_of(spec), *changes, results=Path(results)) if timed.speed.busy else ""
    return TimedSteps(document, before.slots, again)


@dataclass(frozen=True, repr=False)
class Presets(VerbResult):
    """Every preset as a record: group, name, description, claim, size, cost, and its recorded result or None."""

    records: list[dict[str, Any]]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the records."""
        return self.records

    def __rich__(self) -> RenderableType:
        return _catalogue_view(self.records)


def presets() -> Presets:
    """List the built-in studies with their cost and recorded result.

        interplay.presets().records[0]["name"]

    A study that has not been run has no recorded result.
    """
    text = (resources.files("interplay") / "verbs" / "presets.yaml").read_text(encoding="utf-8")
    records = []
    for group, members in yaml.safe_load(text).items():
        for name, result in members.items():
            spec = load_spec(name)
            planned = make_plan(spec)
            records.append(
                {
                    "group": group,
                    **{key: getattr(spec, key) for key in ("name", "description", "claim")},
                    "device": planned.device,
                    "slots": planned.slots,
                    "cells": planned.cell_count,
                    "flops": planned.flops,
                    "hours": planned.hours,
                    "cost_dollars": planned.cost,
                    "result": result and {**result, "date": result["date"].isoformat()},
                }
            )
    return Presets(records)


def _catalogue_view(records: Sequence[dict[str, Any]]) -> RenderableType:
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
            if result and "values" in result:
                (values,) = result["values"].values()
                size = f"{len(values)} studies, {duration(seconds)}"
            if record["cost_dollars"] is not None:
                size += f", {money(record['cost_dollars'])}"
            lines.append(f"{record['name']:{width}}  {record['description']}")
            lines.append(f"  [dim]{size}: {result['text'] if result else 'not run yet'}[/]")
    lines += [
        "",
        f"[dim]Times are as recorded on two CPU cores, else estimates; `{option('json')}` has both.[/]",
    ]
    return Group(*(Text.from_markup(line) for line in lines[1:]))
