"""A series of studies that differ in one key: how the crossings, the best depth and a measure change with its value.

A crossing is a property of the data, the tokens and the recipe together. A series changes one of these: the
training tokens (Murray 2019, Van Biljon 2020), the vocabulary (Wies et al. 2021), the difficulty of a task (Sanford et
al. 2024). Nothing is fitted across the members: every number here is one of a member's own fit or run table, beside
its value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import InputError
from analysis.fit.crossing_shift import Moved, contrast
from analysis.fit.document import Fit
from analysis.fit.learning_rate_shift import split
from analysis.fit.measures import (
    MeasureData,
    Value,
    ValueAxis,
    are_numbers,
    label,
    measure_by_value,
    value_axis,
)
from analysis.law.crossings import Crossing
from analysis.runs.comparison import compare
from analysis.runs.table import STOPPED, RunTable

#: Measures that are looked for where none are named, the first first.
MEASURES = ("accuracy", "loss")


@dataclass(frozen=True)
class Member:
    """One study of a series.

    Attributes:
        value: of the key that differs.
        runs: its run table.
        fit: of these rows; None where nothing could be fitted.
        report: relative link to its own report; None where it has none.
    """

    value: Value
    runs: RunTable
    fit: Fit | None
    report: str | None


@dataclass(frozen=True)
class CrossingData:
    """Where the deeper model takes the lead, by value.

    Attributes:
        rows: value, place (on the axis), shallow, deep, status, reason, params (N), low, high (its interval), width,
            width_low, width_high (of the shallower model), measured_low, measured_high (the common range of N). NaN where
            open or not known. Neighbouring depths only.
    """

    rows: pd.DataFrame
    axis: ValueAxis

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows.drop(columns="place")


@dataclass(frozen=True)
class BestData:
    """The best depth of each budget, by value.

    Attributes:
        rows: value, place, budget, params (the N compared), depth, width, loss, near_low, near_high (the depths that
            cannot be told from it, NaN without a noise estimate), near (the same as text).
    """

    rows: pd.DataFrame
    axis: ValueAxis

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows.drop(columns="place")


@dataclass(frozen=True)
class Move:
    """The crossings at a value against those at the first value that has a fit.

    Attributes:
        first, value: the two values.
        pairs: neighbouring depths that both have, see `analysis.fit.crossing_shift.Moved`.
    """

    first: Value
    value: Value
    pairs: tuple[Moved, ...]


def in_order(members: Sequence[Member]) -> list[Member]:
    """The members by value where all values are numbers, else as given.

    Raises:
        ValueError: there is no member, or two have the same value.
    """
    if not members:
        raise ValueError("a series needs a member")
    names = [str(member.value) for member in members]
    if len(set(names)) < len(names):
        raise ValueError(f"two members of a series have the same value: {', '.join(names)}")
    if are_numbers([member.value for member in members]):
        return sorted(members, key=lambda member: float(member.value))
    return list(members)


def axis_of(members: Sequence[Member]) -> ValueAxis:
    """Where the values of members, that are in order, stand on an axis."""
    return value_axis([member.value for member in members])


def crossing_data(members: Sequence[Member]) -> CrossingData | None:
    """The crossings of neighbouring depths; None where no member has any that is not `insufficient`."""
    members = in_order(members)
    axis = axis_of(members)
    rows = [
        {"value": member.value, "place": place, **_crossing(item)}
        for place, member in zip(axis.places, members, strict=True)
        for item in (member.fit.crossings if member.fit else ())
        if item.adjacent and item.status != "insufficient"
    ]
    return CrossingData(pd.DataFrame(rows), axis) if rows else None


def best_data(members: Sequence[Member]) -> BestData | None:
    """The best depth of each budget; None where no member has two depths at one N."""
    members = in_order(members)
    axis = axis_of(members)
    rows = [
        {
            "value": member.value,
            "place": place,
            "budget": item.budget,
            "params": item.params,
            "depth": item.depth,
            "width": item.width,
            "loss": item.loss,
            "near_low": float(min(item.near)) if item.near else math.nan,
            "near_high": float(max(item.near)) if item.near else math.nan,
            "near": " ".join(map(str, item.near)) if item.near else "",
        }
        for place, member in zip(axis.places, members, strict=True)
        for item in (member.fit.best if member.fit else ())
    ]
    return BestData(pd.DataFrame(rows), axis) if rows else None


def moves(members: Sequence[Member]) -> tuple[Move, ...]:
    """Each member's crossings against those of the first that has a fit."""
    fitted = [(member, member.fit) for member in in_order(members) if member.fit is not None]
    if not fitted:
        return ()
    first, own = fitted[0]
    found = []
    for member, other in fitted[1:]:
        pairs = contrast(own, other, (label(first.value), label(member.value))).pairs
        known = tuple(item for item in pairs if item.shift_interval != (None, None) or item.shift is not None)
        if known:
            found.append(Move(first.value, member.value, known))
    return tuple(found)


def measures_of(members: Sequence[Member]) -> list[str]:
    """Those of `MEASURES` that some row that counts has."""
    return [
        name
        for name in MEASURES
        if any(name in m.runs.used.columns and m.runs.used[name].notna().any() for m in members)
    ]


def measure_data(members: Sequence[Member], name: str, target: float | None = None) -> MeasureData | None:
    """A measure against depth; None where no member has a row with it.

    The rows are those that are compared (`analysis.runs.comparison`): equal tokens, one learning rate a shape. A run that
    was stopped early has a forecast of its loss and of nothing else.

    Args:
        members: of the series.
        name: of a column of the run tables.
        target: that a shape is to reach: at least so much of it, at most where less is better.
    """
    tables = [(member.value, _measured(member, name)) for member in in_order(members)]
    return measure_by_value(tables, name, target)


def _measured(member: Member, name: str) -> pd.DataFrame | None:
    """The compared rows of a member that have the measure as a finite number."""
    if member.fit is not None and member.fit.evidence is not None:
        rows = member.fit.evidence.comparison.rows
    else:
        try:
            rows = compare(split(member.runs)[0]).rows
        except InputError:
            return None
    if name not in rows.columns:
        return None
    if name != "loss":
        rows = rows[rows["status"] != STOPPED]
    numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float)
    rows = rows.assign(**{name: numbers})[np.isfinite(numbers)]
    return rows if len(rows) else None


def _crossing(item: Crossing) -> dict[str, Any]:
    intervals = {
        "params": (item.params, *(item.params_interval or (None, None))),
        "width": (item.width, *(item.width_interval or (None, None))),
    }
    (params, low, high), (width, width_low, width_high) = intervals["params"], intervals["width"]
    measured_low, measured_high = item.range or (None, None)
    numbers = {
        "params": params,
        "low": low,
        "high": high,
        "width": width,
        "width_low": width_low,
        "width_high": width_high,
        "measured_low": measured_low,
        "measured_high": measured_high,
    }
    return {
        "shallow": item.shallow,
        "deep": item.deep,
        "status": item.status,
        "reason": item.reason or "",
        **{name: math.nan if value is None else float(value) for name, value in numbers.items()},
    }
