"""Figure and sentences of a measure against depth, by the value of a key."""

import itertools
import math
from collections.abc import Iterable

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, NullLocator

from analysis.fit.measures import MeasureData, Value, ValueAxis, label
from analysis.numbers import digits, human, layers, listed, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    MARKS,
    WIDTH,
    Axes,
    depth_axis,
    draw_bound,
    outside_legend,
    plot_values,
    shape_text,
    thinned,
)
from analysis.report.figures.figure import Figure
from analysis.report.figures.frames import by_depth
from analysis.tables import Column, Table

#: Inches of an axis of values, and points per letter of its labels.
REACH, LETTER = 0.75 * WIDTH, 6.0


def measure_figure(data: MeasureData, key: str, name: str, title: str) -> Figure:
    """A measure against depth by the value of a key, in one or two panels."""
    needed = " Below: the fewest layers that reach the dotted line; an arrow starts at the deepest model if none does."
    caption = (
        f"Mean over the seeds of the best width of each depth (the {'lowest' if data.lower else 'highest'} mean), with "
        f"the range of the seeds; small dots are the other widths.{'' if data.target is None else needed}"
    )
    return Figure(name, title, caption, data.table(), lambda: draw_measure(data, key))


def draw_measure(data: MeasureData, key: str) -> Canvas:
    """Draw the measure against depth, one line per value, and with a target the depth it needs below."""
    aimed = len(data.needed) > 0
    canvas = Canvas(figsize=(WIDTH, 5.8 if aimed else 3.9), dpi=100, layout="constrained")
    grid = canvas.subplots(2 if aimed else 1, 1, squeeze=False)[:, 0]
    axes = grid[0]
    depths = [depth for depth, _ in by_depth(data.shapes)]
    axes.set_xscale("log")
    colours = [light for light, _ in palette.sequence(len(data.axis.labels))]
    looks = zip(data.axis.places, data.axis.labels, colours, itertools.cycle(MARKS), strict=False)
    for place, name, colour, mark in looks:
        rows = data.shapes[data.shapes["place"] == place]
        best = rows[rows["best"]].sort_values("depth")
        rest = rows[~rows["best"]]
        axes.scatter(rest["depth"], rest["mean"], s=9, color=colour, alpha=0.35, linewidths=0)
        axes.vlines(best["depth"], best["low"], best["high"], color=colour, linewidth=1.1)
        style = {"color": colour, "marker": mark, "markersize": 5, "linewidth": 1.4}
        texts = [
            f"{name}, {shape_text(row)}: {row['mean']:.4g} ({row['low']:.4g} to {row['high']:.4g})"
            for row in best.to_dict("records")
        ]
        plot_values(axes, best["depth"], best["mean"], texts, label=name, **style)
    if data.target is not None:
        axes.axhline(data.target, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.4)
    depth_axis(axes, depths)
    axes.set_xlabel("depth L (layers)")
    axes.set_title(f"{data.name}, best over the widths")
    outside_legend(canvas, title=key)
    if aimed:
        _draw_needed(grid[1], data, key)
    return canvas


def _draw_needed(axes: Axes, data: MeasureData, key: str) -> None:
    # Linear in depth: a depth that grows like the logarithm of the value gives a straight line.
    set_values(axes, data.axis)
    rows = data.needed
    depths = [depth for depth, _ in by_depth(data.shapes)]
    span = max(depths[-1] - depths[0], 1)
    reached = rows.set_index("place")["depth"].reindex(list(data.axis.places))
    style = {"color": palette.ACCENT, "marker": "o", "markersize": 6.5, "linewidth": 1.3}
    texts = [
        f"{name}: {depth:.0f} layers reach {data.target:g}"
        for name, depth in zip(data.axis.labels, reached, strict=True)
    ]
    plot_values(axes, reached.index, reached, texts, **style)
    for row in rows[rows["depth"].isna()].to_dict("records"):
        # The deepest model of this value does not reach the target.
        bound = float(row["deepest"])
        draw_bound(axes, float(row["place"]), bound, bound + 0.12 * span, palette.MUTED)
    axes.set_ylim(depths[0] - 0.08 * span, depths[-1] + 0.18 * span)
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel(key)
    axes.set_title(f"layers for {data.name} ≥ {data.target:g}")


def set_values(axes: Axes, axis: ValueAxis) -> None:
    """Set an x axis of `REACH` inches to the values of a key, with ticks at those whose labels do not touch."""
    places = np.log(axis.places) if axis.log else np.array(axis.places)
    margin = 0.07 * max(float(places[-1] - places[0]), 0.7)
    low, high = places[0] - margin, places[-1] + margin
    if axis.log:
        axes.set_xscale("log")
    axes.set_xlim((math.exp(low), math.exp(high)) if axis.log else (low, high))
    room = LETTER * max(len(name) for name in axis.labels) + 6
    kept = thinned((places - low) / (high - low) * REACH * 72, room)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([axis.places[index] for index in kept], [axis.labels[index] for index in kept])
    axes.grid(axis="x", visible=False)


def needed_sentence(key: str, data: MeasureData) -> str:
    """The depth that each value needs to reach the target; empty without a target."""
    if data.target is None or data.needed.empty:
        return ""
    texts = [
        f"no depth up to {row['deepest']}" if math.isnan(row["depth"]) else layers(int(row["depth"]))
        for row in data.needed.to_dict("records")
    ]
    parts = grouped(texts, data.needed["value"], f"{key} ")
    return f"For a mean {data.name} of at least {data.target:g}: {', '.join(parts)}."


def compared_sentence(key: str, data: MeasureData) -> str:
    """The measure at the largest depth and size that all values have, the best value first; empty for one value.

    The best width of a depth counts, and the mean over the seeds of a shape.
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


def grouped(texts: Iterable[str], values: Iterable[Value], key: str = "") -> list[str]:
    """`TEXT at 1, 2 and 4` for consecutive values of equal text; `key` stands before the values."""
    groups = itertools.groupby(zip(texts, values, strict=True), lambda pair: pair[0])
    return [f"{text} at {key}{listed([label(value) for _, value in group])}" for text, group in groups]


def needed_table(key: str, data: MeasureData) -> Table | None:
    """The fewest layers of each value that reach the target; None without a target."""
    if data.needed.empty:
        return None
    columns = (
        Column(key, right=False),
        Column("depth L", look="strong"),
        Column("heads H"),
        Column("head width m"),
        Column("width", "m·H"),
        Column("N"),
        Column("mean"),
        Column("range", under="mean"),
        Column("best", "of any depth"),
    )
    rows: list[tuple[str | None, ...]] = []
    for row in data.needed.to_dict("records"):
        value, best = label(row["value"]), f"{row['best']:.4g}"
        if math.isnan(row["depth"]):
            rows.append((value, f"above {row['deepest']}", *[None] * 4, "not reached", None, best))
            continue
        known = not math.isnan(row["heads"])
        rows.append(
            (
                value,
                f"{row['depth']:.0f}",
                f"{row['heads']:.0f}" if known else None,
                f"{row['head_width']:g}" if known else None,
                f"{row['width']:.0f}",
                short(row["params"]),
                f"{row['mean']:.4g}",
                f"{row['low']:.3g} to {row['high']:.3g} ({row['seeds']:.0f} seeds)",
                best,
            )
        )
    return Table(f"The fewest layers for {data.name} of at least {data.target:g}", columns, rows)
