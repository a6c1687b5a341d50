"""The columns of a run table: their names, and renaming the headings of a foreign table."""

from collections.abc import Iterable, Mapping

import pandas as pd

from analysis.errors import InputError, MissingColumnsError, near_misses, shortened

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
#: The table's own count of parameters, kept if N is counted as 12·L·d² and the two differ.
TABLE_PARAMS = "table_params"
#: Headings of other people's tables that are taken without `--column`.
COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    "depth": ("n_layer", "n_layers", "num_layers", "num_hidden_layers"),
    "width": ("d_model", "n_embd", "hidden_size"),
    "loss": ("val_loss", "eval_loss", "final_loss", "validation_loss"),
    "tokens": ("tok", "num_tokens", "tokens_seen"),
    "params": ("N", "model_size", "num_params"),
}
_NAMES = (*COLUMNS, *OPTIONAL_NUMBERS, *OPTIONAL_TEXT)


def common_names(headings: Iterable[object], given: Mapping[str, str]) -> dict[str, str]:
    """Columns that are missing and have exactly one common heading in the table: ours -> theirs.

    Args:
        headings: of the table.
        given: as named by the user; these are kept.
    """
    names = {str(name) for name in headings}
    found = {
        ours: [name for name in common if name in names and name not in given.values()]
        for ours, common in COMMON_NAMES.items()
        if ours not in names and ours not in given
    }
    return {ours: theirs[0] for ours, theirs in found.items() if len(theirs) == 1}


def rename(frame: pd.DataFrame, columns: Mapping[str, str], source: str) -> pd.DataFrame:
    """Return `frame` with its columns renamed by `columns`: name of the column in a run table -> the table's name.

    Raises:
        InputError: a name that is not a column of run tables, one that the table lacks, or one that it has twice.
    """
    twice = frame.columns[frame.columns.duplicated()].unique()
    if len(twice):
        raise InputError(
            f"{source} has several columns named {', '.join(repr(shortened(str(name))) for name in twice[:12])}. "
            "Rename or drop all but one of each."
        )
    for ours, theirs in columns.items():
        if ours not in _NAMES:
            near = near_misses(ours, _NAMES)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"{shortened(ours)!r} is not a column of a run table; those are {', '.join(_NAMES)}.{hint}"
            )
        if theirs not in frame.columns:
            there = ours in frame.columns
            hint = f" Its own column {ours} needs no --column." if there else _nearest(theirs, frame, ours)
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
    own = " Leave out --count table to count N as 12·L·d²." if "params" in missing else ""
    other = f" Its other headings are {_listing(unknown)}." if (unknown := _unknown(frame)) else ""
    raise MissingColumnsError(
        f"{source} has no column {' and no column '.join(map(repr, missing))}.{other} Depth, width and loss are "
        f"required; name other headings with --column, as in --column loss=final_loss.{own}"
        + "".join(_nearest(name, frame) for name in missing),
        {name: next(iter(_candidates(name, frame)), "THEIRS") for name in missing},
    )


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return (", ".join(shortened(name, 30) for name in names[:30]) or "(none)") + more


def _unknown(frame: pd.DataFrame) -> list[str]:
    return [name for name in map(str, frame.columns) if name not in (*_NAMES, TABLE_PARAMS)]


def _nearest(wanted: str, frame: pd.DataFrame, ours: str | None = None) -> str:
    """A sentence with the heading that was probably meant, or nothing."""
    near = _candidates(wanted, frame)
    return f" Perhaps --column {ours or wanted}={shortened(near[0])}." if near else ""


def _candidates(wanted: str, frame: pd.DataFrame) -> list[str]:
    """Headings that may mean the column, the likeliest first; never another column of run tables."""
    others = _unknown(frame)
    common = [name for name in COMMON_NAMES.get(wanted, ()) if name in others]
    return (
        common or near_misses(wanted, others) or [name for name in others if wanted.lower() in name.lower()]
    )
