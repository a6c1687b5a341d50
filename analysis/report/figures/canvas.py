"""Shared style, axes and labels of the figures; matplotlib's object interface only, without global state."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, NullLocator

from analysis.report.figures import palette
from core.numbers import layers, short

Axes = Any
#: Points of a smooth line.
LINE = 61
#: Inches of a drawing for half a page or a phone. On a phone 390 pixels wide, 10 points are 11 pixels.
WIDTH = 4.4
#: Inches of a drawing for the full width of a page.
WIDE = 9.2
#: Start of the id of marks with values, see `plot_values`.
VALUES = "values:"
#: Start of the id of the frame of axes whose ends the page reads, see `set_frame`.
FRAME = "frame:"
#: Marks of one artist that have their values; more would make the page too large.
MOST_VALUES = 2_000
#: Points per letter and per mark of a legend.
LETTER, HANDLE = 6.2, 36
#: Points of a figure that are drawn as vectors; more become an image inside the SVG, of bounded size.
MOST_POINTS = 20_000
#: Length of the arrow of a bound, as a factor.
LENGTH = 1.35
#: Depths differ in marks as well as in colours.
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")

STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": palette.INK,
    "axes.labelcolor": palette.INK,
    "axes.edgecolor": palette.MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": palette.GRID,
    "xtick.color": palette.MUTED,
    "ytick.color": palette.MUTED,
    "xtick.labelcolor": palette.INK,
    "ytick.labelcolor": palette.INK,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
}


def by_depth(frame: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """(depth, its rows) from shallow to deep."""
    return [(int(rows["depth"].iloc[0]), rows) for _, rows in frame.groupby("depth", sort=True)]


def stack(**parts: pd.DataFrame) -> pd.DataFrame:
    """The non-empty parts below each other, with their names in the column `what`."""
    named = [part.assign(what=name) for name, part in parts.items() if len(part)]
    table = pd.concat(named, ignore_index=True)
    return table[["what", *(name for name in table.columns if name != "what")]]


def outside_legend(canvas: Canvas, **options: Any) -> None:
    """A legend of the first axes below all of them, with as many columns as the width has room for."""
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    room = LETTER * max(map(len, labels), default=1) + HANDLE
    columns = max(1, min(len(labels), int(0.95 * canvas.get_figwidth() * 72 / room)))
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.2, **options)


def finish(canvas: Canvas, axes: Axes, x: str, y: str, **legend: Any) -> None:
    """Label both axes of a drawing of one panel and put the legend below."""
    axes.set(xlabel=x, ylabel=y)
    outside_legend(canvas, **legend)


def plot_values(axes: Axes, x: Any, y: Any, texts: Sequence[str], **style: Any) -> None:
    """Plot marks that have their values as `<title>` in the SVG; one text per mark, marks that are NaN included."""
    numbers = np.asarray(y, dtype=float)
    if len(numbers) <= MOST_VALUES:
        shown = [text for text, value in zip(texts, numbers, strict=True) if np.isfinite(value)]
        style["gid"] = VALUES + quote(json.dumps(shown))
    axes.plot(x, numbers, **style)


def set_frame(axes: Axes, x: Callable[[float], float]) -> None:
    """Put the ends of both axes into the SVG, those of x as `x` of them, so that the page can place a marker."""
    ends = [*map(x, axes.get_xlim()), *axes.get_ylim()]
    axes.patch.set_gid(FRAME + " ".join(f"{end:.9g}" for end in ends))


def shape_text(row: Mapping[Any, Any]) -> str:
    """A shape and its N, such as `2 layers × 12 wide, N = 3.5k`."""
    return f"{layers(int(row['depth']))} × {row['width']:.0f} wide, N = {short(float(row['params']))}"


def plot_shapes(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, spec: str = ".4f", prefix: str = "", **style: Any
) -> None:
    """Plot `y` of shapes (depth, width, params, low, high) against `x`, with a bar over the seeds of each."""
    axes.vlines(rows[x], rows["low"], rows["high"], color=style["color"], linewidth=1.1)
    texts = [
        f"{prefix}{shape_text(row)}: {row[y]:{spec}} ({row['low']:{spec}} to {row['high']:{spec}})"
        for row in rows.to_dict("records")
    ]
    plot_values(axes, rows[x], rows[y], texts, markersize=5, **style)


def points_of_depths(axes: Axes, points: pd.DataFrame, y: str, colours: Mapping[int, str], line: str) -> None:
    """Plot `y` of shapes against N by depth; `line` is the line style."""
    for (depth, rows), mark in zip(by_depth(points), itertools.cycle(MARKS), strict=False):
        style: dict[str, Any] = {"color": colours[depth], "marker": mark, "linestyle": line}
        plot_shapes(axes, rows, "params", y, label=layers(depth), linewidth=1.5, **style)


def new_canvas(
    height: float, rows: int = 1, columns: int = 1, *, width: float = WIDTH, **options: Any
) -> tuple[Canvas, Any]:
    """A drawing, sizes in inches, and its axes; several are an array, `options` are those of `subplots`."""
    canvas = Canvas(figsize=(width, height), dpi=100, layout="constrained")
    return canvas, canvas.subplots(rows, columns, **options)


def looks(items: Sequence[Any]) -> list[tuple[Any, str, str]]:
    """(item, colour, mark) of ordered items."""
    colours = [light for light, _ in palette.sequence(len(items))]
    return list(zip(items, colours, itertools.cycle(MARKS), strict=False))


def size_axis(axes: Axes, *, columns: int = 1) -> None:
    """A log axis of N with ticks such as 2k, 5k, 10k; fewer of them in a drawing with several columns of panels."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 1.5 * low:
        # Sizes so close would have tick labels that round to the same words.
        low, high = math.sqrt(low * high) / 2, math.sqrt(low * high) * 2
        axes.set_xlim(low, high)
    room = axes.figure.get_figwidth() / WIDTH / columns
    count_axis(axes.xaxis, math.log10(high / low), 1.7 * room, 3 * room)


def count_axis(axis: Any, decades: float, dense: float = 3, medium: float = 5) -> None:
    """Ticks of a log axis at 1, 2, 5, 10 below `dense` decades, at 1, 3, 10 below `medium`, else at powers of ten."""
    set_ticks(axis, LogLocator(subs=(1, 2, 5) if decades < dense else (1, 3) if decades < medium else (1,)))


def set_ticks(axis: Any, major: Locator, text: Callable[[float], str] = short) -> None:
    """Major ticks with labels made by `text`, and no minor ones."""
    axis.set_major_locator(major)
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_locator(NullLocator())


def depth_axis(axes: Axes, depths: Sequence[int]) -> None:
    """Ticks at the measured depths of a log axis where there is room."""
    ticks_at(axes, depths, list(map(str, depths)), 0.85 * WIDTH, 26)


def ticks_at(axes: Axes, places: Sequence[float], labels: Sequence[str], reach: float, room: float) -> None:
    """Ticks at ascending places of an x axis of `reach` inches, at least `room` points apart."""
    is_log = axes.get_xscale() == "log"
    low, high, *at = np.log([*axes.get_xlim(), *places]) if is_log else [*axes.get_xlim(), *places]
    kept = [0]
    for index, place in enumerate(at):
        if (place - at[kept[-1]]) / (high - low) * reach * 72 >= room:
            kept.append(index)
    axes.set_xticks([places[index] for index in kept], [labels[index] for index in kept])
    axes.xaxis.set_minor_locator(NullLocator())


def draw_bound(axes: Axes, place: float, bound: float, end: float, colour: str) -> None:
    """Draw an arrow from a bound to `end`."""
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8}
    axes.annotate("", xy=(place, end), xytext=(place, bound), arrowprops=arrow)
    axes.plot([place], [bound], marker="_", color=colour, markersize=11, zorder=4)


def draw_crossing(
    axes: Axes, x: float, row: Mapping[Any, Any], text: str, colour: str, mark: str = "o"
) -> None:
    """Draw an estimate with its interval, hollow if it is inconclusive; else an arrow from a bound.

    `row` has status, value, low and high; NaN is no estimate or no limit. `text` names the value under the pointer.
    """
    status, value, low, high = (row[name] for name in ("status", "value", "low", "high"))
    if np.isfinite(value):
        bottom, top = axes.get_ylim()
        bar = [low if np.isfinite(low) else bottom, high if np.isfinite(high) else top]
        solid = status == "bracketed"
        dashes = "-" if solid and np.isfinite(low + high) else (0, (2, 2))
        axes.plot([x, x], bar, color=colour, linewidth=1.4, linestyle=dashes, zorder=2)
        style = {"marker": mark, "markersize": 6.5, "color": colour, "zorder": 4}
        face = colour if solid else palette.PAPER
        plot_values(axes, [x], [value], [f"{text} {short(float(value))}"], markerfacecolor=face, **style)
    elif status == "left_censored" and np.isfinite(high):
        draw_bound(axes, x, high, high / LENGTH, colour)
    elif status == "right_censored" and np.isfinite(low):
        draw_bound(axes, x, low, low * LENGTH, colour)
