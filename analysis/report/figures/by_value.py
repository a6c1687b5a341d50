"""Figures by the value of a key: a measure against depth, crossings and best depths of compared studies."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.fit.compared_studies import ByValue
from analysis.fit.measures import MeasureData, ValueAxis, label
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    WIDTH,
    Axes,
    by_depth,
    count_axis,
    depth_axis,
    draw_bound,
    draw_crossing,
    finish,
    looks,
    new_canvas,
    outside_legend,
    plot_shapes,
    plot_values,
    ticks_at,
)
from analysis.report.figures.figure import Figure
from core.numbers import percent

#: Inches of an axis of values, and points per letter of its labels.
REACH, LETTER = 0.75 * WIDTH, 6.0
#: Share of the axis of values by which the marks of several pairs or budgets are moved apart.
APART = 0.012
#: Steps over which the lines of one value are spread, at most.
MOST_STEPS = 7
#: Margin of the frame, as a factor.
MARGIN = 1.6


def measure_figure(data: MeasureData, key: str, name: str, title: str) -> Figure:
    """A measure against depth, one line per value, and with a target the depth it needs below."""
    aimed = len(data.needed) > 0
    needed = " Below: the fewest layers that reach the dotted line; an arrow starts at the deepest model if none does."
    caption = (
        f"Mean over the seeds of the best width of each depth (the {'lowest' if data.lower else 'highest'} mean), with "
        f"the range of the seeds; small dots are the other widths.{'' if data.target is None else needed}"
    )

    def draw() -> Canvas:
        canvas, grid = new_canvas(5.8 if aimed else 3.9, 1 + aimed, squeeze=False)
        axes = grid[0, 0]
        axes.set_xscale("log")
        for (place, name), colour, mark in looks([*zip(data.axis.places, data.axis.labels, strict=True)]):
            rows = data.shapes[data.shapes["place"] == place]
            best, rest = rows[rows["best"]].sort_values("depth"), rows[~rows["best"]]
            axes.scatter(rest["depth"], rest["mean"], s=9, color=colour, alpha=0.35, linewidths=0)
            style = {"color": colour, "marker": mark, "linewidth": 1.4, "label": name}
            plot_shapes(axes, best, "depth", "mean", ".4g", f"{name}, ", **style)
        if data.target is not None:
            axes.axhline(data.target, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.4)
        depth_axis(axes, [depth for depth, _ in by_depth(data.shapes)])
        axes.set(xlabel="depth L (layers)", title=f"{data.name}, best over the widths")
        outside_legend(canvas, title=key)
        if aimed:
            _draw_needed(grid[1, 0], data, key)
        return canvas

    return Figure(name, title, caption, data.table(), draw)


def _draw_needed(axes: Axes, data: MeasureData, key: str) -> None:
    # Linear in depth: a depth that grows like the logarithm of the value gives a straight line.
    set_values(axes, data.axis)
    low, high = data.shapes["depth"].min(), data.shapes["depth"].max()
    room = max(high - low, 1)
    rows = data.needed.to_dict("records")
    texts = [f"{label(row['value'])}: {row['depth']:.0f} layers reach {data.target:g}" for row in rows]
    style = {"color": palette.ACCENT, "marker": "o", "markersize": 6.5, "linewidth": 1.3}
    plot_values(axes, data.needed["place"], data.needed["depth"], texts, **style)
    for row in rows:
        if math.isnan(row["depth"]):
            # The deepest model of this value does not reach the target.
            bound = float(row["deepest"])
            draw_bound(axes, float(row["place"]), bound, bound + 0.12 * room, palette.MUTED)
    axes.set_ylim(low - 0.08 * room, high + 0.18 * room)
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set(xlabel=key, title=f"layers for {data.name} ≥ {data.target:g}")


def set_values(axes: Axes, axis: ValueAxis) -> None:
    """Set an x axis of `REACH` inches to the values of a key, with ticks at those whose labels do not touch."""
    places = np.log(axis.places) if axis.log else np.array(axis.places)
    margin = 0.07 * max(float(places[-1] - places[0]), 0.7)
    ends = np.array([places[0] - margin, places[-1] + margin])
    axes.set(xscale="log" if axis.log else "linear", xlim=np.exp(ends) if axis.log else ends)
    ticks_at(axes, axis.places, axis.labels, REACH, LETTER * max(map(len, axis.labels)) + 6)
    axes.grid(axis="x", visible=False)


def crossings_figure(data: ByValue, key: str, level: float) -> Figure:
    """N at the crossings by value: arrows are bounds, hollow marks inconclusive."""
    caption = (
        f"N at which the deeper model of each pair of neighbouring depths takes the lead, with {percent(level)} "
        "intervals. Arrows are bounds (downwards the deeper model leads at every measured size, upwards at none); "
        "hollow marks are inconclusive."
    )

    def draw() -> Canvas:
        canvas, axes = new_canvas(4.2)
        ends = data.rows[["params", "low", "high", "measured_low", "measured_high"]].to_numpy(dtype=float)
        # Room for the arrows of bounds.
        bottom, top = float(np.nanmin(ends)) / MARGIN, float(np.nanmax(ends)) * MARGIN
        axes.set(yscale="log", ylim=(bottom, top))
        set_values(axes, data.axis)
        for (shallow, deep), rows, colour, mark in _lines(data):
            # The open bound of a censored crossing is at the end of the measured sizes.
            low = rows["low"].fillna(rows["measured_high"].where(rows["status"] == "right_censored"))
            high = rows["high"].fillna(rows["measured_low"].where(rows["status"] == "left_censored"))
            for row in rows.assign(low=low, high=high).dropna(subset="status").to_dict("records"):
                text = f"{shallow} → {deep} layers at {label(row['value'])}: N ="
                draw_crossing(axes, row["x"], row | {"value": row["params"]}, text, colour, mark)
            # Join only neighbouring values that are both settled.
            settled = rows["params"].where(rows["status"] == "bracketed")
            axes.plot(rows["x"], settled, color=colour, linewidth=1.2)
            axes.plot([], [], marker=mark, color=colour, label=f"{shallow} → {deep}")
        count_axis(axes.yaxis, math.log10(top / bottom))
        finish(canvas, axes, key, "N at the crossing", title="layers")
        return canvas

    return Figure("crossings", f"The crossings against {key}", caption, data.table(), draw)


def _lines(data: ByValue) -> Iterator[tuple[Any, pd.DataFrame, str, str]]:
    """(pair of depths, its rows, colour, mark) of each line, with a row for every place of the axis.

    `x` is the place, moved to the side so that the bars of several lines do not hide each other.
    """
    groups = list(data.rows.groupby(["shallow", "deep"], sort=True))
    places = np.array(data.axis.places, dtype=float)
    for rank, ((pair, rows), colour, mark) in enumerate(looks(groups)):
        shift = APART * (rank - (len(groups) - 1) / 2) * min(1.0, MOST_STEPS / len(groups))
        x = places + shift * max(places[-1] - places[0], 1.0)
        if data.axis.log:
            x = places * (places[-1] / places[0]) ** shift
        yield pair, rows.set_index("place").reindex(places).assign(x=x), colour, mark
