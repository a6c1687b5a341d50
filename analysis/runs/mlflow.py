"""Read the trials of an MLflow experiment as rows, before any typing."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.errors import InputError, near_misses
from analysis.runs.columns import COLUMNS, FORECAST_ERROR, OPTIONAL_NUMBERS, TEXT
from analysis.runs.files import keep_missing

#: Prefix of metrics measured beside the loss; the rest of the name is the column.
MEASURE = "measure."


def read_experiment(experiment: str, tracking_uri: str | None) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Return the trials of an experiment (runs with the tag `interplay.kind` = `trial`) and what was left out.

    Args:
        experiment: its name.
        tracking_uri: of the store; MLflow's own default when None.

    Raises:
        InputError: there is no such experiment, it has no finished trial, or the store cannot be reached.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=tracking_uri)
    try:
        found = client.get_experiment_by_name(experiment)
        if found is None:
            names = [item.name for item in client.search_experiments(max_results=1000)]
            near = near_misses(experiment, names)
            hint = f" Did you mean mlflow:{near[0]}?" if near else ""
            raise InputError(
                f"MLflow has no experiment {experiment!r}; it has {', '.join(names) or 'none'}.{hint}"
            )
        runs: list[Any] = []
        token = None
        while True:
            page = client.search_runs([found.experiment_id], max_results=1000, page_token=token)
            runs += page
            token = page.token
            if not token:
                break
    except MlflowException as error:
        raise InputError(f"MLflow cannot give the runs of {experiment!r}: {error}") from error
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for run in runs:
        row, reason = _row(run)
        if row is not None:
            rows.append(row)
        elif reason is not None:
            left_out.append({"row": run.info.run_id, "reason": reason})
    if not rows:
        raise InputError(
            f"The MLflow experiment {experiment!r} has no finished trial "
            f"({len(left_out)} other runs; trials have the tag interplay.kind = trial)."
        )
    ended = {run.info.run_id: run.info.end_time or run.info.start_time or 0 for run in runs}
    rows, others = _newest_protocol(rows, ended)
    left_out += others
    rows = [{name: value for name, value in row.items() if name != "run"} for row in rows]
    # The client returns runs newest first; the cell key gives an order that does not depend on when a run ended.
    rows.sort(key=lambda row: (row["depth"] or 0, row["width"] or 0, row["seed"] or 0, row["cell"]))
    return keep_missing(pd.DataFrame(rows), "loss", rows), left_out


def _newest_protocol(
    rows: list[dict[str, Any]], ended: Mapping[str, int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of one protocol, and what is left out: losses of different data or recipes must not share a curve.

    The protocol is that of the run that ended last among those that are done, so that a failed attempt does not hide a
    finished study; among all runs if none is done.
    """
    if len({row["protocol"] for row in rows}) < 2:
        return rows, []
    done = [row for row in rows if row["status"] == "done"] or rows
    newest = max(done, key=lambda row: (ended[row["run"]], row["run"]))["protocol"]
    others = [
        {
            "row": row["run"],
            "cell": row["cell"],
            "reason": f"another protocol ({row['protocol'] or 'none recorded'}) than the newest rows "
            f"({newest or 'none recorded'})",
        }
        for row in rows
        if row["protocol"] != newest
    ]
    return [row for row in rows if row["protocol"] == newest], others


def _row(run: Any) -> tuple[dict[str, Any] | None, str | None]:
    """The row of a run, or why there is none; (None, None) for the run of a study, which is no trial."""
    tags, params, metrics = run.data.tags, run.data.params, run.data.metrics
    kind = tags.get("interplay.kind")
    if kind is None:
        return None, f"MLflow run {run.info.run_id} has no tag interplay.kind"
    if kind != "trial":
        return None, None
    status = tags.get("interplay.status")
    if status is None:
        return None, f"MLflow run {run.info.run_id} has no tag interplay.status; it is {run.info.status}"
    row: dict[str, Any] = {name: _number(params.get(name)) for name in COLUMNS if name not in TEXT}
    row |= {name: _number(params[name]) for name in OPTIONAL_NUMBERS if name in params}
    row |= {name: metrics.get(name) for name in ("loss", "train_seconds")}
    # Measures of single layers, of which there may be hundreds, are not read.
    row |= {
        name.removeprefix(MEASURE): value
        for name, value in metrics.items()
        if name.startswith(MEASURE) and "/" not in name
    }
    if status == "stopped":
        # Only for a stopped run: a cell that was trained to its end later keeps the metric.
        row |= {FORECAST_ERROR: metrics.get(FORECAST_ERROR)}
    row |= {
        "cell": tags.get("interplay.cell", ""),
        "status": status,
        "reason": tags.get("interplay.reason", ""),
        "protocol": tags.get("interplay.protocol", ""),
        "run": run.info.run_id,
    }
    if arm := tags.get("interplay.arm"):
        row["arm"] = arm
    return row, None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
