"""From the run table of a study to its fit and report."""

from pathlib import Path
from typing import TYPE_CHECKING

from analysis.numbers import counted
from study.results.rate_check import study_fit

if TYPE_CHECKING:
    # Loaded only when a report is written.
    import pandas as pd

    from analysis.design.history import SearchInfo
    from analysis.fit.document import Fit
    from analysis.runs.table import RunTable
    from study.plan.plan import Plan
    from study.spec.study import StudySpec
    from study.tracking.study_paths import StudyPaths


def answer(
    spec: "StudySpec",
    plan: "Plan",
    runs: "RunTable",
    where: "StudyPaths",
    curves: "pd.DataFrame | None",
    ended: str = "",
    measures: "pd.DataFrame | None" = None,
) -> "tuple[Fit, Path]":
    """Fit a study's run table and write `report.html`, `fit.json`, `runs.csv` and the figures.

    Curves are validation losses, measures diagnostics of the layers, both by cell and step; `ended` is why the search
    ended, a sentence.
    """
    from analysis.report.study_page import write_report

    result = study_fit(plan, runs)
    report = write_report(
        runs,
        result,
        where.folder,
        title=spec.name,
        facts=facts(spec, plan, runs),
        entropy=plan.entropy,
        curves=curves,
        measures=measures,
        spec_text=spec.to_yaml(),
        search=search_info(spec, plan, ended),
    )
    return result, report


def search_info(spec: "StudySpec", plan: "Plan", ended: str = "") -> "SearchInfo | None":
    """The objective and end of a search; None for a grid."""
    if plan.search.is_grid:
        return None
    from analysis.design.history import SearchInfo
    from study.search.stopping_rule import objective_of

    return SearchInfo(objective_of(spec), spec.search.wanted_halfwidth, ended)


def facts(spec: "StudySpec", plan: "Plan", runs: "RunTable") -> dict[str, str]:
    """The provenance of the numbers, for the foot of the report."""
    from study.tracking.ledger import revision, versions

    recipe = plan.cells[0].cell.recipe
    return {
        "study": spec.description or spec.name,
        **({"claim": spec.claim} if spec.claim else {}),
        "data": f"{spec.data.kind}, vocabulary {plan.vocabulary}, content {plan.cells[0].cell.data_key}",
        "training": f"{recipe.tokens:,} tokens per cell ({recipe.steps:,} steps of {recipe.batch} × {recipe.context}), "
        f"precision {recipe.precision}",
        "cells": _cells(plan, runs),
        "seeds": ", ".join(map(str, spec.training.seed_values)),
        "protocol": plan.protocol,
        "revision": revision(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


def _cells(plan: "Plan", runs: "RunTable") -> str:
    """Which cells the report is of: how many of the planned ones, their depths and sizes."""
    frame = runs.frame
    if "purpose" in frame.columns:
        frame = frame[frame["purpose"] == ""]
    depths = ", ".join(f"{depth:g}" for depth in sorted(frame["depth"].unique()))
    sizes = sorted(frame["params"].unique())
    planned = f"at most {plan.cell_count:,}" if plan.search.chooses_cells else f"{plan.cell_count:,}"
    return (
        f"{len(frame):,} of {planned} planned; depths {depths}; {counted(len(sizes), 'size')} from "
        f"N = {sizes[0]:,.0f} to {sizes[-1]:,.0f}; listed in runs.csv"
    )
