"""A measure against depth, for each difficulty of a task or each value of a key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

Value = str | int | float

#: Default target of a measure.
TARGETS: Mapping[str, float] = {"accuracy": 0.9}
#: Positive values that span more than this factor are drawn on a log axis.
LOG_SPAN = 4.0


@dataclass(frozen=True)
class ValueAxis:
    """The values of a key, in order.

    Attributes:
        labels: as text.
        places: the values if all are numbers, else 0, 1, 2 ...
        log: whether they are numbers, positive, and span more than `LOG_SPAN`.
    """

    labels: tuple[str, ...]
    places: tuple[float, ...]
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
        needed: one row per value: the columns of the shallowest shape that reaches the target (NaN if none does),
            deepest (the largest depth trained) and best (the best mean of any shape). Empty without a target.
    """

    name: str
    lower: bool
    target: float | None
    shapes: pd.DataFrame
    needed: pd.DataFrame
    axis: ValueAxis

    def table(self) -> pd.DataFrame:
        """For the CSV: every shape, and the shape each value needs, by the column `what`."""
        parts = {"shape": self.shapes, "needed": self.needed.rename(columns={"best": "best_mean"})}
        table = pd.concat({what: rows for what, rows in parts.items() if len(rows)}, names=["what"])
        return table.reset_index("what").reset_index(drop=True).drop(columns="place")


def are_numbers(values: Sequence[Value]) -> bool:
    """Whether all values are numbers."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def value_axis(values: Sequence[Value]) -> ValueAxis:
    """The places of ordered values on an axis."""
    numbers = are_numbers(values)
    places = tuple(float(value) if numbers else float(rank) for rank, value in enumerate(values))
    log = numbers and places[0] > 0 and places[-1] > LOG_SPAN * places[0]
    return ValueAxis(tuple(label(value) for value in values), places, log)


def measure_by_value(
    tables: Sequence[tuple[Value, pd.DataFrame | None]], name: str, target: float | None = None
) -> MeasureData | None:
    """A measure against depth; None if no value has it.

    Args:
        tables: each value, in order, and its rows with a finite measure, if any.
        name: of the measure, a column of the tables.
        target: the least value a shape has to reach, or the largest if lower is better.
    """
    axis, lower = value_axis([value for value, _ in tables]), name == "loss"
    both: tuple[list[pd.DataFrame], list[pd.DataFrame]] = ([], [])
    for (value, rows), place in zip(tables, axis.places, strict=True):
        if rows is not None:
            table = _shapes(rows, name, lower)
            for part, frame in zip(both, (table, _needed(table, lower, target)), strict=True):
                part.append(frame.assign(value=value, place=place)[["value", "place", *frame.columns]])
    if not both[0]:
        return None
    shapes, needed = (pd.concat(part, ignore_index=True) for part in both)
    return MeasureData(name, lower, target, shapes, needed, axis)


def _shapes(rows: pd.DataFrame, name: str, lower: bool) -> pd.DataFrame:
    """`MeasureData.shapes` of one value, without the value."""
    groups = rows.groupby(["depth", "width", "heads"], dropna=False, sort=True)
    first = groups[["params", "total_params", "budget"]].first()
    table = first.join(groups[name].agg(seeds="size", mean="mean", low="min", high="max")).reset_index()
    table.insert(3, "head_width", table["width"] / table["heads"])
    by_depth = table.groupby("depth")["mean"]
    return table.assign(best=table.index.isin(by_depth.idxmin() if lower else by_depth.idxmax()))


def _needed(shapes: pd.DataFrame, lower: bool, target: float | None) -> pd.DataFrame:
    """`MeasureData.needed` of one value, without the value; the best width of a depth counts."""
    if target is None:
        return pd.DataFrame()
    best = shapes[shapes["best"]].drop(columns=["budget", "best"])
    means = best["mean"]
    reached = best[means <= target] if lower else best[means >= target]
    first = reached.head(1).reset_index(drop=True).reindex([0])
    return first.assign(deepest=best["depth"].max(), best=means.min() if lower else means.max())


def label(value: Value) -> str:
    """A value as text, such as `1,000,000` for 1000000.0."""
    if isinstance(value, bool | str):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}" if abs(value) >= 10_000 else f"{int(value)}"
    return f"{value:g}"
