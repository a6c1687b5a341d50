"""Read the run table of a source: a spec, an MLflow experiment, a table, or a DataFrame."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from analysis.audit.shipped_tables import TABLES, ShippedTable
from analysis.runs.files import is_table
from analysis.runs.table import Count, RunTable, read_runs
from core.command_line import option
from core.errors import InputError, did_you_mean, refuse_no_mapping
from interplay.study_fit import Runs, existing, named_store, study_runs
from interplay.verbs.load_spec import load_spec, name_of
from study.errors import SpecError
from study.spec.recorded import recorded_file
from study.spec.study import StudySpec
from study.spec.yaml_file import find

#: What a source may be; a table of polars, pyarrow and others has `to_pandas`.
Source: TypeAlias = str | Path | StudySpec | pd.DataFrame | Sequence[Mapping[str, object]]


def read(
    source: Source,
    *changes: str,
    results: str | Path = "results",
    count: Count = "nonembedding",
    uri: str | None = None,
    where: Mapping[str, object] | None = None,
    columns: Mapping[str, str] | None = None,
) -> RunTable:
    """Read the run table of a source.

        interplay.read("runs.csv", columns={"loss": "val_loss"}, where={"dataset": "c4"}).used

    Args:
        source: see the package.
        *changes: of a spec, such as "training.seeds=5".
        results: root of the results of a study or an experiment.
        count: `nonembedding` counts N as 12·L·d²; `table` takes the column `params` of a table.
        uri: of the MLflow store of an experiment; by default MLFLOW_TRACKING_URI, else that of `results`.
        where: of a table, heading -> value of the rows that are read.
        columns: of a table, a column of the run table -> its name in the source.

    Raises:
        SpecError: as of `load_spec`; the study has no rows, there is no such MLflow store, or an
            argument does not go with the source.
        InputError: the table cannot be read, lacks a column or has no rows, or `columns` or `where` is no dict.
    """
    return runs_of(
        source, *changes, results=results, count=count, uri=uri, where=where, columns=columns
    ).table


def runs_of(
    source: Source,
    *changes: str,
    results: str | Path = "results",
    count: Count = "nonembedding",
    uri: str | None = None,
    where: Mapping[str, object] | None = None,
    columns: Mapping[str, str] | None = None,
    verb: str = "fit",
) -> Runs:
    """Return the run table of a source, and of a spec what a report can add; arguments and errors as of `read`.

    `verb` is in the commands that messages propose.
    """
    name = name_of_source(source)
    if spec := spec_of(source, *changes, results=results, count=count, uri=uri, where=where, columns=columns):
        return study_runs(spec, Path(results), verb, [name, *changes])
    if changes:
        raise SpecError(f"{changes[0]} changes a spec, but {name} is a run table; leave it out.")
    chosen = {str(heading): str(value) for heading, value in (where or {}).items()}
    named = {ours: str(theirs) for ours, theirs in (columns or {}).items()}
    if not isinstance(source, str | Path):
        table = RunTable.from_frame(_frame(source), named, count=count, where=chosen)
        return Runs("a table", table)
    if of_package := shipped(name, results):
        more = {**of_package.columns, **named}
        return Runs(name, read_runs(str(of_package.path), more, count=count, where=chosen))
    store = existing(named_store(uri, Path(results))) if name.startswith("mlflow:") else None
    table = read_runs(name, named, tracking_uri=store, count=count, where=chosen)
    return Runs(Path(name).name, table)


def spec_of(
    source: Source,
    *changes: str,
    results: str | Path,
    count: Count = "nonembedding",
    uri: str | None = None,
    where: Mapping[str, object] | None = None,
    columns: Mapping[str, str] | None = None,
) -> StudySpec | None:
    """Return the spec that a source is or names, None for any other source.

    Raises:
        SpecError: as of `load_spec`, or an argument does not go with the source.
    """
    for argument, value, example in (
        ("column", columns, "loss=final_loss"),
        ("where", where, "dataset=c4"),
    ):
        refuse_no_mapping(option(argument), {} if value is None else value, option(argument, example))
    name = name_of_source(source)
    if name.startswith("mlflow:"):
        return None
    if uri:
        raise SpecError(
            f"{option('uri')} names the store of mlflow:EXPERIMENT, but {name} is none; leave it out, or for a spec "
            "write tracking.uri=URI."
        )
    if not isinstance(source, str | Path | StudySpec) or (
        isinstance(source, str | Path) and (is_table(name) or shipped(name, results))
    ):
        return None
    try:
        spec = load_spec(source, *changes, results=results)
    except SpecError as error:
        if isinstance(source, StudySpec) or Path(name).name != name or find(name, Path(results)).is_file():
            raise
        tables = f"{', '.join(TABLES)}{did_you_mean(name, TABLES) or '.'}"
        raise SpecError(f"{error} Tables that come with Interplay: {tables}") from error
    if count == "table":
        raise SpecError(
            f"{option('count', 'table')} takes N from the column params of a table, but {name} is a spec, whose N "
            "follows from its shapes; leave it out."
        )
    for argument, does, given in (
        ("column", "renames the columns of a table", columns),
        ("where", "chooses rows of a table", where),
    ):
        if given:
            raise SpecError(f"{option(argument)} {does}, but {name} is a spec; leave it out.")
    return spec


def shipped(name: str, results: str | Path) -> ShippedTable | None:
    """Return the table of the package that has this name, unless a study of `results` has it."""
    return None if recorded_file(name, Path(results)) else TABLES.get(name)


def name_of_source(source: Source) -> str:
    """A source in messages."""
    return name_of(source) if isinstance(source, str | Path | StudySpec) else "the DataFrame"


def _frame(source: Any) -> pd.DataFrame:
    """A table that is loaded as a DataFrame of pandas; polars, pyarrow and others have `to_pandas`."""
    if isinstance(source, pd.DataFrame):
        return source
    if hasattr(source, "to_pandas"):
        return pd.DataFrame(source.to_pandas())
    rows = list(source) if isinstance(source, list | tuple) else []
    if rows and all(isinstance(row, Mapping) for row in rows):
        return pd.json_normalize([dict(row) for row in rows])
    what = "An empty list" if source == [] else f"An object of type {type(source).__name__}"
    raise InputError(
        f"{what} is no source of runs: give the name of a study, the path of a spec or a run table, "
        "mlflow:EXPERIMENT, a DataFrame, or a list with one dict per run."
    )
