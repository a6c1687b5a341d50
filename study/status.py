"""`interplay status`: which cells are done, running, failed (why) or missing."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from study.ledger import Connection, Places, connect, known_rows, places
from study.plan import Plan, make_plan
from study.spec import StudySpec
from study.tracking import Row, Store


@dataclass(frozen=True)
class StudyStatus:
    """The state of each cell by key: done, diverged, failed, running or missing."""

    plan: Plan
    rows: dict[str, Row]
    states: dict[str, str]
    driver: int | None
    waiting: int
    online: bool


def study_status(spec: StudySpec, results: Path) -> StudyStatus:
    """Read the state of a study from its ledger; changes nothing."""
    plan = make_plan(spec)
    where = places(spec, results.resolve())
    connection = _existing(spec, where)
    store = connection.store
    rows = known_rows(plan, connection, where)
    driver = where.driver()
    running = _running(store) if store and driver else set()
    states: dict[str, str] = {}
    for planned in plan.cells:
        key = planned.cell.key
        states[key] = "running" if key in running else rows[key].status if key in rows else "missing"
    online = store is not None or not where.folder.is_dir()
    return StudyStatus(plan, rows, states, driver, len(where.outbox.rows()), online)


def status_json(state: StudyStatus) -> dict[str, Any]:
    """The state of a study as a JSON document."""
    return {
        "study": state.plan.name,
        "driver": state.driver,
        "counts": dict(Counter(state.states.values())),
        "waiting_for_mlflow": state.waiting,
        "cells": [
            {
                "cell": planned.cell.key,
                "name": planned.cell.name,
                "budget": planned.budget,
                "state": state.states[planned.cell.key],
                "loss": row.loss if (row := state.rows.get(planned.cell.key)) else None,
                "reason": row.reason if row else None,
            }
            for planned in state.plan.cells
        ],
    }


def status_table(state: StudyStatus) -> RenderableType:
    """The state of a study for a terminal: counts by depth, then every failure with its reason."""
    kinds = ("done", "diverged", "failed", "running", "missing")
    table = Table(box=None, header_style="dim")
    table.add_column("depth", justify="right")
    for kind in kinds:
        table.add_column(kind, justify="right")
    for depth in sorted({p.cell.shape.depth for p in state.plan.cells}):
        counts = Counter(state.states[p.cell.key] for p in state.plan.cells if p.cell.shape.depth == depth)
        table.add_row(str(depth), *(str(counts[kind] or "-") for kind in kinds))
    total = Counter(state.states.values())
    table.add_row("all", *(str(total[kind] or "-") for kind in kinds), style="bold")
    driver = f"run by process {state.driver}" if state.driver else "not running"
    lines = [Text(f"{state.plan.name}: {driver}")]
    for planned in state.plan.cells:
        row = state.rows.get(planned.cell.key)
        if row and row.reason:
            lines.append(
                Text(f"{row.status} {planned.cell.name} ({planned.cell.key}): {row.reason}", style="red")
            )
    if state.waiting:
        lines.append(Text(f"{state.waiting} rows wait to be sent to MLflow", style="yellow"))
    if not state.online:
        lines.append(
            Text(
                "the tracking server does not answer: this is the state of the last run table", style="yellow"
            )
        )
    return Group(lines[0], table, *lines[1:])


def _existing(spec: StudySpec, where: Places) -> Connection:
    """The study's store; without one where nothing was ever run, because asking for a status must make no file."""
    if spec.tracking.uri == "auto" and not (where.results / "mlflow.db").is_file():
        return Connection(spec.tracking.uri, None, None)
    return connect(spec, where)


def _running(store: Store) -> set[str]:
    """Keys of the cells whose run is open in MLflow."""
    runs = store.runs("tags.`interplay.kind` = 'trial' AND attributes.status = 'RUNNING'")
    return {run.data.tags["interplay.cell"] for run in runs}
