"""A measure against depth, for each difficulty of a task or each value of a series."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

Value = str | int | float

#: Default target of a measure.
TARGETS: Mapping[str, float] = {"accuracy": 0.9}
#: Positive values that span more than this factor are drawn on a log axis.
LOG_SPAN = 4.0


@dataclass(frozen=True)
class ValueAxis:
    """The values of a series, in order.

    Attributes:
        labels: as text.
        places: the values if all are numbers, else 0, 1, 2 ...
        numeric: whether all are numbers.
        log: whether they are positive and span more than `LOG_SPAN`.
    """

    labels: tuple[str, ...]
    places: tuple[float, ...]
    numeric: bool
    log: bool


@dataclass(frozen=True)
class MeasureData:
    """A measure by depth, and the depth needed for a target, by value.

    Attributes:
        name: of the measure, a column of the run tables.
        lower: whether lower is better.
        target: the target, if any.
        shapes: one row per shape: value, place, depth, width, heads, head_width (m, with m·heads = width), params,
            total_params, budget, seeds, mean, low, high (over the seeds), best (of all widths of this depth).
        needed: one row per value: value, place, depth, width, heads, head_width, params, mean, low, high, seeds of the
            shallowest shape that reaches the target (NaN if none does); deepest (the largest depth trained) and best
            (the best mean of any shape). Empty without a target.
    """

    name: str
    lower: bool
    target: float | None
    shapes: pd.DataFrame
    needed: pd.DataFrame
    axis: ValueAxis

    def table(self) -> pd.DataFrame:
        """For the CSV: every shape, and the shape each value needs, by the column `what`."""
        parts = [self.shapes.assign(what="shape")]
        if len(self.needed):
            parts.append(self.needed.rename(columns={"best": "best_mean"}).assign(what="needed"))
        table = pd.concat(parts, ignore_index=True).drop(columns="place")
        return table[["what", *(name for name in table.columns if name != "what")]]


def are_numbers(values: Sequence[Value]) -> bool:
    """Whether all values are numbers."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def value_axis(values: Sequence[Value]) -> ValueAxis:
    """The places of ordered values on an axis."""
    labels = tuple(label(value) for value in values)
    if not are_numbers(values):
        return ValueAxis(labels, tuple(float(place) for place in range(len(values))), False, False)
    places = tuple(float(value) for value in values)
    return ValueAxis(labels, places, True, places[0] > 0 and places[-1] > LOG_SPAN * places[0])


def measure_by_value(
    tables: Sequence[tuple[Value, pd.DataFrame | None]], name: str, target: float | None = None
) -> MeasureData | None:
    """A measure against depth; None if no value has it.

    Args:
        tables: each value, in order, and its rows with a finite measure, if any.
        name: of the measure, a column of the tables.
        target: the least value a shape has to reach, or the largest if lower is better.
    """
    axis = value_axis([value for value, _ in tables])
    lower = name == "loss"
    parts = [
        _shapes(rows, name, lower).assign(value=value, place=place)
        for (value, rows), place in zip(tables, axis.places, strict=True)
        if rows is not None
    ]
    if not parts:
        return None
    shapes = pd.concat(parts, ignore_index=True)
    shapes = shapes[["value", "place", *(name for name in shapes.columns if name not in ("value", "place"))]]
    needed = pd.DataFrame()
    if target is not None:
        needed = pd.DataFrame(
            [_needed(rows, lower, target) for _, rows in shapes.groupby("place", sort=True)]
        )
    return MeasureData(name, lower, target, shapes, needed, axis)


def _shapes(rows: pd.DataFrame, name: str, lower: bool) -> pd.DataFrame:
    """`MeasureData.shapes` of one value, without the value."""
    shape = ["depth", "width", "heads"]
    table = (
        rows.groupby(shape, dropna=False, sort=True)
        .agg(
            params=("params", "first"),
            total_params=("total_params", "first"),
            budget=("budget", "first"),
            seeds=(name, "size"),
            mean=(name, "mean"),
            low=(name, "min"),
            high=(name, "max"),
        )
        .reset_index()
    )
    table.insert(3, "head_width", table["width"] / table["heads"])
    by_depth = table.groupby("depth")["mean"]
    best = by_depth.idxmin() if lower else by_depth.idxmax()
    return table.assign(best=table.index.isin(best))


def _needed(shapes: pd.DataFrame, lower: bool, target: float) -> dict[str, Any]:
    """The shallowest shape of one value that reaches the target (the best width of that depth)."""
    best = shapes[shapes["best"]].sort_values("depth")
    reached = best[best["mean"] <= target] if lower else best[best["mean"] >= target]
    found = reached.iloc[0] if len(reached) else None
    shape = ("depth", "width", "heads", "head_width", "params", "total_params")
    means = best["mean"]
    return {
        "value": best["value"].iloc[0],
        "place": best["place"].iloc[0],
        **{
            name: math.nan if found is None else float(found[name])
            for name in (*shape, "mean", "low", "high", "seeds")
        },
        "deepest": int(best["depth"].max()),
        "best": float(means.min() if lower else means.max()),
    }


def label(value: Value) -> str:
    """A value as text, such as `1,000,000` for 1000000.0."""
    if isinstance(value, bool | str):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}" if abs(value) >= 10_000 else f"{int(value)}"
    return f"{value:g}"
