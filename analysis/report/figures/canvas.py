"""Drawing with matplotlib's object interface: no window, no global state. What the figures share, and the plain ones.

Each function takes the data of one figure (`analysis.report.figures.frames`) and returns a drawing in the light colours
of `analysis.report.figures.palette`. Crossings and laws are drawn in `analysis.report.figures.transition`, maps in `analysis.report.figures.frontier_map`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.fit.sentences import layers
from analysis.numbers import short
from analysis.report.figures import palette
from analysis.report.figures.frames import HealthData, LossData, ProfileData, TrainingData, by_depth

Axes = Any

#: Inches at 100 dots an inch; drawn for a column of 720 pixels.
WIDTH = 7.2

#: Lines that can be labelled at their ends.
MAX_END_LABELS = 8

#: Points of a figure that are drawn as vectors; more become an image inside the SVG, of bounded size.
MOST_POINTS = 20_000

#: Depths are told apart by marks as well as by colours.
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")

STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": palette.INK,
    "axes.labelcolor": palette.INK,
    "axes.edgecolor": palette.MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": palette.GRID,
    "grid.linewidth": 0.8,
    "xtick.color": palette.MUTED,
    "ytick.color": palette.MUTED,
    "xtick.labelcolor": palette.INK,
    "ytick.labelcolor": palette.INK,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "path.simplify": True,
}


def draw_loss(data: LossData, colours: Mapping[int, str], size_label: str) -> Canvas:
    """Loss against N, log axis: the points with the spread of their seeds, and the curve of each depth."""
    many = len(colours) > MAX_END_LABELS
    canvas, axes = new_canvas(4.9 if many else 4.1)
    ends = points_of_depths(axes, data.points, "loss", colours)
    for depth, line in by_depth(data.lines):
        axes.plot(line["params"], line["loss"], color=colours[depth], linewidth=1.5)
    low = size_limits(axes, data.points, many=many)
    if data.entropy is not None:
        axes.axhline(data.entropy, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.4)
        axes.text(
            low / 1.1,
            data.entropy,
            f" entropy of the data, {data.entropy:.3f}",
            color=palette.MUTED,
            va="bottom",
            fontsize=8.5,
        )
    axes.set_ylabel("validation loss (nats a token)")
    axes.set_xlabel(size_label)
    name_depths(canvas, axes, ends, many=many)
    return canvas


def size_limits(axes: Axes, points: pd.DataFrame, *, many: bool) -> float:
    """Make the x axis one of the sizes of these points, with room for end labels unless there are many; the least N."""
    low, high = float(points["params"].min()), float(points["params"].max())
    # A table of one size has no range to leave room by.
    axes.set_xlim(low / 1.12, high * (1.12 if many else max(high / low, 4) ** 0.16))
    size_axis(axes)
    return low


def name_depths(
    canvas: Canvas, axes: Axes, ends: Sequence[tuple[float, float, str, str]], *, many: bool
) -> None:
    """Say which colour is which depth: at the ends, or in a legend where there are many."""
    if many:
        canvas.legend(loc="outside lower center", frameon=False, fontsize=8.5, ncols=6)
    else:
        end_labels(axes, ends)


def points_of_depths(
    axes: Axes, points: pd.DataFrame, column: str, colours: Mapping[int, str], joined: str = "none"
) -> list[tuple[float, float, str, str]]:
    """Draw a mark a shape with the spread of its seeds against N, one colour a depth; return what `end_labels` takes.

    Args:
        axes: with N on the x axis.
        points: with depth, params, low, high and the column.
        column: what is drawn.
        colours: of the depths.
        joined: the style of the line that joins the marks of a depth.
    """
    ends = []
    for (depth, rows), mark in zip(by_depth(points), itertools.cycle(MARKS), strict=False):
        colour = colours[depth]
        x, y = rows["params"].to_numpy(), rows[column].to_numpy()
        axes.vlines(x, rows["low"], rows["high"], color=colour, linewidth=1.6, alpha=0.45)
        axes.plot(
            x,
            y,
            color=colour,
            marker=mark,
            markersize=5,
            linestyle=joined,
            linewidth=1.5,
            label=layers(depth),
        )
        ends.append((x[-1], y[-1], layers(depth), colour))
    return ends


def draw_profile(data: ProfileData) -> Canvas:
    """Loss against depth, one line a budget; the best depth filled, the near-optimal set shaded and ringed."""
    canvas, axes = new_canvas(4.0)
    depths = sorted(set(data.rows["depth"]))
    budgets = list(data.rows.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(budgets), "budget")]
    axes.set_xscale("log")
    ends = []
    for colour, (_, rows) in zip(colours, budgets, strict=True):
        x, y = (rows[name].to_numpy(dtype=float) for name in ("depth", "loss"))
        near, best = rows["near"].to_numpy(dtype=bool), rows["best"].to_numpy(dtype=bool)
        # The set need not be connected: only neighbours that both belong to it are joined.
        for left in np.flatnonzero(near[:-1] & near[1:]):
            pair = slice(left, left + 2)
            axes.plot(x[pair], y[pair], color=colour, linewidth=13, alpha=0.2, solid_capstyle="round")
        axes.plot(x, y, color=colour, linewidth=1.5)
        axes.scatter(x, y, s=16, color=palette.PAPER, edgecolors=colour, linewidths=1.2, zorder=3)
        if near.sum() > 1:
            axes.scatter(x[near], y[near], s=120, color="none", edgecolors=colour, linewidths=1.1, zorder=3)
        axes.scatter(x[best], y[best], s=46, color=colour, zorder=4)
        ends.append((x[-1], y[-1], f"N = {short(float(rows['params'].iloc[0]))}", colour))
    reach = depths[-1] / depths[0]
    axes.set_xlim(depths[0] / reach**0.06, depths[-1] * reach**0.22)
    depth_axis(axes, depths)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("depth L (layers)")
    axes.set_ylabel("validation loss (nats a token)")
    end_labels(axes, ends)
    return canvas


def draw_training(data: TrainingData, colours: Mapping[int, str]) -> Canvas:
    """Loss against step, one thin line a cell, coloured by depth, with one label a depth."""
    canvas, axes = new_canvas(3.6)
    for depth, rows in by_depth(data.rows):
        for _, cell in rows.groupby("cell", sort=True):
            axes.plot(
                cell["step"],
                cell["loss"],
                color=colours[depth],
                linewidth=0.9,
                alpha=0.6,
                rasterized=len(data.rows) > MOST_POINTS,
            )
    there = sorted(set(data.rows["depth"]))
    handles = [axes.plot([], [], color=colours[depth], label=layers(depth))[0] for depth in there]
    columns = 1 if len(there) <= MAX_END_LABELS else 3
    axes.legend(handles=handles, frameon=False, loc="upper right", fontsize=8.5, ncols=columns)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats a token)")
    return canvas


def draw_health(data: HealthData, colours: Mapping[int, str]) -> Canvas:
    """Outcome of all rows by depth, and training seconds against N."""
    timed = len(data.seconds) > 0
    bars = data.status["depth"].nunique(dropna=False)
    canvas = Canvas(figsize=(WIDTH, max(2.9, 1.2 + 0.24 * bars)), dpi=100, layout="constrained")
    grid = canvas.subplots(1, 2 if timed else 1, squeeze=False)[0]
    _draw_outcomes(grid[0], data.status)
    if timed:
        axes = grid[1]
        for (depth, rows), mark in zip(by_depth(data.seconds), itertools.cycle(MARKS), strict=False):
            axes.scatter(
                rows["params"],
                rows["train_seconds"],
                s=18,
                marker=mark,
                color=colours[depth],
                alpha=0.75,
                linewidths=0,
                label=layers(depth),
                rasterized=len(data.seconds) > MOST_POINTS,
            )
        size_axis(axes)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.set_title("training time of a cell (seconds)", fontweight="bold")
        axes.set_xlabel("N")
        if data.seconds["depth"].nunique() <= MAX_END_LABELS:
            axes.legend(frameon=False, loc="upper left", fontsize=8.5)
    return canvas


def _draw_outcomes(axes: Axes, status: pd.DataFrame) -> None:
    table = status.assign(depth=status["depth"].fillna(-1)).pivot_table(
        index="depth", columns="outcome", values="count", aggfunc="sum", fill_value=0
    )
    names = sorted(table.columns, key=lambda name: (name != "used", name))
    shades = [palette.GOOD, palette.BAD, palette.MUTED, palette.ACCENT]
    hatches = ["", "////", "....", "xxxx"]
    y = np.arange(len(table))
    left = np.zeros(len(table))
    for index, name in enumerate(names):
        counts = table[name].to_numpy(dtype=float)
        which = 0 if name == "used" else 1 + (index - ("used" in names)) % 3
        axes.barh(
            y,
            counts,
            left=left,
            color=shades[which],
            height=0.62,
            label=str(name),
            alpha=0.85,
            hatch=hatches[which],
            edgecolor=palette.PAPER,
            linewidth=0,
        )
        left += counts
    for spot, total in zip(y, left, strict=True):
        label = f"{total:.0f}"
        axes.annotate(
            label, (total, spot), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_yticks(y, ["unknown" if depth < 0 else layers(int(depth)) for depth in table.index])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, left.max() * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_title("rows by outcome", fontweight="bold")
    # Below the tick labels, whose height does not grow with the number of bars.
    below = -0.34 / max(1.7, 0.24 * len(table))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, below), ncols=3, fontsize=8.5)


def new_canvas(height: float) -> tuple[Canvas, Axes]:
    """A drawing of one panel, `height` in inches."""
    canvas = Canvas(figsize=(WIDTH, height), dpi=100, layout="constrained")
    return canvas, canvas.subplots()


def size_axis(axes: Axes, *, small: bool = False) -> None:
    """A log axis of N with ticks such as 2k, 5k, 10k; fewer of them on a small panel."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 1.5 * low:
        # Sizes so close would have tick labels that round to the same words.
        low, high = math.sqrt(low * high) / 2, math.sqrt(low * high) * 2
        axes.set_xlim(low, high)
    decades = math.log10(high / low)
    dense, medium = (1.3, 2.5) if small else (2.2, 4)
    steps = (1, 2, 5) if decades < dense else (1, 3) if decades < medium else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def count_axis(axis: Any, decades: float) -> None:
    """Ticks of a log axis of widths or depths: 1, 2, 5, 10, and fewer over many decades."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 3 else (1, 3) if decades < 5 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_locator(NullLocator())


def depth_axis(axes: Axes, depths: Sequence[int], room: float = 26) -> None:
    """Ticks at the measured depths of a log axis, left out where labels would come nearer than `room` points."""
    low, high = (math.log(end) for end in axes.get_xlim())
    points = WIDTH * 72 * 0.85 / (high - low)
    kept: list[int] = []
    for depth in depths:
        if not kept or (math.log(depth) - math.log(kept[-1])) * points >= room:
            kept.append(depth)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


def end_labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """A label right of every line's end, pushed apart where they would overlap; below the axes for many lines."""
    if len(ends) > MAX_END_LABELS:
        handles = [
            axes.plot([], [], marker="o", color=colour, label=label)[0] for _, _, label, colour in ends
        ]
        # Inside, it hid the lines of a search, whose budgets are many and whose losses fill the frame.
        axes.figure.legend(handles=handles, frameon=False, fontsize=8.5, loc="outside lower center", ncols=6)
        return
    low, high = axes.get_ylim()
    scale = axes.yaxis.get_transform().transform
    bottom, top = (float(scale(end)) for end in (low, high))
    heights = [float(scale(y)) for _, y, _, _ in ends]
    # A line of text is about 13 of the 410 pixels of a plot's height.
    places = spread(heights, 0.045 * (top - bottom))
    for (x, y, label, colour), height, place in zip(ends, heights, places, strict=True):
        offset = (place - height) / (top - bottom) * axes.bbox.height * 72 / axes.figure.dpi
        axes.annotate(
            label,
            (x, y),
            xytext=(9, offset),
            textcoords="offset points",
            color=colour,
            va="center",
            fontweight="bold",
        )


def spread(values: list[float], gap: float) -> list[float]:
    """Positions near `values`, in their order, at least `gap` apart: for labels that would overlap.

    The mean of every pushed group stays where it was (pool adjacent violators on values minus index·gap).
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    blocks: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        mean, size = values[index] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            other, count = blocks.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        blocks.append((mean, size))
    flat = itertools.chain.from_iterable([mean] * size for mean, size in blocks)
    result = [0.0] * len(values)
    for rank, (index, mean) in enumerate(zip(order, flat, strict=True)):
        result[index] = mean + rank * gap
    return result
