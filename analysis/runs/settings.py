"""Columns of a foreign table that are not read, but differ between rows that would count as one run.

Rows of one depth, width, seed, learning rate and number of tokens may still be of other data, of another batch size,
or steps of one training. A mean over them is the loss of no model. `choose` leaves one setting per shape, and refuses a
table where only the user can choose.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.runs.columns import (
    BITS_PER_BYTE,
    BYTES_PER_TOKEN,
    COLUMNS,
    OPTIONAL_NUMBERS,
    OPTIONAL_TEXT,
    TABLE_PARAMS,
    TOKEN_GROUP,
    numeric,
)
from analysis.runs.headings import last_part, loss_heading, names_in, words_of
from analysis.runs.left_out import RowReason, WhyNot
from analysis.runs.remarks import About, Remark, first_names, flat
from analysis.runs.words import shares
from core.command_line import option, try_with
from core.errors import InputError, did_you_mean, shortened
from core.numbers import listed

#: Columns that identify a run beside its settings.
RUN = ("depth", "params", "seed", "lr")

#: Names of what the model is evaluated or trained on: losses of two values are never compared.
DATA = frozenset(
    names_in(
        """
        data dataset datasets dataset_name data_name dataset_path train_dataset eval_dataset
        training_data train_data val_data data_source data_mix data_mixture mixture corpus tokenizer
        tokenizer_name tokenizer_path language lang domain split eval_split task benchmark eval_set
        val_set sequence_length seq_length seq_len seqlen max_seq_len context_length context_size
        ctx_len block_size max_length context vocabulary subset
        """
    )
)
#: Columns of a study's table that have one value in all its rows, because they are of its model family.
MODEL = ("network", "kv_heads", "head_dim")
#: Names of how far a training is; without tokens the last one of a run counts.
PROGRESS = names_in(
    """
        step global_step steps iteration iter iterations update updates consumed_train_samples consumed_samples epoch
        """
)
#: Words of a name that no loss depends on: names, machines, times and other measures.
_NO_SETTING = frozenset(
    names_in(
        """
        name id run group url path dir folder file tags tag notes note comment host hostname node machine
        gpu gpus device cluster partition user job commit git sha hash sweep project entity created started
        finished ended updated date time timestamp runtime duration seconds hours minutes number index trial
        row accuracy acc mfu throughput speed memory mem utilisation utilization grad gradient flops reason version
        completed start complete sec flop compute budget cost energy score bpb ppl perplexity purpose
        unnamed order heartbeat state status params parameters tokens samples width depth
        """
    )
)
#: Words of a setting that is tuned for each shape, as the learning rate is.
_TUNED = frozenset(
    names_in(
        """
        batch bs decay wd warmup beta beta1 beta2 betas dropout clip clipping eps epsilon momentum
        accumulation accum cooldown lr
        """
    )
)
#: Most values of a setting that is a number of unknown meaning; a rounded measure has more.
MOST_VALUES = 8
#: Relative difference of vocabularies that padding explains.
_PADDING = 0.05
#: Relative difference of the last steps of two shapes that is none.
_SAME_STEP = 0.01
#: Fewest steps of a run in the middle of all runs that make a history of rows that have the same tokens.
_HISTORY = 3


@dataclass(frozen=True)
class Chosen:
    """Rows of one setting per shape, the reason of every other row by its number, and what a reader must know."""

    rows: pd.DataFrame
    left_out: Mapping[int, WhyNot]
    remarks: tuple[Remark, ...] = ()


def unread_columns(rows: pd.DataFrame) -> list[str]:
    """The columns of a run table that are not read."""
    read = {*COLUMNS, *OPTIONAL_NUMBERS, *OPTIONAL_TEXT, BITS_PER_BYTE, BYTES_PER_TOKEN}
    read |= {TABLE_PARAMS, TOKEN_GROUP, "seed_label"}
    return [str(name) for name in rows.columns if name not in read]


def refuse_other_data(rows: pd.DataFrame, headings: Mapping[str, str]) -> None:
    """Refuse rows of different data, contexts or vocabularies.

    Args:
        rows: used rows, typed.
        headings: column -> heading in the source.

    Raises:
        InputError: a column that names the data has several values.
    """
    for name in (*unread_columns(rows), *("vocabulary", "context")):
        if name not in rows or last_part(name) not in DATA:
            continue
        values = _values(rows[name])
        values = values[values != ""]
        if values.nunique() < 2:
            continue
        if name == "vocabulary" and rows[name].max() <= rows[name].min() * (1 + _PADDING):
            continue
        raise _needs_choice(
            headings.get(name, name),
            values,
            "losses of different data, contexts or vocabularies are not comparable",
        )


def refuse_other_models(rows: pd.DataFrame) -> None:
    """Refuse rows of studies of several model families, as two tables of runs in one file have them.

    An empty value is a value: rows of GPT-2 have no network, and without `kv_heads` there are as many as heads.

    Raises:
        InputError: a column that is one value in a whole study has several.
    """
    for name in MODEL:
        if name in rows and (values := _values(rows[name])).nunique() > 1:
            raise _needs_choice(name, values, "losses of different models are not averaged or compared")


def last_steps(rows: pd.DataFrame) -> Chosen:
    """The last step of each run of a training history; all rows if their tokens are those of each step, or no steps.

    Tokens that are the same at every step of a run are those of its end.
    """
    has_tokens = rows["tokens"].notna().any()
    settings = [name for name in unread_columns(rows) if _is_setting(name, _values(rows[name]), len(rows))]
    run = [*(rows[column] for column in (*RUN, "tokens")), *(_values(rows[name]) for name in settings)]
    names = [name for wanted in PROGRESS for name in unread_columns(rows) if last_part(name) == wanted]
    for name in names:
        step = numeric(rows[name])
        if step.isna().any():
            continue
        steps = step.groupby(run, dropna=False)
        last = steps.transform("max")
        keep = step == last
        if keep.all() or (has_tokens and steps.nunique().median() < _HISTORY):
            if not has_tokens and (ends := _other_ends(last, rows)):
                return Chosen(rows, {}, (Remark(About.STEPS_DIFFER, (shortened(name), *ends)),))
            continue
        left_out = dict.fromkeys(rows.index[~keep], WhyNot(RowReason.EARLIER, (last_part(name),)))
        ends = _other_ends(last[keep], rows[keep])
        about = About.LAST_STEP_DIFFERS if ends else About.LAST_STEP
        remark = Remark(about, (shortened(name), int(has_tokens), *ends))
        return Chosen(rows[keep], left_out, (remark,))
    return Chosen(rows, {})


def _other_ends(last: pd.Series, rows: pd.DataFrame) -> tuple[float, ...]:
    """If the last steps of runs of equal tokens differ: the first and the last, and 1 without tokens, else 0."""
    ends = last.groupby(rows["tokens"], dropna=False).agg(["min", "max"])
    if (ends["max"] <= ends["min"] * (1 + _SAME_STEP)).all():
        return ()
    return float(last.min()), float(last.max()), int(rows["tokens"].isna().all())


def choose(rows: pd.DataFrame) -> Chosen:
    """Choose one value per shape of every setting that differs within a run and is not read.

    A setting that is tuned, such as the batch size, has per shape the value with the lowest mean loss, as the learning
    rate has. A switch or a word, such as a kind of position embedding, is another model.

    Args:
        rows: used rows at comparable tokens.

    Raises:
        InputError: rows of one run differ in a switch or a word.
    """
    tuned: list[str] = []
    groups = [rows[column] for column in RUN]
    remarks: list[Remark] = []
    for name in unread_columns(rows):
        if not _may_be_setting(name):
            continue
        values = _values(rows[name])
        is_tuned = bool(set(words_of(name)) & _TUNED)
        if not (is_tuned or _is_setting(name, values, len(rows))):
            continue
        within = (values.groupby(groups, dropna=False).transform("nunique") > 1).any()
        switch = _is_switch(values)
        if within and switch and not (is_tuned and numeric(values).notna().all()):
            raise _needs_choice(
                name,
                values,
                "rows of one shape, seed and learning rate differ in it, so they are of different models",
            )
        if within:
            tuned.append(name)
        elif 1 < values.nunique() <= len(rows) / 2 and (switch or _by_depth(values, rows["depth"])):
            parts = flat(first_names(_counts(values)))
            remarks.append(Remark(About.SETTING_NOT_READ, (shortened(name), *parts)))
    if not tuned:
        return Chosen(rows, {}, tuple(remarks))
    values = rows[tuned].apply(_values).agg(" ".join, axis=1)
    left_out = dict(_worse(rows.assign(value=values), tuned))
    remarks.append(Remark(About.TUNED, (len(left_out), *map(shortened, tuned))))
    return Chosen(rows.drop(index=list(left_out)), left_out, tuple(remarks))


def _worse(rows: pd.DataFrame, tuned: list[str]) -> Iterator[tuple[int, WhyNot]]:
    """The rows of each shape at other values than its best one, with their reasons."""
    for _, part in rows.groupby(["depth", "params"]):
        # At the best learning rate of each value; among the values that the most seeds have.
        means = part.groupby(["value", "lr"], dropna=False)["loss"].mean().groupby("value").min()
        seeds = part.groupby("value")["seed"].nunique()
        best = means[seeds == seeds.max()].idxmin()
        for row in part.index[part["value"] != best]:
            yield row, WhyNot(RowReason.OTHER_SETTING, (listed(tuned), str(best)))


def _by_depth(values: pd.Series, depths: pd.Series) -> bool:
    """Whether a setting is the same in all rows of each depth, so that its effect cannot be told from that of depth."""
    return bool((values.groupby(depths).nunique() == 1).all() and not (values == _values(depths)).all())


def _is_switch(values: pd.Series) -> bool:
    """Whether texts are words, or on and off."""
    numbers = numeric(values)
    return bool(numbers.isna().any() or set(numbers) <= {0.0, 1.0})


def _is_setting(name: str, values: pd.Series, rows: int) -> bool:
    """Whether a column of this name and these texts is a setting.

    Values of a setting come again in other runs; those of a measure and of a name of the run hardly do.
    """
    most = rows / 2 if _is_switch(values) else min(rows / 2, MOST_VALUES)
    return _may_be_setting(name) and values.nunique() <= most


def _may_be_setting(name: str) -> bool:
    words = set(words_of(name))
    progress = last_part(name) in PROGRESS
    return not (
        progress or (words & _NO_SETTING and not words & _TUNED) or loss_heading(name) or "loss" in words
    )


def _values(column: pd.Series) -> pd.Series:
    """The values as text: 64, 64.0 and `64` are one value, a missing one is empty."""
    numbers = numeric(column)
    text = column.astype(str).where(column.notna(), "").str.strip()
    return text.mask(numbers.notna(), numbers.map(lambda value: f"{value:.12g}"))


def _counts(values: pd.Series) -> list[tuple[int, str]]:
    """The number of rows of each value, the most frequent first."""
    return [(int(count), shortened(str(value))) for value, count in values.value_counts().items()]


def _needs_choice(name: str, values: pd.Series, why: str) -> InputError:
    # An option cannot name an empty value.
    most = str(values[values != ""].value_counts().index[0])
    return InputError(
        f"The column {shortened(name)!r} has several values ({shares(_counts(values))}), and {why}. Compare the rows "
        f"of one value, with {option('where', 'COLUMN=VALUE')}.{try_with([('where', f'{name}={most}')])}"
    )


def rows_where(frame: pd.DataFrame, conditions: Mapping[str, str], source: str) -> npt.NDArray[np.int64]:
    """The positions of the rows whose columns have these values; numbers are compared as numbers.

    Raises:
        InputError: the table lacks a column, or has no such row.
    """
    keep = np.ones(len(frame), dtype=bool)
    for name, value in conditions.items():
        if name not in frame.columns:
            hint = did_you_mean(name, map(str, frame.columns)) or "."
            raise InputError(
                f"{source} has no column {shortened(name)!r}, which {option('where')} names{hint}"
            )
        values = _values(frame[name])
        keep &= (values == _values(pd.Series([value], dtype=object)).iloc[0]).to_numpy()
        if not keep.any():
            raise InputError(
                f"{source} has no row whose {shortened(name)} is {shortened(value)!r}; it has "
                f"{shares(_counts(values))}."
            )
    return np.flatnonzero(keep)
