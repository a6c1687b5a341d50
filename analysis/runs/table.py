"""The run table: one typed row per finished cell, and the reason for every row that cannot be used.

Only depth, width and loss are required, so a table from elsewhere can be read as well.
"""

import html
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.runs.columns import (
    BITS_PER_BYTE,
    BYTES_PER_TOKEN,
    COLUMNS,
    OPTIONAL_NUMBERS,
    OPTIONAL_TEXT,
    REQUIRED,
    TABLE_PARAMS,
    TEXT,
    WHOLE,
    layer_weights,
    numeric,
    refuse_repeated,
    rename,
    require,
)
from analysis.runs.files import EMPTY, read_file
from analysis.runs.headings import Headings, Unit, names_in, read_headings, scale_of, unit_of, words_of
from analysis.runs.left_out import RowReason, WhyNot, entry
from analysis.runs.remarks import About, Remark, first_names, flat
from analysis.runs.settings import rows_where, unread_columns
from core.command_line import option, try_with
from core.errors import InputError, shortened
from core.files import write_text
from core.numbers import counted, parse_number

#: How N is counted: 12·L·d², the paper's count of non-embedding parameters, or the table's own column.
Count = Literal["nonembedding", "table"]

#: Statuses of a finished run in other trackers, of one that diverged, and of one that has no final loss.
DONE = frozenset({"done", "finished", "completed", "complete", "succeeded", "success", "ok"})
DIVERGED = frozenset({"diverged", "divergence", "nan", "inf"})
UNFINISHED = frozenset(
    names_in(
        """
        running pending scheduled queued waiting preempted preempting started active failed fail crashed
        crash killed error errored cancelled canceled timeout pruned aborted stopped terminated oom
        out_of_memory node_fail in_progress
        """
    )
)
NOT_FINITE = "loss is not finite"

#: ln of a million: a model that guesses among all tokens of a vocabulary alike has a loss of ln(vocabulary), and no
#: vocabulary has more tokens. A mean loss above it is not in nats per token.
MOST_LOSS = math.log(1e6)
#: A loss in nats per token below it is none.
LEAST_LOSS = 1e-12
#: Columns of losses in another unit that `--column` takes.
UNITS: tuple[Unit, ...] = ("perplexity", "bits")

_PREFIX = "mlflow:"
#: Beyond it not all whole numbers are floats: such seeds are labels, and such sizes are errors.
_EXACT = 2.0**53
#: The columns that are read.
_READ = (*COLUMNS, *OPTIONAL_NUMBERS, *OPTIONAL_TEXT, BITS_PER_BYTE, BYTES_PER_TOKEN)
#: Texts of a loss that is not finite, and of an empty cell.
_NO_NUMBER = frozenset({word.lower() for word in EMPTY} | {"inf", "-inf"})


@dataclass(frozen=True, repr=False)
class RunTable:
    """Typed rows, those that are used, and the reasons of the others.

    Attributes:
        frame: every row, with at least `COLUMNS`; the index is the 1-based number of the row in its source. A row with
            status done and a loss that is infinite or the text nan has the status diverged here. `table_params` is the
            table's own count of parameters, if it differs from `params`; `seed_label` its own seeds, if they are no
            whole numbers.
        used: the rows with status done, positive whole sizes, a finite positive loss, and no copy of another row.
        left_out: one entry for every other row, see `analysis.runs.left_out.entry`.
        source: of the rows, for messages and captions.
        notes: how headings and values were read, and which rows are not finished.
        headings: column -> heading in the source, for those that differ.
        unseeded: the numbers of the used rows that name neither a seed nor a cell.
    """

    frame: pd.DataFrame
    used: pd.DataFrame
    left_out: list[dict[str, Any]]
    source: str = "a table"
    count: Count = "nonembedding"
    notes: tuple[Remark, ...] = ()
    headings: Mapping[str, str] = field(default_factory=dict)
    unseeded: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        """The numbers of rows, and why some are left out."""
        reasons = Counter(str(item["reason"]) for item in self.left_out).most_common(3)
        why = (
            f" (left out: {'; '.join(f'{count} × {reason}' for reason, count in reasons)})" if reasons else ""
        )
        return f"RunTable of {self.source}: {len(self.used)} of {counted(len(self.frame), 'row')} used{why}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self.used.to_html(max_rows=10)}"

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        columns: Mapping[str, str] | None = None,
        *,
        source: str = "the table",
        left_out: list[dict[str, Any]] | None = None,
        count: Count = "nonembedding",
        where: Mapping[str, str] | None = None,
        notes: Sequence[Remark] = (),
    ) -> "RunTable":
        """Make a run table from a DataFrame.

        Args:
            frame: one row per run. A loss that is infinite or the text nan is that of a diverged run; NaN is missing.
            columns: name of the column in a run table -> the table's name, for columns that are named differently;
                `perplexity` and `bits` name a loss in another unit.
            source: of the rows, for messages.
            left_out: rows that were left out while reading.
            count: `nonembedding` counts N as 12·L·d², or 4·L·d² where the column `d_ff` is 0; `table` takes the column
                `params`.
            where: heading -> value of the rows that are read; the others are no part of the table.
            notes: how the file was read.

        Raises:
            InputError: a required column is missing, `columns`, `count` or `where` is wrong, the losses are in
                another unit, or the table has no rows.
        """
        if count not in get_args(Count):
            raise InputError(f"The count is {count!r}; it must be one of {', '.join(get_args(Count))}.")
        # Headings of several levels become those of trackers, `config.depth`.
        names: list[Any] = list(frame.columns)
        levels = [name if isinstance(name, tuple) else (name,) for name in names]
        frame = frame.set_axis([".".join(map(str, parts)) for parts in levels], axis=1)
        refuse_repeated(frame, source)
        frame = _plain(frame)
        given = dict(columns or {})
        unit = next((name for name in UNITS if name in given), None)
        if unit is not None:
            given["loss"] = given.pop(unit)
        rows = rows_where(frame, where or {}, source)
        frame = frame.iloc[rows].reset_index(drop=True)
        headings = _headings(frame, given)
        chosen = {**headings.columns, **given}
        named = _scaled(rename(frame, chosen, source), chosen)
        require(named, source, (*REQUIRED, "params") if count == "table" else REQUIRED)
        if named.empty and not left_out:
            raise InputError(f"{source} has no rows. A run table needs one row for every trained model.")
        unit = unit or unit_of(chosen.get("loss", "loss"))
        typed, unread = _typed(named, count, unit, rows + 1)
        if unit == "bits" and {"bpb", "byte"} & set(words_of(chosen["loss"])):
            # Such a loss is the mean over bytes, so that a byte takes the place of a token.
            typed = typed.assign(**{BYTES_PER_TOKEN: 1.0})
        _refuse_other_units(typed, source, unit, chosen.get("loss", "loss"))
        used, reasons = _used(typed, unread)
        notes = (*notes, *headings.notes, *_notes(typed, unread, unit, chosen.get("loss", "loss")))
        more = [*(left_out or []), *why_not(typed, reasons)]
        return cls(typed, used, more, source, count, notes, chosen, _unseeded(named, typed, used))

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, Any]], source: str) -> "RunTable":
        """Make a run table of records that have all `COLUMNS`, numbers as numbers or None, and the statuses of a study.

        Nothing is guessed: no heading, unit, number in a text, or word of another tracker is read.

        Raises:
            InputError: there are no records.
        """
        if not records:
            raise InputError(f"{source} has no rows. A run table needs one row for every trained model.")
        frame = pd.DataFrame(list(records), index=pd.Index(np.arange(1, len(records) + 1), name="row"))
        optional = [name for name in (*OPTIONAL_NUMBERS, BITS_PER_BYTE) if name in frame]
        texts = [name for name in (*TEXT, *OPTIONAL_TEXT) if name in frame]
        numbers = [name for name in (*COLUMNS, *optional) if name not in TEXT]
        typed = frame.assign(**{name: _texts(frame[name]) for name in texts}).astype(
            dict.fromkeys(numbers, "float64")
        )
        lost = (typed["status"] == "done") & np.isinf(typed["loss"])
        typed["status"] = typed["status"].mask(lost, "diverged")
        typed["reason"] = typed["reason"].mask(lost & (typed["reason"] == ""), NOT_FINITE)
        typed = typed[list(dict.fromkeys([*COLUMNS, *optional, *typed.columns]))]
        used, reasons = _used(typed, {})
        return cls(typed, used, why_not(typed, reasons), source)

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
    where: Mapping[str, str] | None = None,
) -> RunTable:
    """Read a run table.

    Args:
        source: a file of `analysis.runs.files.SUFFIXES`, or `mlflow:EXPERIMENT`. If an experiment holds several
            protocols (a study run again with another recipe or other data), only the rows of the newest are used; in a
            file all are, and `compare` warns.
        columns: as of `RunTable.from_frame`.
        tracking_uri: of the MLflow store; MLflow's own default when not given.
        count: as of `RunTable.from_frame`.
        where: as of `RunTable.from_frame`.

    Raises:
        InputError: the source cannot be read, is empty, or lacks a required column.
    """
    if isinstance(source, str) and source.startswith(_PREFIX):
        from analysis.runs.mlflow import read_experiment

        frame, left_out = read_experiment(source.removeprefix(_PREFIX), tracking_uri)
        return RunTable.from_frame(frame, columns, source=source, left_out=left_out, count=count, where=where)
    path = Path(source)
    frame, notes = read_file(path, columns or {})
    return RunTable.from_frame(frame, columns, source=str(path), count=count, where=where, notes=notes)


def _used(typed: pd.DataFrame, unread: Mapping[str, pd.Series]) -> tuple[pd.DataFrame, dict[int, WhyNot]]:
    """The rows that are used, and the reasons of the others by row."""
    reasons = _reasons(typed, unread)
    good = typed.drop(index=list(reasons))
    copies = _copies(good)
    used = good.drop(index=list(copies))
    return used.astype(dict.fromkeys(("depth", "width", "seed"), "int64")), dict(
        sorted((reasons | copies).items())
    )


def why_not(frame: pd.DataFrame, reasons: Mapping[int, WhyNot]) -> list[dict[str, Any]]:
    """The entries of `RunTable.left_out` for reasons by row."""
    return [entry(row, frame["cell"][row], why) for row, why in reasons.items()]


def whole(sizes: pd.Series) -> pd.Series:
    """Whether each of these floats is a positive whole number."""
    return (sizes > 0) & (sizes < _EXACT) & (sizes % 1 == 0)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of Arrow, nullable and categorical types as floats or objects: their masks and operations differ."""
    changed = {
        str(name): column.to_numpy(dtype=float, na_value=np.nan)
        if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
        else column.astype(object).where(column.notna(), None)
        for name, column in frame.items()
        if not isinstance(column.dtype, np.dtype)
    }
    return frame.assign(**changed) if changed else frame


def _scaled(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """The numbers of headings such as `tokens (M)` as they count."""
    scales = {ours: scale for ours, theirs in names.items() if (scale := scale_of(theirs)) != 1}
    for ours, scale in scales.items():
        numbers, texts = read_numbers(frame[ours])
        frame = frame.assign(
            **{ours: pd.Series(numbers * scale, dtype=object).where(~frame.index.isin(texts.index), texts)}
        )
    return frame


def _headings(frame: pd.DataFrame, given: Mapping[str, str]) -> Headings:
    """The headings of a table; a table with all columns of run tables is ours, and keeps its names."""
    if set(COLUMNS) <= set(frame.columns):
        return Headings({})
    headings = read_headings(frame.columns, given, _READ)
    status = headings.columns.get("status")
    if status is None:
        return headings
    # `state` may be anything; the states of trackers are few words.
    states = set(_status(frame[status])) - {""}
    if states <= DONE | DIVERGED | UNFINISHED:
        return headings
    return read_headings(frame.columns.drop(status), given, _READ)


def _status(column: pd.Series) -> pd.Series:
    """The statuses in lower case, without the name of an enum such as `TrialState.COMPLETE`."""
    text = pd.Series(_texts(column), index=column.index, dtype=object).str.strip().str.lower()
    return text.str.replace(r"^\w+\.", "", regex=True)


def _typed(
    frame: pd.DataFrame, count: Count, unit: Unit, rows: npt.NDArray[np.int64]
) -> tuple[pd.DataFrame, dict[str, pd.Series]]:
    """All of `COLUMNS` with types and defaults, then the table's other columns; and texts that are no numbers."""
    made: dict[str, Any] = {}
    unread: dict[str, pd.Series] = {}
    numbered = pd.Index(rows, name="row")
    extra = [name for name in (*OPTIONAL_NUMBERS, BITS_PER_BYTE, BYTES_PER_TOKEN) if name in frame.columns]
    for name in (*COLUMNS, *extra):
        column = frame.get(name, pd.Series(np.nan, frame.index))
        if name in TEXT:
            made[name] = _texts(column)
            continue
        # No loss in nats or bits reaches a thousand.
        is_small = name in ("lr", BITS_PER_BYTE, BYTES_PER_TOKEN) or (name == "loss" and unit != "perplexity")
        made[name], texts = read_numbers(column, thousands=not is_small)
        if name != "seed" and len(texts):
            unread[name] = texts.set_axis(numbered[texts.index])
    made["tokens"] = np.where(made["tokens"] > 0, made["tokens"], np.nan)
    given = _numbers(frame[TABLE_PARAMS]) if TABLE_PARAMS in frame.columns else made["params"]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        counted = layer_weights(frame).to_numpy() * made["depth"] * made["width"] ** 2
        if unit == "perplexity":
            made["loss"] = np.log(made["loss"])
        elif unit == "bits":
            made["loss"] = made["loss"] * math.log(2)
    made["params"] = given if count == "table" else counted
    made["seed"], labels = _seeds(frame["seed"]) if "seed" in frame.columns else (np.zeros(len(frame)), None)
    status = _status(pd.Series(made["status"], dtype=object))
    done = (status.isin(DONE) | (status == "")).to_numpy()
    lost = done & _diverged(frame["loss"], made["loss"])
    made["status"] = status.mask(done, "done").mask(lost | status.isin(DIVERGED), "diverged").to_numpy()
    made["reason"] = np.where(lost & (made["reason"] == ""), NOT_FINITE, made["reason"])
    for name in frame.columns:
        if name in OPTIONAL_TEXT:
            made[name] = _texts(frame[name])
        elif name not in made and name != TABLE_PARAMS:
            made[str(name)] = frame[name].to_numpy()
    if count == "nonembedding" and np.any(np.isfinite(given) & (given != counted)):
        made[TABLE_PARAMS] = given
    if labels is not None:
        made["seed_label"] = labels
    return pd.DataFrame(made, index=numbered), unread


def _unseeded(frame: pd.DataFrame, typed: pd.DataFrame, used: pd.DataFrame) -> frozenset[int]:
    """The used rows that name neither a seed nor a cell, by their number; `typed` is made of `frame`."""
    named = np.zeros(len(frame), dtype=bool)
    for name in ("seed", "cell"):
        if name in frame.columns:
            named |= np.char.strip(_texts(frame[name]).astype(str)) != ""
    return frozenset(used.index.intersection(typed.index[~named]).tolist())


def _refuse_other_units(typed: pd.DataFrame, source: str, unit: Unit, heading: str) -> None:
    """Refuse an accuracy, and losses most of which cannot be nats per token."""
    if {"accuracy", "acc"} & set(words_of(heading)):
        raise InputError(
            f"The column {shortened(heading)!r} of {source} is an accuracy by its name, and higher is better there. "
            f"Shapes are compared by a loss in nats per token; name its column with {option('column', 'loss=HEADING')}."
        )
    losses = typed.loc[(typed["status"] == "done") & np.isfinite(typed["loss"]), "loss"]
    if losses.empty or (losses > MOST_LOSS).mean() <= 0.5:
        return
    given = {"nats": "", "perplexity": ", as logarithms of perplexities", "bits": ", from bits"}[unit]
    tried = try_with([("column", f"perplexity={heading}")]) if unit == "nats" else ""
    raise InputError(
        f"The losses of {source} (column {shortened(heading)!r}) have a median of {losses.median():.4g}{given}; a "
        "loss in nats per token is at most ln(vocabulary), 13.8 for a million tokens. If they are perplexities, name "
        f"the column with {option('column', 'perplexity=HEADING')}; if they are sums over a sequence, divide them "
        f"by its tokens.{tried}"
    )


def _notes(
    typed: pd.DataFrame, unread: Mapping[str, pd.Series], unit: Unit, heading: str
) -> Iterator[Remark]:
    """What was converted, could not be read, or is not finished."""
    if unit != "nats":
        yield Remark(About.CONVERTED, (shortened(heading), unit))
    for name, texts in unread.items():
        if name not in (*REQUIRED, "params"):
            values = first_names([shortened(str(value)) for value in dict.fromkeys(texts)])
            yield Remark(About.NOT_NUMBERS, (name, len(texts), *values))
    if typed["tokens"].isna().all():
        like = [name for name in unread_columns(typed) if {"tokens", "token", "tok"} & set(words_of(name))]
        like = [name for name in like if not {"per", "second", "sec", "s", "vocab"} & set(words_of(name))]
        if like:
            yield Remark(About.TOKENS_NOT_READ, tuple(first_names([shortened(name) for name in like])))
    if (typed["cell"] != "").all():
        return  # `interplay status` counts the cells of a study
    states = typed.loc[~typed["status"].isin(["done", "diverged"]), "status"].value_counts()
    if len(states):
        parts = flat((int(count), str(status)) for status, count in states.items())
        yield Remark(About.UNFINISHED, (int(states.sum()), *parts))


def read_numbers(column: pd.Series, *, thousands: bool = True) -> tuple[npt.NDArray[np.float64], pd.Series]:
    """Return the values as floats, NaN for those that are no numbers; and the texts among them that are not empty.

    Text is read as `core.numbers.parse_number` does. A comma is a decimal point unless all values of the column
    that have one may have it between thousands, and `thousands` is true.
    """
    numbers = _numbers(column)
    texts = column[np.isnan(numbers) & column.notna().to_numpy()].map(str).astype(object)
    texts = texts[~texts.str.strip().str.lower().isin(_NO_NUMBER)]
    if texts.empty:
        return numbers, texts
    grouped = texts[texts.str.contains(",")].str.contains(r"^\W*[1-9]\d{0,2}(?:,\d{3})+(?!\d)")
    decimal = not (thousands and grouped.all())
    read = texts.map(lambda text: _parsed(text.replace(",", ".") if decimal else text))
    numbers[column.index.get_indexer(read.index)] = read
    return numbers, texts[read.isna()]


def _parsed(text: str) -> float:
    try:
        return parse_number(text)
    except ValueError:
        return math.nan


def _numbers(column: pd.Series) -> npt.NDArray[np.float64]:
    return np.array(numeric(column).to_numpy(dtype=float, na_value=np.nan))


def _texts(column: pd.Series) -> npt.NDArray[np.object_]:
    """The values as text, empty for missing ones."""
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


def _reasons(typed: pd.DataFrame, unread: Mapping[str, pd.Series]) -> dict[Any, WhyNot]:
    """The first reason why a row cannot be used, by its number, for the rows that cannot."""
    reasons: dict[Any, WhyNot] = {}

    def mark(wrong: pd.Series, reason: RowReason, name: str, *, named: bool = True) -> None:
        """Give the wrong rows without a reason this one, with the name of the column, if `named`, and its value."""
        for row, value in typed.loc[wrong, name].astype(float).to_dict().items():
            reasons.setdefault(row, WhyNot(reason, (name, value) if named else (value,)))

    for row, status, why in typed.loc[typed["status"] != "done", ["status", "reason"]].itertuples():
        reasons[row] = WhyNot(RowReason.STATUS, (status, why))
    for name in ("depth", "width", "params", "loss"):
        for row, text in unread[name].to_dict().items() if name in unread else ():
            reasons.setdefault(row, WhyNot(RowReason.UNREAD, (name, shortened(str(text)))))
        for row in typed.index[typed[name].isna()]:
            reasons.setdefault(row, WhyNot(RowReason.MISSING, (name,)))
    for name in ("depth", "width"):
        mark(~whole(typed[name]), RowReason.NOT_WHOLE, name)
    params, loss = typed["params"], typed["loss"]
    mark(~np.isfinite(params) | (params <= 0), RowReason.NOT_POSITIVE, "params")
    mark(loss <= 0, RowReason.NEGATIVE_LOSS, "loss", named=False)
    mark((loss > 0) & (loss < LEAST_LOSS), RowReason.TINY_LOSS, "loss", named=False)
    mark(loss > MOST_LOSS, RowReason.LARGE_LOSS, "loss", named=False)
    return reasons


def _copies(rows: pd.DataFrame) -> dict[Any, WhyNot]:
    """The reason of rows that are copies of another, by their number."""
    names = ("cell", "depth", "width", "heads", "params", TABLE_PARAMS, "seed", "lr", "tokens", "loss")
    run = [name for name in (*names, *OPTIONAL_NUMBERS, *OPTIONAL_TEXT) if name in rows.columns]
    first = rows.assign(row=rows.index).groupby(run, dropna=False)["row"].transform("min")
    return {
        row: WhyNot(RowReason.COPY, (int(of),)) for row, of in first[first != rows.index].to_dict().items()
    }
