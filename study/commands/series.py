"""A series: studies that differ in one key, run one after the other, and a page that compares them.

Every member is an ordinary study with its own ledger, folder and report. All members share one MLflow experiment.
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
from study.tracking.study_paths import SERIES

if TYPE_CHECKING:
    # Reading a plan or a status loads no numerical library.
    from analysis.fit.document import Fit
    from study.results.sources import StudyRuns
    from study.results.status import StudyStatus
    from study.run.runner import Summary


@dataclass(frozen=True)
class FittedMember:
    """A member with its rows, its fit (None if nothing could be fitted) and its report."""

    member: SeriesMember
    source: "StudyRuns"
    fit: "Fit | None"
    report: Path | None


def refuse_series(spec: StudySpec, doing: str) -> None:
    """Refuse a series where only one study will do.

    Raises:
        SpecError: the spec is a series; the message names its members.
    """
    if spec.vary is not None:
        names = ", ".join(member.spec.name for member in members(spec))
        raise SpecError(
            f"{spec.name} is a series of the studies {names}, and {doing} takes one study; choose one, by its spec in "
            f"the results folder or with `--set vary=null`, the value of `{varied(spec)[0]}` and another name, "
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
    totals = {
        name: math.fsum(getattr(plan, name) for plan in each)
        for name in ("tokens", "flops", "device_hours", "hours")
    }
    return {
        "name": spec.name,
        "description": spec.description,
        "vary": {key: list(values)},
        "totals": {
            "cells": sum(plan.cell_count for plan in each),
            **totals,
            "cost": None if None in costs else math.fsum(cost or 0.0 for cost in costs),
        },
        "members": [{"value": member.value, "plan": plan.to_json()} for member, plan in made],
    }


def plan_view(spec: StudySpec, made: Sequence[tuple[SeriesMember, Plan]]) -> RenderableType:
    """The plans of a series for a terminal: one line per member."""
    key, _ = varied(spec)
    totals = plan_json(spec, made)["totals"]
    table = Table(
        title=f"{spec.name}, a series", box=box.SIMPLE, show_footer=True, pad_edge=False, padding=(0, 1)
    )
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
    how = f"`interplay plan {spec.name} --json` lists every cell"
    return Group(table, *(Text(line, style="dim") for line in (*notes, how)))


def run_series(
    spec: StudySpec, results: Path, console: Console
) -> "tuple[list[Summary], Path | None, str | None]":
    """Run every member as `run_study` does, then write the page of the series.

    Ctrl-C ends the running member and the series; run it again to resume.

    Args:
        spec: with `vary`.
        results: root of all results.
        console: where progress is shown.

    Returns:
        The summary of each member that was begun; the page, if all members have ended and some have a loss; and the
        address of a copy of the page on shared storage, if any.
    """
    from study.results.sources import study_runs
    from study.run.runner import copy_results, run_study
    from study.tracking.study_paths import study_paths
    from study.workers.ray_session import joins

    listed = members(spec)
    for member in listed:
        # Refuse what cannot run before hours of training; a cluster's machines are known only after joining it.
        make_plan(member.spec, to_read=joins())
    folder = results.resolve() / spec.name
    if (folder / "spec.yaml").is_file():
        raise SpecError(
            f"{folder} is the folder of a study, whose report the page of the series {spec.name!r} would replace; give "
            "the series another name with `--set name=NAME`."
        )

    summaries: list[Summary] = []
    fitted: list[FittedMember] = []
    key, _ = varied(spec)
    for number, member in enumerate(listed, 1):
        console.print(Text(f"{key} {_text(member.value)} ({number} of {len(listed)})", style="bold"))
        summary = run_study(member.spec, results, console)
        summaries.append(summary)
        if not summary.finished:
            return summaries, None, None
        fitted.append(FittedMember(member, study_runs(member.spec, results), summary.fit, summary.report))
    page = write_page(spec, fitted, folder)
    paths = study_paths(spec, results.resolve())
    copy = copy_results(paths, pages(folder), console) if page and paths.is_shared else None
    return summaries, page, copy


def read_series(
    spec: StudySpec,
    results: Path,
    *,
    level: float = 0.95,
    tokens: float | None = None,
    parametric_bootstrap: int = 0,
) -> list[FittedMember]:
    """Fit the members of a series that have rows.

    Args:
        spec: with `vary`.
        results: root of all results.
        level: of all intervals.
        tokens: training tokens at which losses are compared, see `analysis.runs.comparison.compare`.
        parametric_bootstrap: see `analysis.fit.document.fit`.

    Raises:
        SpecError: no member has rows.
    """
    from analysis.fit.document import fit
    from study.results.sources import NoRowsError, study_runs
    from study.tracking.study_paths import study_paths

    found = []
    for member in members(spec):
        try:
            source = study_runs(member.spec, results)
        except NoRowsError:
            continue
        fitted = None
        with suppress(InputError):  # no usable loss; the page shows that
            fitted = fit(
                source.table,
                level=level,
                tokens=tokens,
                parametric_bootstrap=parametric_bootstrap,
                entropy=source.known["entropy"],
            )
        report = study_paths(member.spec, results.resolve()).folder / "report.html"
        found.append(FittedMember(member, source, fitted, report if report.is_file() else None))
    if not found:
        raise SpecError(
            f"no study of the series {spec.name!r} has rows in {results} yet; run it with `interplay run SPEC` and the "
            "same spec and options."
        )
    return found


def fits_json(spec: StudySpec, fitted: Sequence[FittedMember]) -> dict[str, Any]:
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
            for one in fitted
        ],
    }


def report_series(
    spec: StudySpec, results: Path, out: Path, *, level: float = 0.95, tokens: float | None = None
) -> Path:
    """Write the report of every member that has rows into its own folder below `out`, and the page above them.

    Raises:
        SpecError: no member has rows, or none has a usable loss.
    """
    from analysis.report.study_page import write_report

    written = []
    for one in read_series(spec, results, level=level, tokens=tokens):
        path = None
        if one.fit:
            name = one.member.spec.name
            path = write_report(one.source.table, one.fit, out / name, title=name, **one.source.known)
        written.append(replace(one, report=path))
    page = write_page(spec, written, out)
    if page is None:
        raise SpecError(f"no study of the series {spec.name} has a row with a usable loss.")
    return page


def write_page(spec: StudySpec, fitted: Sequence[FittedMember], folder: Path) -> Path | None:
    """Write the page of a series, `series.json` and figures into a folder; None if no member has a loss."""
    from analysis.fit.series import Member
    from analysis.report.series_page import write_series
    from study.tracking.provenance import revision, versions

    if not any(len(one.source.table.used) for one in fitted):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SERIES).write_text(spec.to_yaml())
    cells = [one.source.plan.cells[0].cell for one in fitted]
    same = {(cell.data_key, cell.recipe.steps, cell.recipe.batch, cell.recipe.context) for cell in cells}
    facts = {
        "series": spec.description or spec.name,
        **({"claim": spec.claim} if spec.claim else {}),
        **_common_facts(fitted),
        "revision": revision(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    return write_series(
        [
            Member(
                one.member.value,
                one.source.table,
                one.fit,
                Path(os.path.relpath(one.report, folder)).as_posix() if one.report else None,
            )
            for one in fitted
        ],
        folder,
        title=spec.name,
        key=varied(spec)[0],
        facts=facts,
        comparable=len(same) == 1,
    )


def _common_facts(fitted: Sequence[FittedMember]) -> dict[str, str]:
    """Data, training and seeds of the members: one text if they agree, else one per value."""
    facts: dict[str, list[str]] = {"data": [], "training": [], "seeds": []}
    for one in fitted:
        recipe = one.source.plan.cells[0].cell.recipe
        facts["data"].append(f"{one.member.spec.data.kind}, vocabulary {one.source.plan.vocabulary}")
        facts["training"].append(
            f"{recipe.steps:,} steps of {recipe.batch} × {recipe.context} tokens per cell, "
            f"precision {recipe.precision}"
        )
        facts["seeds"].append(", ".join(map(str, one.member.spec.training.seed_values)))
    values = [_text(one.member.value) for one in fitted]
    return {
        name: texts[0]
        if len(set(texts)) == 1
        else "; ".join(f"{value}: {text}" for value, text in zip(values, texts, strict=True))
        for name, texts in facts.items()
    }


def pages(folder: Path) -> list[Path]:
    """The files and folders of a series' page."""
    return [folder / name for name in (SERIES, "series.json", "report.html", "figures")]


def page_words(page: Path) -> list[str]:
    """The answers on the page of a series, one sentence each."""
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
    """The state of a series for a terminal: one table per member."""
    from study.results.status import status_table

    return Group(*(status_table(state) for _, state in found))


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
