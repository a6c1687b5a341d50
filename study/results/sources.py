"""Read RUNS of `fit` and `report`: a spec, an MLflow experiment or a table file; and find the MLflow store."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.runs.table import SUFFIXES, Count, RunTable, read_runs
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.spec.study import StudySpec, load_spec
from study.tracking.ledger import study_rows
from study.tracking.mlflow_client import server_problem, silence_mlflow, sqlite_file, tracking_uri
from study.tracking.study_paths import study_paths
from study.tracking.tables import curve_table, layer_table, run_table


class NoRowsError(SpecError):
    """A study that has no rows yet."""


@dataclass(frozen=True)
class Runs:
    """The run table of RUNS; `known` holds arguments of `analysis.report.study_page.write_report`."""

    table: RunTable
    known: dict[str, Any]


@dataclass(frozen=True)
class StudyRuns(Runs):
    """The run table of a spec."""

    spec: StudySpec
    plan: Plan


def read_source(
    source: str,
    overrides: Sequence[str],
    columns: Sequence[str],
    results: Path,
    uri: str | None = None,
    count: Count = "nonembedding",
) -> Runs:
    """Return the run table of RUNS, and for a spec what a report can add.

    Args:
        source: `mlflow:EXPERIMENT`, a file with an ending of `analysis.runs.table.SUFFIXES`, else a spec.
        overrides: `key=value` texts; for a spec only.
        columns: `ours=theirs` texts; for a table only.
        results: the root of the results; for a spec or an experiment.
        uri: of the MLflow store, see `named_store`; for an experiment only.
        count: how N is counted; `table` for a table only, a study counts 12·L·d².

    Raises:
        SpecError: an option that does not go with the source, or a study without rows.
    """
    if _is_spec(source):
        _refuse_for_a_spec(source, columns, uri, count)
        return study_runs(load_spec(source, overrides), results, source)
    if overrides:
        raise SpecError(f"--set changes a spec, but {source} is a run table; leave it out.")
    store = None
    if source.startswith("mlflow:"):
        store = existing(named_store(uri, results))
    else:
        _refuse_store(source, uri)
    return Runs(read_runs(source, mapping(columns), tracking_uri=store, count=count), {})


def series_of(
    source: str,
    overrides: Sequence[str],
    columns: Sequence[str] = (),
    uri: str | None = None,
    count: str = "nonembedding",
) -> StudySpec | None:
    """Return the spec that RUNS names if it is a series, else None.

    Raises:
        SpecError: an option that does not go with a spec.
    """
    spec = load_spec(source, overrides) if _is_spec(source) else None
    if spec is None or spec.vary is None:
        return None
    _refuse_for_a_spec(source, columns, uri, count)
    return spec


def _is_spec(source: str) -> bool:
    return not source.startswith("mlflow:") and Path(source).suffix.lower() not in SUFFIXES


def _refuse_store(source: str, uri: str | None) -> None:
    if uri:
        raise SpecError(
            f"--uri names the store of mlflow:EXPERIMENT, but {source} is none; leave it out, or for a spec write "
            "--set tracking.uri=URI."
        )


def _refuse_for_a_spec(source: str, columns: Sequence[str], uri: str | None, count: str) -> None:
    _refuse_store(source, uri)
    if count == "table":
        raise SpecError(
            f"--count table takes N from the column params of a table, but {source} is a spec, whose N is 12·L·d²; "
            "leave it out."
        )
    if columns:
        raise SpecError(f"--column renames the columns of a table, but {source} is a spec; leave it out.")


def study_runs(spec: StudySpec, results: Path, source: str | None = None) -> StudyRuns:
    """Return the run table of a study, and what a report can add.

    Args:
        spec: the study.
        results: the root of the results.
        source: the spec as the user named it; by default its name.

    Raises:
        SpecError: the study has no rows.
    """
    plan = make_plan(spec, to_read=True)
    ledger = study_paths(spec, results.resolve()).ledger
    rows = study_rows(plan, ledger.rows())
    if not rows:
        raise NoRowsError(
            f"the study {spec.name!r} has no rows in {ledger.name} yet; run it with `interplay run "
            f"{source or spec.name}`, or read one that was run elsewhere from its tracking server: "
            f"mlflow:{spec.experiment} with --uri URI."
        )
    from study.results.answer import facts, search_info

    known = {
        "facts": facts(spec, plan),
        "entropy": plan.entropy,
        "curves": curve_table(rows),
        "measures": layer_table(plan, rows),
        "spec_text": spec.to_yaml(),
        "search": search_info(spec, plan),
    }
    return StudyRuns(run_table(plan, rows), known, spec, plan)


def named_store(uri: str | None, results: Path) -> str:
    """Return the URI of the store: `--uri`, else MLFLOW_TRACKING_URI, else that of the results folder."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or tracking_uri("auto", results)


def existing(uri: str) -> str:
    """Return the URI of a store that exists.

    Raises:
        SpecError: its file is missing (MLflow would create an empty one), or its server does not answer.
    """
    file = sqlite_file(uri)
    if file is not None and not file.is_file():
        raise SpecError(
            f"there is no MLflow store in {file.parent} ({file.name}); run a study first, such as `interplay run "
            "quickstart`, or name the store with --results DIR or --uri URI."
        )
    problem = server_problem(uri)
    if problem:
        # The address may hold a password if it comes from the environment.
        raise SpecError(f"{problem.replace(uri, shown(uri))}; start it, or name another with --uri.")
    silence_mlflow()
    return uri


def shown(uri: str) -> str:
    """Return a URI without user, password and options, for messages."""
    return re.sub(r"//[^/]*@", "//", uri.partition("?")[0])


def mapping(columns: Sequence[str]) -> dict[str, str]:
    """Turn `ours=theirs` texts into a mapping.

    Raises:
        SpecError: a text without `=`.
    """
    result = {}
    for text in columns:
        ours, sign, theirs = text.partition("=")
        if not (sign and ours and theirs):
            raise SpecError(f"--column {text!r} is not OURS=THEIRS, such as --column loss=final_loss.")
        result[ours] = theirs
    return result
