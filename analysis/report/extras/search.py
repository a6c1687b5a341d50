"""Figure and sentence of a search: its cells, and the certainty of its objective over the work."""

import itertools
import math
from collections.abc import Mapping

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from analysis.design.history import SearchData
from analysis.numbers import counted, digits, layers, scientific
from analysis.report.figures import palette
from analysis.report.figures.canvas import MARKS, WIDTH, Axes, set_ticks
from analysis.report.figures.figure import Context, Figure
from analysis.report.figures.frames import by_depth

#: Kind of objective -> title of its axis.
OBJECTIVES = {
    "depth": "projected best depth (layers)",
    "b": "slope b of the law",
    "crossings": "N of the least certain crossing",
}


def figure(context: Context) -> Figure | None:
    """The course of a search; None without one."""
    data = context.search
    if data is None:
        return None
    target = " The dotted line is the target." if data.stop_when is not None else ""
    caption = (
        "Above: every cell in the order of finishing; crosses are cells without a loss. Below: the estimate with its "
        "interval if that is closed (left), and its half-width (right; a share of the value, for crossings in "
        f"ln N).{target}"
    )
    title = "How the search went"
    return Figure("search", title, caption, data.table(), lambda: draw_search(data, context.colours))


def draw_search(data: SearchData, colours: Mapping[int, str]) -> Canvas:
    """Draw the cells in the order of finishing (above), and the estimate and its half-width over FLOPs (below)."""
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
            style = {"marker": mark if outcome == "done" else "x", "color": colour, "linestyle": "none"}
            axes.plot(part["order"], part["params"], markersize=5, **style)
        axes.plot([], [], marker=mark, color=colour, linestyle="none", label=layers(depth))
    axes.set_yscale("log")
    low, high = float(cells["params"].min()), float(cells["params"].max())
    axes.set_ylim(low / 1.3, high * 1.3)
    set_ticks(axes.yaxis, LogLocator(subs=(1, 2, 5) if high / low < 200 else (1, 3)))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("cells, in the order of finishing")
    axes.set_ylabel("N")
    axes.legend(ncols=8, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)


def _draw_value(axes: Axes, data: SearchData) -> None:
    # A depth that is not settled has no value, but may have an interval.
    steps = data.steps[data.steps[["value", "low", "high"]].notna().any(axis=1)]
    x = steps["flops"]
    # Where an end is open, and so NaN, nothing is shaded.
    axes.fill_between(x, steps["low"], steps["high"], color=palette.ACCENT, alpha=0.18, linewidth=0)
    axes.plot(x, steps["value"], color=palette.ACCENT, marker="o", markersize=3)
    if data.objective.kind != "b" and len(steps):
        axes.set_yscale("log")
        set_ticks(axes.yaxis, LogLocator(subs=(1, 2, 5)))
    axes.set_title(OBJECTIVES[data.objective.kind])
    _work_axis(axes)


def _draw_halfwidth(axes: Axes, data: SearchData) -> None:
    part = data.steps[data.steps["halfwidth"].notna()]
    if len(part):
        axes.plot(
            part["flops"],
            part["halfwidth"],
            label="this search",
            color=palette.ACCENT,
            marker="o",
            markersize=3,
        )
    if data.stop_when is not None:
        dotted = {"color": palette.INK, "linestyle": (0, (1, 2)), "linewidth": 1.2}
        axes.axhline(data.stop_when, label="target", **dotted)
    axes.set_yscale("log")
    set_ticks(axes.yaxis, LogLocator(subs=(1, 2, 5)), digits)
    axes.set_title("half-width of its interval")
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    _work_axis(axes)


def _work_axis(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}".replace("e+", "e")))
    axes.set_xlabel("training FLOPs")


def search_sentence(data: SearchData, ended: str) -> str:
    """The number of cells trained, and the certainty reached."""
    cells, spent = len(data.cells), float(data.cells["flops"].iloc[-1])
    last = data.steps.iloc[-1]
    start = f"The search trained {counted(cells, 'cell')} for {scientific(spent)} training FLOPs"
    why = f" {ended[:1].upper()}{ended[1:]}" if ended else ""
    if not math.isfinite(last["halfwidth"]):
        return f"{start}, and has no closed interval yet.{why}"
    return f"{start}; the half-width of its interval is {digits(last['halfwidth'])}.{why}"
