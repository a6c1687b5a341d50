"""A series: studies that differ in one key, run one after the other, and a page that holds them against each other.

Every member is a study like any other, with a ledger, a folder and a report of its own; a series adds nothing to what a
cell is. All members share one MLflow experiment.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.errors import InputError
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.plan.table import duration, short
from study.spec.study import SeriesMember, StudySpec, members, varied
from study.tracking.study_paths import SERIES as SPEC

if TYPE_CHECKING:
    # Reading a plan or a status loads no numerical library.
    from analysis.fit.document import Fit
    from study.results.sources import StudyRuns
    from study.results.status import StudyStatus
    from study.run.runner import Summary


@dataclass(frozen=True)
class Compared:
    """What is known of one member once it has rows."""

    member: SeriesMember
    source: "StudyRuns"
    fit: "Fit | None"
    """None where nothing could be fitted."""
    report: Path | None


def refuse_series(spec: StudySpec, doing: str) -> None:
    """Refuse a series where only one study will do.

    Raises:
        SpecError: the spec is one; it names its members.
    """
    if spec.vary is not None:
        names = ", ".join(member.spec.name for member in members(spec))
        raise SpecError(
            f"{spec.name} is a series of the studies {names}, and {doing} takes one study; choose one, by its spec in "
            f"the results folder or with `--set vary=null`, the value of `{varied(spec)[0]}` and a name of its own, "
            "`--set name=NAME`."
        )


def plans(spec: StudySpec) -> list[tuple[SeriesMember, Plan]]:
    """The plan of every member; raises as `make_plan` does."""
    return [(member, make_plan(member.spec)) for member in members(spec)]


def plan_json(spec: StudySpec, made: Sequence[tuple[SeriesMember, Plan]]) -> dict[str, Any]:
    """The plans of a series as one document: totals, and each member's own plan."""
    key, values = varied(spec)
    each = [plan for _, plan in made]
    costs = [plan.cost for plan in each]
    return {
        "name": spec.name,
        "description": spec.description,
        "vary": {key: list(values)},
        "totals": {
            "cells": sum(plan.cell_count for plan in each),
            "tokens": math.fsum(plan.tokens for plan in each),
            "flops": math.fsum(plan.flops for plan in each),
            "device_hours": math.fsum(plan.device_hours for plan in each),
            "hours": math.fsum(plan.hours for plan in each),
            "cost": None if None in costs else math.fsum(cost or 0.0 for cost in costs),
        },
        "members": [{"value": member.value, "plan": plan.to_json()} for member, plan in made],
    }


def plan_view(spec: StudySpec, made: Sequence[tuple[SeriesMember, Plan]]) -> RenderableType:
    """The plans of a series for a terminal: a line a member."""
    key, _ = varied(spec)
    table = Table(
        title=f"{spec.name}, a series", box=box.SIMPLE, show_footer=True, pad_edge=False, padding=(0, 1)
    )
    document = plan_json(spec, made)
    totals = document["totals"]
    table.add_column(key, "total")
    table.add_column("study")
    for name, total in (
        ("cells", f"{totals['cells']:,}"),
        ("tokens", short(totals["tokens"])),
        ("FLOPs", short(totals["flops"])),
        ("time", duration(totals["hours"] * 3600)),
    ):
        table.add_column(name, total, justify="right")
    for member, plan in made:
        table.add_row(
            _text(member.value), plan.name, f"{plan.cell_count:,}", short(plan.tokens), short(plan.flops),
            duration(plan.hours * 3600),
        )  # fmt: skip
    notes = list(dict.fromkeys(note for _, plan in made for note in plan.notes))
    how = f"one cell after the other is listed by `interplay plan {spec.name} --json`"
    return Group(table, *(Text(line, style="dim") for line in (*notes, how)))


def run_series(
    spec: StudySpec,
    results: Path,
    console: Console,
) -> "tuple[list[Summary], Path | None, str | None]":
    """Run every member as `run_study` does, then write the page of the series.

    Ctrl-C ends the member that runs, and the series with it; run again, it goes on there.

    Args:
        spec: with `vary`.
        results: root of all results.
        console: where progress is shown.

    Returns:
        what became of each member that was begun; the page, if all have ended and some have a loss; and where a copy of
        it lies that outlives this machine.
    """
    from study.results.sources import study_runs
    from study.run.runner import copy_results, run_study
    from study.tracking.study_paths import study_paths
    from study.workers.ray_session import joins

    listed = members(spec)
    for member in listed:
        # What cannot run is refused before hours of what can; what a cluster holds is known once it was joined.
        make_plan(member.spec, to_read=joins())
    folder = results.resolve() / spec.name
    if (folder / "spec.yaml").is_file():
        raise SpecError(
            f"{folder} is the folder of a study, whose report the page of the series {spec.name!r} would replace; give "
            "the series a name of its own with `--set name=NAME`."
        )

    summaries: list[Summary] = []
    compared: list[Compared] = []
    key, _ = varied(spec)
    for number, member in enumerate(listed, 1):
        head = f"{key} {_text(member.value)} ({number} of {len(listed)})"
        console.print(Text(head, style="bold"))
        summary = run_study(member.spec, results, console)
        summaries.append(summary)
        if not summary.finished:
            return summaries, None, None
        compared.append(Compared(member, study_runs(member.spec, results), summary.fit, summary.report))
    page = write_page(spec, compared, folder)
    paths = study_paths(spec, results.resolve())
    copy = copy_results(paths, pages(folder), console) if page and paths.is_shared else None
    return summaries, page, copy


def read_series(
    spec: StudySpec, results: Path, *, level: float = 0.95, tokens: float | None = None, refits: int = 0
) -> list[Compared]:
    """The members of a series that have rows, fitted again.

    Args:
        spec: with `vary`.
        results: root of all results.
        level: of all intervals.
        tokens: where losses are compared, see `analysis.runs.comparison.compare`.
        refits: see `analysis.fit.document.fit`.

    Raises:
        SpecError: none has.
    """
    from study.results.sources import NoRowsError, study_runs
    from study.tracking.study_paths import study_paths

    found = []
    for member in members(spec):
        try:
            source = study_runs(member.spec, results)
        except NoRowsError:
            continue
        own = study_paths(member.spec, results.resolve()).folder / "report.html"
        fitted = _fitted(source, level, tokens, refits)
        found.append(Compared(member, source, fitted, own if own.is_file() else None))
    if not found:
        raise SpecError(
            f"no study of the series {spec.name!r} has rows in {results} yet; run it with `interplay run SPEC`, the "
            "spec and the options that you gave here."
        )
    return found


def _fitted(source: "StudyRuns", level: float, tokens: float | None, refits: int) -> "Fit | None":
    from analysis.fit.document import fit

    # Where no row has a loss that can be used there is nothing to fit; the page says so of that value.
    with suppress(InputError):
        found = fit(source.table, level=level, tokens=tokens, refits=refits, entropy=source.known["entropy"])
        return source.compared(found)
    return None


def fits_json(spec: StudySpec, compared: Sequence[Compared]) -> dict[str, Any]:
    """The fits of a series as one document."""
    return {
        "series": spec.name,
        "vary": varied(spec)[0],
        "members": [
            {
                "value": one.member.value,
                "study": one.member.spec.name,
                "fit": one.fit.to_json() if one.fit else None,
            }
            for one in compared
        ],
    }


def report_series(
    spec: StudySpec, results: Path, out: Path, *, level: float = 0.95, tokens: float | None = None
) -> Path:
    """Write the report of every member that has rows into a folder of its own below `out`, and the page above them.

    Raises:
        SpecError: no member has rows, or none a loss that can be used.
    """
    from analysis.report.study_page import write_report

    written = []
    for one in read_series(spec, results, level=level, tokens=tokens):
        path = None
        if one.fit:
            known = {**one.source.known, **one.source.searched()}
            name = one.member.spec.name
            path = write_report(one.source.table, one.fit, out / name, title=name, **known)
        written.append(replace(one, report=path))
    page = write_page(spec, written, out)
    if page is None:
        raise SpecError(f"no study of the series {spec.name} has a row with a loss that can be used.")
    return page


def write_page(spec: StudySpec, compared: Sequence[Compared], folder: Path) -> Path | None:
    """Write the page of a series, `series.json` and figures into a folder; None where no member has a loss."""
    from analysis.fit.series import Member
    from analysis.report.series_page import write_series
    from study.tracking.provenance import revision, versions

    if not any(len(one.source.table.used) for one in compared):
        return None
    key, _ = varied(spec)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPEC).write_text(spec.to_yaml())
    cells = [one.source.plan.cells[0].cell for one in compared]
    same = {(one.data_key, one.recipe.steps, one.recipe.batch, one.recipe.context) for one in cells}
    facts = {
        "series": spec.description or spec.name,
        **({"claim": spec.claim} if spec.claim else {}),
        **_common(compared),
        "revision": revision(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    return write_series(
        [Member(one.member.value, one.source.table, one.fit, _link(one.report, folder)) for one in compared],
        folder,
        title=spec.name,
        key=key,
        facts=facts,
        comparable=len(same) == 1,
    )


def _common(compared: Sequence[Compared]) -> dict[str, str]:
    """Data, training and seeds of the members: once where they agree, else of each value."""
    told: dict[str, list[str]] = {"data": [], "training": [], "seeds": []}
    for one in compared:
        recipe = one.source.plan.cells[0].cell.recipe
        told["data"].append(f"{one.member.spec.data.kind}, vocabulary {one.source.plan.vocabulary}")
        told["training"].append(
            f"{recipe.steps:,} steps of {recipe.batch} × {recipe.context} tokens a cell, precision {recipe.precision}"
        )
        told["seeds"].append(", ".join(map(str, one.member.spec.training.seed_values)))
    values = [_text(one.member.value) for one in compared]
    return {
        name: texts[0]
        if len(set(texts)) == 1
        else "; ".join(f"{value}: {text}" for value, text in zip(values, texts, strict=True))
        for name, texts in told.items()
    }


def pages(folder: Path) -> list[Path]:
    """The files and folders of a series' page."""
    return [folder / name for name in (SPEC, "series.json", "report.html", "figures")]


def page_words(page: Path) -> list[str]:
    """What the page of a series says, a sentence each."""
    answers: list[str] = json.loads((page.parent / "series.json").read_text())["answers"]
    return answers


def statuses(spec: StudySpec, results: Path) -> "list[tuple[SeriesMember, StudyStatus]]":
    """The state of every member, from its ledger; changes nothing."""
    from study.results.status import study_status

    return [(member, study_status(member.spec, results)) for member in members(spec)]


def status_json(spec: StudySpec, found: "Sequence[tuple[SeriesMember, StudyStatus]]") -> dict[str, Any]:
    """The state of a series as one document."""
    from study.results.status import status_json as one

    counts: Counter[str] = Counter()
    for _, state in found:
        counts.update(state.states.values())
    return {
        "study": spec.name,
        "vary": varied(spec)[0],
        "counts": dict(counts),
        "members": [{"value": member.value, **one(state)} for member, state in found],
    }


def status_view(found: "Sequence[tuple[SeriesMember, StudyStatus]]") -> RenderableType:
    """The state of a series for a terminal: each member's own."""
    from study.results.status import status_table

    return Group(*(status_table(state) for _, state in found))


def _link(report: Path | None, folder: Path) -> str | None:
    """A member's report as the page links to it, or None where it has none."""
    return None if report is None else Path(os.path.relpath(report, folder)).as_posix()


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
