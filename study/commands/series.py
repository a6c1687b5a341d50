"""A series: studies that differ in one key, run one after the other, and a page that compares them.

Every member is an ordinary study with its own rows, folder and report. All members share one MLflow experiment.
"""

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.errors import InputError
from study.commands.output import relative, say
from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.table import duration, short
from study.spec.study import StudySpec, members
from study.tracking.study_paths import SERIES, check_owner, check_series_owner, study_paths


def refuse_series(spec: StudySpec, doing: str) -> None:
    """Raise a SpecError that names the members of a series, where only one study will do."""
    if spec.vary is not None:
        names = ", ".join(one.name for one in members(spec).values())
        raise SpecError(
            f"{spec.name} is a series of the studies {names}, and {doing} takes one study; choose one, by its spec in "
            f"the results folder or with `vary=null`, the value of `{spec.varied_key}` and another name, `name=NAME`."
        )


def plan(spec: StudySpec) -> tuple[dict[str, Any], RenderableType]:
    """The plans of all members as one document with totals, and for a terminal one line per member."""
    plans = {value: make_plan(one) for value, one in members(spec).items()}
    documents: list[Any] = [{"value": value, "plan": plan.to_json()} for value, plan in plans.items()]
    each = [one["plan"]["totals"] for one in documents]
    totals: dict[str, Any] = {"cells": sum(one["cells"] for one in each)}
    for name in ("tokens", "flops", "device_hours", "hours", "cost"):
        summands = [one[name] for one in each]
        totals[name] = None if None in summands else math.fsum(summands)
    table = Table(title=f"{spec.name}, a series", box=box.SIMPLE, pad_edge=False, padding=(0, 1))
    for number, name in enumerate((spec.varied_key, "study", "cells", "tokens", "FLOPs", "time")):
        table.add_column(name, justify="left" if number < 2 else "right")
    rows = [*((text(value), plan.name) for value, plan in plans.items()), ("total", "")]
    for row, of in zip(rows, [*each, totals], strict=True):
        table.add_row(
            *row, f"{of['cells']:,}", short(of["tokens"]), short(of["flops"]), duration(of["hours"] * 3600)
        )
    notes = dict.fromkeys(note for plan in plans.values() for note in plan.notes)
    how = "--json lists every cell"
    head = {"name": spec.name, "description": spec.description, "vary": spec.vary, "totals": totals}
    view = Group(table, *(Text(line, style="dim") for line in (*notes, how)))
    return {**head, "members": documents}, view


def run(spec: StudySpec, results: Path, console: Console) -> tuple[dict[str, str] | None, bool]:
    """Run every member and write the page; return as `study.commands.run.run_study`."""
    from study.run.runner import copy_results, run_study
    from study.workers.ray_session import joins

    specs = members(spec)
    for one in specs.values():
        # Refuse what cannot run before hours of training; a cluster's machines are known only after joining it.
        plan, place = make_plan(one, to_read=joins()), study_paths(one, results.resolve())
        check_owner(plan, place, place.ledger.rows())
    paths = study_paths(spec, results.resolve())
    check_series_owner(spec, paths.folder)
    failed: dict[str, str] = {}
    for number, (value, one) in enumerate(specs.items(), 1):
        title = f"{spec.varied_key} {text(value)} ({number} of {len(specs)})"
        console.print(Text(title, style="bold"))
        summary = run_study(one, results, console)
        if not summary.finished:
            return None, False
        failed.update(summary.failed)
    page = _write_page(spec, results, paths.folder, {})
    if page is None:
        return failed, True
    for line in page_words(page):
        console.print(Text(line))
    say("Series: ", relative(page))
    written = [paths.folder / name for name in (SERIES, "series.json", "report.html", "figures")]
    if paths.is_shared and (copy := copy_results(paths, written, console)):
        say("A copy of its page: ", copy)
    return failed, False


def report(spec: StudySpec, results: Path, out: Path | None, **options: Any) -> Path:
    """Write the report of every member that has rows, and the page of the series, into their folders of the results.

    With `out` the page is written there, and the reports into folders below; options are those of
    `analysis.fit.document.fit`.

    Raises:
        SpecError: no member has a row with a usable loss.
    """
    folders = {
        value: out / one.name if out else study_paths(one, results.resolve()).folder
        for value, one in members(spec).items()
    }
    folder = out or study_paths(spec, results.resolve()).folder
    if out is None:
        check_series_owner(spec, folder)
    page = _write_page(spec, results, folder, folders, **options)
    if page is None:
        raise SpecError(
            f"no study of the series {spec.name!r} has a row with a usable loss in {results} yet; run it with "
            "`interplay run SPEC` and the same spec and options."
        )
    return page


def _write_page(
    spec: StudySpec, results: Path, folder: Path, anew: dict[Any, Path], **options: Any
) -> Path | None:
    """Write the page of a series, and before it the reports of the members in `anew` into the folders given there.

    Members without rows are left out. None if no row has a loss.
    """
    from analysis.fit.series import Member
    from analysis.report.series_page import write_series
    from analysis.report.study_page import write_report
    from study.results.answer import study_fit
    from study.results.sources import NoRowsError, study_runs

    compared, facts, recipes = [], {}, set()
    for value, one in members(spec).items():
        fitted = None
        with suppress(NoRowsError):
            source = study_runs(one, results)
            with suppress(InputError):  # no usable loss; the page shows that
                fitted = study_fit(source.plan, source.table, **options)
            page = anew.get(value, study_paths(one, results.resolve()).folder) / "report.html"
            if fitted and value in anew:
                write_report(source.table, fitted, page.parent, title=one.name, **source.known)
            link = Path(os.path.relpath(page, folder)).as_posix() if page.is_file() else None
            compared.append(Member(value, source.table, fitted, link))
            cell, facts[text(value)] = source.plan.cells[0].cell, source.known["facts"]
            recipes.add((cell.data_key, cell.recipe.steps, cell.recipe.batch, cell.recipe.context))
    if not any(len(one.runs.used) for one in compared):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SERIES).write_text(spec.to_yaml())
    shown = {"series": spec.description or spec.name, **_common(facts)}
    same = len(recipes) == 1
    return write_series(compared, folder, title=spec.name, key=spec.varied_key, facts=shown, comparable=same)


def _common(facts: dict[str, dict[str, str]]) -> dict[str, str]:
    """The provenance of the members: one text if they agree, else one per value."""
    found = {}
    for name in next(iter(facts.values())):
        texts = {value: known[name] for value, known in facts.items()}
        each = "; ".join(f"{value}: {text}" for value, text in texts.items())
        found[name] = each if len(set(texts.values())) > 1 else next(iter(texts.values()))
    return {name: text for name, text in found.items() if name != "study"}


def page_words(page: Path) -> list[str]:
    """The answers on the page of a series, one sentence each."""
    answers: list[str] = json.loads((page.parent / "series.json").read_text())["answers"]
    return answers


def status(spec: StudySpec, results: Path) -> tuple[dict[str, Any], RenderableType]:
    """The state of every member as one document, and for a terminal one table per member; changes nothing."""
    from study.results.status import status as status_of

    found = {value: status_of(one, results) for value, one in members(spec).items()}
    documents = [{"value": value, **document} for value, (document, _) in found.items()]
    view = Group(*(view for _, view in found.values()))
    return {"study": spec.name, "vary": spec.varied_key, "members": documents}, view


def text(value: float | str) -> str:
    """The value of the key in which the members differ, for people."""
    return value if isinstance(value, str) else f"{value:g}"
