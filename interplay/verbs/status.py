"""`interplay status`: which cells are done, running, failed (and why) or missing, from the files of a study alone."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from core.command_line import command
from core.files import to_json
from interplay.result import View
from interplay.verbs.load_spec import load_spec
from study.errors import SpecError
from study.plan import Plan, make_plan
from study.plan.rows import Row, in_table_order
from study.spec.recorded import study_source
from study.spec.study import StudySpec
from study.spec.yaml_file import SPEC
from study.tracking.ledger import study_rows
from study.tracking.study_paths import StudyPaths, study_paths

KINDS = ("done", "diverged", "failed", "running", "missing")


@dataclass(frozen=True)
class StudyStatus:
    """The state of each cell by key: done, diverged, failed, running or missing; `driver` is the process that runs it.

    A search has no missing cells: those that it has not chosen are not listed.
    """

    plan: Plan
    paths: StudyPaths
    rows: dict[str, Row]
    states: dict[str, str]
    driver: int | None

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The cells that have a state, as records: of its row, or of the plan for one without."""
        records = []
        for key in self.states:
            row, planned = self.rows.get(key), self.plan.by_key(key)
            if row:
                records.append(row.parameters | {"cell": key, "name": row.name})
            elif planned:
                records.append(planned.row())
        return records

    @property
    def counts(self) -> Counter[str]:
        """Number of cells in each state."""
        return Counter(self.states.values())

    @cached_property
    def answer(self) -> tuple[list[str], dict[str, Any] | None]:
        """The answer of the fit in its folder, and the check of the learning rate as JSON; empty without a fit.

        A spec without rows has none: the fit in its folder is then of other cells.
        """
        from analysis.fit.next_words import rate_document
        from analysis.fit.words import in_short

        named = self.paths.fit
        if named is None or not self.rows:
            return [], None
        check = named.fit.learning_rate
        rates = named.next_runs.rates if named.next_runs else None
        return in_short(named.fit), rate_document(check, rates) if check else None


def study_status(spec: StudySpec, results: Path) -> StudyStatus:
    """Read the state of a study; changes nothing."""
    plan, paths = make_plan(spec), study_paths(spec, results.resolve())
    rows = study_rows(plan, paths.ledger.rows())
    driver = paths.driver()
    running = paths.unfinished.running if driver else set()
    states: dict[str, str] = {}
    others = [row.cell for row in in_table_order(rows) if plan.by_key(row.cell) is None]
    for key in (*(planned.cell.key for planned in plan.pool), *others):
        if key in running or key in rows:
            states[key] = "running" if key in running else rows[key].status
        elif not plan.search.may_end_early:
            states[key] = "missing"
    return StudyStatus(plan, paths, rows, states, driver)


def status(
    spec: str | Path | StudySpec | None = None, *changes: str, results: str | Path = "results"
) -> View:
    """Show which cells of a study are done, running, failed or missing.

        interplay.status("quickstart").to_json()["counts"]

    Without a spec it has the counts of every study of `results`. Nothing is changed.

    Raises:
        SpecError: as of `load_spec`.
    """
    folder = Path(results)
    if spec is None:
        return View(*_status_of_all(folder))
    return View(*_status_of(load_spec(spec, *changes, results=results), folder))


def _status_of(spec: StudySpec, results: Path) -> tuple[dict[str, Any], RenderableType]:
    """The state of a study as a JSON document and for a terminal."""
    state = study_status(spec, results)
    return status_json(state), status_table(state)


def _status_of_all(results: Path) -> tuple[list[dict[str, Any]], RenderableType]:
    """The counts of every study of a results folder as a JSON document, and one line each for a terminal."""
    documents: list[dict[str, Any]] = []
    table, problems = _table("study", "process"), []
    for file in sorted(results.glob(f"*/{SPEC}")):
        try:
            state = study_status(load_spec(str(file)), results)
        except SpecError as error:
            documents.append({"study": file.parent.name, "problem": str(error)})
            table.add_row(file.parent.name, "unread")
            problems.append(Text(str(error), style="yellow"))
            continue
        documents.append({"study": state.plan.name, "driver": state.driver, "counts": state.counts})
        table.add_row(state.plan.name, *_numbers(state.states.values()), str(state.driver or "-"))
    return documents, Group(table, *problems) if documents else Text(f"There is no study in {results} yet.")


def status_json(state: StudyStatus) -> dict[str, Any]:
    """The state of a study as a JSON document; `flops` are those of the cells that have a row."""
    answer, learning_rate = state.answer
    cells: list[dict[str, Any]] = []
    trained = []
    for cell in state.cells:
        row = state.rows.get(cell["cell"])
        if row:
            trained.append(cell["flops"] * row.trained_share)
        cells.append(
            {
                **{name: cell[name] for name in ("cell", "name", "budget", "compute") if name in cell},
                "state": state.states[cell["cell"]],
                "loss": row.loss if row else None,
                "bits_per_byte": row.bits_per_byte if row else None,
                "reason": row.reason if row else None,
            }
        )
    document: dict[str, Any] = to_json(
        {
            "study": state.plan.name,
            "driver": state.driver,
            "counts": state.counts,
            "flops": math.fsum(trained),
            "answer": answer,
            "learning_rate": learning_rate,
            "cells": cells,
        }
    )
    return document


def status_table(state: StudyStatus) -> RenderableType:
    """The state of a study for a terminal: counts by depth, then each failure with its reason."""
    table, lines = _table("depth"), []
    by_depth: dict[int, list[str]] = {}
    for cell in state.cells:
        key = cell["cell"]
        by_depth.setdefault(cell["depth"], []).append(state.states[key])
        row = state.rows.get(key)
        if row and row.reason:
            lines.append(Text(f"{row.status} {row.name} ({key}): {row.reason}", style="red"))
    for depth, states in sorted(by_depth.items()):
        table.add_row(str(depth), *_numbers(states))
    table.add_row("all", *_numbers(state.states.values()), style="bold")
    answer, learning_rate = state.answer
    lines += [Text(sentence) for sentence in answer]
    if learning_rate:
        lines.append(Text(learning_rate["sentence"]))
    if state.rows and (not answer or state.counts["running"] or state.counts["missing"]):
        last = "This is the answer of the last fit. " if answer else ""
        fit = command(
            "fit", study_source(state.plan.planner.spec, state.paths.results), results=state.paths.results
        )
        lines.append(Text(f"{last}`{fit}` fits the rows so far.", style="dim"))
    driver = f"run by process {state.driver}" if state.driver else "not running"
    return Group(Text(f"{state.plan.name}: {driver}"), table, *lines)


def _table(first: str, *last: str) -> Table:
    table = Table(box=None, header_style="dim")
    for name in (first, *KINDS, *last):
        table.add_column(name, justify="left" if name == "study" else "right")
    return table


def _numbers(states: Iterable[str]) -> list[str]:
    counts = Counter(states)
    return [str(counts[kind] or "-") for kind in KINDS]
