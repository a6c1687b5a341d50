"""Drawing of what was measured inside the models: a row a measure, before training and after it."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.fit.sentences import layers
from analysis.numbers import short
from analysis.report.extras.diagnostics import WORDS, DiagnosticsData
from analysis.report.figures import palette
from analysis.report.figures.canvas import MARKS, WIDTH, Axes

#: The distance from rank one, on every path.
DISTANCE = "rank_residual"
#: Measures that fall or rise by powers.
_LOG = (DISTANCE, "grad_norm", "update_ratio")
#: Layers up to which a line has marks.
_MARKED = 16
_TITLES = {"start": "before training", "end": "at the end"}


def draw_diagnostics(data: DiagnosticsData, colours: Mapping[int, str]) -> Canvas:
    """One line a depth over its layers; each row of panels has one scale."""
    count = len(data.names)
    canvas = Canvas(figsize=(WIDTH, 0.9 + 1.45 * count), dpi=100, layout="constrained")
    grid: Any = canvas.subplots(count, 2, sharex=True, sharey="row", squeeze=False)
    for name, row in zip(data.names, grid, strict=True):
        for when, axes in zip(_TITLES, row, strict=True):
            _draw(axes, data, name, when, colours)
        row[0].set_title(WORDS.get(name, name), fontweight="bold")
        if name.startswith(DISTANCE):
            # With one scale the paths can be compared.
            row[0].set_ylim(_frame(data))
        if name.startswith(_LOG):
            low, high = row[0].get_ylim()
            row[0].yaxis.set_major_locator(
                LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,), numticks=6)
            )
    for when, axes in zip(_TITLES, grid[-1], strict=True):
        axes.set_xlabel(f"layer, {_TITLES[when]}")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    # One entry a depth, the same in every panel.
    handles, labels = grid[0, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", frameon=False, fontsize=8.5, ncols=8)
    return canvas


def _draw(axes: Axes, data: DiagnosticsData, name: str, when: str, colours: Mapping[int, str]) -> None:
    rows = data.rows[(data.rows["name"] == name) & (data.rows["when"] == when)]
    is_log = name.startswith(_LOG)
    for depth, mark in zip(sorted(set(data.rows["depth"])), itertools.cycle(MARKS), strict=False):
        part = rows[rows["depth"] == depth]
        colour = colours.get(depth, palette.MUTED)
        x = part["layer"].to_numpy()
        value, low, high = (part[column].to_numpy(dtype=float) for column in ("value", "low", "high"))
        if is_log:
            # Rounding may leave nothing of a distance.
            value, low, high = (np.where(y > 0, y, np.nan) for y in (value, low, high))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        marked = depth <= _MARKED
        axes.plot(
            x,
            value,
            color=colour,
            linewidth=1.5,
            marker=mark if marked else None,
            markersize=4,
            label=layers(depth),
        )
    if is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:.0e}" if value < 1e-3 else short(value))
        )
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.margins(x=0.04)


def _frame(data: DiagnosticsData) -> tuple[float, float]:
    """Ends of the axis of all distances from rank one."""
    low = data.rows.loc[data.rows["name"].str.startswith(DISTANCE), "low"].to_numpy(dtype=float)
    return float(low[low > 0].min(initial=0.1)) / 2, 1.5
