"""From the run table of a study to its fit and report, with what the missing part of the rate check takes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.numbers import counted

if TYPE_CHECKING:
    # A status without rows, or a recommendation from a published law, loads no numerical library.
    import pandas as pd

    from analysis.design.objective import SearchInfo
    from analysis.fit.answer import NextDepth
    from analysis.fit.document import Fit
    from analysis.fit.rate_check import RateCheck
    from analysis.fit.study import Study
    from analysis.runs.table import RunTable
    from study.plan.cells import PlannedCell
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
    from analysis.design.objective import SearchInfo
    from study.search.crossing_search import objective_of

    return SearchInfo(objective_of(spec), ended)


def facts(spec: "StudySpec", plan: "Plan", runs: "RunTable") -> dict[str, str]:
    """The provenance of the numbers, for the foot of the report."""
    from study.tracking.ledger import revision, versions

    recipe = plan.cells[0].cell.recipe
    return {
        "study": spec.description or spec.name,
        **({"claim": spec.claim} if spec.claim else {}),
        "data": f"{spec.data.kind}, {plan.vocabulary} tokens in the vocabulary, content {plan.cells[0].cell.data_key}",
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


def study_fit(plan: "Plan", table: "RunTable", **options: Any) -> "Fit":
    """Fit the run table of a study, and plan the missing part of the check; `options` are those of `study_of`."""
    from analysis.fit.document import fit_of
    from analysis.fit.study import study_of

    study = study_of(table, **options)
    found = fit_of(study)
    following = found.next_depth and planned_depth(plan, found.next_depth)
    return replace(found, learning_rate=planned_check(plan, study), next_depth=following)


def planned_depth(plan: "Plan", following: "NextDepth") -> "NextDepth":
    """The next depth with the override that adds it, and the cells and FLOPs that this adds if they can be planned."""
    from study.errors import SpecError
    from study.spec.frontier import shapes

    spec = plan.planner.spec
    if not spec.frontier.depths:
        return following
    depths = sorted({*spec.frontier.depths, following.depth})
    more = [
        found
        for found in shapes(spec.frontier.model_copy(update={"depths": depths}))
        if found.shape.depth == following.depth
    ]
    following = replace(following, how=f"frontier.depths=[{','.join(map(str, depths))}]")
    try:
        cells = [cell for found in more for cell in plan.planner.cells(found, spec.training.seed_values)]
    except SpecError:  # the option itself reports why a shape cannot be trained
        return following
    if not cells:
        return following
    return replace(following, runs=len(cells), flops=math.fsum(cell.flops for cell in cells))


def planned_check(plan: "Plan", study: "Study") -> "RateCheck | None":
    """The check with the cells, FLOPs and seconds of its missing part by the plan, and the override that adds it.

    None if no pair of depths can be compared.
    """
    from study.plan.plan import wall_seconds

    check = study.learning_rate
    if check is None or check.checked:
        return check
    cells, key, factors = _missing_cells(plan, study)
    sets = [f"{key}=[{','.join(f'{factor:g}' for factor in factors)}]"]
    if key == "search.lr_factors":
        sets += ["sensitivity=null"] * (plan.planner.spec.sensitivity is not None)
        sets += ["search.sampler=grid"] * plan.search.chooses_cells
    return replace(
        check,
        runs=len(cells),
        how=f"add it with `{' '.join(sets)}`",
        flops=math.fsum(cell.flops for cell in cells),
        seconds=wall_seconds([(cell.seconds, cell.layout.ranks) for cell in cells], plan.slots),
    )


def _missing_cells(plan: "Plan", study: "Study") -> "tuple[list[PlannedCell], str, tuple[float, ...]]":
    """The cells of the missing part, and the key and value that add them."""
    from study.search.sensitivity_runs import sensitivity_cells
    from study.spec.search import SensitivitySection

    spec = plan.planner.spec
    parts = [study.runs, *([study.sensitivity_runs] if study.sensitivity_runs else [])]
    ended = {cell for part in parts for cell in part.frame.loc[part.frame["status"] != "failed", "cell"]}
    rates = spec.search.lr_factors
    asked = (spec.sensitivity or SensitivitySection()).lr_factors
    if len(rates) == 1:
        # Wider than asked for if all of that has been trained.
        for factors in (asked, _wider((1.0, *asked))):
            section = SensitivitySection(lr_factors=tuple(factor for factor in factors if factor != 1))
            cells = sensitivity_cells(spec.model_copy(update={"sensitivity": section}), plan, study)
            missing = [cell for cell in cells if cell.cell.key not in ended]
            if missing:
                return missing, "sensitivity.lr_factors", section.lr_factors
    # No crossing lies inside the sizes: all shapes at other rates.
    wider = _wider(rates) if len(rates) > 1 else tuple(rates[0] * factor for factor in (0.5, 1.0, 2.0))
    base = [cell for cell in plan.cells if cell.lr_factor == rates[0]]
    new = [factor for factor in wider if factor not in rates]
    return [cell for cell in base for _ in new], "search.lr_factors", wider


def _wider(factors: Sequence[float]) -> tuple[float, ...]:
    """Half of the lowest factor, the factors, and double the highest, ascending."""
    return (min(factors) / 2, *sorted(factors), max(factors) * 2)
