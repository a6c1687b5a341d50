"""The columns of a run table: their names, and renaming the headings of a foreign table."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from analysis.intervals import ATTENTION_WEIGHTS, LAYER_WEIGHTS
from analysis.runs.headings import NAMES, column_of, last_part, loss_heading, names_in, words_of
from analysis.units import BudgetUnit
from core.command_line import option, try_with
from core.errors import InputError, did_you_mean, near_misses, shortened

#: The columns of every run table, in this order. N = `params` = 12·L·d² is the paper's count of
#: non-embedding parameters; `total_params` counts everything; `loss` is in nats per token.
COLUMNS = (
    *("cell", "depth", "width", "heads", "params", "total_params", "budget", "seed"),
    *("lr", "tokens", "loss", "status", "reason", "train_seconds"),
)
REQUIRED = ("depth", "width", "loss")
TEXT = ("cell", "status", "reason")
#: Columns written as whole numbers if all their values are.
WHOLE = ("depth", "width", "heads", "params", "total_params", "seed", "tokens")
#: How often a run read its training data: tokens trained over the different training tokens that there are.
EPOCHS = "epochs"
#: Columns that are read as numbers when present, beyond those of `COLUMNS`.
OPTIONAL_NUMBERS = ("vocabulary", "context", EPOCHS)
#: Columns that are read as text when present. `protocol` is a digest of what compared rows must share: data, recipe and
#: the rule of the learning rate. `purpose` is empty for a row of the study itself, or says why else it was
#: trained (`analysis.fit.rate_check`).
OPTIONAL_TEXT = ("protocol", "purpose")
#: Training FLOPs of a run, and those that a study at equal FLOPs planned for it, from which whole steps differ by 1 %.
FLOPS, COMPUTE, NEAR_PLANNED = "flops", "compute", 0.02
#: The unit of the column `compute`; without this column it is in FLOPs.
COMPUTE_UNIT = "compute_unit"
#: The inner width of the feed-forward networks; 0 if there are none, so that N = 4·L·d².
D_FF = "d_ff"
#: The table's own count of parameters, kept if N is counted as 12·L·d² and the two differ.
TABLE_PARAMS = "table_params"
#: The largest width that a heading is proposed for.
MOST_WIDTH = 1e6
#: The group of equal N and equal training tokens in which a row is compared; 0 if all rows are one group.
TOKEN_GROUP = "token_group"
#: The loss in bits per byte of the text, and bytes of the text per token: read as numbers when present, and only to
#: state losses in bits per byte.
BITS_PER_BYTE, BYTES_PER_TOKEN = "bits_per_byte", "bytes_per_token"
#: Names that `--column` may give to a column.
_NAMES = (
    *(*COLUMNS, *OPTIONAL_NUMBERS, *OPTIONAL_TEXT, BITS_PER_BYTE, BYTES_PER_TOKEN),
    *(FLOPS, COMPUTE, COMPUTE_UNIT, D_FF),
)


def layer_weights(rows: pd.DataFrame) -> pd.Series:
    """Return the weights of a layer over d² that N counts, by row: 4 where the column `d_ff` is 0, else 12."""
    attention_alone = numeric(rows[D_FF]) == 0 if D_FF in rows else pd.Series(False, rows.index)
    return pd.Series(np.where(attention_alone, ATTENTION_WEIGHTS, LAYER_WEIGHTS), rows.index)


def numeric(column: pd.Series) -> pd.Series:
    """Return the values as numbers, NaN for those that are none."""
    try:
        return pd.to_numeric(column, errors="coerce")
    except OverflowError:
        # JSON integers may have any number of digits.
        return pd.to_numeric(column.map(str), errors="coerce")


def planned_compute(rows: pd.DataFrame) -> pd.Series | None:
    """Return the FLOPs or minutes planned for each row; None unless all rows are of a study at two values or more.

    `compute_unit` is their unit. A foreign table may have anything in a column named `compute`, so FLOPs must be near
    the row's own; of minutes the column of the unit says what they are.
    """
    if COMPUTE not in rows:
        return None
    planned = numeric(rows[COMPUTE])
    if compute_unit(rows) == "minutes":
        is_planned = planned > 0
    elif FLOPS in rows:
        is_planned = (planned > 0) & ((numeric(rows[FLOPS]) / planned - 1).abs() <= NEAR_PLANNED)
    else:
        return None
    return planned if is_planned.all() and planned.nunique() > 1 else None


def compute_unit(rows: pd.DataFrame) -> BudgetUnit:
    """Return the unit of the column `compute`.

    Raises:
        InputError: the column of the unit has anything but one unit that is known.
    """
    if COMPUTE not in rows or COMPUTE_UNIT not in rows:
        return "FLOPs"
    units = sorted({str(value) for value in rows[COMPUTE_UNIT]})
    if units not in (["minutes"], ["FLOPs"]):
        shown = ", ".join(shortened(repr(unit)) for unit in units[:4])
        raise InputError(
            f"The column `{COMPUTE_UNIT}` has {shown}, and all its rows must be `minutes` or all `FLOPs`. Write the "
            f"column `{COMPUTE}` in minutes of training and `minutes` in each row, or drop both columns to compare the "
            "rows by their tokens."
        )
    return "minutes" if units == ["minutes"] else "FLOPs"


def refuse_repeated(frame: pd.DataFrame, source: str) -> None:
    """Raise an InputError if several columns of a table have one name."""
    twice = frame.columns[frame.columns.duplicated()].unique()
    if len(twice):
        raise InputError(
            f"{source} has several columns named {', '.join(repr(shortened(str(name))) for name in twice[:12])}. "
            "Rename or drop all but one of each."
        )


def rename(frame: pd.DataFrame, columns: Mapping[str, str], source: str) -> pd.DataFrame:
    """Return `frame` with its columns renamed by `columns`: name of the column in a run table -> the table's name.

    Raises:
        InputError: a name that is not a column of run tables, or one that the table lacks.
    """
    for ours, theirs in columns.items():
        if ours not in _NAMES:
            raise InputError(
                f"{shortened(ours)!r} is not a column of a run table; those are {', '.join(_NAMES)}"
                f"{did_you_mean(ours, _NAMES) or '.'}"
            )
        if theirs not in frame.columns:
            is_ours = ours in frame.columns
            hint = (
                f" Its own column {ours} needs no {option('column')}."
                if is_ours
                else _nearest(theirs, frame, ours)
            )
            raise InputError(
                f"{source} has no column {shortened(theirs)!r}, which was given for {ours!r}. "
                f"Its columns are {_listing([str(name) for name in frame.columns])}.{hint}"
            )
    # An explicitly named column replaces one of the same name, or one set aside by an earlier reading.
    beaten = {ours for ours, theirs in columns.items() if ours != theirs}
    if "params" in columns:
        beaten.add(TABLE_PARAMS)
    clash = [name for name in beaten if name in frame.columns and name not in columns.values()]
    taken = frame.drop(columns=clash)
    chosen = {ours: taken[theirs] for ours, theirs in columns.items()}
    return taken.drop(columns=[name for name in set(columns.values()) if name in taken]).assign(**chosen)


def require(frame: pd.DataFrame, source: str, needed: Iterable[str]) -> None:
    """Refuse a table that lacks one of `needed`, with the headings that are no column of run tables."""
    missing = [name for name in needed if name not in frame.columns]
    if TABLE_PARAMS in frame.columns and "params" in missing:
        missing.remove("params")
    if not missing:
        return
    instead = f" Leave out {option('count', 'table')} to count N as 12·L·d²." if "params" in missing else ""
    other = f" Its other headings are {_listing(unknown)}." if (unknown := _unknown(frame)) else ""
    text = (
        f"{source} has no column {' and no column '.join(map(repr, missing))}.{other} Depth, width and loss are "
        f"required; name other headings with {option('column')}, as in {option('column', 'loss=final_loss')}.{instead}"
    )
    near = {name: _candidates(name, frame) for name in missing}
    if all(near.values()):
        raise InputError(text + try_with([("column", f"{name}={near[name][0]}") for name in missing]))
    # A command with a placeholder cannot be run.
    hints = [
        f" Perhaps {option('column', f'{name}={shortened(candidates[0])}')}."
        for name, candidates in near.items()
        if candidates
    ]
    raise InputError(text + "".join(hints))


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return (", ".join(shortened(name, 30) for name in names[:30]) or "(none)") + more


def _unknown(frame: pd.DataFrame) -> list[str]:
    return [name for name in map(str, frame.columns) if name not in (*_NAMES, TABLE_PARAMS)]


def _nearest(wanted: str, frame: pd.DataFrame, ours: str) -> str:
    """A sentence with the heading that was probably meant, or nothing."""
    plausible = [name for name in _unknown(frame) if _may_be(ours, frame[name], name)]
    near = near_misses(wanted, plausible) or near_misses(last_part(wanted), plausible)
    return f" Perhaps {option('column', f'{ours}={shortened(near[0])}')}." if near else ""


#: Words of measures that are no loss, of numbers of steps and of parts of a layer: no guess at a column has them.
_OTHER_MEANING = frozenset(
    names_in(
        """
        accuracy acc f1 bleu rouge reward mmlu step steps iteration iter epoch epochs batch index number rank id
        time seconds head heads kv ffn mlp intermediate
        """
    )
)


def _candidates(wanted: str, frame: pd.DataFrame) -> list[str]:
    """Headings that may mean the column, the likeliest first; never one whose values it cannot have."""
    others = [name for name in _unknown(frame) if _may_be(wanted, frame[name], name)]
    ends = {last_part(name): name for name in reversed(others)}
    common = [ends[name] for name in NAMES.get(wanted, ()) if name in ends]
    near = [ends[name] for name in near_misses(wanted, ends)]
    inside = [name for name in others if wanted in words_of(name)]
    alone = len(others) == 1 and not set(words_of(others[0])) & _OTHER_MEANING
    return common or near or inside or (others if alone else [])


def _may_be(column: str, values: pd.Series, heading: str) -> bool:
    """Whether values can be those of a column: sizes are whole, a loss is positive and differs between models."""
    numbers = numeric(values).dropna()
    if column in TEXT or column in OPTIONAL_TEXT or column == "seed":
        return True
    if numbers.empty or (numbers < 0).any():
        return False
    if column in ("depth", "width", "heads"):
        return bool((numbers % 1 == 0).all() and numbers.max() < MOST_WIDTH)
    if column == "loss":
        # A coefficient is one value, a loss is not a whole number; `z_loss` is a part of one.
        named = column_of(heading) or ("loss" in words_of(heading) and not loss_heading(heading))
        several = len(numbers) == 1 or numbers.nunique() > 1
        return bool(several and not named and (len(numbers) == 1 or (numbers % 1 != 0).any()))
    return True
