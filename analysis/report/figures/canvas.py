"""Shared style, axes and labels of the figures; matplotlib's object interface only, without global state."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, NullLocator

from analysis.numbers import layers, short
from analysis.report.figures import palette
from analysis.report.figures.frames import by_depth

Axes = Any
#: x, y, text and colour of a label at the end of a line.
End = tuple[float, float, str, str]

#: Inches at 100 dots per inch; drawn for a column of 720 pixels.
WIDTH = 7.2

#: Lines that can be labelled at their ends.
MAX_END_LABELS = 8

#: Points of a figure that are drawn as vectors; more become an image inside the SVG, of bounded size.
MOST_POINTS = 20_000

#: Depths differ in marks as well as in colours.
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


def size_limits(axes: Axes, points: pd.DataFrame, *, many: bool) -> float:
    """Make the x axis one of N with room for end labels unless there are many; return the smallest N."""
    low, high = float(points["params"].min()), float(points["params"].max())
    # A table of one size has no range to derive the room from.
    axes.set_xlim(low / 1.12, high * (1.12 if many else max(high / low, 4) ** 0.16))
    size_axis(axes)
    return low


def name_depths(canvas: Canvas, axes: Axes, ends: Sequence[End], *, many: bool) -> None:
    """Name the depths at the ends of their lines, or in a legend if there are many."""
    if many:
        outside_legend(canvas, 6)
    else:
        end_labels(axes, ends)


def outside_legend(canvas: Canvas, columns: int, **options: Any) -> None:
    """A legend below the axes."""
    canvas.legend(
        **{"loc": "outside lower center", "frameon": False, "fontsize": 8.5, **options}, ncols=columns
    )


def points_of_depths(
    axes: Axes, points: pd.DataFrame, column: str, colours: Mapping[int, str], linestyle: str = "none"
) -> list[End]:
    """Draw one mark per shape with the range of its seeds against N; return the ends for `end_labels`.

    Args:
        axes: with N on the x axis.
        points: with depth, params, low, high and the column.
        column: what is drawn.
        colours: depth -> colour.
        linestyle: of the line through the marks of one depth.
    """
    ends = []
    for (depth, rows), mark in zip(by_depth(points), itertools.cycle(MARKS), strict=False):
        colour = colours[depth]
        x, y = rows["params"].to_numpy(), rows[column].to_numpy()
        axes.vlines(x, rows["low"], rows["high"], color=colour, linewidth=1.6, alpha=0.45)
        style = {"color": colour, "marker": mark, "markersize": 5, "linestyle": linestyle, "linewidth": 1.5}
        axes.plot(x, y, label=layers(depth), **style)
        ends.append((x[-1], y[-1], layers(depth), colour))
    return ends


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
    set_ticks(axes.xaxis, LogLocator(subs=steps))


def count_axis(axis: Any, decades: float) -> None:
    """Ticks of a log axis of widths or depths: 1, 2, 5, 10, and fewer over many decades."""
    set_ticks(axis, LogLocator(subs=(1, 2, 5) if decades < 3 else (1, 3) if decades < 5 else (1,)))


def set_ticks(axis: Any, major: Locator, text: Callable[[float], str] = short) -> None:
    """Major ticks with labels made by `text`, and no minor ones."""
    axis.set_major_locator(major)
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_locator(NullLocator())


def depth_axis(axes: Axes, depths: Sequence[int], room: float = 26) -> None:
    """Ticks at the measured depths of a log axis, without those nearer than `room` points to the one before."""
    low, high = (math.log(end) for end in axes.get_xlim())
    points = WIDTH * 72 * 0.85 / (high - low)
    kept: list[int] = []
    for depth in depths:
        if not kept or (math.log(depth) - math.log(kept[-1])) * points >= room:
            kept.append(depth)
    set_ticks(axes.xaxis, FixedLocator(kept), "{:.0f}".format)


def end_labels(axes: Axes, ends: Sequence[End]) -> None:
    """A label right of the end of each line, pushed apart where they overlap; for many lines a legend below."""
    if len(ends) > MAX_END_LABELS:
        for _, _, label, colour in ends:
            axes.plot([], [], marker="o", color=colour, label=label)
        outside_legend(axes.figure, 6)
        return
    low, high = axes.get_ylim()
    scale = axes.yaxis.get_transform().transform
    bottom, top = (float(scale(end)) for end in (low, high))
    heights = [float(scale(y)) for _, y, _, _ in ends]
    # A line of text is about 13 of the 410 pixels of a plot's height.
    places = spread(heights, 0.045 * (top - bottom))
    for (x, y, label, colour), height, place in zip(ends, heights, places, strict=True):
        offset = (place - height) / (top - bottom) * axes.bbox.height * 72 / axes.figure.dpi
        style = {"textcoords": "offset points", "color": colour, "va": "center", "fontweight": "bold"}
        axes.annotate(label, (x, y), xytext=(9, offset), **style)


def spread(values: list[float], gap: float) -> list[float]:
    """Positions near `values`, in their order, at least `gap` apart.

    The mean of each pushed group does not move (pool adjacent violators on values minus index·gap).
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
