"""The run table: one row a finished cell, typed, and for every row that cannot be used the reason why.

This is the contract between whoever trained the models and this package. Only depth, width and loss are
required, so a table from elsewhere can be read as well.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import InputError
from analysis.files import write_text

#: The columns every run table of ours has, in this order. N = `params` = 12·L·d² is the paper's count of
#: non-embedding parameters; `total_params` counts everything; `loss` is in nats a token.
COLUMNS = (
    "cell",
    "depth",
    "width",
    "heads",
    "params",
    "total_params",
    "budget",
    "seed",
    "lr",
    "tokens",
    "loss",
    "status",
    "reason",
    "train_seconds",
)
REQUIRED = ("depth", "width", "loss")
TEXT = ("cell", "status", "reason")
#: Columns written as whole numbers, where they are.
WHOLE = ("depth", "width", "heads", "params", "total_params", "seed", "tokens")
#: Columns that are read as numbers when present, beyond those of `COLUMNS`.
OPTIONAL_NUMBERS = ("vocabulary", "context")
#: Columns that are read as text when present. `protocol` is a digest of all that compared rows must share: data,
#: recipe and the rule of the learning rate.
OPTIONAL_TEXT = ("protocol",)
#: Endings of the tables that `read_runs` reads, in small letters.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq")
#: Words of other trackers for a run that ended well.
DONE = frozenset({"done", "finished", "completed", "complete", "succeeded", "success", "ok"})

_PREFIX = "mlflow:"


@dataclass(frozen=True)
class RunTable:
    """Typed rows and what became of them.

    Attributes:
        frame: every row, with at least `COLUMNS`; the index is the 1-based number of the row in its source.
        used: the rows that count: status done, positive whole sizes, a finite loss, no duplicate.
        left_out: one entry for every other row: `row`, `cell` where known, and the `reason`.
        source: where the rows came from, for messages and captions.
    """

    frame: pd.DataFrame
    used: pd.DataFrame
    left_out: list[dict[str, Any]]
    source: str = "a table"

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        columns: Mapping[str, str] | None = None,
        *,
        source: str = "the table",
        left_out: list[dict[str, Any]] | None = None,
    ) -> "RunTable":
        """A run table from a DataFrame.

        Args:
            frame: one row a run.
            columns: our name -> the table's name, for columns that are named differently there.
            source: where the rows come from, for messages.
            left_out: rows that were already left out while reading.

        Raises:
            InputError: a required column is missing, `columns` is wrong, or the table has no rows.
        """
        named = _rename(frame, columns or {}, source)
        _require(named, source)
        if named.empty and not left_out:
            raise InputError(f"{source} has no rows. A run table needs one row for every trained model.")
        typed = _typed(named)
        reasons = _reasons(typed)
        bad = [
            {
                "row": int(row),
                **({"cell": typed.at[row, "cell"]} if typed.at[row, "cell"] else {}),
                "reason": reason,
            }
            for row, reason in reasons.items()
        ]
        used = typed.loc[[row for row in typed.index if row not in reasons]]
        whole = dict.fromkeys(("depth", "width", "seed"), "int64")
        return cls(typed, used.astype(whole), [*(left_out or []), *bad], source)

    def write_csv(self, path: str | Path) -> Path:
        """Write all rows, used or not, as CSV: `COLUMNS` first, then what else the table has."""
        whole = [name for name in WHOLE if (self.frame[name].dropna() % 1 == 0).all()]
        frame = self.frame.astype(dict.fromkeys(whole, "Int64"))
        # %.17g would be noise for people; repr (the default) already gives back the same float.
        return write_text(Path(path), frame.to_csv(index=False, lineterminator="\n"))


def read_runs(
    source: str | Path, columns: Mapping[str, str] | None = None, *, tracking_uri: str | None = None
) -> RunTable:
    """Read a run table.

    Args:
        source: a CSV, TSV, JSON Lines or Parquet file, or `mlflow:EXPERIMENT`. An experiment may hold several
            protocols (a study run again with another recipe or other data); only the rows of the newest are
            kept, and the others are left out with that reason. A file is taken as it is; `fit` warns of it.
        columns: our name -> their name, as in `--column loss=final_loss`.
        tracking_uri: of the MLflow store; MLflow's own default when not given.

    Raises:
        InputError: the source cannot be read, is empty, or lacks a required column.
    """
    if isinstance(source, str) and source.startswith(_PREFIX):
        return _read_mlflow(source.removeprefix(_PREFIX), columns, tracking_uri)
    path = Path(source)
    return RunTable.from_frame(_read_file(path, columns or {}), columns, source=str(path))


def _read_file(path: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    """The raw rows of a file."""
    if not path.exists():
        raise InputError(
            f"There is no file {path}. Give a CSV, JSONL or Parquet file, "
            "or mlflow:EXPERIMENT for an MLflow experiment."
        )
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the run table itself, such as {path / 'runs.csv'}.")
    # A cell key such as 12e4567890123456 would otherwise be read as a number.
    text = {columns.get(name, name): str for name in (*TEXT, *OPTIONAL_TEXT)}
    try:
        match path.suffix.lower():
            case ".csv":
                return pd.read_csv(path, dtype=text)
            case ".tsv":
                return pd.read_csv(path, sep="\t", dtype=text)
            case ".jsonl" | ".ndjson":
                return _read_jsonl(path)
            case ".parquet" | ".pq":
                return pd.read_parquet(path)
    except pd.errors.EmptyDataError as error:
        raise InputError(
            f"{path} is empty. A run table needs a header and one row for every model."
        ) from error
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}.") from error
    raise InputError(
        f"{path} has the ending {path.suffix or '(none)'!r}. A run table ends in {', '.join(SUFFIXES)}."
    )


def _read_jsonl(path: Path) -> pd.DataFrame:
    """One JSON object a line."""
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(
                    f"{path}, line {number}, is not JSON: {error}. Give one object a line."
                ) from error
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number}, is not a JSON object. Give one object a line.")
            rows.append(row)
    if not rows:
        raise InputError(f"{path} is empty. A run table needs one JSON object for every model.")
    return pd.DataFrame(rows)


def _rename(frame: pd.DataFrame, columns: Mapping[str, str], source: str) -> pd.DataFrame:
    """`frame` with our names."""
    allowed = (*COLUMNS, *OPTIONAL_NUMBERS, *OPTIONAL_TEXT)
    for ours, theirs in columns.items():
        if ours not in allowed:
            near = difflib.get_close_matches(ours, allowed, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"{ours!r} is not a column of a run table; those are {', '.join(allowed)}.{hint}"
            )
        if theirs not in frame.columns:
            raise InputError(
                f"{source} has no column {theirs!r}, which was named for {ours!r}. "
                f"Its columns are {_listing(frame)}.{_nearest(theirs, frame, ours)}"
            )
    # A column named explicitly beats one that happens to have our name.
    clash = [ours for ours, theirs in columns.items() if ours != theirs and ours in frame.columns]
    taken = frame.drop(columns=[name for name in clash if name not in columns.values()])
    chosen = {ours: taken[theirs] for ours, theirs in columns.items()}
    return taken.drop(columns=[name for name in set(columns.values()) if name in taken]).assign(**chosen)


def _require(frame: pd.DataFrame, source: str) -> None:
    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing:
        fixes = "".join(_nearest(name, frame, name) for name in missing)
        raise InputError(
            f"{source} has no column {' and no column '.join(repr(name) for name in missing)}. "
            f"Its columns are {_listing(frame)}. Depth, width and loss are required; "
            f"name other headings with --column, as in --column loss=final_loss.{fixes}"
        )


def _listing(frame: pd.DataFrame) -> str:
    names = [str(name) for name in frame.columns]
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return (", ".join(names[:30]) or "(none)") + more


def _nearest(wanted: str, frame: pd.DataFrame, ours: str) -> str:
    """A sentence naming the column that was probably meant, or nothing."""
    names = [str(name) for name in frame.columns]
    folded = {name.lower(): name for name in reversed(names)}
    near = difflib.get_close_matches(wanted.lower(), folded, n=1, cutoff=0.6)
    if not near:
        near = [name for name in folded if wanted.lower() in name][:1]
    return f" Perhaps --column {ours}={folded[near[0]]}." if near else ""


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """All of `COLUMNS`, with types and defaults, then the table's other columns."""
    typed = pd.DataFrame(index=pd.RangeIndex(1, len(frame) + 1, name="row"))
    for name in (*COLUMNS, *(extra for extra in OPTIONAL_NUMBERS if extra in frame.columns)):
        if name in TEXT:
            values = frame[name] if name in frame.columns else pd.Series([None] * len(frame), dtype=object)
            typed[name] = [_text(value) for value in values]
        elif name in frame.columns:
            typed[name] = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float)
        else:
            typed[name] = np.nan
    typed["params"] = typed["params"].fillna(12 * typed["depth"] * typed["width"] ** 2)
    typed["seed"] = typed["seed"].fillna(0)
    typed["status"] = [
        "done" if value.lower() in DONE or not value else value.lower() for value in typed["status"]
    ]
    for name in frame.columns:
        if name in OPTIONAL_TEXT:
            typed[name] = [_text(value) for value in frame[name]]
        elif name not in typed.columns:
            typed[str(name)] = frame[name].to_numpy()
    return typed


def _text(value: object) -> str:
    return (
        ""
        if value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA
        else str(value)
    )


def _reasons(typed: pd.DataFrame) -> dict[int, str]:
    """Row -> why it cannot be used; a row that can be used has no entry."""
    reasons: dict[int, str] = {}
    first: dict[tuple[Any, ...], int] = {}
    losses = dict(zip(typed.index, typed["loss"].to_numpy(dtype=float), strict=True))
    for row, record in zip(typed.index, typed.to_dict("records"), strict=True):
        reason = _unusable(record)
        if reason is None:
            identity = _identity(record)
            if identity in first:
                reason = _duplicate(record, first[identity], losses[first[identity]])
            else:
                first[identity] = int(row)
        if reason is not None:
            reasons[int(row)] = reason
    return reasons


def _unusable(record: Mapping[Any, Any]) -> str | None:
    if record["status"] != "done":
        return f"{record['status']}: {record['reason']}" if record["reason"] else str(record["status"])
    for name in ("depth", "width"):
        value = record[name]
        if np.isnan(value):
            return f"{name} is missing or not a number"
        if not np.isfinite(value) or value <= 0 or value != int(value):
            return f"{name} is {value:g}, not a positive whole number"
    if not np.isfinite(record["params"]) or record["params"] <= 0:
        return f"params is {record['params']:g}, not a positive number"
    if not np.isfinite(record["seed"]) or record["seed"] != int(record["seed"]):
        return f"seed is {record['seed']:g}, not a whole number"
    if np.isnan(record["loss"]):
        return "loss is missing or not a number"
    if not np.isfinite(record["loss"]):
        return "loss is not finite"
    return None


def _identity(record: Mapping[Any, Any]) -> tuple[Any, ...]:
    """What makes two rows the same run: the cell key where there is one, else all that is known."""
    if record["cell"]:
        return ("cell", record["cell"])
    known = (record[name] for name in ("depth", "width", "heads", "params", "seed", "lr", "tokens"))
    return tuple(None if np.isnan(value) else value for value in known)


def _duplicate(record: Mapping[Any, Any], row: int, loss: float) -> str:
    if record["loss"] == loss:
        return f"duplicate of row {row}"
    known = "cell" if record["cell"] else "shape, seed, learning rate and tokens"
    return (
        f"same {known} as row {row} but another loss ({record['loss']:.6g}, there {loss:.6g}); "
        "if these are replicates, give each its seed"
    )


def _read_mlflow(experiment: str, columns: Mapping[str, str] | None, tracking_uri: str | None) -> RunTable:
    """Trials of an MLflow experiment: runs with the tag `interplay.kind` = `trial`."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=tracking_uri)
    try:
        found = client.get_experiment_by_name(experiment)
        if found is None:
            names = [item.name for item in client.search_experiments(max_results=1000)]
            near = difflib.get_close_matches(experiment, names, n=1, cutoff=0.5)
            hint = f" Did you mean mlflow:{near[0]}?" if near else ""
            raise InputError(
                f"MLflow has no experiment {experiment!r}; it has {', '.join(names) or 'none'}.{hint}"
            )
        rows: list[dict[str, Any]] = []
        left_out: list[dict[str, Any]] = []
        ended: dict[str, int] = {}
        token = None
        while True:
            page = client.search_runs([found.experiment_id], max_results=1000, page_token=token)
            for run in page:
                row, reason = _mlflow_row(run)
                if row is not None:
                    rows.append(row)
                    ended[row["run"]] = run.info.end_time or run.info.start_time or 0
                elif reason is not None:
                    left_out.append({"row": run.info.run_id, "reason": reason})
            token = page.token
            if not token:
                break
    except MlflowException as error:
        raise InputError(f"MLflow cannot give the runs of {experiment!r}: {error}") from error
    if not rows:
        raise InputError(
            f"The MLflow experiment {experiment!r} has no finished trial "
            f"({len(left_out)} other runs; trials have the tag interplay.kind = trial)."
        )
    rows, others = _newest_protocol(rows, ended)
    left_out += others
    rows = [{name: value for name, value in row.items() if name != "run"} for row in rows]
    # The client returns runs newest first; a cell key gives an order that does not depend on when a run
    # ended.
    rows.sort(key=lambda row: (row["depth"] or 0, row["width"] or 0, row["seed"] or 0, row["cell"]))
    return RunTable.from_frame(pd.DataFrame(rows), columns, source=f"mlflow:{experiment}", left_out=left_out)


def _newest_protocol(
    rows: list[dict[str, Any]], ended: Mapping[str, int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of one protocol, and what is left out: losses of different data or recipes must not meet in one curve.

    The protocol is that of the run that ended last among those that are done, so that a try that came to
    nothing does not hide a finished study; among all runs where none is done.
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


def _mlflow_row(run: Any) -> tuple[dict[str, Any] | None, str | None]:
    """The row of a run, or why it is none; (None, None) for a run of ours that is no trial, as a study."""
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
    row |= {
        "cell": tags.get("interplay.cell", ""),
        "status": status,
        "reason": tags.get("interplay.reason", ""),
        "protocol": tags.get("interplay.protocol", ""),
        "run": run.info.run_id,
    }
    return row, None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
