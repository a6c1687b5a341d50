"""Drawings of a search: its cells, its estimate and the half-width of its interval."""

import itertools
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.design.history import SearchData
from analysis.fit.sentences import layers
from analysis.numbers import digits, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import MARKS, MAX_END_LABELS, WIDTH, Axes
from analysis.report.figures.frames import by_depth

#: What the value of an objective is called on its axis.
OBJECTIVES = {
    "depth": "projected best depth (layers)",
    "b": "slope b of the law",
    "crossings": "N of the least certain crossing",
}


def draw_search(data: SearchData, colours: Mapping[int, str]) -> Canvas:
    """The cells in the order they ended; below it the estimate and its half-width over the FLOPs spent."""
    canvas = Canvas(figsize=(WIDTH, 5.6), dpi=100, layout="constrained")
    grid = canvas.add_gridspec(2, 2, height_ratios=(1.1, 1))
    _draw_cells(canvas.add_subplot(grid[0, :]), data, colours)
    left, right = (canvas.add_subplot(grid[1, column]) for column in (0, 1))
    _draw_value(left, data)
    _draw_halfwidth(right, data)
    return canvas


def _draw_cells(axes: Axes, data: SearchData, colours: Mapping[int, str]) -> None:
    cells = data.cells
    for (depth, rows), mark in zip(by_depth(cells), itertools.cycle(MARKS), strict=False):
        colour = colours.get(depth, palette.MUTED)
        for outcome, part in rows.groupby("outcome", sort=True):
            done = outcome == "done"
            fill = {"facecolors": colour if done else "none", "edgecolors": colour}
            fill = {"color": colour} if outcome not in ("done", "forecast") else fill
            axes.scatter(
                part["order"],
                part["params"],
                s=26,
                marker=mark if outcome in ("done", "forecast") else "x",
                linewidths=1.2,
                **fill,
            )
        axes.scatter([], [], s=26, marker=mark, color=colour, label=layers(depth))
    axes.set_yscale("log")
    low, high = float(cells["params"].min()), float(cells["params"].max())
    axes.set_ylim(low / 1.3, high * 1.3)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1, 3)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("cells, in the order they ended")
    axes.set_ylabel("N")
    if cells["depth"].nunique() <= MAX_END_LABELS:
        axes.legend(
            frameon=False, fontsize=8.5, loc="lower left", bbox_to_anchor=(0, 1), ncols=8, borderaxespad=0.2
        )


def _draw_value(axes: Axes, data: SearchData) -> None:
    steps = data.steps[data.steps["value"].notna()]
    x = steps["flops"].to_numpy()
    closed = steps["low"].notna().to_numpy() & steps["high"].notna().to_numpy()
    low, high = (np.where(closed, steps[name], np.nan) for name in ("low", "high"))
    axes.fill_between(x, low, high, color=palette.ACCENT, alpha=0.18, linewidth=0)
    axes.plot(x, steps["value"], color=palette.ACCENT, marker="o", markersize=3)
    if data.objective.kind != "b" and len(steps):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(OBJECTIVES[data.objective.kind], fontweight="bold")
    _work_axis(axes, data)


def _draw_halfwidth(axes: Axes, data: SearchData) -> None:
    for rows, colour, style, label in (
        (data.steps, palette.ACCENT, "-", "this search"),
        (data.grid, palette.MUTED, (0, (4, 2)), "a grid, expected"),
    ):
        part = rows[np.isfinite(rows["halfwidth"].to_numpy(dtype=float))]
        if len(part):
            axes.plot(
                part["flops"],
                part["halfwidth"],
                color=colour,
                linestyle=style,
                marker="o",
                markersize=3,
                label=label,
            )
    if data.stop_when is not None:
        axes.axhline(
            data.stop_when, color=palette.INK, linestyle=(0, (1, 2)), linewidth=1.2, label="asked for"
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: digits(value, 2)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title("half-width of its interval", fontweight="bold")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8.5, loc="best")
    _work_axis(axes, data)


def _work_axis(axes: Axes, data: SearchData) -> None:
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}".replace("e+", "e")))
    axes.set_xlabel("training FLOPs")
