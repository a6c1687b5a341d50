"""A series of studies that differ in one key: crossings, best depth and measures by its value.

A crossing depends on the data, the tokens and the recipe. A series changes one of these: the training tokens (Murray
2019, Van Biljon 2020), the vocabulary (Wies et al. 2021), the difficulty of a task (Sanford et al. 2024). Nothing is
fitted across members; every number comes from one member's fit or run table.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.fit.crossing_shift import CrossingShift, shift_between
from analysis.fit.document import Fit
from analysis.fit.measures import (
    MeasureData,
    Value,
    ValueAxis,
    are_numbers,
    label,
    measure_by_value,
    value_axis,
)
from analysis.fit.rate_check import split_sensitivity_runs
from analysis.law.crossings import Crossing
from analysis.law.reading import AtSize
from analysis.runs.comparison import compare
from analysis.runs.table import RunTable
from analysis.units import LossUnit, UnitName, times
from core.errors import InputError
from core.numbers import digits, factors, percent

#: Measures shown by default, in this order.
MEASURES = ("accuracy", "loss")
#: Shifts that the sentence names; the table has all.
MOST_NAMED = 3


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
class ByValue:
    """Results of the members of a series: `rows` with their value and its place on the axis."""

    rows: pd.DataFrame
    axis: ValueAxis

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows.drop(columns="place")


@dataclass(frozen=True)
class ShiftedStudy:
    """The shifts of the crossings of one member from those of the first one, whose value is `base`."""

    base: Value
    value: Value
    pairs: tuple[CrossingShift, ...]


def in_order(members: Sequence[Member]) -> list[Member]:
    """The members sorted by value if all values are numbers, else as given."""
    if are_numbers([member.value for member in members]):
        return sorted(members, key=lambda member: float(member.value))
    return list(members)


def crossing_data(members: Sequence[Member]) -> ByValue | None:
    """The `crossing_row`s of neighbouring depths; None if all are `insufficient`."""
    return _by_value(
        members, lambda fit: [crossing_row(x) for x in fit.crossings if x.status != "insufficient"]
    )


def best_data(members: Sequence[Member]) -> ByValue | None:
    """The `best_row`s of every budget; None if no member has two depths at one N."""
    return _by_value(members, lambda fit: [best_row(item, fit.loss_unit) for item in fit.best])


def _by_value(members: Sequence[Member], rows_of: Callable[[Fit], list[dict[str, Any]]]) -> ByValue | None:
    members = in_order(members)
    axis = value_axis([member.value for member in members])
    rows = [
        {"value": member.value, "place": place, **row}
        for place, member in zip(axis.places, members, strict=True)
        for row in (rows_of(member.fit) if member.fit else ())
    ]
    return ByValue(pd.DataFrame(rows), axis) if rows else None


def crossing_row(item: Crossing) -> dict[str, Any]:
    """A crossing as a row, in which NaN is open or unknown.

    `low` and `high` are its interval, `width` is that of the shallower model, `measured_low` and `measured_high` are
    the common range of N.
    """
    low, high = item.params_interval or (None, None)
    first, last = item.range or (None, None)
    numbers = {"params": item.params, "low": low, "high": high, "width": item.width}
    numbers |= {"measured_low": first, "measured_high": last}
    return {
        "shallow": item.shallow,
        "deep": item.deep,
        "status": item.status,
        "reason": item.reason or "",
        **{name: math.nan if value is None else float(value) for name, value in numbers.items()},
    }


def best_row(item: AtSize, unit: LossUnit) -> dict[str, Any]:
    """The best depth of a budget at the N compared, its loss in a unit, and the depths statistically tied with it."""
    item = times(item, unit.per_nat)
    names = ("budget", "params", "depth", "width", "loss")
    return {**{name: getattr(item, name) for name in names}, "near": " ".join(map(str, item.near or ()))}


def shifts_by_value(members: Sequence[Member]) -> tuple[ShiftedStudy, ...]:
    """The shifts of each member's crossings from those of the first member that has a fit."""
    fitted = [(member.value, member.fit) for member in in_order(members) if member.fit is not None]
    studies = [shifted(fitted[0][1], fit, fitted[0][0], value) for value, fit in fitted[1:]]
    return tuple(study for study in studies if study.pairs)


def shifted(first: Fit, other: Fit, base: Value, value: Value) -> ShiftedStudy:
    """Compare the crossings of two fits of the same level; without the pairs of which nothing is known."""
    theirs = {(item.shallow, item.deep): item for item in other.crossings}
    pairs = [
        shift_between(item, theirs[item.shallow, item.deep])
        for item in first.crossings
        if (item.shallow, item.deep) in theirs
    ]
    bounded = tuple(pair for pair in pairs if pair.shift is not None or pair.shift_interval)
    return ShiftedStudy(base, value, bounded)


def shift_sentence(key: str, studies: Sequence[ShiftedStudy], level: float) -> str:
    """Whether crossings move with the key; empty without a crossing that is known on both sides."""
    pairs = [(study, pair) for study in studies for pair in study.pairs if pair.shift_interval is not None]
    if not pairs:
        return ""
    moved = sorted((item for item in pairs if item[1].significant), key=lambda item: -abs(item[1].shift or 0))
    base = f"{key} {label(studies[0].base)}"
    if not moved:
        ends = [end for _, pair in pairs for end in pair.shift_interval or ()]
        limit = "; the size of a shift is not bounded"
        if None not in ends:
            most = math.exp(max(abs(end or 0.0) for end in ends))
            limit = f"; a shift by more than a factor {digits(most)} of N is excluded"
        return f"No crossing moves beyond the noise from {base} to other values ({percent(level)}){limit}."
    parts = []
    for study, pair in moved[:MOST_NAMED]:
        factor = "another N" if pair.shift is None else f"{digits(math.exp(pair.shift), 3)} times the N"
        bounds = f"{percent(level)}: {factors(pair.shift_interval)}"
        parts.append(f"{pair.shallow} → {pair.deep} at {label(study.value)} to {factor} ({bounds})")
    more = f"; {len(moved) - MOST_NAMED} more are in the table" if len(moved) > MOST_NAMED else ""
    sentence = f"Against {base}, {len(moved)} of {len(pairs)} crossings move: {'; '.join(parts)}{more}."
    if len(pairs) == 1:
        return sentence
    chance = f"{100 * (1 - level ** len(pairs)):.0f} %"
    return f"{sentence} (By chance alone one of {len(pairs)} stands out in up to {chance} of studies.)"


def unit_of(members: Sequence[Member]) -> UnitName:
    """The unit in which the losses of the members are stated, which is that of their fits."""
    return next((member.fit.unit for member in members if member.fit is not None), "nats per token")


def measures_of(members: Sequence[Member]) -> list[str]:
    """Those of `MEASURES` that a usable row of some member has."""
    tables = [member.runs.used for member in members]
    return [name for name in MEASURES if any(name in table and table[name].notna().any() for table in tables)]


def measure_data(members: Sequence[Member], name: str, target: float | None = None) -> MeasureData | None:
    """A measure against depth, see `measure_by_value`; None if no member has a row with it.

    Uses the rows compared by `analysis.runs.comparison`: equal tokens, one learning rate per shape.
    """
    tables = [(member.value, _measured(member, name, unit_of(members))) for member in in_order(members)]
    return measure_by_value(tables, name, target)


def _measured(member: Member, name: str, unit: UnitName) -> pd.DataFrame | None:
    """The compared rows of a member with a finite measure, losses in this unit, which rows without a fit may lack."""
    study = member.fit.study if member.fit else None
    if name == "loss" and member.fit is None and unit != "nats per token":
        return None
    try:
        rows = compare(split_sensitivity_runs(member.runs)[0]).rows if study is None else study.rows
    except InputError:
        return None
    if name not in rows.columns:
        return None
    rows = rows.assign(**{name: pd.to_numeric(rows[name], errors="coerce").astype(float)})
    rows = rows[np.isfinite(rows[name])]
    if name == "loss" and member.fit is not None:
        rows = rows.assign(loss=member.fit.loss_unit.per_nat * rows["loss"])
    return rows if len(rows) else None
