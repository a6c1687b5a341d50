"""What a series of studies found, in plain words."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.numbers import human
from analysis.series import BestData, CrossingData, MeasureData, Move, Value, label
from analysis.wording import human_range, layers, percent
from analysis.wording_search import ratio_phrase

#: Pairs of depths that are told in a sentence of their own.
MOST_PAIRS = 3


def series_sentences(
    key: str,
    crossings: CrossingData | None,
    best: BestData | None,
    moves: Sequence[Move],
    measures: Sequence[MeasureData],
    level: float,
) -> list[str]:
    """The answer of a series, most important sentence first."""
    needed = [text for data in measures if (text := needed_sentence(key, data))]
    crossed = [] if crossings is None else crossing_sentences(key, crossings, level)
    return [*needed, *crossed, *moved_sentences(key, moves, level), *best_sentences(key, best)] or [
        f"No member of this series has two depths that can be compared, and none has a measure to show by {key}."
    ]


def crossing_sentences(key: str, data: CrossingData, level: float) -> list[str]:
    """One sentence a pair of neighbouring depths: where it crosses at each value."""
    told = []
    pairs = list(data.rows.groupby(["shallow", "deep"], sort=True))
    for (shallow, deep), rows in pairs[:MOST_PAIRS]:
        parts = [f"{_where(row, level)} at {key} {label(row['value'])}" for row in rows.to_dict("records")]
        told.append(f"Depth {deep} overtakes depth {shallow} {_listed(parts)}.")
    if len(pairs) > MOST_PAIRS:
        told.append(f"{len(pairs) - MOST_PAIRS} more pairs of depths are in the table.")
    return told


def _where(row: dict[Any, Any], level: float) -> str:
    match row["status"]:
        case "bracketed":
            ends = tuple(None if math.isnan(row[name]) else float(row[name]) for name in ("low", "high"))
            return f"at N ≈ {human(row['params'])} ({percent(level)}: {human_range((ends[0], ends[1]))})"
        case "left_censored":
            return f"below all sizes measured (N ≈ {human(row['measured_low'])})"
        case "right_censored":
            return f"nowhere up to N ≈ {human(row['measured_high'])}"
        case _:
            if math.isnan(row["params"]):
                return "at a size that is not settled"
            return f"perhaps near N ≈ {human(row['params'])}, which is not settled,"


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
        f"{item.shallow} → {item.deep} at {key} {label(move.value)} {ratio_phrase(item, level)}"
        for move, item in moved[:MOST_PAIRS]
    ]
    more = f", and {len(moved) - MOST_PAIRS} more in the table" if len(moved) > MOST_PAIRS else ""
    chance = f"{100 * (1 - level ** len(pairs)):.0f} %"
    doubt = f" (One of {len(pairs)} stands out by chance in up to {chance} of series.)" * (len(pairs) > 1)
    return [
        f"Against {key} {first}, {len(moved)} of {len(pairs)} crossings move: {'; '.join(parts)}{more}.{doubt}"
    ]


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
