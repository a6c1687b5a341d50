"""What a measure against depth says for each value, in plain words."""

import itertools
from collections.abc import Sequence

import pandas as pd

from analysis.fit.measures import MeasureData, Value, label
from analysis.fit.sentences import layers, listed
from analysis.numbers import digits, human


def needed_sentence(key: str, data: MeasureData) -> str:
    """The depth that each value needs for the target; empty without a target."""
    if data.target is None or data.needed.empty:
        return ""
    needed = data.needed.assign(depth=data.needed["depth"].fillna(0).astype(int))
    parts = []
    for depth, values in runs_of(needed["depth"], needed["value"]):
        if depth:
            parts.append(f"{layers(depth)} at {key} {listed_values(values)}")
            continue
        deepest = int(needed.loc[needed["value"].isin(values), "deepest"].max())
        parts.append(f"no depth up to {deepest} at {key} {listed_values(values)}")
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


def runs_of(depths: pd.Series, values: pd.Series) -> list[tuple[int, list[Value]]]:
    """Runs of neighbouring values of equal depth."""
    pairs = zip(depths.astype(int).tolist(), values.tolist(), strict=True)
    return [
        (depth, [value for _, value in group])
        for depth, group in itertools.groupby(pairs, lambda pair: pair[0])
    ]


def listed_values(values: Sequence[Value]) -> str:
    """`1, 2 and 4`."""
    return listed([label(value) for value in values])
