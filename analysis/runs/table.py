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
    REQUIRED,
    TABLE_PARAMS,
    TEXT,
    WHOLE,
    common_names,
    rename,
    require,
)
from analysis.runs.files import read_file

#: How N is counted: 12·L·d², the paper's count of non-embedding parameters, or the table's own column.
Count = Literal["nonembedding", "table"]

#: Statuses of a finished run in other trackers.
DONE = frozenset({"done", "finished", "completed", "complete", "succeeded", "success", "ok"})
DIVERGED = frozenset({"diverged", "divergence", "nan", "inf"})
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
            status done and a loss that is infinite or the text nan has the status diverged here. `table_params` is the
            table's own count of parameters, if it differs from `params`; `seed_label` its own seeds, if they are no
            whole numbers.
        used: the rows with status done, positive whole sizes, a finite positive loss, and no copy of another row.
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
            frame: one row per run. A loss that is infinite or the text nan is that of a diverged run; NaN is missing.
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
        require(named, source, (*REQUIRED, "params") if count == "table" else REQUIRED)
        if named.empty and not left_out:
            raise InputError(f"{source} has no rows. A run table needs one row for every trained model.")
        typed, anonymous = _typed(named, count)
        reasons = _reasons(typed)
        good = typed.drop(index=reasons.index)
        reasons = pd.concat([reasons, _repeats(good, anonymous[good.index])]).sort_index()
        used = good.drop(index=reasons.index, errors="ignore").astype(
            dict.fromkeys(("depth", "width", "seed"), "int64")
        )
        read = [f"{theirs} as {ours}" for ours, theirs in taken.items()]
        notes = (f"Columns are read by their common names: {', '.join(read)}.",) if read else ()
        return cls(typed, used, [*(left_out or []), *why_not(typed, reasons.to_dict())], source, count, notes)

    def write_csv(self, path: str | Path) -> Path:
        """Write all rows, used or not, as CSV: `COLUMNS` first, then what else the table has."""
        names = [name for name in WHOLE if (self.frame[name].dropna() % 1 == 0).all()]
        frame = self.frame.astype(dict.fromkeys(names, "Int64"))
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


def why_not(frame: pd.DataFrame, reasons: Mapping[Any, str]) -> list[dict[str, Any]]:
    """The entries of `RunTable.left_out` for reasons by row."""
    cells = frame["cell"]
    return [
        {"row": row, **({"cell": cells[row]} if cells[row] else {}), "reason": reason}
        for row, reason in reasons.items()
    ]


def whole(sizes: pd.Series) -> pd.Series:
    """Whether each of these floats is a positive whole number."""
    return (sizes > 0) & (sizes < _EXACT) & (sizes % 1 == 0)


def _typed(frame: pd.DataFrame, count: Count) -> tuple[pd.DataFrame, pd.Series]:
    """All of `COLUMNS` with types and defaults, then the table's other columns; and which rows are anonymous."""
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
    status = pd.Series(made["status"], dtype=object).str.strip().str.lower()
    done = (status.isin(DONE) | (status == "")).to_numpy()
    lost = done & _diverged(frame["loss"], made["loss"])
    made["status"] = status.mask(done, "done").mask(lost | status.isin(DIVERGED), "diverged").to_numpy()
    made["reason"] = np.where(lost & (made["reason"] == ""), NOT_FINITE, made["reason"])
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
    names = [_texts(frame[name]).astype(str) for name in ("cell", "seed", "lr") if name in frame.columns]
    named = [np.char.strip(text) != "" for text in names]
    return typed, pd.Series(~np.any(named, axis=0) if named else True, index=typed.index)


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


def _diverged(loss: pd.Series, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether a loss is infinite or the text nan; a NaN that is no text is a missing loss."""
    words = loss.mask(~np.isnan(values)).map(lambda value: isinstance(value, str) and value.strip().lower())
    return np.isinf(values) | words.isin(["nan", "-nan"]).to_numpy()


def _reasons(typed: pd.DataFrame) -> pd.Series:
    """The reason why a row cannot be used, by its number, for the rows that cannot."""
    why = typed["reason"].where(typed["reason"] == "", ": " + typed["reason"])
    reasons = (typed["status"] + why).mask(typed["status"] == "done", "")

    def mark(wrong: pd.Series, name: str, text: str) -> None:
        """Set the reason of wrong rows without one; `{}` in the text is the row's value."""
        for row in typed.index[wrong & (reasons == "")]:
            reasons[row] = text.format(typed.at[row, name])

    for name in ("depth", "width", "params", "loss"):
        mark(typed[name].isna(), name, f"{name} is missing or not a number")
    for name in ("depth", "width"):
        mark(~whole(typed[name]), name, name + " is {:g}, not a positive whole number")
    params, loss = typed["params"], typed["loss"]
    mark(~np.isfinite(params) | (params <= 0), "params", "params is {:g}, not a positive number")
    mark(loss <= 0, "loss", "loss is {:g}; a loss in nats per token is positive")
    far = (loss < 1 / MOST_LOSS) | (loss > MOST_LOSS)
    mark(far, "loss", "loss is {:g}, far from any loss in nats per token (about 1e-9 to 20)")
    return reasons[reasons != ""]


def _repeats(rows: pd.DataFrame, anonymous: pd.Series) -> pd.Series:
    """The reason of rows that repeat another, by their number.

    Copies of a row are dropped; other losses of one run are averaged by `analysis.runs.comparison`. Rows without seed,
    learning rate and cell (`anonymous`) are runs of a search whose settings the table lacks: the best of the shape is
    kept, because a mean is worse, the wider its shape was searched.
    """
    names = ("cell", "depth", "width", "heads", "params", TABLE_PARAMS, "seed", "lr", "tokens")
    run = [name for name in (*names, *OPTIONAL_NUMBERS, *OPTIONAL_TEXT) if name in rows.columns]
    table = rows.assign(row=rows.index)
    first = table.groupby([*run, "loss"], dropna=False)["row"].transform("min")
    again = table["row"] != first
    copies = "duplicate of row " + first[again].astype(str)
    unnamed = table[~again & anonymous].sort_values("loss")
    best = unnamed.groupby(run, dropna=False)[["row", "loss"]].transform("first")[unnamed.duplicated(run)]
    worse = [
        f"same shape and tokens as row {row}, whose loss of {loss:.6g} is lower; give replicates their seeds"
        for row, loss in best.itertuples(index=False)
    ]
    return pd.concat([copies, pd.Series(worse, index=best.index, dtype=object)])
