"""Figure and sentence of a search: the certainty of its objective over the work."""

import math

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, MaxNLocator

from analysis.design.objective import SearchData
from analysis.numbers import counted, digits, scientific
from analysis.report.figures import palette
from analysis.report.figures.canvas import Axes, new_canvas, plot_values, set_ticks
from analysis.report.figures.figure import Context, Figure

#: Kind of objective -> title of its axis.
OBJECTIVES = {
    "depth": "projected best depth (layers)",
    "b": "slope b of the law",
    "crossings": "N of the least certain crossing",
}


def search_figure(context: Context) -> Figure | None:
    """The course of a search; None without one."""
    data = context.history
    if data is None:
        return None
    target = "; the dotted line is the target" if data.search.stop_when is not None else ""
    caption = f"Above: the estimate with its closed interval. Below: its half-width (of the value, or in ln N){target}."

    def draw() -> Canvas:
        canvas, (top, bottom) = new_canvas(5.4, 2)
        # A depth that is not settled has no value, but may have an interval.
        steps = data.steps[data.steps[["value", "low", "high"]].notna().any(axis=1)]
        # Where an end is open, and so NaN, nothing is shaded.
        shade = {"color": palette.ACCENT, "alpha": 0.18, "linewidth": 0}
        top.fill_between(steps["flops"], steps["low"], steps["high"], **shade)
        _draw_steps(top, steps, "value")
        if data.search.objective.kind != "b" and len(steps):
            top.set_yscale("log")
            set_ticks(top.yaxis, LogLocator(subs=(1, 2, 5)))
        top.set_title(OBJECTIVES[data.search.objective.kind])
        _draw_steps(bottom, data.steps, "halfwidth")
        if data.search.stop_when is not None:
            bottom.axhline(data.search.stop_when, color=palette.INK, linestyle=(0, (1, 2)), linewidth=1.2)
        bottom.set_yscale("log")
        set_ticks(bottom.yaxis, LogLocator(subs=(1, 2, 5)), digits)
        bottom.set_title("half-width of its interval")
        for axes in (top, bottom):
            axes.set_xlim(left=0)
            set_ticks(axes.xaxis, MaxNLocator(5), lambda value: f"{value:.2g}".replace("e+", "e"))
            axes.set_xlabel("training FLOPs")
        return canvas

    return Figure("search", "How the search went", caption, data.table(), draw)


def _draw_steps(axes: Axes, steps: pd.DataFrame, column: str) -> None:
    shown = steps[steps[column].notna()]
    pairs = zip(shown["flops"], shown[column], strict=True)
    texts = [f"{scientific(flops)} FLOPs: {digits(value)}" for flops, value in pairs]
    style = {"color": palette.ACCENT, "marker": "o", "markersize": 3}
    plot_values(axes, shown["flops"], shown[column], texts, **style)


def search_sentence(data: SearchData) -> str:
    """The number of cells trained, and the certainty reached."""
    cells, spent = len(data.cells), float(data.cells["flops"].iloc[-1])
    halfwidth = data.steps.iloc[-1]["halfwidth"]
    start = f"The search trained {counted(cells, 'cell')} for {scientific(spent)} training FLOPs"
    ended = data.search.ended
    why = f" {ended[:1].upper()}{ended[1:]}" if ended else ""
    known = f"; the half-width of its interval is {digits(halfwidth)}" if math.isfinite(halfwidth) else ""
    return f"{start}{known or ', and has no closed interval yet'}.{why}"
