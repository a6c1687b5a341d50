"""`interplay status`: which cells are done, running, failed (and why) or missing, and what a study knows so far."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.design.next_cells import Choice
from analysis.design.objective import Estimate, estimate_from
from analysis.files import to_json
from analysis.fit.answer import short_answer
from analysis.fit.rate_check import RateCheck
from analysis.fit.study import Study
from study.plan import Plan, PlannedCell, make_plan
from study.results.rate_check import planned_check
from study.search import make_search
from study.search.crossing_search import next_words
from study.search.source import SearchEnd
from study.search.stopping_rule import objective_of
from study.spec.study import StudySpec
from study.tracking.ledger import outcomes, study_rows, unfinished_cells, with_recorded
from study.tracking.rows import Row
from study.tracking.study_paths import study_paths
from study.tracking.tables import study_of_rows
from study.tracking.tracker import make_tracker


@dataclass(frozen=True)
class Knowledge:
    """The estimate of a study's objective from all rows, for every sampler, and the state of the search."""

    cells: int
    flops: float
    """Training FLOPs of the finished cells."""
    estimate: Estimate
    next: tuple[Choice, ...] = ()
    """The next cells, best first; empty without a search or after its end."""
    next_words: str = ""
    ended: SearchEnd | None = None
    """The limit that ended the search."""

    def document(self) -> dict[str, Any]:
        """The key `known` of the JSON document."""
        chosen = [
            {
                **{name: getattr(choice.option, name) for name in ("depth", "width", "seed", "lr_factor")},
                "gain": choice.gain,
                "reason": choice.reason,
            }
            for choice in self.next
        ]
        counts = {"cells": self.cells, "flops": self.flops}
        return {**counts, **vars(self.estimate), "next": chosen, "ended": self.ended}


@dataclass(frozen=True)
class StudyStatus:
    """The state of each cell by key: done, diverged, failed, running or missing.

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
    known: Knowledge | None
    """None before the first cell has finished."""
    learning_rate: RateCheck | None = None
    """Whether the learning rate was checked; None while no pair of depths can be compared."""
    answer: Sequence[str] = ()
    """The first sentences of the answer."""

    @property
    def cells(self) -> list[PlannedCell]:
        """The cells that have a state."""
        return [planned for planned in self.plan.pool if planned.cell.key in self.states]


def status(spec: StudySpec, results: Path) -> tuple[dict[str, Any], RenderableType]:
    """The state of a study as a JSON document and for a terminal; changes nothing."""
    state = study_status(spec, results)
    return status_json(state), status_table(state)


def study_status(spec: StudySpec, results: Path) -> StudyStatus:
    """Read the state of a study from its ledger, and from the tracker which rows it has."""
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
    own = {key: f"{row.ended:.3f}" for key, row in recorded.items() if row.study == spec.name}
    waiting = None if problem else sum((sent or {}).get(key) != ended for key, ended in own.items())
    study = study_of_rows(plan, rows)
    begun = unfinished_cells(plan, rows, started, paths.checkpoints)
    known = _knowledge(spec, plan, rows, study, begun)
    check = planned_check(plan, study) if study else None
    answer = short_answer(study.crossings.items, study.best, study.crossings.level) if study else []
    return StudyStatus(plan, rows, states, driver, waiting, problem, sent is not None, known, check, answer)


def _knowledge(
    spec: StudySpec, plan: Plan, rows: Mapping[str, Row], study: Study | None, begun: list[str]
) -> Knowledge | None:
    """What the finished cells show; `begun` are keys of started cells without a row."""
    ended = [(planned, rows[planned.cell.key]) for planned in plan.main if planned.cell.key in rows]
    if not ended:
        return None
    known = estimate_from(study, objective_of(spec))
    flops = math.fsum(planned.flops * row.trained_share for planned, row in ended)
    state = make_search(spec, plan, outcomes(rows), begun).state() if spec.search.chooses_cells else None
    if state is None:
        return Knowledge(len(ended), flops, known)
    return Knowledge(len(ended), flops, known, state.next, next_words(state), state.ending)


def status_json(state: StudyStatus) -> dict[str, Any]:
    """The state of a study as a JSON document."""
    document: dict[str, Any] = to_json(
        {
            "study": state.plan.name,
            "driver": state.driver,
            "online": state.problem is None,
            "stored": state.stored,
            "counts": Counter(state.states.values()),
            "waiting_for_mlflow": state.waiting,
            "known": state.known.document() if state.known else None,
            "answer": state.answer,
            "learning_rate": state.learning_rate,
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
    )
    return document


def status_table(state: StudyStatus) -> RenderableType:
    """The state of a study for a terminal: counts by depth, then each failure with its reason."""
    kinds = ("done", "diverged", "failed", "running", "missing")
    table = Table(box=None, header_style="dim")
    for name in ("depth", *kinds):
        table.add_column(name, justify="right")
    for depth in sorted({p.cell.shape.depth for p in state.cells}):
        counts = Counter(state.states[p.cell.key] for p in state.cells if p.cell.shape.depth == depth)
        table.add_row(str(depth), *(str(counts[kind] or "-") for kind in kinds))
    total = Counter(state.states.values())
    table.add_row("all", *(str(total[kind] or "-") for kind in kinds), style="bold")
    driver = f"run by process {state.driver}" if state.driver else "not running"
    lines = []
    for planned in state.cells:
        row = state.rows.get(planned.cell.key)
        if row and row.reason:
            text = f"{row.status} {planned.title} ({planned.cell.key}): {row.reason}"
            lines.append(Text(text, style="red"))
    lines += [Text(sentence) for sentence in state.answer]
    if state.known:
        if state.plan.search.chooses_cells:
            lines.append(Text(state.known.estimate.words))
        if state.known.next:
            lines.append(Text(f"next: {state.known.next_words}", style="dim"))
        if state.known.ended:
            lines.append(Text(f"the search has ended: {state.known.ended.words}"))
    if state.learning_rate:
        lines.append(Text(state.learning_rate.sentence))
    if state.problem:
        lines.append(Text(f"{state.problem}; the rows above are still complete", style="yellow"))
    elif state.waiting:
        text = f"{state.waiting} rows are not in MLflow yet; `interplay run` sends them"
        lines.append(Text(text, style="yellow"))
    return Group(Text(f"{state.plan.name}: {driver}"), table, *lines)
