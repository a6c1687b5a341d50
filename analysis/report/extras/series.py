"""Drawings of a series of studies: crossings, best depths and a measure against the value of the key that differs."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from analysis.curves.noise import Floats
from analysis.fit.measures import MeasureData, ValueAxis
from analysis.fit.series import BestData, CrossingData
from analysis.numbers import short
from analysis.report.figures import palette
from analysis.report.figures.canvas import MARKS, WIDTH, Axes, depth_axis, end_labels, new_canvas
from analysis.report.figures.frames import by_depth

#: Share of the axis of values by which the marks of several pairs or budgets stand apart.
APART = 0.012
#: Steps over which the lines of one value are spread, at most.
MOST_STEPS = 7
#: Inches of an axis of values, and points a letter of its labels takes.
REACH, LETTER = 5.4, 6.0
#: How far the arrow of a bound reaches, and the frame beyond all that is known, as factors.
LENGTH, MARGIN = 1.35, 1.6


def draw_crossings(data: CrossingData, key: str) -> Canvas:
    """N at each crossing with its interval against the value; arrows are bounds, hollow marks are not settled."""
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
    for rank, (((shallow, deep), rows), colour, mark) in enumerate(
        zip(pairs, colours, itertools.cycle(MARKS), strict=False)
    ):
        side = _side(rank, len(pairs))
        x = _beside(data.axis, rows["place"].to_numpy(dtype=float), side)
        for place, row in zip(x, rows.to_dict("records"), strict=True):
            if math.isfinite(row["params"]):
                solid = row["status"] == "bracketed"
                span = [row["low"], row["high"]]
                drawn = [
                    end if math.isfinite(end) else edge for end, edge in zip(span, (bottom, top), strict=True)
                ]
                dashes = "-" if solid and np.isfinite(span).all() else (0, (2, 2))
                axes.plot(
                    [place, place], drawn, color=colour, linewidth=2.2, alpha=0.45, linestyle=dashes, zorder=2
                )
                face = colour if solid else palette.PAPER
                axes.plot(
                    [place],
                    [row["params"]],
                    marker=mark,
                    markersize=6.5,
                    color=colour,
                    markerfacecolor=face,
                    zorder=4,
                )
            elif row["status"] in ("left_censored", "right_censored"):
                _arrow(axes, place, row, colour)
        # Only neighbouring values that are both settled are joined: between others nothing is known.
        settled = (
            rows[rows["status"] == "bracketed"].set_index("place")["params"].reindex(list(data.axis.places))
        )
        axes.plot(_beside(data.axis, np.array(data.axis.places), side), settled, color=colour, linewidth=1.2)
        axes.plot([], [], marker=mark, color=colour, label=f"{shallow} → {deep}")
    _size_ticks(axes, top / bottom)
    axes.set_xlabel(key)
    axes.set_ylabel("N at the crossing")
    canvas.legend(
        loc="outside lower center", frameon=False, fontsize=8.5, ncols=min(len(pairs), 6), title="layers"
    )
    return canvas


def _arrow(axes: Axes, place: float, row: Mapping[Any, Any], colour: str) -> None:
    """A bound: the deeper model leads already at the smallest size, or not even at the largest."""
    below = row["status"] == "left_censored"
    known = row["high"] if below else row["low"]
    bound = known if math.isfinite(known) else row["measured_low" if below else "measured_high"]
    if not math.isfinite(bound):
        return
    _point_away(axes, place, bound, bound / LENGTH if below else bound * LENGTH, colour)


def _point_away(axes: Axes, place: float, bound: float, end: float, colour: str) -> None:
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8}
    axes.annotate("", xy=(place, end), xytext=(place, bound), arrowprops=arrow)
    axes.plot([place], [bound], marker="_", color=colour, markersize=11, zorder=4)


def draw_best(data: BestData, key: str) -> Canvas:
    """Best depth of each budget against the value; bars run over the depths that cannot be told from it."""
    canvas, axes = new_canvas(4.0)
    budgets = list(data.rows.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(budgets), "budget")]
    axes.set_yscale("log")
    set_values(axes, data.axis)
    ends = []
    for rank, ((_, rows), colour) in enumerate(zip(budgets, colours, strict=True)):
        x = _beside(data.axis, rows["place"].to_numpy(dtype=float), _side(rank, len(budgets)))
        axes.vlines(x, rows["near_low"], rows["near_high"], color=colour, linewidth=4, alpha=0.25)
        axes.plot(x, rows["depth"], color=colour, marker="o", markersize=5.5, linewidth=1.3)
        ends.append(
            (x[-1], float(rows["depth"].iloc[-1]), f"N = {short(float(rows['params'].iloc[0]))}", colour)
        )
    depths = data.rows[["depth", "near_low", "near_high"]].to_numpy(dtype=float)
    low, high = float(np.nanmin(depths)), float(np.nanmax(depths))
    axes.set_ylim(low / 1.25, high * 1.25)
    _depth_ticks(axes, sorted({int(value) for value in depths[np.isfinite(depths)]}))
    _room_right(axes, data.axis)
    axes.set_xlabel(key)
    axes.set_ylabel("best depth (layers)")
    # All at one place: lines that end at one depth have their labels in each other else.
    last = max(end[0] for end in ends)
    end_labels(axes, [(last, *end[1:]) for end in ends])
    return canvas


def draw_measure(data: MeasureData, key: str) -> Canvas:
    """Left the measure against depth, one line a value; right, with a target, the depth that each value needs."""
    aimed = len(data.needed) > 0
    canvas = Canvas(figsize=(WIDTH, 4.3), dpi=100, layout="constrained")
    grid = canvas.subplots(1, 2 if aimed else 1, squeeze=False, width_ratios=[1.25, 1] if aimed else None)[0]
    axes = grid[0]
    depths = [depth for depth, _ in by_depth(data.shapes)]
    reach = max(depths[-1] / depths[0], 1.5)
    axes.set_xscale("log")
    axes.set_xlim(depths[0] / reach**0.08, depths[-1] * reach**0.08)
    colours = [light for light, _ in palette.sequence(len(data.axis.labels))]
    looks = dict(zip(data.axis.places, zip(data.axis.labels, colours, strict=True), strict=True))
    for place, mark in zip(data.axis.places, itertools.cycle(MARKS), strict=False):
        rows = data.shapes[data.shapes["place"] == place]
        name, colour = looks[place]
        best = rows[rows["best"]].sort_values("depth")
        rest = rows[~rows["best"]]
        axes.scatter(rest["depth"], rest["mean"], s=9, color=colour, alpha=0.35, linewidths=0)
        axes.vlines(best["depth"], best["low"], best["high"], color=colour, linewidth=2.2, alpha=0.45)
        axes.plot(
            best["depth"], best["mean"], color=colour, marker=mark, markersize=5, linewidth=1.4, label=name
        )
    if data.target is not None:
        axes.axhline(data.target, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.4)
    depth_axis(axes, depths, room=48 if aimed else 26)
    axes.set_xlabel("depth L (layers)")
    axes.set_title(f"{data.name}, best over the widths", fontweight="bold")
    canvas.legend(
        loc="outside lower center", frameon=False, fontsize=8.5, ncols=min(len(looks), 7), title=key
    )
    if aimed:
        _draw_needed(grid[1], data, key)
    return canvas


def _draw_needed(axes: Axes, data: MeasureData, key: str) -> None:
    # Straight in the depth: where it grows like the logarithm of the value, the points lie on a line.
    set_values(axes, data.axis, reach=2.3)
    rows = data.needed
    depths = [depth for depth, _ in by_depth(data.shapes)]
    span = max(depths[-1] - depths[0], 1)
    reached = rows.set_index("place")["depth"].reindex(list(data.axis.places))
    axes.plot(reached.index, reached, color=palette.ACCENT, marker="o", markersize=6.5, linewidth=1.3)
    for row in rows[rows["depth"].isna()].to_dict("records"):
        # Not reached by the deepest model of this value: more layers are needed, if layers are what is lacking.
        bound = float(row["deepest"])
        _point_away(axes, float(row["place"]), bound, bound + 0.12 * span, palette.MUTED)
    axes.set_ylim(depths[0] - 0.08 * span, depths[-1] + 0.18 * span)
    kept: list[int] = []
    for depth in depths:
        if not kept or depth - kept[-1] >= 0.06 * span:
            kept.append(depth)
    axes.set_yticks(kept)
    axes.set_xlabel(key)
    axes.set_title(f"layers for {data.name} {'≤' if data.lower else '≥'} {data.target:g}", fontweight="bold")


def set_values(axes: Axes, axis: ValueAxis, *, reach: float = REACH) -> None:
    """The x axis of a series: ticks at the values, left out where labels would touch.

    Args:
        axes: to be set.
        axis: of the series.
        reach: inches of the axis.
    """
    places = np.array(axis.places)
    if axis.log:
        axes.set_xscale("log")
        margin = max(places[-1] / places[0], 2.0) ** 0.07
        low, high = places[0] / margin, places[-1] * margin
    else:
        margin = 0.07 * max(float(places[-1] - places[0]), 1.0)
        low, high = places[0] - margin, places[-1] + margin
    axes.set_xlim(low, high)
    scale = np.log if axis.log else np.asarray
    at = (scale(places) - scale(low)) / (scale(high) - scale(low)) * reach * 72
    kept: list[int] = []
    for index, name in enumerate(axis.labels):
        room = LETTER * (len(name) + (len(axis.labels[kept[-1]]) if kept else 0)) / 2 + 6
        if not kept or at[index] - at[kept[-1]] >= room:
            kept.append(index)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places[kept], [axis.labels[index] for index in kept])
    axes.grid(axis="x", visible=False)


def _room_right(axes: Axes, axis: ValueAxis) -> None:
    """Room for labels at the ends of lines."""
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.16 if axis.log else high + 0.16 * (high - low))


def _side(rank: int, count: int) -> float:
    """Steps by which one of `count` lines stands to a side of its value; of many lines the steps are smaller."""
    return (rank - (count - 1) / 2) * min(1.0, MOST_STEPS / count)


def _beside(axis: ValueAxis, places: Floats, rank: float) -> Floats:
    """Places moved a little to one side, so that the bars of several lines do not hide each other."""
    first, last = axis.places[0], axis.places[-1]
    if axis.log:
        return np.asarray(places * (last / first) ** (APART * rank))
    return np.asarray(places + APART * rank * max(last - first, 1.0))


def _size_ticks(axes: Axes, span: float) -> None:
    decades = math.log10(span)
    steps = (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 4 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def _depth_ticks(axes: Axes, depths: list[int]) -> None:
    kept: list[int] = []
    for depth in depths:
        if not kept or depth >= 1.2 * kept[-1]:
            kept.append(depth)
    axes.yaxis.set_major_locator(FixedLocator(kept))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())
