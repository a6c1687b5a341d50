"""`interplay try`: time a few steps of a study's cells on this machine, beside the plan's time and memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from study.commands.output import show
from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.table import duration
from study.run.packing import packed
from study.run.step_timing import time_steps, tried_cells
from study.spec.study import load_spec
from study.tracking.study_paths import study_paths


def try_steps(spec: str, overrides: Sequence[str], results: Path, *, as_json: bool) -> None:
    """Pack the data, time the cells and print what they take; later plans of this machine use it.

    Raises:
        SpecError: a series, or each cell takes several devices, or a cell cannot be trained.
        DataError: the data cannot be used.
    """
    loaded = load_spec(spec, overrides)
    if loaded.vary is not None:
        from study.commands.series import refuse_series

        refuse_series(loaded, "`try`")
    plan = make_plan(loaded)
    if not tried_cells(plan):
        raise SpecError(
            f"every cell of {loaded.name!r} takes several devices, and `try` times cells of one device only."
        )
    paths = study_paths(loaded, results.resolve())
    progress = Console(stderr=True, quiet=as_json)
    packed(loaded.data, loaded.training.context, paths.data, plan.cells[0].cell.data_key, progress)
    with progress.status("timing a few steps"):
        timed = time_steps(plan, paths.data)
    after = make_plan(loaded)
    device = plan.planner.layouts.device
    peak = device.peak[plan.precision]
    rows: list[dict[str, Any]] = [
        {
            "cell": f"L{planned.cell.shape.depth} d{planned.cell.shape.width}",
            "step_seconds": times.step_seconds,
            "planned_step_seconds": plan.planner.layouts.choose(planned.cell.shape).cost.step_seconds,
            "memory_bytes": times.memory_bytes,
            "planned_memory_bytes": planned.memory_bytes,
            "utilisation": times.flops_per_second / peak if device.is_gpu else None,
        }
        for planned, times in timed
    ]
    document = {
        "name": plan.name,
        "device": plan.device,
        "cells": rows,
        "hours": after.hours,
        "planned_hours": plan.hours,
    }
    table = Table(title=plan.name, box=box.SIMPLE, pad_edge=False)
    for name in ("cell", "step", "planned", "memory", "planned", "of the peak"):
        table.add_column(name, justify="left" if name == "cell" else "right", no_wrap=True)
    for row, (planned, times) in zip(rows, timed, strict=True):
        table.add_row(
            row["cell"],
            f"{1000 * times.step_seconds:.3g} ms",
            f"{1000 * row['planned_step_seconds']:.3g} ms",
            f"{times.memory_bytes / 1e6:,.0f} MB",
            f"{planned.memory_bytes / 1e6:,.0f} MB",
            "-" if row["utilisation"] is None else f"{row['utilisation']:.1%}",
        )
    summary = (
        f"The study takes about {duration(after.hours * 3600)} on {plan.slots} slots (before: "
        f"{duration(plan.hours * 3600)}). Plans on this machine use these times from now on."
    )
    show(document, Group(table, Text(summary)), as_json=as_json)
