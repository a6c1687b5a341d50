"""From the rows of a study to its run table, its fit and its report.

The fit of a study has the cells, FLOPs and option of what is missing: the check of its learning rate, the next depth.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.fit.document import Fit, fit, fit_of
from analysis.fit.next_runs import NextDepth, NextSizes
from analysis.fit.rate_check import RateCheck
from analysis.fit.study import Study, study_of
from analysis.runs.table import RunTable
from analysis.units import UnitOption
from core.command_line import command, option
from core.errors import InputError, shortened
from core.numbers import counted, listed, parse_number
from study.errors import SpecError
from study.plan.cells import PlannedCell, describe_network
from study.plan.plan import Plan, make_plan, wall_seconds
from study.plan.rows import Row, in_table_order, run_table
from study.plan.table import compute_words
from study.revision import revision
from study.search import end_words, search_info
from study.search.sensitivity_runs import sensitivity_cells
from study.spec import yaml_file
from study.spec.recorded import difference_note, study_source
from study.spec.search import SensitivitySection
from study.spec.study import StudySpec, parse_spec
from study.tracking.ledger import ended_rows, study_rows, versions
from study.tracking.mlflow_store import server_problem, silence_mlflow, sqlite_file, tracking_uri
from study.tracking.study_paths import StudyPaths, study_paths
from study.tracking.tables import curve_table, layer_table


class NoRowsError(SpecError):
    """A study that has no rows yet."""


@dataclass(frozen=True)
class Runs:
    """The run table of a source, the title of its report, and the other arguments of `write_report`."""

    title: str
    table: RunTable
    report_data: dict[str, Any]


@dataclass(frozen=True)
class StudyRuns(Runs):
    """The run table of a spec; `failed` has the reasons of the failed cells, by title."""

    plan: Plan
    failed: dict[str, str]
    results: Path


def study_runs(
    spec: StudySpec, results: Path, verb: str = "fit", arguments: Sequence[str] | None = None
) -> StudyRuns:
    """Return the run table of a study, and what a report can add.

    Raises:
        NoRowsError: the study has no rows; proposes commands with `verb`, and with `arguments`, by default its name.
    """
    plan = make_plan(spec)
    ledger = study_paths(spec, results.resolve()).ledger
    recorded = ledger.rows()
    rows = study_rows(plan, recorded)
    if not rows:
        words = arguments or [spec.name]
        others = [row for row in recorded.values() if row.study == spec.name]
        if others and (difference := difference_note(spec, set(), results)):
            raise NoRowsError(
                f"none of the {counted(len(others), 'row')} of the study {spec.name!r} in {ledger.name} is of this "
                f"spec: {difference[0]}. As it was run: `{command(verb, difference[1], results=results)}`."
            )
        elsewhere = command(verb, f"mlflow:{spec.experiment}", "--uri", "URI")
        raise NoRowsError(
            f"the study {spec.name!r} has no rows in {ledger.name} yet; run it with "
            f"`{command('run', *words, results=results)}`, or read one that was run elsewhere from its tracking "
            f"server: `{elsewhere}`."
        )
    table = run_table(rows, plan.name, with_order=plan.search.chooses_by_rows)
    ended = end_words(spec, plan, ended_rows(rows))
    failed = {row.name: row.reason or "" for row in in_table_order(rows) if row.status == "failed"}
    return StudyRuns(spec.name, table, report_inputs(plan, rows, table, ended), plan, failed, results)


def named_store(uri: str | None, results: Path) -> str:
    """Return the URI of the store: `uri`, else MLFLOW_TRACKING_URI, else that of the results folder."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or tracking_uri("auto", results)


def existing(uri: str) -> str:
    """Return the URI of a store that exists.

    Raises:
        SpecError: its file is missing (MLflow would create an empty one), or its server does not answer.
    """
    file = sqlite_file(uri)
    if file is not None and not file.is_file():
        raise SpecError(
            f"there is no MLflow store in {file.parent} ({file.name}); run a study first, such as "
            f"`{command('run', 'quickstart')}`, or name the store with {option('results', 'DIR')} "
            f"or {option('uri', 'URI')}."
        )
    if problem := server_problem(uri):
        raise SpecError(f"{problem}; start it, or name another with {option('uri')}.")
    silence_mlflow()
    return uri


def fit_and_report(
    plan: Plan, rows: Mapping[str, Row], where: StudyPaths, runs: RunTable, ended: str
) -> tuple[Fit, Path]:
    """Fit a study's run table and write `report.html`, `fit.json`, `runs.csv` and the figures.

    `ended` is why the search ended, a sentence, or empty.
    """
    from analysis.report.study_page import write_report

    spec = plan.planner.spec
    result = study_fit(plan, runs, where.results)
    inputs = report_inputs(plan, rows, runs, ended)
    return result, write_report(runs, result, where.folder, title=spec.name, **inputs)


def report_inputs(plan: Plan, rows: Mapping[str, Row], runs: RunTable, ended: str) -> dict[str, Any]:
    """The arguments of `write_report` that a study adds to its run table."""
    facts = report_facts(plan.planner.spec, plan, runs, ended)
    return {**facts, "curves": curve_table(rows), "measures": layer_table(rows)}


def report_facts(spec: StudySpec, plan: Plan, runs: RunTable, ended: str) -> dict[str, Any]:
    """The arguments of `write_report` that follow from the plan, with the provenance of the numbers as `facts`."""
    search, frame = plan.search, runs.frame
    if "purpose" in frame.columns:
        frame = frame[frame["purpose"] == ""]
    depths = ", ".join(f"{depth:g}" for depth in sorted(frame["depth"].unique()))
    sizes = sorted(frame["params"].unique())
    trained = int((frame["status"] != "failed").sum())
    facts = {
        "study": spec.description or spec.name,
        **({"claim": spec.claim} if spec.claim else {}),
        "data": f"{spec.data.kind}, {plan.vocabulary} tokens in the vocabulary, content {plan.cells[0].cell.data_key}",
        "network": describe_network(plan.cells),
        "training": _training(plan),
        "cells": f"{len(frame):,} of {search.at_most}{plan.cell_count:,} planned; depths "
        f"{depths}; {counted(len(sizes), 'size')} from N = {sizes[0]:,.0f} to {sizes[-1]:,.0f}; listed in runs.csv",
        "seeds": ", ".join(map(str, spec.training.seed_values)),
        "protocol": plan.protocol,
        "revision": revision(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    return {
        "facts": facts,
        "entropy": plan.entropy,
        "spec_text": spec.to_yaml(),
        "cells": (trained, plan.cell_count)
        if trained < plan.cell_count and not search.may_end_early
        else None,
        "search": search_info(spec, ended),
    }


def _training(plan: Plan) -> str:
    """The training tokens of the cells, their steps and their precision."""
    spec, recipe = plan.planner.spec, plan.planner.recipe
    ratio, computes = spec.training.tokens_per_parameter, spec.frontier.compute_values
    levels = [f"{tokens:,}" for tokens in sorted({planned.tokens for planned in plan.cells})]
    steps = sorted({planned.cell.recipe.steps for planned in plan.cells})
    span = f"{steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f"{steps[0]:,}"
    each = f"{listed(levels)} tokens per cell" if ratio is None else f"{ratio:g} tokens per parameter"
    if computes:
        each = f"equal FLOPs: {compute_words(computes)}"
    return f"{each} ({span} steps of {recipe.batch} × {recipe.context}), precision {recipe.precision}"


def fit_source(source: Runs, *, level: float, tokens: float | str | None, unit: UnitOption) -> Fit:
    """Fit a run table; of a study, with the check of its learning rate and the cost of what is missing.

    Raises:
        InputError: no row can be used, or the level, the tokens or the unit are wrong.
    """
    if tokens is not None:
        try:
            tokens = parse_number(str(tokens))
        except ValueError:
            raise InputError(
                f"{option('tokens')} is {shortened(repr(tokens))}; give a number of tokens, as 5e10 or 50B."
            ) from None
    if isinstance(source, StudyRuns):
        return study_fit(source.plan, source.table, source.results, unit=unit, level=level, tokens=tokens)
    return fit(source.table, level=level, tokens=tokens, unit=unit)


def study_fit(
    plan: Plan, table: RunTable, results: Path, *, unit: UnitOption = "nats", **options: Any
) -> Fit:
    """Fit the run table of a study in `results`, and plan what is missing; `options` are those of `study_of`."""
    study = study_of(table, **options)
    result = fit_of(study, unit)
    following = result.next_depth and _planned_depth(plan, results, result.next_depth)
    return replace(
        result,
        learning_rate=planned_check(plan, results, study),
        next_depth=following,
        next_sizes=result.next_sizes and _planned_sizes(plan, results, result.next_sizes),
    )


def _run_with(plan: Plan, results: Path, *overrides: str) -> str:
    """The command that adds something to a study."""
    return command("run", study_source(plan.planner.spec, results), *overrides, results=results)


def _planned_depth(plan: Plan, results: Path, following: NextDepth) -> NextDepth:
    """The next depth with the command that adds it, and the cells and FLOPs that this adds if they can be planned."""
    spec = plan.planner.spec
    if not spec.frontier.depths:
        return following
    depths = sorted({*spec.frontier.depths, following.depth})
    following = replace(
        following, how=_run_with(plan, results, f"frontier.depths=[{','.join(map(str, depths))}]")
    )
    frontier = spec.frontier.model_copy(update={"depths": depths})
    shapes = spec.model_copy(update={"frontier": frontier}).shapes
    more = [sized for sized in shapes if sized.shape.depth == following.depth]
    try:
        cells = [cell for sized in more for cell in plan.planner.cells(sized, spec.training.seed_values)]
    except SpecError:  # the option itself reports why a shape cannot be trained
        return following
    if not cells:
        return following
    return replace(following, runs=len(cells), flops=math.fsum(cell.flops for cell in cells))


def _planned_sizes(plan: Plan, results: Path, following: NextSizes) -> NextSizes:
    """The next sizes with the command that adds a factor to `frontier.spread`, and the cells and FLOPs of this.

    Larger sizes have fewer steps, which may be too few; the sizes then have the reason instead.
    """
    spec = plan.planner.spec
    factors = sorted(spec.frontier.spread or ())
    wider = [
        *([factors[0] ** 2 / factors[1]] if following.smaller else []),
        *factors,
        *([factors[-1] ** 2 / factors[-2]] if following.larger else []),
    ]
    changed = yaml_file.changed(spec.model_dump(mode="json"), {"frontier.spread": wider})
    try:
        sizes = parse_spec(changed, f"with `frontier.spread` {wider}").shapes
        cells = [cell for size in sizes for cell in plan.planner.cells(size, spec.training.seed_values)]
    except SpecError as error:
        return replace(following, refused=str(error))
    how = _run_with(plan, results, f"frontier.spread=[{','.join(f'{size:.4g}' for size in wider)}]")
    new = [cell for cell in cells if plan.by_key(cell.cell.key) is None]
    return replace(following, how=how, runs=len(new), flops=math.fsum(cell.flops for cell in new))


def planned_check(plan: Plan, results: Path, study: Study) -> RateCheck | None:
    """The check with the cells, FLOPs and seconds of its missing part by the plan, and the command that adds it.

    None if no pair of depths can be compared.
    """
    check = study.learning_rate
    if check is None or check.checked:
        return check
    cells, key, factors = _missing_cells(plan, study)
    sets = [f"{key}=[{','.join(f'{factor:g}' for factor in factors)}]"]
    if key == "search.lr_factors":
        sets += ["sensitivity=null"] * (plan.planner.spec.sensitivity is not None)
        sets += plan.search.overrides_for_rates
    return replace(
        check,
        runs=len(cells),
        how=f"add it with `{_run_with(plan, results, *sets)}`",
        flops=math.fsum(cell.flops for cell in cells),
        seconds=wall_seconds([(cell.seconds, cell.layout.ranks) for cell in cells], plan.slots),
    )


def _missing_cells(plan: Plan, study: Study) -> tuple[list[PlannedCell], str, tuple[float, ...]]:
    """The cells of the missing part, and the key and value that add them."""
    spec = plan.planner.spec
    parts = [study.runs, *([study.sensitivity_runs] if study.sensitivity_runs else [])]
    ended = {cell for part in parts for cell in part.frame.loc[part.frame["status"] != "failed", "cell"]}
    rates = spec.search.lr_factors
    asked = (spec.sensitivity or SensitivitySection()).lr_factors
    # `sensitivity` has the crossings in N, where depths are not compared at equal FLOPs.
    if len(rates) == 1 and spec.frontier.flops is None:
        # Wider than asked for if all of that has been trained.
        for factors in (asked, _wider((1.0, *asked))):
            section = SensitivitySection(lr_factors=tuple(factor for factor in factors if factor != 1))
            cells = sensitivity_cells(spec.model_copy(update={"sensitivity": section}), plan, study)
            if missing := [cell for cell in cells if cell.cell.key not in ended]:
                return missing, "sensitivity.lr_factors", section.lr_factors
    # No crossing lies inside the sizes: all shapes at other rates.
    wider = _wider(rates) if len(rates) > 1 else tuple(rates[0] * factor for factor in (0.5, 1.0, 2.0))
    base = [cell for cell in plan.cells if cell.lr_factor == rates[0]]
    new = [factor for factor in wider if factor not in rates]
    return [cell for cell in base for _ in new], "search.lr_factors", wider


def _wider(factors: Sequence[float]) -> tuple[float, ...]:
    """Half of the lowest factor, the factors, and double the highest, ascending."""
    return (min(factors) / 2, *sorted(factors), max(factors) * 2)
