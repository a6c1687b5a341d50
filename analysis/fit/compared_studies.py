"""Studies that are compared: crossings, slopes, best depths and measures by the value of the key in which they differ.

A crossing depends on the data, the tokens and the recipe. Studies that differ in one of these show its effect: the
training tokens (Murray 2019, Van Biljon 2020), the vocabulary (Wies et al. 2021), the difficulty of a task (Sanford et
al. 2024). Nothing is fitted across studies; every number comes from one study's fit or run table.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from analysis.intervals import Interval, difference_ends, ends_of, interval_of
from analysis.law.crossings import Crossing
from analysis.law.reading import AtSize
from analysis.law.threshold_law import ThresholdLaw
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
class ComparedStudy:
    """A study that is compared.

    Attributes:
        value: of the key that differs, or the name of the study.
        runs: its run table; None if only its fit is given.
        fit: of these rows; None if nothing could be fitted.
        report: relative link to its own report, if any.
    """

    value: Value
    runs: RunTable | None
    fit: Fit | None
    report: str | None


@dataclass(frozen=True)
class ByValue:
    """Results of the studies: `rows` with their value and its place on the axis."""

    rows: pd.DataFrame
    axis: ValueAxis

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows.drop(columns="place")


@dataclass(frozen=True)
class SlopeDifference:
    """The slope b of the threshold law of a study less that of the first one, whose value is `base`.

    Attributes:
        slope: b of the study; None without a law.
        difference: b less b of the first study; None if one of them has no law.
        interval: of the difference, from both intervals (MOVER) as of independent studies; an open end is None. None
            without any bound.
    """

    base: Value
    value: Value
    slope: float | None
    difference: float | None
    interval: Interval | None


@dataclass(frozen=True)
class ShiftedStudy:
    """The shifts of the crossings of one study from those of the first one, whose value is `base`."""

    base: Value
    value: Value
    pairs: tuple[CrossingShift, ...]


def in_order(studies: Sequence[ComparedStudy]) -> list[ComparedStudy]:
    """The studies sorted by value if all values are numbers, else as given."""
    if are_numbers([study.value for study in studies]):
        return sorted(studies, key=lambda study: float(study.value))
    return list(studies)


def crossing_data(studies: Sequence[ComparedStudy]) -> ByValue | None:
    """The `crossing_row`s of neighbouring depths; None if all are `insufficient`."""
    return _by_value(
        studies, lambda fit: [crossing_row(x) for x in fit.crossings if x.status != "insufficient"]
    )


def best_data(studies: Sequence[ComparedStudy]) -> ByValue | None:
    """The `best_row`s of every budget; None if no study has two depths at one N."""
    return _by_value(studies, lambda fit: [best_row(item, fit.loss_unit) for item in fit.best])


def _by_value(
    studies: Sequence[ComparedStudy], rows_of: Callable[[Fit], list[dict[str, Any]]]
) -> ByValue | None:
    studies = in_order(studies)
    axis = value_axis([study.value for study in studies])
    rows = [
        {"value": study.value, "place": place, **row}
        for place, study in zip(axis.places, studies, strict=True)
        for row in (rows_of(study.fit) if study.fit else ())
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


def shifts_by_value(studies: Sequence[ComparedStudy]) -> tuple[ShiftedStudy, ...]:
    """The shifts of each study's crossings from those of the first study that has a fit."""
    pairs = [shifted(first, fit, base, value) for base, first, value, fit in _against_the_first(studies)]
    return tuple(shift for shift in pairs if shift.pairs)


def slopes_by_value(studies: Sequence[ComparedStudy]) -> tuple[SlopeDifference, ...]:
    """The slopes of the studies less that of the first study that has a fit; of those that have a slope."""
    return tuple(
        _slope_difference(first.law, fit.law, base, value)
        for base, first, value, fit in _against_the_first(studies)
        if first.law.b is not None or fit.law.b is not None
    )


def _slope_difference(first: ThresholdLaw, other: ThresholdLaw, base: Value, value: Value) -> SlopeDifference:
    if first.b is None or other.b is None:
        return SlopeDifference(base, value, other.b, None, None)
    low, high = difference_ends(first.b, ends_of(first.b_interval), other.b, ends_of(other.b_interval))
    interval = interval_of(low, high)
    bounds = None if interval == (None, None) else interval
    return SlopeDifference(base, value, other.b, other.b - first.b, bounds)


def _against_the_first(studies: Sequence[ComparedStudy]) -> list[tuple[Value, Fit, Value, Fit]]:
    """The value and fit of the first study that has a fit, and of each other one that can be compared with it."""
    fitted = [(study.value, study.fit) for study in in_order(studies) if study.fit is not None]
    return [(*fitted[0], value, fit) for value, fit in fitted[1:] if not _incomparable(fitted[0][1], fit)]


def _incomparable(first: Fit, other: Fit) -> str:
    """Why crossings and slopes of two fits cannot be subtracted; empty if they can."""
    if first.count != other.count:
        return f"it counts N as {other.count}, the first study as {first.count}"
    if first.level != other.level:
        return (
            f"its intervals are at {percent(other.level)}, those of the first study at {percent(first.level)}"
        )
    return ""


def in_one_unit(studies: Sequence[ComparedStudy]) -> tuple[list[ComparedStudy], list[str]]:
    """State all losses in nats per token if the units of the fits differ, with a sentence on it."""
    units = {study.fit.unit for study in studies if study.fit is not None}
    if len(units) < 2:
        return list(studies), []
    stated = [
        replace(study, fit=study.fit and replace(study.fit, unit="nats per token")) for study in studies
    ]
    words = (
        f"The fits state losses in {' and in '.join(sorted(units))}; all losses here are in nats per token."
    )
    return stated, [words]


def not_compared(studies: Sequence[ComparedStudy]) -> list[str]:
    """Sentences on what cannot be compared, and why; empty if all studies can."""
    ordered = in_order(studies)
    fits = [study.fit for study in ordered if study.fit is not None]
    sentences = []
    for study in ordered:
        name = label(study.value)
        if study.fit is None:
            sentences.append(f"{name} has no fit: it has no loss that can be used.")
        elif why := _incomparable(fits[0], study.fit):
            sentences.append(f"{name} is not compared in crossings and slopes: {why}.")
        elif not any(item.status == "bracketed" for item in study.fit.crossings):
            sentences.append(
                f"{name} has no settled crossing: beyond the noise no depth overtakes another between two measured "
                "sizes, so its shifts are bounds at most."
            )
    return sentences


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


def unit_of(studies: Sequence[ComparedStudy]) -> UnitName:
    """The unit in which the losses of the studies are stated, which is that of their fits."""
    return next((study.fit.unit for study in studies if study.fit is not None), "nats per token")


def measures_of(studies: Sequence[ComparedStudy]) -> list[str]:
    """Those of `MEASURES` that a usable row of some study has."""
    tables = [study.runs.used for study in studies if study.runs is not None]
    return [name for name in MEASURES if any(name in table and table[name].notna().any() for table in tables)]


def measure_data(
    studies: Sequence[ComparedStudy], name: str, target: float | None = None
) -> MeasureData | None:
    """A measure against depth, see `measure_by_value`; None if no study has a row with it.

    Uses the rows compared by `analysis.runs.comparison`: equal tokens, one learning rate per shape.
    """
    tables = [(study.value, _measured(study, name, unit_of(studies))) for study in in_order(studies)]
    return measure_by_value(tables, name, target)


def _measured(study: ComparedStudy, name: str, unit: UnitName) -> pd.DataFrame | None:
    """The compared rows of a study with a finite measure, losses in this unit, which rows without a fit may lack."""
    evidence = study.fit.study if study.fit else None
    if study.runs is None or (name == "loss" and study.fit is None and unit != "nats per token"):
        return None
    try:
        rows = compare(split_sensitivity_runs(study.runs)[0]).rows if evidence is None else evidence.rows
    except InputError:
        return None
    if name not in rows.columns:
        return None
    rows = rows.assign(**{name: pd.to_numeric(rows[name], errors="coerce").astype(float)})
    rows = rows[np.isfinite(rows[name])]
    if name == "loss" and study.fit is not None:
        rows = rows.assign(loss=study.fit.loss_unit.per_nat * rows["loss"])
    return rows if len(rows) else None
