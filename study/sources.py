"""RUNS of `fit` and `report`: a spec, an MLflow experiment or a table file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.runs import RunTable, read_runs
from study.errors import SpecError
from study.ledger import connect, known_rows, places, run_table
from study.plan import make_plan
from study.spec import load_spec
from study.tracking import store_uri

TABLES = (".csv", ".jsonl", ".parquet")


def read_source(
    source: str, overrides: Sequence[str], columns: Sequence[str], results: Path
) -> tuple[RunTable, dict[str, Any]]:
    """Return the run table of RUNS, and what a report can add where RUNS is a spec.

    Args:
        source: `mlflow:EXPERIMENT`, a file ending in .csv, .jsonl or .parquet, else a spec.
        overrides: `key=value` texts, for a spec only.
        columns: `ours=theirs` texts, for a table only.
        results: the root of the results, for a spec or an experiment.

    Raises:
        SpecError: an option that does not go with the source, or a study without rows.
    """
    is_table = source.startswith("mlflow:") or Path(source).suffix in TABLES
    if is_table:
        if overrides:
            raise SpecError(f"--set changes a spec, but {source} is a table of runs; leave it out.")
        uri = store_uri("auto", results)
        if source.startswith("mlflow:") and not (results / "mlflow.db").is_file():
            raise SpecError(
                f"there is no MLflow store in {results} (mlflow.db); name its folder with --results DIR."
            )
        return read_runs(source, mapping(columns), tracking_uri=uri), {}
    if columns:
        raise SpecError(f"--column renames the columns of a table, but {source} is a spec; leave it out.")
    spec = load_spec(source, overrides)
    plan = make_plan(spec)
    where = places(spec, results.resolve())
    if spec.tracking.uri == "auto" and not (results / "mlflow.db").is_file():
        raise SpecError(
            f"the study {spec.name!r} has no rows in {results} yet; run it with `interplay run {source}`."
        )
    connection = connect(spec, where)
    rows = known_rows(plan, connection, where)
    if not rows:
        raise SpecError(
            f"the study {spec.name!r} has no rows in {results} yet; run it with `interplay run {source}`."
        )
    from study.answer import facts
    from study.runner import curves

    known = {
        "facts": facts(spec, plan),
        "floor": plan.floor,
        "curves": curves(rows, connection.store),
        "spec_text": spec.to_yaml(),
    }
    return run_table(plan, rows), known


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
