"""From the run table to the answer: fit, recommendations and the report of a study."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.errors import InputError
from analysis.fit import Fit, fit
from analysis.projection import LEVINE2020, Law
from analysis.report import write_report
from analysis.runs import RunTable
from study.ledger import Places
from study.plan import Plan
from study.provenance import revision, versions
from study.spec import StudySpec


def answer(
    spec: StudySpec, plan: Plan, runs: RunTable, where: Places, curves: pd.DataFrame | None
) -> tuple[Fit, Path]:
    """Fit a study's run table and write `report.html`, `fit.json`, `runs.csv` and the figures beside it."""
    result = fit(runs)
    report = write_report(
        runs,
        result,
        where.folder,
        title=spec.name,
        facts=facts(spec, plan),
        floor=plan.floor,
        curves=curves,
        spec_text=spec.to_yaml(),
    )
    return result, report


def facts(spec: StudySpec, plan: Plan) -> dict[str, str]:
    """Where the numbers come from, for the foot of the report."""
    recipe = plan.cells[0].cell.recipe
    return {
        "study": spec.description or spec.name,
        "data": f"{spec.data.kind}, vocabulary {plan.vocabulary}, content {plan.cells[0].cell.data_key}",
        "training": f"{recipe.tokens:,} tokens a cell ({recipe.steps:,} steps of {recipe.batch} × {recipe.context})",
        "protocol": plan.protocol,
        "revision": revision(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


#: Laws that can be named instead of fitted.
PUBLISHED = {"levine2020": LEVINE2020}


def law_of(fit_file: Path | None, name: str | None) -> Law:
    """Return the law to project with: of a fit file, or a published one by its name.

    Raises:
        InputError: neither or both are given, the file cannot be read, or its fit has no law.
    """
    if (fit_file is None) == (name is None):
        raise InputError(
            "Say which law to use: --fit results/NAME/fit.json for a study's own, or --law levine2020 for the "
            "published one (not both)."
        )
    if name is not None:
        if name not in PUBLISHED:
            raise InputError(f"There is no published law {name!r}; there is: {', '.join(PUBLISHED)}.")
        return PUBLISHED[name]
    assert fit_file is not None
    try:
        result = Fit.from_json(json.loads(fit_file.read_text()))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            f"The fit file {fit_file} cannot be read: {error}. `interplay run SPEC` writes one to "
            "results/NAME/fit.json, `interplay fit RUNS --out FILE` any other."
        ) from error
    law = result.projection_law()
    if law is None:
        raise InputError(
            f"The fit in {fit_file} has no law to project with: {result.law.reason}. Its measured best shapes are "
            "under `best`; use --law levine2020 for the published law, or add depths or budgets to the study."
        )
    return law


def fit_table(result: Fit) -> RenderableType:
    """Return crossings, law and best shapes as tables for a terminal."""
    crossings = Table(title="crossings", box=None, title_justify="left", header_style="dim")
    for name in ("pair", "status", "N", "interval", "width", "why"):
        crossings.add_column(name, justify="right" if name in ("N", "interval", "width") else "left")
    for item in result.crossings:
        crossings.add_row(
            f"{item.shallow} → {item.deep}" + ("" if item.adjacent else " *"),
            item.status,
            _number(item.params),
            _interval(item.params_interval),
            _number(item.width),
            item.reason or "",
        )
    best = Table(title="best shape of each budget", box=None, title_justify="left", header_style="dim")
    for name in ("N", "depth", "width", "loss", "not told apart"):
        best.add_column(name, justify="right")
    for shape in result.best:
        others = [str(depth) for depth in shape.near or () if depth != shape.depth]
        near = "no noise estimate" if shape.near is None else ", ".join(others) or "-"
        best.add_row(
            f"{shape.params:,.0f}", str(shape.depth), f"{shape.width:.0f}", f"{shape.loss:.4f}", near
        )
    lines = [Text(text, style="yellow") for text in result.warnings]
    starred = [Text("* not neighbours among the depths of the study", style="dim")]
    return Group(
        crossings,
        *(starred if any(not c.adjacent for c in result.crossings) else []),
        _law(result),
        best,
        *lines,
    )


def recommendation_table(law: Law, shapes: list[dict[str, Any]]) -> RenderableType:
    """Return the projected shapes as a table for a terminal."""
    table = Table(box=None, header_style="dim", title=f"law of {law.source}", title_justify="left")
    for name in ("N", "depth", "band", "width", "band", ""):
        table.add_column(name, justify="right")
    for shape in shapes:
        table.add_row(
            f"{shape['params']:.3g}",
            str(shape["depth"]),
            _interval(shape["depth_interval"]),
            str(shape["width"]),
            _interval(shape["width_interval"]),
            Text("outside the data", style="yellow")
            if shape["extrapolated"]
            else Text("inside the data", style="dim"),
        )
    return table


def _law(result: Fit) -> Text:
    law = result.law
    if law.a is None or law.b is None:
        return Text(f"no law: {law.reason}", style="yellow")
    text = f"law: ln d = {law.a:.3f} + {law.b:.4f}·L"
    if law.b_interval:
        text += f"  (b: {law.b_interval[0]:.4f} to {law.b_interval[1]:.4f}, {law.level:.0%})"
    return Text(text + (f"; {law.note}" if law.note else ""))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _interval(ends: Any) -> str:
    if ends is None:
        return "-"
    low, high = ends
    return f"{'…' if low is None else _number(low)} – {'…' if high is None else _number(high)}"
