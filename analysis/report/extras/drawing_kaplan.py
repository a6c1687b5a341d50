"""Drawing of Kaplan's figure: loss against two counts of parameters, and what a wrong aspect ratio costs."""

import itertools
import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.fit.kaplan import NEAR, Counted
from analysis.fit.sentences import layers
from analysis.numbers import short
from analysis.report.extras.kaplan import KaplanData
from analysis.report.figures import palette
from analysis.report.figures.canvas import MARKS, WIDTH, Axes, count_axis, size_axis
from analysis.report.figures.frames import by_depth

#: Form of a law through the best shapes -> dashes, colour, name.
LAWS = {
    "power": ((0, (5, 3)), palette.INK, "(N_c/N)^α through the best shapes"),
    "entropy": ((0, (1, 1.4)), palette.ACCENT, "the same above the entropy of the data"),
    "offset": ((0, (1, 1.4)), palette.ACCENT, "the same above a fitted offset"),
}
#: Depths beyond which the names of the depths would fill the figure.
MOST_NAMES = 18
#: Budgets that are named.
MOST_BUDGETS = 12
#: Ratio of losses beyond which the ticks are those of a log axis.
WIDE = 20.0
#: Increase, percent, beyond which the axis is straight up to `NEAR` only, and logarithmic above.
STEEP = 30.0


def draw_kaplan(data: KaplanData, colours: Mapping[int, str], size_label: str) -> Canvas:
    """Above the loss against N, and against all parameters where they are known; below the aspect ratios."""
    shaped = len(data.aspects) > 0
    canvas = Canvas(figsize=(WIDTH, 7.0 if shaped else 4.0), dpi=100, layout="constrained")
    grid = canvas.add_gridspec(2 if shaped else 1, 2 if data.both else 1)
    left = canvas.add_subplot(grid[0, 0])
    _draw_losses(left, data, "own", colours)
    left.set_xlabel(size_label)
    left.set_ylabel("validation loss (nats a token)")
    if data.both:
        right = canvas.add_subplot(grid[0, 1], sharey=left)
        _draw_losses(right, data, "total", colours)
        right.set_xlabel("all parameters, embeddings included")
        right.tick_params(labelleft=False)
    handles, names = left.get_legend_handles_labels()
    if len(colours) > MOST_NAMES:
        kept = [name in {look[2] for look in LAWS.values()} for name in names]
        handles, names = (
            [x for x, keep in zip(part, kept, strict=True) if keep] for part in (handles, names)
        )
    canvas.legend(handles, names, loc="outside lower center", frameon=False, fontsize=8.5, ncols=3)
    if shaped:
        _draw_aspects(canvas.add_subplot(grid[1, :]), data)
    return canvas


def _draw_losses(axes: Axes, data: KaplanData, counted: Counted, colours: Mapping[int, str]) -> None:
    column = "params" if counted == "own" else "total_params"
    lines = data.curves[data.curves["counted"] == counted]
    for (depth, rows), mark in zip(by_depth(data.points), itertools.cycle(MARKS), strict=False):
        colour = colours[depth]
        axes.vlines(rows[column], rows["low"], rows["high"], color=colour, linewidth=1.4, alpha=0.45)
        axes.plot(
            rows[column],
            rows["loss"],
            color=colour,
            marker=mark,
            markersize=4,
            linestyle="none",
            label=layers(depth),
        )
        line = lines[lines["depth"] == depth]
        axes.plot(line["params"], line["loss"], color=colour, linewidth=1.3)
    axes.set_yscale("log")
    low, high = float(data.points["low"].min()), float(data.points["high"].max())
    room = max(high / low, 1.02) ** 0.08
    axes.set_ylim(low / room, high * room)
    for form, rows in data.laws[data.laws["counted"] == counted].groupby("form", sort=False):
        dashes, colour, name = LAWS[str(form)]
        axes.plot(rows["params"], rows["loss"], color=colour, linestyle=dashes, linewidth=1.3, label=name)
    smallest, largest = float(data.points[column].min()), float(data.points[column].max())
    axes.set_xlim(smallest / 1.2, largest * 1.2)
    size_axis(axes, small=True)
    # Even steps leave the foot of a long log axis without any.
    wide = high > WIDE * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(9, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def is_steep(data: KaplanData) -> bool:
    """Whether the axis of the increase is straight near the best shapes only."""
    return bool(data.aspects["increase"].max() > STEEP)


def _draw_aspects(axes: Axes, data: KaplanData) -> None:
    budgets = list(data.aspects.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(budgets), "budget")]
    axes.set_xscale("log")
    step = math.ceil(len(budgets) / MOST_BUDGETS)
    for rank, (colour, (_, rows)) in enumerate(zip(colours, budgets, strict=True)):
        axes.vlines(rows["aspect"], rows["low"], rows["high"], color=colour, linewidth=2.2, alpha=0.4)
        # Of very many budgets every second, third ... is named, the largest always.
        name = None if (len(budgets) - 1 - rank) % step else f"N = {short(float(rows['params'].iloc[0]))}"
        axes.plot(
            rows["aspect"],
            rows["increase"],
            color=colour,
            marker="o",
            markersize=4.5,
            linewidth=1.3,
            label=name,
        )
    low, high = float(data.aspects["aspect"].min()), float(data.aspects["aspect"].max())
    reach = max(high / low, 2.0)
    axes.set_xlim(low / reach**0.05, high * reach**0.05)
    known = data.aspects[["increase", "low", "high"]].to_numpy(dtype=float)
    top = float(np.nanmax(known))
    axes.set_ylim(min(-0.05 * top, float(np.nanmin(known))), max(1.08 * top, NEAR * 1.1))
    if is_steep(data):
        axes.set_yscale("symlog", linthresh=NEAR)
        axes.set_ylim(min(-0.5, float(np.nanmin(known))), 5 * top)
        axes.set_yticks([tick for tick in (0, 1, 3, 10, 30, 100, 300, 1000) if tick < 1.08 * top])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.axhline(0, color=palette.INK, linewidth=0.9)
    axes.axhline(NEAR, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.2)
    count_axis(axes.xaxis, math.log10(reach))
    axes.set_xlabel("aspect ratio d/L")
    axes.set_ylabel("loss above the best shape (%)")
    # Curves about a best shape are highest at both sides.
    axes.legend(loc="upper center", frameon=False, fontsize=8.5, ncols=3)
