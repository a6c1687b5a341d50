"""Read RUNS of `fit` and `report`: a spec, an MLflow experiment or a table file; and find the MLflow store."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.runs.files import SUFFIXES
from analysis.runs.table import Count, RunTable, read_runs
from study.errors import SpecError
from study.plan.plan import Plan, make_plan
from study.search import make_search
from study.spec.search import CrossingSection
from study.spec.study import StudySpec, load_spec
from study.tracking.ledger import outcomes, study_rows, with_recorded
from study.tracking.mlflow_store import server_problem, silence_mlflow, sqlite_file, tracking_uri
from study.tracking.study_paths import study_paths
from study.tracking.tables import curve_table, layer_table, run_table


class NoRowsError(SpecError):
    """A study that has no rows yet."""


@dataclass(frozen=True)
class Runs:
    """The run table of RUNS, the title of its report, and other arguments of `write_report` that are known."""

    title: str
    table: RunTable
    known: dict[str, Any]


@dataclass(frozen=True)
class StudyRuns(Runs):
    """The run table of a spec."""

    plan: Plan
    failed: dict[str, str]
    """Reasons of the failed cells, by title."""


@dataclass(frozen=True)
class Reading:
    """RUNS of `fit` and `report`, with the options that both verbs share.

    RUNS is `mlflow:EXPERIMENT`, a file with an ending of `analysis.runs.table.SUFFIXES`, else a spec; in Python also a
    spec or a table that is loaded. The properties raise a SpecError if an option does not go with it.
    """

    runs: str | StudySpec | pd.DataFrame
    overrides: Sequence[str]
    """`key=value`; for a spec only."""
    columns: Sequence[str]
    """`ours=theirs`; for a table only."""
    count: Count
    """How N is counted; `table` for a table only, a study counts 12·L·d²."""
    tokens: float | None
    results: Path
    """Root of the results; for a spec or an experiment."""
    uri: str | None
    """Of the MLflow store, see `named_store`; for an experiment only."""
    level: float

    @property
    def name(self) -> str:
        """RUNS in messages."""
        if isinstance(self.runs, pd.DataFrame):
            return "the DataFrame"
        return self.runs if isinstance(self.runs, str) else self.runs.name

    @property
    def spec(self) -> StudySpec | None:
        """The spec that RUNS is or names, if it does."""
        if isinstance(self.runs, str) and self.runs.startswith("mlflow:"):
            return None
        if self.uri:
            raise SpecError(
                f"--uri names the store of mlflow:EXPERIMENT, but {self.name} is none; leave it out, or for a spec "
                "write tracking.uri=URI."
            )
        if isinstance(self.runs, pd.DataFrame):
            return None
        if isinstance(self.runs, str) and Path(self.runs).suffix.lower() in SUFFIXES:
            return None
        spec = load_spec(self.runs, self.overrides) if isinstance(self.runs, str) else self.runs
        if self.count == "table":
            raise SpecError(
                f"--count table takes N from the column params of a table, but {self.name} is a spec, whose N is "
                "12·L·d²; leave it out."
            )
        if self.columns:
            raise SpecError(
                f"--column renames the columns of a table, but {self.name} is a spec; leave it out."
            )
        return spec

    @property
    def source(self) -> Runs:
        """The run table, and for a spec what a report can add."""
        if spec := self.spec:
            return study_runs(spec, self.results, self.name)
        if self.overrides:
            raise SpecError(
                f"{self.overrides[0]} changes a spec, but {self.name} is a run table; leave it out."
            )
        names = {}
        for text in self.columns:
            ours, _, theirs = text.partition("=")
            if not (ours and theirs):
                raise SpecError(f"--column {text!r} is not OURS=THEIRS, such as --column loss=final_loss.")
            names[ours] = theirs
        if isinstance(self.runs, pd.DataFrame):
            return Runs("a table", RunTable.from_frame(self.runs, names, count=self.count), {})
        is_experiment = self.name.startswith("mlflow:")
        store = existing(named_store(self.uri, self.results)) if is_experiment else None
        table = read_runs(self.name, names, tracking_uri=store, count=self.count)
        return Runs(Path(self.name).name, table, {})


def study_runs(spec: StudySpec, results: Path, source: str | None = None) -> StudyRuns:
    """Return the run table of a study, and what a report can add; NoRowsError, which names `source`, without rows."""
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

    table = run_table(plan, rows)
    ending = None
    if isinstance(spec.search, CrossingSection):
        # The end of this search follows from the rows.
        ending = make_search(spec, plan, outcomes(rows)).ending
    known = {
        "facts": facts(spec, plan, table),
        "entropy": plan.entropy,
        "curves": curve_table(rows),
        "measures": layer_table(plan, rows),
        "spec_text": spec.to_yaml(),
        "search": search_info(spec, plan, ending.words if ending else ""),
    }
    failed = {
        planned.title: row.reason or ""
        for planned in with_recorded(plan, rows).pool
        if (row := rows.get(planned.cell.key)) and row.status == "failed"
    }
    return StudyRuns(spec.name, table, known, plan, failed)


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
        raise SpecError(f"{problem}; start it, or name another with --uri.")
    silence_mlflow()
    return uri
