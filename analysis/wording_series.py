"""What a series of studies found, in plain words."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.contrast import Moved
from analysis.numbers import digits, human
from analysis.series import BestData, CrossingData, MeasureData, Move, Value, label
from analysis.wording import ends, human_range, layers, percent
from analysis.wording_search import factor_interval

#: Pairs of depths that are told in a sentence of their own.
MOST_PAIRS = 3


def series_sentences(
    key: str,
    crossings: CrossingData | None,
    best: BestData | None,
    moves: Sequence[Move],
    measures: Sequence[MeasureData],
    level: float,
    *,
    comparable: bool = False,
) -> list[str]:
    """The answer of a series, most important sentence first; `comparable` as in `series_report.write_series`."""
    needed = [text for data in measures if (text := needed_sentence(key, data))]
    if comparable:
        needed += [
            text for data in measures if data.name == "loss" and (text := compared_sentence(key, data))
        ]
    crossed = [] if crossings is None else crossing_sentences(key, crossings, level)
    best_told = best_sentences(key, best)
    if crossings is None or not (crossings.rows["status"] == "bracketed").any():
        # That nothing is settled is no answer while something is.
        crossed, best_told = best_told, crossed
    return [*needed, *crossed, *moved_sentences(key, moves, level), *best_told] or [
        f"No member of this series has two depths that can be compared, and none has a measure to show by {key}."
    ]


def crossing_sentences(key: str, data: CrossingData, level: float) -> list[str]:
    """One sentence for each pair of neighbouring depths that is settled at some value: where it crosses at each."""
    told: list[str] = []
    silent = 0
    for (shallow, deep), rows in data.rows.groupby(["shallow", "deep"], sort=True):
        if len(told) == MOST_PAIRS or not (rows["status"] == "bracketed").any():
            silent += 1
            continue
        parts = []
        for where, group in itertools.groupby(rows.to_dict("records"), lambda row: _where(row, level)):
            parts.append(f"{where} at {_values([row['value'] for row in group])}")
        told.append(f"Depth {deep} overtakes depth {shallow}, by {key}: {'; '.join(parts)}.")
    if silent:
        pairs = f"{silent} more pairs of depths are" if silent > 1 else "1 more pair of depths is"
        few = "No crossing is between two sizes measured at any value; what bounds there are is in the table."
        told.append(f"{pairs} in the table." if told else few)
    return told


def _where(row: dict[Any, Any], level: float) -> str:
    match row["status"]:
        case "bracketed":
            low, high = (None if math.isnan(row[name]) else float(row[name]) for name in ("low", "high"))
            return f"N ≈ {human(row['params'])} ({percent(level)}: {human_range((low, high))})"
        case "left_censored":
            return "below all sizes measured"
        case "right_censored":
            return "nowhere up to the largest size"
        case _:
            return "not settled"


def moved_sentences(key: str, moves: Sequence[Move], level: float) -> list[str]:
    """Which crossings are elsewhere than at the first value by more than the noise."""
    pairs = [(move, item) for move in moves for item in move.pairs if item.shift_interval != (None, None)]
    if not pairs:
        return []
    first = label(moves[0].first)
    moved = [(move, item) for move, item in pairs if item.significant]
    if not moved:
        return [f"No crossing lies elsewhere than at {key} {first} beyond the noise ({percent(level)})."]
    parts = [
        f"{item.shallow} → {item.deep} at {label(move.value)} to {_factor(item, level)}"
        for move, item in moved[:MOST_PAIRS]
    ]
    more = f", and {len(moved) - MOST_PAIRS} more in the table" if len(moved) > MOST_PAIRS else ""
    chance = f"{100 * (1 - level ** len(pairs)):.0f} %"
    doubt = f" (One of {len(pairs)} stands out by chance in up to {chance} of series.)" * (len(pairs) > 1)
    return [
        f"Against {key} {first}, {len(moved)} of {len(pairs)} crossings move: {'; '.join(parts)}{more}.{doubt}"
    ]


def _factor(item: Moved, level: float) -> str:
    interval = factor_interval(item.shift_interval)
    assert interval is not None
    if item.shift is None:
        return f"{ends(interval, 3)} times the N ({percent(level)})"
    return f"{digits(math.exp(item.shift), 3)} times the N ({percent(level)}: {ends(interval, 3)})"


def best_sentences(key: str, data: BestData | None) -> list[str]:
    """The best depth by value, at the largest budget that most values have."""
    if data is None:
        return []
    counts = data.rows.groupby("budget").size()
    if counts.max() < 2:
        return []
    budget = float(counts[counts == counts.max()].index.max())
    rows = data.rows[data.rows["budget"] == budget].sort_values("place")
    parts = [
        f"{layers(depth)} at {key} {_values(values)}" for depth, values in _runs(rows["depth"], rows["value"])
    ]
    return [f"Lowest loss at a budget of N ≈ {human(budget)}: {', '.join(parts)}."]


def needed_sentence(key: str, data: MeasureData) -> str:
    """The depth that each value needs for the target; empty without a target."""
    if data.target is None or data.needed.empty:
        return ""
    needed = data.needed.assign(depth=data.needed["depth"].fillna(0).astype(int))
    parts = []
    for depth, values in _runs(needed["depth"], needed["value"]):
        if depth:
            parts.append(f"{layers(depth)} at {key} {_values(values)}")
            continue
        deepest = int(needed.loc[needed["value"].isin(values), "deepest"].max())
        parts.append(f"no depth up to {deepest} at {key} {_values(values)}")
    side = "at most" if data.lower else "at least"
    return f"For a mean {data.name} of {side} {data.target:g}: {', '.join(parts)}."


def compared_sentence(key: str, data: MeasureData) -> str:
    """A measure at the largest depth and size that all values have, the best value first; empty for one value.

    Of a depth's widths the best counts, as everywhere here, and of a shape the mean over its seeds.
    """
    shapes = data.shapes.dropna(subset=["mean"])
    values = shapes["place"].nunique()
    where = shapes.groupby(["depth", "params"])["place"].nunique()
    common = where[where == values]
    if values < 2 or common.empty:
        return ""
    depth, params = max(common.index)
    rows = shapes[(shapes["depth"] == depth) & (shapes["params"] == params)]
    rows = rows.sort_values("mean", ascending=data.lower)
    parts = [f"{digits(row['mean'], 4)} at {label(row['value'])}" for row in rows.to_dict("records")]
    return f"Mean {data.name} of {layers(int(depth))} at N ≈ {human(float(params))}, by {key}: {', '.join(parts)}."


def _runs(depths: pd.Series, values: pd.Series) -> list[tuple[int, list[Value]]]:
    """Runs of neighbouring values of equal depth."""
    pairs = zip(depths.astype(int).tolist(), values.tolist(), strict=True)
    return [
        (depth, [value for _, value in group])
        for depth, group in itertools.groupby(pairs, lambda pair: pair[0])
    ]


def _values(values: Sequence[Value]) -> str:
    return _listed([label(value) for value in values])


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
