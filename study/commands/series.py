"""A series: studies that differ in one key, run one after the other, and a page that compares them.

Every member is an ordinary study with its own ledger, folder and report. All members share one MLflow experiment.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.errors import InputError
from study.errors import SpecError
from study.plan.plan import make_plan
from study.plan.table import duration, short
from study.spec.study import SeriesMember, StudySpec, members, varied
from study.tracking.study_paths import SERIES, study_paths

if TYPE_CHECKING:
    # Reading a plan or a status loads no numerical library.
    from analysis.fit.document import Fit
    from study.results.sources import StudyRuns


@dataclass(frozen=True)
class FittedMember:
    """A member with its rows, its fit (None if nothing could be fitted) and its report."""

    member: SeriesMember
    source: "StudyRuns"
    fit: "Fit | None"
    report: Path | None


def refuse_series(spec: StudySpec, doing: str) -> None:
    """Raise a SpecError that names the members of a series, where only one study will do."""
    if spec.vary is not None:
        names = ", ".join(member.spec.name for member in members(spec))
        raise SpecError(
            f"{spec.name} is a series of the studies {names}, and {doing} takes one study; choose one, by its spec in "
            f"the results folder or with `--set vary=null`, the value of `{varied(spec)[0]}` and another name, "
            "`--set name=NAME`."
        )


def plan(spec: StudySpec) -> tuple[dict[str, Any], RenderableType]:
    """The plans of all members as one document with totals, and for a terminal one line per member."""
    plans = [make_plan(member.spec) for member in members(spec)]
    documents = [plan.to_json() for plan in plans]
    each = [document["totals"] for document in documents]
    totals: dict[str, Any] = {"cells": sum(one["cells"] for one in each)}
    for name in ("tokens", "flops", "device_hours", "hours", "cost"):
        summands = [one[name] for one in each]
        totals[name] = None if None in summands else math.fsum(summands)
    key, values = varied(spec)

    def counts(of: Mapping[str, Any]) -> list[str]:
        return [f"{of['cells']:,}", short(of["tokens"]), short(of["flops"]), duration(of["hours"] * 3600)]

    table = Table(
        title=f"{spec.name}, a series", box=box.SIMPLE, show_footer=True, pad_edge=False, padding=(0, 1)
    )
    table.add_column(key, "total")
    table.add_column("study")
    for name, total in zip(("cells", "tokens", "FLOPs", "time"), counts(totals), strict=True):
        table.add_column(name, total, justify="right")
    for value, document in zip(values, documents, strict=True):
        table.add_row(text(value), document["name"], *counts(document["totals"]))
    notes = list(dict.fromkeys(note for plan in plans for note in plan.notes))
    how = f"`interplay plan {spec.name} --json` lists every cell"
    view = Group(table, *(Text(line, style="dim") for line in (*notes, how)))
    return {
        "name": spec.name,
        "description": spec.description,
        "vary": {key: list(values)},
        "totals": totals,
        "members": [
            {"value": value, "plan": document} for value, document in zip(values, documents, strict=True)
        ],
    }, view


def read_series(spec: StudySpec, results: Path, **options: Any) -> list[FittedMember]:
    """Fit the members that have rows, with options of `analysis.fit.document.fit`; SpecError if none has."""
    from study.results.answer import study_fit
    from study.results.sources import NoRowsError, study_runs

    found = []
    for member in members(spec):
        try:
            source = study_runs(member.spec, results)
        except NoRowsError:
            continue
        fitted = None
        with suppress(InputError):  # no usable loss; the page shows that
            fitted = study_fit(source.plan, source.table, **options)
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


def report_series(spec: StudySpec, results: Path, out: Path | None, **options: Any) -> Path:
    """Write the report of every member that has rows, and the page of the series, into their folders of the results.

    With `out` the page is written there, and the reports into folders below.

    Raises:
        SpecError: no member has rows, or none has a usable loss.
    """
    from analysis.report.study_page import write_report

    written = []
    for one in read_series(spec, results, **options):
        path = None
        if one.fit:
            name = one.member.spec.name
            folder = out / name if out else study_paths(one.member.spec, results.resolve()).folder
            path = write_report(one.source.table, one.fit, folder, title=name, **one.source.known)
        written.append(replace(one, report=path))
    page = write_page(spec, written, out or study_paths(spec, results.resolve()).folder)
    if page is None:
        raise SpecError(f"no study of the series {spec.name} has a row with a usable loss.")
    return page


def write_page(spec: StudySpec, fitted: Sequence[FittedMember], folder: Path) -> Path | None:
    """Write the page of a series, `series.json` and figures into a folder; None if no member has a loss."""
    from analysis.fit.series import Member
    from analysis.report.series_page import write_series

    if not any(len(one.source.table.used) for one in fitted):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SERIES).write_text(spec.to_yaml())
    cells = [one.source.plan.cells[0].cell for one in fitted]
    same = {(cell.data_key, cell.recipe.steps, cell.recipe.batch, cell.recipe.context) for cell in cells}
    listed = []
    for one in fitted:
        link = Path(os.path.relpath(one.report, folder)).as_posix() if one.report else None
        listed.append(Member(one.member.value, one.source.table, one.fit, link))
    return write_series(
        listed,
        folder,
        title=spec.name,
        key=varied(spec)[0],
        facts={"series": spec.description or spec.name, **_common_facts(fitted)},
        comparable=len(same) == 1,
    )


def _common_facts(fitted: Sequence[FittedMember]) -> dict[str, str]:
    """The provenance of the members: one text if they agree, else one per value."""
    each = {text(one.member.value): one.source.known["facts"] for one in fitted}
    facts = dict(fitted[0].source.known["facts"])
    del facts["study"]
    for name in facts:
        texts = {value: known[name] for value, known in each.items()}
        if len(set(texts.values())) > 1:
            facts[name] = "; ".join(f"{value}: {text}" for value, text in texts.items())
    return facts


def page_words(page: Path) -> list[str]:
    """The answers on the page of a series, one sentence each."""
    answers: list[str] = json.loads((page.parent / "series.json").read_text())["answers"]
    return answers


def status(spec: StudySpec, results: Path) -> tuple[dict[str, Any], RenderableType]:
    """The state of every member as one document, and for a terminal one table per member; changes nothing."""
    from study.results.status import status as status_of

    counts: Counter[str] = Counter()
    documents, views = [], []
    for member in members(spec):
        document, view = status_of(member.spec, results)
        counts.update(document["counts"])
        documents.append({"value": member.value, **document})
        views.append(view)
    key, _ = varied(spec)
    return {"study": spec.name, "vary": key, "counts": counts, "members": documents}, Group(*views)


def text(value: float | str) -> str:
    """The value of the key in which the members differ, for people."""
    return value if isinstance(value, str) else f"{value:g}"
