"""Figures by the value of a key: a measure against depth, crossings and best depths of a series."""

import itertools
import math

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from analysis.curves.noise import Floats
from analysis.fit.measures import MeasureData, ValueAxis, label
from analysis.fit.series import ByValue
from analysis.numbers import layers, percent, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    MARKS,
    WIDTH,
    Axes,
    by_depth,
    count_axis,
    depth_axis,
    draw_bound,
    draw_crossing,
    finish,
    new_canvas,
    outside_legend,
    plot_values,
    set_ticks,
    shape_text,
    thinned,
)
from analysis.report.figures.figure import Figure

#: Inches of an axis of values, and points per letter of its labels.
REACH, LETTER = 0.75 * WIDTH, 6.0
#: Share of the axis of values by which the marks of several pairs or budgets are moved apart.
APART = 0.012
#: Steps over which the lines of one value are spread, at most.
MOST_STEPS = 7
#: Margin of the frame, as a factor.
MARGIN = 1.6


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
    depth_axis(axes, [depth for depth, _ in by_depth(data.shapes)])
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
    low, high = data.shapes["depth"].min(), data.shapes["depth"].max()
    room = max(high - low, 1)
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
        draw_bound(axes, float(row["place"]), bound, bound + 0.12 * room, palette.MUTED)
    axes.set_ylim(low - 0.08 * room, high + 0.18 * room)
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


def crossings_figure(data: ByValue, key: str, level: float) -> Figure:
    """N at the crossings by value."""
    caption = (
        f"N at which the deeper model of each pair of neighbouring depths takes the lead, with {percent(level)} "
        "intervals. Arrows are bounds (downwards the deeper model leads at every measured size, upwards at none); "
        "hollow marks are inconclusive."
    )
    title = f"The crossings against {key}"
    return Figure("crossings", title, caption, data.table(), lambda: draw_crossings(data, key))


def draw_crossings(data: ByValue, key: str) -> Canvas:
    """Draw N at each crossing with its interval against the value; arrows are bounds, hollow marks inconclusive."""
    canvas, axes = new_canvas(4.2)
    pairs = list(data.rows.groupby(["shallow", "deep"], sort=True))
    values = data.rows[["params", "low", "high", "measured_low", "measured_high"]].to_numpy(dtype=float)
    known = values[np.isfinite(values)]
    # Room for the arrows of bounds.
    bottom, top = float(known.min()) / MARGIN, float(known.max()) * MARGIN
    axes.set_yscale("log")
    axes.set_ylim(bottom, top)
    set_values(axes, data.axis)
    colours = [light for light, _ in palette.sequence(len(pairs))]
    looks = zip(pairs, colours, itertools.cycle(MARKS), strict=False)
    for rank, (((shallow, deep), found), colour, mark) in enumerate(looks):
        # The open bound of a censored crossing is at the end of the measured sizes.
        low = found["low"].fillna(found["measured_high"].where(found["status"] == "right_censored"))
        high = found["high"].fillna(found["measured_low"].where(found["status"] == "left_censored"))
        rows = found.assign(low=low, high=high)
        x = _beside(data.axis, rows["place"].to_numpy(dtype=float), rank, len(pairs))
        for place, row in zip(x, rows.to_dict("records"), strict=True):
            text = f"{shallow} → {deep} layers at {label(row['value'])}: N ="
            draw_crossing(axes, place, row | {"value": row["params"]}, text, colour, mark)
        # Join only neighbouring values that are both settled.
        settled = rows[rows["status"] == "bracketed"].set_index("place")["params"]
        places = np.array(data.axis.places, dtype=float)
        x = _beside(data.axis, places, rank, len(pairs))
        axes.plot(x, settled.reindex(places), color=colour, linewidth=1.2)
        axes.plot([], [], marker=mark, color=colour, label=f"{shallow} → {deep}")
    count_axis(axes.yaxis, math.log10(top / bottom))
    finish(canvas, axes, key, "N at the crossing", title="layers")
    return canvas


def best_figure(data: ByValue, key: str) -> Figure:
    """The best depth by value."""
    caption = (
        "Depth of the lowest loss at each budget, read off the curves of each member at one N. Bars span the depths "
        "statistically tied with it (less than two standard errors of the paired difference)."
    )
    title = f"The best depth against {key}"
    return Figure("best_depth", title, caption, data.table(), lambda: draw_best(data, key))


def draw_best(data: ByValue, key: str) -> Canvas:
    """Draw the best depth of each budget against the value; bars span the depths statistically tied with it."""
    canvas, axes = new_canvas(4.0)
    budgets = list(data.rows.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(budgets), "budget")]
    axes.set_yscale("log")
    set_values(axes, data.axis)
    for rank, ((_, rows), colour) in enumerate(zip(budgets, colours, strict=True)):
        x = _beside(data.axis, rows["place"].to_numpy(dtype=float), rank, len(budgets))
        axes.vlines(x, rows["near_low"], rows["near_high"], color=colour, linewidth=1.4)
        name = f"N = {short(float(rows['params'].iloc[0]))}"
        style = {"color": colour, "marker": "o", "markersize": 5.5, "linewidth": 1.3, "label": name}
        texts = [
            f"{name}, {key} {label(value)}: {layers(int(depth))}"
            for value, depth in zip(rows["value"], rows["depth"], strict=True)
        ]
        plot_values(axes, x, rows["depth"], texts, **style)
    known = data.rows[["depth", "near_low", "near_high"]].to_numpy(dtype=float)
    depths = np.unique(known[np.isfinite(known)])
    axes.set_ylim(depths[0] / 1.25, depths[-1] * 1.25)
    set_ticks(axes.yaxis, FixedLocator(depths.tolist()), "{:.0f}".format)
    finish(canvas, axes, key, "best depth (layers)")
    return canvas


def _beside(axis: ValueAxis, places: Floats, rank: int, count: int) -> Floats:
    """Places moved to the side of one of `count` lines, so that the bars of several lines do not hide each other."""
    first, last = axis.places[0], axis.places[-1]
    shift = APART * (rank - (count - 1) / 2) * min(1.0, MOST_STEPS / count)
    return places * (last / first) ** shift if axis.log else places + shift * max(last - first, 1.0)
