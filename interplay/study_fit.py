"""From the rows of a study to its run table, its fit and its report."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.fit.document import fit
from analysis.runs.costs import read_costs
from analysis.runs.table import RunTable
from analysis.units import UnitOption
from core.command_line import call, option
from core.errors import InputError, shortened
from core.numbers import counted, listed, parse_number
from interplay.answer import Answer, write_answer
from interplay.planned_runs import planned_runs
from study.errors import SpecError
from study.plan.cells import describe_network
from study.plan.plan import Plan, make_plan
from study.plan.rows import Row, failed_cells, run_table
from study.revision import revision
from study.search import end_words, search_info
from study.spec.recorded import difference_note
from study.spec.study import StudySpec
from study.spec.yaml_file import SPEC
from study.tracking.ledger import ended_rows, study_rows, versions
from study.tracking.mlflow_store import server_problem, silence_mlflow, sqlite_file, tracking_uri
from study.tracking.study_paths import StudyPaths, study_paths
from study.tracking.tables import curve_table, layer_table


class NoRowsError(SpecError):
    """A study that has no rows yet."""


@dataclass(frozen=True)
class Runs:
    """The run table of a source, and the title of its report."""

    title: str
    table: RunTable


@dataclass(frozen=True)
class StudyRuns(Runs):
    """The run table of a study in `results`, what a report adds for it, and why its cells failed, by name."""

    plan: Plan
    results: Path
    report_data: dict[str, Any]
    failed: dict[str, str]


@dataclass(frozen=True)
class Concluded:
    """The answer of a study that has been run, and its page."""

    answer: Answer
    page: Path


def study_runs(
    spec: StudySpec, results: Path, verb: str = "fit", arguments: Sequence[str] | None = None
) -> StudyRuns:
    """Return the run table of a study, and what a report can add.

    Raises:
        NoRowsError: the study has no rows; proposes commands with `verb`, and with `arguments`, by default its name.
    """
    plan = make_plan(spec)
    paths = study_paths(spec, results.resolve())
    ledger, recorded = paths.ledger, paths.ledger.rows()
    rows = study_rows(plan, recorded)
    if not rows:
        words = arguments or [spec.name]
        others = [row for row in recorded.values() if row.study == spec.name]
        if others and (difference := difference_note(spec, set(), results)):
            raise NoRowsError(
                f"none of the {counted(len(others), 'row')} of the study {spec.name!r} in {ledger.name} is of this "
                f"spec: {difference[0]}. As it was run: `{call(verb, difference[1], results=results)}`."
            )
        if folder := _folder_with_rows(words[0], spec):
            raise NoRowsError(
                f"the study {spec.name!r} has no rows in {ledger.name}, but it has in {folder}: "
                f"`{call(verb, *words, results=folder)}`."
            )
        elsewhere = call(verb, f"mlflow:{spec.experiment}", uri="URI")
        raise NoRowsError(
            f"the study {spec.name!r} has no rows in {ledger.name} yet; run it with "
            f"`{call('run', *words, results=results)}`, or read one that was run elsewhere from its tracking "
            f"server: `{elsewhere}`."
        )
    table = run_table(rows, plan.name, with_order=plan.search.chooses_by_rows)
    ended = end_words(spec, plan, ended_rows(rows))
    inputs = report_inputs(plan, rows, paths, table, ended)
    return StudyRuns(spec.name, table, plan, results, inputs, failed_cells(rows))


def _folder_with_rows(source: str, spec: StudySpec) -> Path | None:
    """The root of the results in which a study lies that is named by its folder or the spec there, if it has rows."""
    path = Path(source)
    folder = (path.parent if path.name == SPEC else path).resolve()
    if not (folder / SPEC).is_file():
        return None
    return folder.parent if study_paths(spec, folder.parent).ledger.rows() else None


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
            f"`{call('run', 'quickstart')}`, or name the store with {option('results', 'DIR')} "
            f"or {option('uri', 'URI')}."
        )
    if problem := server_problem(uri):
        raise SpecError(f"{problem}; start it, or name another with {option('uri')}.")
    silence_mlflow()
    return uri


def fit_and_report(
    plan: Plan, rows: Mapping[str, Row], where: StudyPaths, runs: RunTable, ended: str
) -> Concluded:
    """Fit a study's run table and write `report.html`, `fit.json`, `runs.csv` and the figures.

    `ended` is why the search ended, a sentence, or empty.
    """
    title, inputs = plan.planner.spec.name, report_inputs(plan, rows, where, runs, ended)
    source = StudyRuns(title, runs, plan, where.results, inputs, failed_cells(rows))
    answer = answer_of(source, level=0.95, tokens=None, unit="nats")
    return Concluded(answer, write_answer(answer, where.folder))


def report_inputs(
    plan: Plan, rows: Mapping[str, Row], where: StudyPaths, runs: RunTable, ended: str
) -> dict[str, Any]:
    """The arguments of `write_report` that a study adds to its run table."""
    facts = report_facts(plan.planner.spec, plan, runs, ended)
    return {
        **facts,
        "curves": curve_table(rows),
        "measures": layer_table(rows),
        "costs": read_costs(where.costs),
    }


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
    ratio = spec.training.tokens_per_parameter
    levels = [f"{tokens:,}" for tokens in sorted({planned.tokens for planned in plan.cells})]
    steps = sorted({planned.cell.recipe.steps for planned in plan.cells})
    span = f"{steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f"{steps[0]:,}"
    each = f"{listed(levels)} tokens per cell" if ratio is None else f"{ratio:g} tokens per parameter"
    each = spec.frontier.compute_words or each
    return f"{each} ({span} steps of {recipe.batch} × {recipe.context}), precision {recipe.precision}"


def answer_of(source: Runs, *, level: float, tokens: float | str | None, unit: UnitOption) -> Answer:
    """Fit a run table.

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
    result = fit(source.table, level=level, tokens=tokens, unit=unit)
    if not isinstance(source, StudyRuns):
        return Answer(source.title, source.table, result)
    following = planned_runs(source.plan, result, source.results)
    return Answer(source.title, source.table, result, following, source.report_data, source.failed)
