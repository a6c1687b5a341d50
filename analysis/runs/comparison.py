"""Choose the rows of a run table to compare: equal tokens, one learning rate per shape, one loss per shape and seed."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.errors import InputError
from analysis.numbers import counted
from analysis.runs.columns import OPTIONAL_NUMBERS, OPTIONAL_TEXT, TABLE_PARAMS
from analysis.runs.learning_rates import RateChoice, choose_rates
from analysis.runs.table import RunTable
from analysis.runs.tokens import TokenRule, choose_tokens

#: Relative difference of the table's count from 12·L·d² above which there is a warning.
COUNT_DIFFERS = 0.05
#: Columns that may differ between rows of one shape, seed and learning rate.
_DETAILS = ("heads", "width", TABLE_PARAMS, *OPTIONAL_NUMBERS, *OPTIONAL_TEXT)


@dataclass(frozen=True)
class Comparison:
    """The losses that are compared.

    Attributes:
        rows: one row per (depth, params, seed), in that order, with the columns of `RunTable.used`; the index is the
            number of the row that represents all it was made from, `loss` (nats per token) is the loss compared, and
            `lr` its learning rate.
        left_out: the reason of every other used row, by its number.
        diverged: shapes with a run that diverged: depth, width, params, number of runs `diverged`, and `of` how many
            runs with an outcome. A run is a seed at a learning rate; it counts as diverged if it has no loss at the
            tokens compared.
        enclosed: (depth, params) of the shapes whose learning rates enclose the best one.
    """

    rows: pd.DataFrame
    left_out: dict[int, str]
    tokens: TokenRule
    diverged: pd.DataFrame
    warnings: tuple[str, ...]
    enclosed: frozenset[tuple[int, float]] = frozenset()


def compare(runs: RunTable, *, tokens: float | None = None) -> Comparison:
    """Choose the losses of a run table that can be compared.

    The choice depends neither on the order of the rows, on copies of them, on the names of the seeds, nor on the unit
    of the tokens.

    Args:
        runs: see `analysis.runs.table`.
        tokens: where a table has several checkpoints, compare at the level nearest to it, in the table's unit; by
            default at the largest that all shapes have, else the largest that most have.

    Raises:
        InputError: no usable rows, or no rows at `tokens`.
    """
    if runs.used.empty:
        reasons = sorted({str(item["reason"]) for item in runs.left_out})
        raise InputError(
            f"{runs.source} has no usable row: {len(runs.left_out)} left out ({_listing(reasons, '; ')}). "
            "A usable row has the status done, a depth, a width and a finite positive loss."
        )
    # Sorted by loss and not by seed, so that sums do not depend on the names of the seeds.
    used = runs.used.sort_values(["depth", "params", "lr", "loss", "tokens", "seed"], kind="stable")
    level = choose_tokens(used, tokens)
    single, averaged, differing = _average(level.rows)
    choice = choose_rates(single)
    rows = choice.rows.sort_values(["depth", "params", "seed"], kind="stable")
    diverged, lost = _diverged(runs.frame, level.rows)
    warnings = [
        *level.warnings,
        *_average_warning(averaged, differing),
        *_rate_warning(choice),
        *_survivor_warning(rows, lost),
        *_protocol_warning(rows),
        *_count_warning(rows, runs),
        *_vocabulary_warning(rows),
    ]
    left_out = level.left_out | averaged | choice.left_out
    ordered = dict(sorted(left_out.items()))
    return Comparison(rows, ordered, level.rule, diverged, tuple(warnings), choice.enclosed)


def _average(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[int, str], list[str]]:
    """One row per (depth, params, seed, lr), the reason of each row averaged into another, and columns that differ."""
    key = ["depth", "params", "seed", "lr"]
    again = rows.duplicated(key)
    if not again.any():
        return rows, {}, []
    group = rows.assign(row=rows.index).groupby(key, dropna=False, sort=False)
    several = rows[rows.duplicated(key, keep=False)].groupby(key, dropna=False)
    details = [name for name in _DETAILS if name in rows.columns]
    differing = [name for name in details if (several[name].nunique(dropna=False) > 1).any()]
    reasons = {
        int(row): f"averaged with row {stands}: the same depth, N, seed and learning rate; "
        "if these are replicates, give each its seed"
        for row, stands in zip(rows.index[again], group["row"].transform("first")[again], strict=True)
    }
    return rows.assign(loss=group["loss"].transform("mean"))[~again], reasons, differing


def _average_warning(averaged: dict[int, str], differing: list[str]) -> list[str]:
    if not averaged:
        return []
    what = f"they differ in {', '.join(differing)}" if differing else "they differ in no other known column"
    return [
        f"{len(averaged)} rows are averaged with another of the same depth, N, seed and learning rate; {what}."
    ]


def _rate_warning(choice: RateChoice) -> list[str]:
    if not choice.lowest:
        return []
    shapes = f"{counted(choice.lowest, 'shape')} {'have' if choice.lowest > 1 else 'has'}"
    text = (
        f"{shapes} several learning rates but no minimum between three; the one with the lowest mean loss is used. "
        "The lowest of several is biased down, more for the shapes with more rates."
    )
    if choice.at_end:
        text += f" In {choice.at_end} of them it is the lowest or highest rate tried: a better one may lie beyond."
    return [text]


def _diverged(frame: pd.DataFrame, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table of diverged runs by shape, and these runs themselves (depth, width, seed, lr)."""
    run = ["depth", "width", "seed", "lr"]
    sizes = frame[["depth", "width"]].to_numpy(dtype=float)
    with np.errstate(invalid="ignore"):
        sound = (np.isfinite(sizes) & (sizes > 0) & (sizes % 1 == 0)).all(axis=1)
    lost = frame[(frame["status"] == "diverged") & sound].sort_values([*run, "params"]).drop_duplicates(run)
    survivors = rows[run].drop_duplicates()
    lost = lost.merge(survivors.assign(survived=True), on=run, how="left")
    lost = lost[lost["survived"].isna()]
    shape = ["depth", "width"]
    # A diverged run may lack its size; in the table's own count it then comes from the shape's other rows.
    known = pd.concat([rows[[*shape, "params"]], lost[[*shape, "params"]]])
    known = known[np.isfinite(known["params"]) & (known["params"] > 0)]
    params = known.groupby(shape)["params"].first()
    count = lost.groupby(shape).size()
    of = count.add(survivors.groupby(shape).size(), fill_value=0).reindex(count.index)
    table = pd.DataFrame({"params": params.reindex(count.index), "diverged": count, "of": of})
    table = table.dropna(subset=["params"]).reset_index()[["depth", "width", "params", "diverged", "of"]]
    whole = dict.fromkeys(("depth", "width", "diverged", "of"), "int64")
    return table.astype(whole).sort_values(["depth", "params"], ignore_index=True), lost[run]


def _survivor_warning(rows: pd.DataFrame, lost: pd.DataFrame) -> list[str]:
    """Shapes with seeds that diverged and have no loss among the rows compared."""
    shape, one = ["depth", "width"], ["depth", "width", "seed"]
    kept = rows[one].drop_duplicates()
    gone = lost[one].drop_duplicates().merge(kept.assign(kept=True), on=one, how="left")
    gone = gone[gone["kept"].isna()]
    sizes = {"gone": gone.groupby(shape).size(), "kept": kept.groupby(shape).size()}
    counts = pd.DataFrame(sizes).dropna().astype("int64").reset_index()
    if counts.empty:
        return []
    text = "{:g}×{:g}: {:g} of {:g}"
    names = [text.format(depth, width, out, out + left) for depth, width, out, left in counts.to_numpy()]
    return [
        f"Some seeds of {counted(len(counts), 'shape')} diverged (depth×width {_listing(names, '; ')}); such a shape "
        "is compared by its survivors, whose mean loss is biased down."
    ]


def _listing(names: list[str], separator: str = ", ") -> str:
    return separator.join(names[:5]) + (" ..." if len(names) > 5 else "")


def _protocol_warning(rows: pd.DataFrame) -> list[str]:
    protocols = sorted(set(rows["protocol"]) - {""}) if "protocol" in rows else []
    if len(protocols) < 2:
        return []
    return [
        f"Rows come from {len(protocols)} protocols ({', '.join(protocols[:5])}), that is other data, another "
        "recipe or another rule of the learning rate; losses are comparable only within one."
    ]


def _count_warning(rows: pd.DataFrame, runs: RunTable) -> list[str]:
    if runs.count != "table":
        return []
    off = float(np.max(np.abs(rows["params"] / (12 * rows["depth"] * rows["width"] ** 2) - 1)))
    if off <= COUNT_DIFFERS:
        return []
    return [
        f"The column params differs from 12·L·d² by up to {off:.0%}; crossings are in the given params, "
        "widths follow from 12·L·d²."
    ]


def _vocabulary_warning(rows: pd.DataFrame) -> list[str]:
    """The rank of the embedding bounds the useful width (Wies et al. 2021)."""
    wide = rows[rows["width"] > rows["vocabulary"]] if "vocabulary" in rows else rows.iloc[:0]
    if wide.empty:
        return []
    widths = sorted(set(wide["width"]))
    return [
        f"{len(wide)} runs are wider ({', '.join(map(str, widths))}) than the vocabulary "
        f"({wide['vocabulary'].min():g}): the rank of the embedding is a bottleneck there (Wies et "
        "al. 2021), and a crossing among them is unreliable."
    ]
