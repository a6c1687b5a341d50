"""The run table: one typed row per finished cell, and the reason for every row that cannot be used.

Only depth, width and loss are required, so a table from elsewhere can be read as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.errors import InputError
from analysis.files import write_text
from analysis.runs.columns import (
    COLUMNS,
    OPTIONAL_NUMBERS,
    OPTIONAL_TEXT,
    TABLE_PARAMS,
    TEXT,
    WHOLE,
    common_names,
    rename,
    require,
    require_params,
)
from analysis.runs.files import read_file

#: How N is counted: 12·L·d², the paper's count of non-embedding parameters, or the table's own column.
Count = Literal["nonembedding", "table"]

#: Statuses of a finished run in other trackers.
DONE = frozenset({"done", "finished", "completed", "complete", "succeeded", "success", "ok"})
DIVERGED = frozenset({"diverged", "divergence", "nan", "inf"})
#: Statuses of a run without a result; a row with an unknown status is left out as well.
WITHOUT_RESULT = frozenset(
    {"failed", "error", "crashed", "killed", "stopped", "cancelled", "canceled", "interrupted", "preempted"}
    | {"timeout", "pruned", "skipped", "missing", "running", "pending", "queued", "scheduled", "unfinished"}
)
NOT_FINITE = "loss is not finite"

#: A loss above it, or below its inverse, is not one in nats per token: guessing all tokens alike gives ln(vocabulary),
#: below 20. Powers of such losses leave the range of a float, so the rows are left out.
MOST_LOSS = 1e12

_PREFIX = "mlflow:"
#: Beyond it not all whole numbers are floats: such seeds are labels, and such sizes are errors.
_EXACT = 2.0**53


@dataclass(frozen=True)
class RunTable:
    """Typed rows, those that are used, and the reasons of the others.

    Attributes:
        frame: every row, with at least `COLUMNS`; the index is the 1-based number of the row in its source. A row with
            status done and a loss of NaN or infinity has the status diverged here. `table_params` is the table's own
            count of parameters, if it differs from `params`; `seed_label` its own seeds, if they are no whole numbers.
        used: the rows with status done, positive whole sizes, a finite positive loss, and no duplicate.
        left_out: one entry for every other row: `row`, `cell` if known, and the `reason`.
        source: of the rows, for messages and captions.
        notes: how headings were read.
    """

    frame: pd.DataFrame
    used: pd.DataFrame
    left_out: list[dict[str, Any]]
    source: str = "a table"
    count: Count = "nonembedding"
    notes: tuple[str, ...] = ()

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        columns: Mapping[str, str] | None = None,
        *,
        source: str = "the table",
        left_out: list[dict[str, Any]] | None = None,
        count: Count = "nonembedding",
    ) -> "RunTable":
        """Make a run table from a DataFrame.

        Args:
            frame: one row per run. A loss of NaN is that of a diverged run; None is a missing loss.
            columns: name of the column in a run table -> the table's name, for columns that are named differently.
            source: of the rows, for messages.
            left_out: rows that were left out while reading.
            count: `nonembedding` counts N as 12·L·d² for every row; `table` takes the column `params`.

        Raises:
            InputError: a required column is missing, `columns` or `count` is wrong, or the table has no rows.
        """
        if count not in get_args(Count):
            raise InputError(f"The count is {count!r}; it must be one of {', '.join(get_args(Count))}.")
        taken = common_names(frame.columns, columns or {})
        named = rename(frame, {**taken, **(columns or {})}, source)
        require(named, source)
        if count == "table":
            require_params(named, source)
        if named.empty and not left_out:
            raise InputError(f"{source} has no rows. A run table needs one row for every trained model.")
        typed, own = _typed(named, count)
        reasons = _reasons(typed, own, ~_labelled(named) & (typed["cell"] == "").to_numpy())
        cells = typed.loc[reasons.index, "cell"]
        bad = [
            {"row": row, **({"cell": cell} if cell else {}), "reason": reason}
            for row, cell, reason in zip(reasons.index.tolist(), cells, reasons, strict=True)
        ]
        used = typed.drop(index=reasons.index)
        whole = dict.fromkeys(("depth", "width", "seed"), "int64")
        read = [f"{theirs} as {ours}" for ours, theirs in taken.items()]
        notes = (f"Columns are read by their common names: {', '.join(read)}.",) if read else ()
        return cls(typed, used.astype(whole), [*(left_out or []), *bad], source, count, notes)

    def write_csv(self, path: str | Path) -> Path:
        """Write all rows, used or not, as CSV: `COLUMNS` first, then what else the table has."""
        whole = [name for name in WHOLE if (self.frame[name].dropna() % 1 == 0).all()]
        frame = self.frame.astype(dict.fromkeys(whole, "Int64"))
        return write_text(Path(path), frame.to_csv(index=False, lineterminator="\n"))


def read_runs(
    source: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    tracking_uri: str | None = None,
    count: Count = "nonembedding",
) -> RunTable:
    """Read a run table.

    Args:
        source: a CSV, TSV, JSON Lines or Parquet file, or `mlflow:EXPERIMENT`. If an experiment holds several protocols
            (a study run again with another recipe or other data), only the rows of the newest are used; in a file all
            are, and `compare` warns.
        columns: as of `RunTable.from_frame`.
        tracking_uri: of the MLflow store; MLflow's own default when not given.
        count: as of `RunTable.from_frame`.

    Raises:
        InputError: the source cannot be read, is empty, or lacks a required column.
    """
    if isinstance(source, str) and source.startswith(_PREFIX):
        from analysis.runs.mlflow import read_experiment

        frame, left_out = read_experiment(source.removeprefix(_PREFIX), tracking_uri)
        return RunTable.from_frame(frame, columns, source=source, left_out=left_out, count=count)
    path = Path(source)
    return RunTable.from_frame(read_file(path, columns or {}), columns, source=str(path), count=count)


def _typed(frame: pd.DataFrame, count: Count) -> tuple[pd.DataFrame, npt.NDArray[np.float64]]:
    """All of `COLUMNS` with types and defaults, then the table's other columns; and the table's own params."""
    made: dict[str, Any] = {}
    extra = [name for name in OPTIONAL_NUMBERS if name in frame.columns]
    for name in (*COLUMNS, *extra):
        column = frame.get(name, pd.Series(np.nan, frame.index))
        made[name] = _texts(column) if name in TEXT else _numbers(column)
    own = _numbers(frame[TABLE_PARAMS]) if TABLE_PARAMS in frame.columns else made["params"]
    with np.errstate(over="ignore", invalid="ignore"):
        counted = 12 * made["depth"] * made["width"] ** 2
    made["params"] = own if count == "table" else counted
    made["seed"], labels = _seeds(frame["seed"]) if "seed" in frame.columns else (np.zeros(len(frame)), None)
    made["status"] = _statuses(made["status"])
    made["status"], made["reason"] = _divergence(frame["loss"], made)
    for name in frame.columns:
        if name in OPTIONAL_TEXT:
            made[name] = _texts(frame[name])
        elif name not in made and name != TABLE_PARAMS:
            made[str(name)] = frame[name].to_numpy()
    if count == "nonembedding" and np.any(np.isfinite(own) & (own != counted)):
        made[TABLE_PARAMS] = own
    if labels is not None:
        made["seed_label"] = labels
    typed = pd.DataFrame(made, index=pd.RangeIndex(1, len(frame) + 1, name="row"))
    return typed, np.where(np.isfinite(own), own, counted)


def _numbers(column: pd.Series) -> npt.NDArray[np.float64]:
    """As floats, NaN for values that are no numbers."""
    try:
        numbers = pd.to_numeric(column, errors="coerce")
    except OverflowError:
        # JSON integers may have any number of digits.
        numbers = pd.to_numeric(column.map(str), errors="coerce")
    return np.array(numbers.to_numpy(dtype=float, na_value=np.nan))


def _texts(column: pd.Series) -> npt.NDArray[np.object_]:
    """As text, empty for missing values."""
    text = column.astype(str).to_numpy(dtype=object)
    return np.where(column.isna().to_numpy(), "", text)


def _seeds(column: pd.Series) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.object_] | None]:
    """Seeds as whole numbers, and the original labels if any is no whole number.

    Rows without a seed share one extra seed, which is 0 if no row has a seed.
    """
    text = np.char.strip(_texts(column).astype(str)).astype(object)
    absent = text == ""
    if absent.all():
        return np.zeros(len(column)), None
    numbers = _numbers(column)
    with np.errstate(invalid="ignore"):
        whole = (np.abs(numbers) < _EXACT) & (numbers % 1 == 0)
    if (whole | absent).all():
        return np.where(absent, np.max(numbers[~absent]) + 1, numbers), None
    return np.unique(text.astype(str), return_inverse=True)[1].astype(float), text


def _statuses(text: npt.NDArray[np.object_]) -> npt.NDArray[np.object_]:
    """Statuses in one spelling; an empty status is done."""
    plain = pd.Series(text, dtype=object).str.strip().str.lower()
    found = plain.mask(plain.isin(DONE) | (plain == ""), "done").mask(plain.isin(DIVERGED), "diverged")
    return found.to_numpy(dtype=object)


def _divergence(
    loss: pd.Series, made: Mapping[str, Any]
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """Status and reason of every row; a run that is done with a loss that is not finite has diverged."""
    values = made["loss"]
    lost = np.isinf(values)
    nan = np.flatnonzero(np.isnan(values))
    if len(nan) and pd.api.types.is_float_dtype(loss.dtype):
        # Only a column with a mask distinguishes a missing loss from NaN.
        lost[nan] = isinstance(loss.dtype, np.dtype) | ~loss.iloc[nan].isna().to_numpy(dtype=bool)
    elif len(nan):
        rest = loss.iloc[nan]
        # In a column of text "nan" is a loss and NaN an empty cell; a column of objects may hold the number NaN.
        number = rest.map(lambda value: isinstance(value, float)) if loss.dtype == object else False
        lost[nan] = number | rest.astype(str).str.strip().str.lower().isin(["nan", "-nan"]) & rest.notna()
    lost &= made["status"] == "done"
    reason = np.where(lost & (made["reason"] == ""), NOT_FINITE, made["reason"])
    return np.where(lost, "diverged", made["status"]), reason


def _labelled(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether a row has a seed or a learning rate, so that a repeated row is the same run again."""
    known = np.zeros(len(frame), dtype=bool)
    for name in ("seed", "lr"):
        if name in frame.columns:
            known |= np.char.strip(_texts(frame[name]).astype(str)) != ""
    return known


def _reasons(
    typed: pd.DataFrame, own: npt.NDArray[np.float64], anonymous: npt.NDArray[np.bool_]
) -> pd.Series:
    """The reason why a row cannot be used, by its number, for the rows that cannot; `anonymous`: see `_repeats`."""
    found = np.full(len(typed), "", dtype=object)

    def mark(wrong: npt.NDArray[np.bool_], text: str, values: npt.NDArray[Any]) -> None:
        """Set the reason of wrong rows without one; `{}` in the text is the row's value."""
        for at in np.flatnonzero(wrong & (found == "")):
            found[at] = text.format(values[at])

    status, why = typed["status"].to_numpy(dtype=object), typed["reason"].to_numpy(dtype=object)
    mark((status == "diverged") & (why == NOT_FINITE), f"{NOT_FINITE}: diverged", why)
    for at in np.flatnonzero((status != "done") & (found == "")):
        known = status[at] == "diverged" or status[at] in WITHOUT_RESULT
        text = (
            status[at] if known else f"status {status[at]!r} is unknown (a finished run has the status done)"
        )
        found[at] = f"{text}: {why[at]}" if why[at] else text
    for name in ("depth", "width", "params"):
        number = typed[name].to_numpy(dtype=float)
        mark(np.isnan(number), f"{name} is missing or not a number", number)
        good = np.isfinite(number) & (number > 0)
        if name == "params":
            mark(~good, "params is {:g}, not a positive number", number)
        else:
            with np.errstate(invalid="ignore"):
                good &= (number < _EXACT) & (number % 1 == 0)
            mark(~good, name + " is {:g}, not a positive whole number", number)
    loss = typed["loss"].to_numpy(dtype=float)
    mark(np.isnan(loss), "loss is missing or not a number", loss)
    mark(loss <= 0, "loss is {:g}; a loss in nats per token is positive", loss)
    mark(
        (loss < 1 / MOST_LOSS) | (loss > MOST_LOSS),
        "loss is {:g}, far from any loss in nats per token (about 1e-9 to 20)",
        loss,
    )
    good = np.flatnonzero(found == "")
    found[good] = _repeats(typed.iloc[good], own[good], anonymous[good])
    left = found != ""
    return pd.Series(found[left], index=typed.index[left])


def _repeats(
    rows: pd.DataFrame, own: npt.NDArray[np.float64], anonymous: npt.NDArray[np.bool_]
) -> npt.NDArray[np.object_]:
    """Reason of rows that repeat another, empty for all others.

    Of rows of one run with several losses the one with the middle loss is kept (the lower of two), so neither the order
    of the rows nor copies change the choice. Rows without seed, learning rate and cell (`anonymous`) are runs of a
    search whose settings the table lacks: the best of the shape is kept, because the middle one is worse by more, the
    wider its shape was searched.
    """
    found = np.full(len(rows), "", dtype=object)
    if rows.empty:
        return found
    extra = [name for name in (*OPTIONAL_NUMBERS, *OPTIONAL_TEXT) if name in rows.columns]
    named = ["depth", "width", "heads", "seed", "lr", *extra]
    with_cell = rows["cell"] != ""
    # A cell key identifies the run but for its number of tokens.
    keys = rows[named].mask(with_cell) if with_cell.any() else rows[named]
    own_count = np.where(with_cell, np.nan, own)
    keys = keys.assign(own=own_count, cell=rows["cell"], tokens=rows["tokens"])
    run = keys.groupby(list(keys.columns), dropna=False, sort=False).ngroup().to_numpy()
    losses = rows["loss"].to_numpy(dtype=float)
    table = pd.DataFrame({"run": run, "loss": losses, "row": rows.index, "anonymous": anonymous})
    table = table.sort_values(["run", "loss", "row"])
    first = table.groupby(["run", "loss"])["row"].transform("first")
    again = table["row"] != first
    found[table.index[again]] = [f"duplicate of row {row}" for row in first[again]]
    distinct = table[~again]
    several = distinct.groupby("run")["loss"]
    middle = (several.transform("size") - 1) // 2
    kept = several.cumcount() == middle.where(~distinct["anonymous"], 0)
    keeper = {run: (row, loss) for run, loss, row, _ in distinct[kept].itertuples(index=False)}
    cell = with_cell.to_numpy()
    for at, which, loss, _, unnamed in distinct[~kept].itertuples():
        what = "cell" if cell[at] else "shape, seed, learning rate and tokens"
        what = "shape and tokens" if unnamed else what
        row, best = keeper[which]
        found[at] = (
            f"same {what} as row {row} but another loss ({loss:.6g}, there {best:.6g}); "
            "if these are replicates, give each its seed"
        )
    return found
