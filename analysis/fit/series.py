"""A series of studies that differ in one key: crossings, best depth and measures by its value.

A crossing depends on the data, the tokens and the recipe. A series changes one of these: the training tokens (Murray
2019, Van Biljon 2020), the vocabulary (Wies et al. 2021), the difficulty of a task (Sanford et al. 2024). Nothing is
fitted across members; every number comes from one member's fit or run table.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import InputError
from analysis.fit.crossing_shift import ChangedStudy, shift_between, split_sensitivity_runs
from analysis.fit.document import Fit
from analysis.fit.measures import MeasureData, Value, ValueAxis, are_numbers, measure_by_value, value_axis
from analysis.intervals import width_of
from analysis.law.crossings import Crossing
from analysis.runs.comparison import compare
from analysis.runs.table import RunTable

#: Measures shown by default, in this order.
MEASURES = ("accuracy", "loss")


@dataclass(frozen=True)
class Member:
    """One study of a series.

    Attributes:
        value: of the key that differs.
        runs: its run table.
        fit: of these rows; None if nothing could be fitted.
        report: relative link to its own report, if any.
    """

    value: Value
    runs: RunTable
    fit: Fit | None
    report: str | None


@dataclass(frozen=True)
class _ByValue:
    rows: pd.DataFrame
    axis: ValueAxis

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows.drop(columns="place")


class CrossingData(_ByValue):
    """Crossings by value.

    Attributes:
        rows: one row per value and pair of neighbouring depths: value, place (on the axis), shallow, deep, status,
            reason, params (N), low, high (its interval), width, width_low, width_high (of the shallower model),
            measured_low, measured_high (the common range of N). NaN if open or unknown.
    """


class BestData(_ByValue):
    """The best depth of each budget, by value.

    Attributes:
        rows: value, place, budget, params (the N compared), depth, width, loss, near_low, near_high (range of
            the depths statistically tied with it, NaN without a noise estimate), near (the tied depths as text).
    """


def in_order(members: Sequence[Member]) -> list[Member]:
    """The members sorted by value if all values are numbers, else as given."""
    if are_numbers([member.value for member in members]):
        return sorted(members, key=lambda member: float(member.value))
    return list(members)


def axis_of(members: Sequence[Member]) -> ValueAxis:
    """The axis of the values of ordered members."""
    return value_axis([member.value for member in members])


def crossing_data(members: Sequence[Member]) -> CrossingData | None:
    """The crossings of neighbouring depths; None if all are `insufficient`."""
    members = in_order(members)
    axis = axis_of(members)
    rows = [
        {"value": member.value, "place": place, **crossing_row(item)}
        for place, member in zip(axis.places, members, strict=True)
        for item in (member.fit.crossings if member.fit else ())
        if item.status != "insufficient"
    ]
    return CrossingData(pd.DataFrame(rows), axis) if rows else None


def best_data(members: Sequence[Member]) -> BestData | None:
    """The best depth of each budget; None if no member has two depths at one N."""
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
            "near_low": float(min(item.near or [math.nan])),
            "near_high": float(max(item.near or [math.nan])),
            "near": " ".join(map(str, item.near or ())),
        }
        for place, member in zip(axis.places, members, strict=True)
        for item in (member.fit.best if member.fit else ())
    ]
    return BestData(pd.DataFrame(rows), axis) if rows else None


def shifts_by_value(key: str, members: Sequence[Member]) -> tuple[ChangedStudy, ...]:
    """The shifts of each member's crossings from those of the first member that has a fit."""
    fitted = [(member, member.fit) for member in in_order(members) if member.fit is not None]
    if not fitted:
        return ()
    first, own = fitted[0]
    found = []
    for member, other in fitted[1:]:
        study = compare_fits(own, other, key, first.value, member.value)
        known = tuple(
            item for item in study.pairs if item.shift_interval is not None or item.shift is not None
        )
        if known:
            found.append(replace(study, pairs=known))
    return tuple(found)


def compare_fits(own: Fit, other: Fit, key: str, base: Value, value: Value) -> ChangedStudy:
    """Compare the crossings of two fits of the same level: of a study itself, and after a key was changed."""
    theirs = {(item.shallow, item.deep): item for item in other.crossings}
    pairs = tuple(
        shift_between(item, theirs[item.shallow, item.deep])
        for item in own.crossings
        if (item.shallow, item.deep) in theirs
    )
    slope = None if own.law.b is None or other.law.b is None else other.law.b - own.law.b
    return ChangedStudy(key, base, value, pairs, own.level, other.used, slope)


def measures_of(members: Sequence[Member]) -> list[str]:
    """Those of `MEASURES` that a usable row of some member has."""
    return [
        name
        for name in MEASURES
        if any(name in m.runs.used.columns and m.runs.used[name].notna().any() for m in members)
    ]


def measure_data(members: Sequence[Member], name: str, target: float | None = None) -> MeasureData | None:
    """A measure against depth, see `measure_by_value`; None if no member has a row with it.

    Uses the rows compared by `analysis.runs.comparison`: equal tokens, one learning rate per shape.
    """
    tables = [(member.value, _measured(member, name)) for member in in_order(members)]
    return measure_by_value(tables, name, target)


def _measured(member: Member, name: str) -> pd.DataFrame | None:
    """The compared rows of a member with a finite measure."""
    if member.fit is not None and member.fit.study is not None:
        rows = member.fit.study.rows
    else:
        try:
            rows = compare(split_sensitivity_runs(member.runs)[0]).rows
        except InputError:
            return None
    if name not in rows.columns:
        return None
    numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float)
    rows = rows.assign(**{name: numbers})[np.isfinite(numbers)]
    return rows if len(rows) else None


def crossing_row(item: Crossing) -> dict[str, Any]:
    """A crossing as one row of `CrossingData`, without the value."""
    unknown = (None, None)
    names = ("params", "low", "high", "width", "width_low", "width_high", "measured_low", "measured_high")
    numbers = (
        *(item.params, *(item.params_interval or unknown)),
        *(
            item.width,
            *(width_of(end, item.shallow) if end else None for end in item.params_interval or unknown),
        ),
        *(item.range or unknown),
    )
    return {
        "shallow": item.shallow,
        "deep": item.deep,
        "status": item.status,
        "reason": item.reason or "",
        **{
            name: math.nan if value is None else float(value)
            for name, value in zip(names, numbers, strict=True)
        },
    }
