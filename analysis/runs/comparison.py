"""Choose the rows of a run table to compare: equal tokens, one learning rate per shape, one loss per shape and seed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.runs.columns import OPTIONAL_NUMBERS, OPTIONAL_TEXT, TABLE_PARAMS, TOKEN_GROUP, layer_weights
from analysis.runs.learning_rates import RateChoice, choose_rates
from analysis.runs.left_out import RowReason, WhyNot
from analysis.runs.remarks import NAMED, About, Remark, first_names
from analysis.runs.settings import Chosen, choose, last_steps, refuse_other_data, refuse_other_models
from analysis.runs.table import RunTable, whole
from analysis.runs.tokens import TokenRule, choose_tokens
from core.errors import InputError
from core.numbers import first_few

#: Relative difference of the table's count from 12·L·d² above which there is a warning.
COUNT_DIFFERS = 0.05
#: Columns that may differ between rows of one shape, seed and learning rate.
_DETAILS = ("heads", "width", TABLE_PARAMS, *OPTIONAL_NUMBERS, *OPTIONAL_TEXT)
#: Columns that identify a run.
_RUN = ["depth", "width", "seed", "lr"]


@dataclass(frozen=True)
class ComparedRuns:
    """The losses that are compared.

    Attributes:
        rows: one row per (depth, params, token_group, seed), in that order, with the columns of `RunTable.used` and
            the group of equal tokens, `token_group`; the index is the number of the row that represents all it was made
            from, `loss` (nats per token) is the loss compared, and `lr` its learning rate.
        left_out: the reason of every other used row, by its number.
        merged: the numbers of those of `left_out` whose losses are part of a loss that is compared.
        diverged: shapes with a run that diverged: depth, width, params, number of runs `diverged`, and `of` how many
            runs with an outcome. A run is a seed at a learning rate; it counts as diverged if it has no loss at the
            tokens compared.
        remarks: what may bias the comparison.
        bracketed: (depth, params) of the shapes whose learning rates bracket the best one.
    """

    rows: pd.DataFrame
    left_out: dict[int, WhyNot]
    tokens: TokenRule
    diverged: pd.DataFrame
    remarks: tuple[Remark, ...]
    merged: frozenset[int] = frozenset()
    bracketed: frozenset[tuple[int, float]] = frozenset()


def compare(runs: RunTable, *, tokens: float | None = None) -> ComparedRuns:
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
            f"{runs.source} has no usable row: {len(runs.left_out)} left out ({first_few(reasons, '; ')}). "
            "A usable row has the status done, a depth, a width and a finite positive loss."
        )
    # Sorted by loss and not by seed, so that sums do not depend on the names of the seeds.
    used = runs.used.sort_values(["depth", "params", "lr", "loss", "tokens", "seed"], kind="stable")
    # The rows of a study are of one protocol, or there is a warning; those of a foreign table may differ in anything.
    foreign = (used["cell"] == "").any()
    if foreign:
        refuse_other_data(used, runs.headings)
    else:
        refuse_other_models(used)
    steps = last_steps(used) if foreign else Chosen(used, {})
    level = choose_tokens(steps.rows, tokens)
    settings = choose(level.rows) if foreign else Chosen(level.rows, {})
    replicates, replicated = _replicates(settings.rows, runs.unseeded)
    single, averaged, average = _average(replicates)
    choice = choose_rates(single)
    rows = choice.rows.sort_values(["depth", "params", TOKEN_GROUP, "seed"], kind="stable")
    lost = _lost(runs.frame, level.rows)
    before = (*level.remarks, *steps.remarks, *settings.remarks, *replicated, *average)
    others = {**steps.left_out, **level.left_out, **settings.left_out, **averaged, **choice.left_out}
    diverged = _outcomes(level.rows, lost, _RUN)
    merged = frozenset(averaged) | choice.merged
    remarks = (*before, *_remarks(rows, runs, choice, lost))
    return ComparedRuns(
        rows, dict(sorted(others.items())), level.rule, diverged, remarks, merged, choice.bracketed
    )


def _replicates(rows: pd.DataFrame, unseeded: frozenset[int]) -> tuple[pd.DataFrame, list[Remark]]:
    """Give each row without a seed of its own, of several of one shape and learning rate, a seed that no other row has.

    Replicates of two shapes are not paired, because the table does not pair them.
    """
    key = ["depth", "params", "lr", TOKEN_GROUP]
    several = rows.index.isin(unseeded) & rows.duplicated(key, keep=False)
    if not several.any():
        return rows, []
    first = int(rows["seed"].max()) + 1
    seeds = rows["seed"].to_numpy(copy=True)
    seeds[several] = first + np.arange(several.sum())
    shapes = len(rows[several].drop_duplicates(key[:2]))
    return rows.assign(seed=seeds), [Remark(About.REPLICATES, (int(several.sum()), shapes))]


def _average(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[int, WhyNot], list[Remark]]:
    """One row per (depth, params, seed, lr, group), the reason of each row averaged into another, and a remark."""
    key = ["depth", "params", "seed", "lr", TOKEN_GROUP]
    again = rows.duplicated(key)
    if not again.any():
        return rows, {}, []
    group = rows.assign(row=rows.index).groupby(key, dropna=False)
    reasons = {
        row: WhyNot(RowReason.AVERAGED, (int(first),))
        for row, first in zip(rows.index[again], group["row"].transform("first")[again], strict=True)
    }
    details = [name for name in _DETAILS if name in rows.columns]
    differing = [name for name in details if (group[name].nunique(dropna=False) > 1).any()]
    remark = Remark(About.AVERAGED, (len(reasons), *differing))
    return rows.assign(loss=group["loss"].transform("mean"))[~again], reasons, [remark]


def _lost(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The diverged runs (depth, width, seed, lr) of a table that have no loss among the rows at the tokens compared."""
    diverged = frame[(frame["status"] == "diverged") & whole(frame["depth"]) & whole(frame["width"])]
    runs = pd.concat([rows, diverged.sort_values("params")]).drop_duplicates(_RUN)
    return runs[runs["status"] == "diverged"]


def _outcomes(rows: pd.DataFrame, lost: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return one row per shape with diverged runs: `params`, how many `diverged`, and `of` how many.

    `key` names the columns that tell one run, or one seed, from another.
    """
    each = pd.concat([rows, lost]).drop_duplicates(key)
    # In the table's own count a diverged run may lack its size; it is then that of the shape's other rows.
    size = each["params"].where(np.isfinite(each["params"]) & (each["params"] > 0))
    each = each.assign(params=size, diverged=each["status"] == "diverged")
    shapes = each.groupby(["depth", "width"], as_index=False).agg(
        params=("params", "first"), diverged=("diverged", "sum"), of=("diverged", "size")
    )
    shapes = shapes[(shapes["diverged"] > 0) & shapes["params"].notna()].sort_values(["depth", "params"])
    counts = dict.fromkeys(("depth", "width", "diverged", "of"), "int64")
    return shapes.astype(counts).reset_index(drop=True)


def _remarks(rows: pd.DataFrame, runs: RunTable, choice: RateChoice, lost: pd.DataFrame) -> Iterator[Remark]:
    """What may bias the comparison of `rows`, of which `lost` are the diverged runs without a loss among them."""
    if choice.lowest:
        yield Remark(About.LOWEST_RATE, (choice.lowest, choice.at_end))
    seeds = _outcomes(rows, lost, ["depth", "width", "seed"])
    seeds = seeds[seeds["diverged"] < seeds["of"]]
    if len(seeds):
        names = [f"{row.depth}×{row.width}: {row.diverged} of {row.of}" for row in seeds.itertuples()]
        yield Remark(About.SURVIVORS, (len(names), *first_names(names)))
    protocols = sorted(set(rows["protocol"]) - {""}) if "protocol" in rows else []
    if len(protocols) > 1:
        yield Remark(About.PROTOCOLS, (len(protocols), *protocols[:NAMED]))
    weights = layer_weights(rows)
    off = float(np.max(np.abs(rows["params"] / (weights * rows["depth"] * rows["width"] ** 2) - 1)))
    # Also of rows that a study kept from before its N was counted so.
    if off > COUNT_DIFFERS:
        yield Remark(About.COUNT_DIFFERS, (off, float(weights.max())))
    wide = rows[rows["width"] > rows["vocabulary"]] if "vocabulary" in rows else rows.iloc[:0]
    if len(wide):
        widest, rank = int(wide["width"].max()), float(wide["vocabulary"].min())
        yield Remark(About.ABOVE_VOCABULARY, (len(wide), len(rows), widest, rank))
