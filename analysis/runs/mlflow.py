"""Reads the runs of cells in an MLflow experiment as rows, before they are typed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.runs.columns import BITS_PER_BYTE, COLUMNS, D_FF, EPOCHS, OPTIONAL_NUMBERS, TEXT
from analysis.runs.left_out import RowReason, WhyNot, entry
from core.errors import InputError, near_misses

#: Prefix of metrics measured in addition to the loss; the rest of the name is the column.
MEASURE = "measure."

Record = dict[str, Any]


def read_experiment(experiment: str, tracking_uri: str | None) -> tuple[pd.DataFrame, list[Record]]:
    """Return the rows of an experiment, and what was left out.

    They are its runs with the tag `interplay.kind` = `trial`. An experiment without this tag is a table of its runs:
    their parameters, last metrics, status and name, as `params.NAME`, `metrics.NAME`, `status` and `run_name`.

    Raises:
        InputError: there is no such experiment, it has no finished cell, or the store does not answer.
    """
    from mlflow.exceptions import MlflowException

    rows: list[Record] = []
    left_out: list[Record] = []
    ended: dict[str, int] = {}
    try:
        runs = list(_runs(experiment, tracking_uri))
        if runs and not any("interplay.kind" in run.data.tags for run in runs):
            return _foreign(runs), []
        for run in runs:
            row, reason = _row(run)
            if row is not None:
                rows.append(row)
                ended[row["run"]] = run.info.end_time or run.info.start_time or 0
            elif reason is not None:
                left_out.append(entry(run.info.run_id, "", reason))
    except MlflowException as error:
        raise InputError(f"MLflow cannot return the runs of {experiment!r}: {error}") from error
    if not rows:
        raise InputError(
            f"The MLflow experiment {experiment!r} has no finished cell ({len(left_out)} other runs; runs of cells "
            "have the tag interplay.kind = trial)."
        )
    rows, others = _newest_protocol(rows, ended)
    # The client returns runs newest first; the order of the rows must not depend on when runs ended.
    rows.sort(key=lambda row: (row["depth"] or 0, row["width"] or 0, row["seed"] or 0, row["cell"]))
    return pd.DataFrame(rows).drop(columns="run"), [*left_out, *others]


def _foreign(runs: Sequence[Any]) -> pd.DataFrame:
    """The runs of other programs, in the order in which they began."""
    rows = [
        {
            "run_name": run.info.run_name,
            "status": run.info.status,
            **{f"params.{name}": value for name, value in run.data.params.items()},
            **{f"metrics.{name}": value for name, value in run.data.metrics.items()},
        }
        for run in sorted(runs, key=lambda run: (run.info.start_time or 0, run.info.run_id))
    ]
    return pd.DataFrame(rows)


def _runs(experiment: str, tracking_uri: str | None) -> Iterator[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=tracking_uri)
    stored = client.get_experiment_by_name(experiment)
    if stored is None:
        names = [item.name for item in client.search_experiments(max_results=1000)]
        near = near_misses(experiment, names)
        hint = f"; did you mean mlflow:{near[0]}?" if near else "."
        raise InputError(
            f"MLflow has no experiment {experiment!r}; it has {', '.join(names) or 'none'}{hint}"
        )
    return all_runs(client, stored.experiment_id)


def all_runs(client: Any, experiment_id: str, condition: str = "") -> Iterator[Any]:
    """Yield all runs of an experiment that match an MLflow filter, page by page."""
    token = None
    while True:
        page = client.search_runs([experiment_id], condition, max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _newest_protocol(rows: list[Record], ended: Mapping[str, int]) -> tuple[list[Record], list[Record]]:
    """Split rows into those of one protocol and the others: losses of different data or recipes are not comparable.

    The protocol is that of the run that ended last among those that are done, so that an aborted attempt does not
    hide a finished study; among all runs if none is done.
    """
    done = [row for row in rows if row["status"] == "done"] or rows
    newest = max(done, key=lambda row: (ended[row["run"]], row["run"]))["protocol"]
    kept, others = [], []
    for row in rows:
        if row["protocol"] == newest:
            kept.append(row)
        else:
            protocol, newest_protocol = (name or "none recorded" for name in (row["protocol"], newest))
            why = WhyNot(RowReason.OTHER_PROTOCOL, (protocol, newest_protocol))
            others.append(entry(row["run"], row["cell"], why))
    return kept, others


def _row(run: Any) -> tuple[Record | None, WhyNot | None]:
    """Return the row of a run, or the reason for leaving it out; (None, None) for the run of a study."""
    tags, params, metrics = run.data.tags, run.data.params, run.data.metrics
    kind, status = tags.get("interplay.kind"), tags.get("interplay.status")
    if kind is None:
        return None, WhyNot(RowReason.NO_KIND, (run.info.run_id,))
    if kind != "trial":
        return None, None
    if status is None:
        return None, WhyNot(RowReason.NO_STATUS, (run.info.run_id, run.info.status))
    row: Record = {name: _number(params.get(name)) for name in COLUMNS if name not in TEXT}
    row |= {name: _number(params[name]) for name in (*OPTIONAL_NUMBERS, D_FF) if name in params}
    row |= {name: metrics.get(name) for name in ("train_seconds", EPOCHS)}
    if BITS_PER_BYTE in metrics:
        row[BITS_PER_BYTE] = metrics[BITS_PER_BYTE]
    # The metric has the curve of a cell that diverged too.
    row["loss"] = metrics.get("loss") if status == "done" else None
    # Measures of single layers would be hundreds of columns.
    measures = [name for name in metrics if name.startswith(MEASURE) and "/" not in name]
    row |= {name.removeprefix(MEASURE): metrics[name] for name in measures}
    row |= {name: tags.get(f"interplay.{name}", "") for name in ("cell", "reason", "protocol")}
    row |= {"status": status, "run": run.info.run_id}
    if purpose := tags.get("interplay.purpose"):
        row["purpose"] = purpose
    return row, None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
