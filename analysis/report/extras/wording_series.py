"""What a series of studies found, in plain words."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from analysis.fit.crossing_shift import ChangedStudy
from analysis.fit.measures import MeasureData
from analysis.fit.sentences import ends, human_range, layers, percent
from analysis.fit.series import BestData, CrossingData, Member
from analysis.numbers import digits, human
from analysis.report.extras.measures import compared_sentence, listed_values, needed_sentence, runs_of
from analysis.report.extras.shifts import shift_sentence

#: Pairs of depths that are told in a sentence of their own.
MOST_PAIRS = 3
#: Of what the data do not tell.
UNSETTLED = "not settled"


def series_sentences(
    key: str,
    members: Sequence[Member],
    crossings: CrossingData | None,
    best: BestData | None,
    shifts: Sequence[ChangedStudy],
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
    return [
        *slope_sentences(key, members, level),
        *needed,
        *crossed,
        *([shift_sentence(shifts)] if shifts else []),
        *best_told,
    ] or [
        f"No member of this series has two depths that can be compared, and none has a measure to show by {key}."
    ]


def slope_sentences(key: str, members: Sequence[Member], level: float) -> list[str]:
    """The slope of the threshold law at each value; none where no value has one with an interval."""
    slopes = [(_slope(member, level), member.value) for member in members]
    if all(slope == UNSETTLED for slope, _ in slopes):
        return []
    parts = [
        f"{slope} at {listed_values([value for _, value in group])}"
        for slope, group in itertools.groupby(slopes, lambda pair: pair[0])
    ]
    return [f"Slope b of the threshold law ln d = a + b·L, by {key}: {'; '.join(parts)}."]


def _slope(member: Member, level: float) -> str:
    law = None if member.fit is None else member.fit.law
    if law is None or law.b is None or law.b_interval is None or None in law.b_interval:
        return UNSETTLED
    return f"{digits(law.b)} ({percent(level)}: {ends(law.b_interval)})"


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
            parts.append(f"{where} at {listed_values([row['value'] for row in group])}")
        told.append(
            f"{deep} layers overtake {shallow} layer{'s' * (shallow != 1)}, by {key}: {'; '.join(parts)}."
        )
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
            return UNSETTLED


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
        f"{layers(depth)} at {key} {listed_values(values)}"
        for depth, values in runs_of(rows["depth"], rows["value"])
    ]
    return [f"Lowest loss at a budget of N ≈ {human(budget)}: {', '.join(parts)}."]
