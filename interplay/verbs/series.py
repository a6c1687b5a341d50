"""A series: studies that differ in one key (`vary`), and the page that compares them.

Each member is an ordinary study with its own rows, folder and report. All share one MLflow experiment.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from core.command_line import command, option, try_with
from core.errors import InputError
from core.numbers import duration, prefixed
from interplay.result import Result
from interplay.terminal import say, text_table
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.spec.study import StudySpec, members
from study.spec.yaml_file import SERIES
from study.tracking.study_paths import check_owner, check_series_owner, study_paths


def refuse_series(spec: StudySpec, doing: str) -> None:
    """Raise a SpecError that names the members of a series, where only one study will do."""
    if spec.vary is not None:
        each = members(spec)
        names = ", ".join(one.name for one in each.values())
        value, first = next(iter(each.items()))
        changes = [
            "vary=null",
            f"{spec.varied_key}={value}",
            f"name={first.name}",
            f"tracking.experiment={spec.experiment}",
        ]
        raise SpecError(
            f"{spec.name} is a series of the studies {names}, and {doing} takes one study. One that was "
            f"run is found by its name; any other is the series with `vary=null`, one `{spec.varied_key}` and a "
            f"name.{try_with(changes=changes)}"
        )


@dataclass(frozen=True, repr=False)
class SeriesPlan(Result):
    """The plans of the studies of a series, by the value of the key that is varied."""

    spec: StudySpec
    plans: Mapping[int | float | str, Plan]

    @cached_property
    def totals(self) -> dict[str, Any]:
        """Cells, tokens, FLOPs, hours of a device, hours and cost of all studies; None if one of them has none."""
        each = [plan["plan"]["totals"] for plan in self._documents]
        return {
            name: None if None in (summands := [totals[name] for totals in each]) else sum(summands)
            for name in each[0]
        }

    @cached_property
    def _documents(self) -> list[dict[str, Any]]:
        return [{"value": value, "plan": plan.to_json()} for value, plan in self.plans.items()]

    def to_json(self) -> dict[str, Any]:
        """Return the document of `interplay plan --json`."""
        spec = self.spec
        head = {"name": spec.name, "description": spec.description, "vary": spec.vary}
        return {**head, "totals": self.totals, "members": self._documents}

    def __rich__(self) -> RenderableType:
        heads = [*((str(value), plan.name) for value, plan in self.plans.items()), ("total", "")]
        rows = [
            (
                *head,
                f"{totals['cells']:,}",
                prefixed(totals["tokens"]),
                prefixed(totals["flops"]),
                duration(totals["hours"] * 3600),
            )
            for head, totals in zip(
                heads, [*(plan["plan"]["totals"] for plan in self._documents), self.totals], strict=True
            )
        ]
        names = (self.spec.varied_key, "study", "cells", "tokens", "FLOPs", "time")
        table = text_table(f"{self.spec.name}, a series", names, rows, left=names[:2])
        notes = dict.fromkeys(note for plan in self.plans.values() for note in plan.notes)
        lines = (*notes, f"{option('json')} lists every cell")
        return Group(table, *(Text(line, style="dim") for line in lines))


def plan_series(spec: StudySpec) -> SeriesPlan:
    """Plan every study of a series."""
    return SeriesPlan(spec, {value: make_plan(member) for value, member in members(spec).items()})


def run(spec: StudySpec, results: Path, console: Console) -> tuple[Mapping[str, str] | None, bool]:
    """Run every member and write the page; return as `interplay.verbs.run.run_one`."""
    from interplay.verbs.answer import NoRowsError
    from study.run.runner import copy_results, run_study
    from study.workers.ray_session import joins

    paths, specs = study_paths(spec, results.resolve()), members(spec)
    failed: dict[str, str] = {}
    for one in specs.values():
        # Refuse what cannot run before hours of training; a cluster's machines are known only after joining it.
        place = study_paths(one, results.resolve())
        check_owner(make_plan(one, to_read=joins()), place, place.ledger.rows())
    check_series_owner(spec, paths.folder)
    for number, (value, one) in enumerate(specs.items(), 1):
        console.print(Text(f"{spec.varied_key} {value} ({number} of {len(specs)})", style="bold"))
        summary = run_study(one, results, console)
        if not summary.finished:
            return None, False
        failed.update(summary.failed)
        for words, hint in summary.hints:
            say(words, hint)
    try:
        page = write_page(spec, results, None, renew=False)
    except NoRowsError:
        return failed, True
    for line in json.loads((page.parent / "series.json").read_text())["answers"]:
        console.print(Text(line))
    say("Series: ", page)
    written = [paths.folder / name for name in (SERIES, "series.json", "report.html", "figures")]
    if paths.is_shared and (copy := copy_results(paths, written, console)):
        say("A copy of its page: ", copy)
    return failed, False


def write_page(
    spec: StudySpec,
    results: Path,
    out: Path | None,
    *,
    renew: bool,
    arguments: Sequence[str] = (),
    **options: Any,
) -> Path:
    """Write the page of a series into `out`, by default its folder; with `renew` also the report of every member.

    Options are those of `analysis.fit.document.fit`; `arguments` name the series in a command.
    Raises NoRowsError if no member has a row with a usable loss, and
    OtherStudyError if the folder of the series is that of a study or of another series.
    """
    from analysis.fit.series import Member
    from analysis.report.series_page import write_series
    from analysis.report.study_page import write_report
    from analysis.runs.bytes import NoBytesError
    from interplay.verbs.answer import NoRowsError, study_fit, study_runs

    folder = out or study_paths(spec, results.resolve()).folder
    if out is None:
        check_series_owner(spec, folder)
    compared: list[Member] = []
    facts: dict[str, dict[str, str]] = {}
    recipes = set()
    for value, one in members(spec).items():
        try:
            source = study_runs(one, results)
        except NoRowsError:
            continue
        fitted = None
        try:
            fitted = study_fit(source.plan, source.table, results, **options)
        except NoBytesError:
            raise
        except InputError:
            pass  # no usable loss; the page shows that
        page = (out / one.name if out else study_paths(one, results.resolve()).folder) / "report.html"
        if fitted and renew:
            write_report(source.table, fitted, page.parent, title=one.name, **source.report_data)
        link = Path(os.path.relpath(page, folder)).as_posix() if page.is_file() else None
        compared.append(Member(value, source.table, fitted, link))
        cell = source.plan.cells[0].cell
        recipes.add((cell.data_key, one.length, cell.recipe.batch, cell.recipe.context))
        for name, fact in source.report_data["facts"].items():
            facts.setdefault(name, {})[str(value)] = fact
    if not any(len(one.runs.used) for one in compared):
        raise NoRowsError(
            f"no study of the series {spec.name!r} has a row with a usable loss in {results} yet; run it with "
            f"`{command('run', *(arguments or [spec.name]), results=results)}`."
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SERIES).write_text(spec.to_yaml())
    shown = {"series": spec.description or spec.name}
    for name, texts in facts.items():
        fact, *others = dict.fromkeys(texts.values())
        shown[name] = "; ".join(f"{value}: {own}" for value, own in texts.items()) if others else fact
    del shown["study"]
    same = len(recipes) == 1
    return write_series(compared, folder, title=spec.name, key=spec.varied_key, facts=shown, comparable=same)
