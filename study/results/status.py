"""`interplay status`: which cells are done, running, failed (and why) or missing."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from study.plan import Plan, PlannedCell, make_plan
from study.results.search_state import Knowledge, knowledge
from study.spec.study import StudySpec
from study.tracking.ledger import study_rows, unfinished_cells, with_recorded
from study.tracking.rows import ENDED, Row
from study.tracking.study_paths import study_paths
from study.tracking.tracker import make_tracker


@dataclass(frozen=True)
class StudyStatus:
    """The state of each cell by key: done, stopped, diverged, failed, running or missing.

    The crossing sampler has no missing cells: those that it has not chosen are not listed.
    """

    plan: Plan
    rows: dict[str, Row]
    states: dict[str, str]
    driver: int | None
    waiting: int | None
    """Number of rows not yet in the tracker; None if it is unreachable."""
    problem: str | None
    """Why the tracker cannot be used; None if it can."""
    stored: bool
    """Whether the tracker has the study."""
    known: Knowledge | None = None
    """The estimate of the study's objective so far."""

    @property
    def cells(self) -> list[PlannedCell]:
        """The cells that have a state."""
        return [planned for planned in self.plan.pool if planned.cell.key in self.states]


def study_status(spec: StudySpec, results: Path) -> StudyStatus:
    """Read the state of a study from its ledger, and from the tracker which rows it has; changes nothing."""
    plan = make_plan(spec, to_read=True)
    paths = study_paths(spec, results.resolve())
    recorded = paths.ledger.rows()
    rows = study_rows(plan, recorded)
    plan = with_recorded(plan, rows)
    driver, started = paths.driver(), paths.unfinished
    running = started.running if driver else set()
    states: dict[str, str] = {}
    for planned in plan.pool:
        key = planned.cell.key
        if key in running or key in rows:
            states[key] = "running" if key in running else rows[key].status
        elif not plan.search.chooses_cells:
            states[key] = "missing"
    tracker = make_tracker(spec, paths, {})
    problem = tracker.problem()
    sent = None if problem else tracker.recorded()
    own = {key: row.tags.get(ENDED) for key, row in recorded.items() if row.study == spec.name}
    waiting = None if problem else sum((sent or {}).get(key) != ended for key, ended in own.items())
    known = knowledge(spec, plan, rows, unfinished_cells(plan, rows, started, paths.checkpoints))
    return StudyStatus(plan, rows, states, driver, waiting, problem, sent is not None, known)


def status_json(state: StudyStatus) -> dict[str, Any]:
    """The state of a study as a JSON document."""
    return {
        "study": state.plan.name,
        "driver": state.driver,
        "online": state.problem is None,
        "stored": state.stored,
        "counts": dict(Counter(state.states.values())),
        "waiting_for_mlflow": state.waiting,
        "known": state.known.to_json() if state.known else None,
        "cells": [
            {
                "cell": planned.cell.key,
                "name": planned.title,
                "budget": planned.budget,
                "state": state.states[planned.cell.key],
                "loss": row.loss if (row := state.rows.get(planned.cell.key)) else None,
                "reason": row.reason if row else None,
            }
            for planned in state.cells
        ],
    }


def status_table(state: StudyStatus) -> RenderableType:
    """The state of a study for a terminal: counts by depth, then each failure with its reason."""
    shown = ("done", "stopped", "diverged", "failed", "running", "missing")
    kinds = [kind for kind in shown if kind != "stopped" or kind in state.states.values()]
    table = Table(box=None, header_style="dim")
    table.add_column("depth", justify="right")
    for kind in kinds:
        table.add_column(kind, justify="right")
    for depth in sorted({p.cell.shape.depth for p in state.cells}):
        counts = Counter(state.states[p.cell.key] for p in state.cells if p.cell.shape.depth == depth)
        table.add_row(str(depth), *(str(counts[kind] or "-") for kind in kinds))
    total = Counter(state.states.values())
    table.add_row("all", *(str(total[kind] or "-") for kind in kinds), style="bold")
    driver = f"run by process {state.driver}" if state.driver else "not running"
    lines = [Text(f"{state.plan.name}: {driver}")]
    for planned in state.cells:
        row = state.rows.get(planned.cell.key)
        # Early stopping may end hundreds of cells, and none is a failure; the JSON has their reasons.
        if row and row.reason and row.status != "stopped":
            lines.append(
                Text(f"{row.status} {planned.title} ({planned.cell.key}): {row.reason}", style="red")
            )
    if state.known:
        lines.append(Text(state.known.estimate.words))
        if state.known.next:
            lines.append(Text(f"next: {state.known.next_words}", style="dim"))
        if state.known.ending:
            lines.append(Text(f"the search has ended: {state.known.ending.words}"))
    if state.problem:
        lines.append(Text(f"{state.problem}; the rows above are still complete", style="yellow"))
    elif state.waiting:
        text = f"{state.waiting} rows are not in MLflow yet; `interplay run` sends them"
        lines.append(Text(text, style="yellow"))
    return Group(lines[0], table, *lines[1:])
