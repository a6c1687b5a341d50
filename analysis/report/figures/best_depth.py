"""Figure: the best depth against N, measured and by the laws of the study."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator

from analysis.fit.document import Fit
from analysis.fit.sentences import REACH
from analysis.numbers import layers, percent, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    count_axis,
    new_canvas,
    outside_legend,
    plot_values,
    set_ticks,
    size_axis,
)
from analysis.report.figures.figure import Context, Figure
from analysis.report.figures.frames import stack, study_of_fit

#: Points of the line per decade of N.
PER_DECADE = 12


@dataclass(frozen=True)
class BestDepthData:
    """The best depth against N.

    Attributes:
        best: params, depth, near_low, near_high: measured, without any law.
        line: params, depth, low, high by the laws that are not rejected; only sizes at which they state a depth.
        measured: smallest and largest N measured.
    """

    best: pd.DataFrame
    line: pd.DataFrame
    measured: tuple[float, float]


def figure(context: Context) -> Figure | None:
    """The best depth against N; None if no size has two depths."""
    fit = context.fit
    data = best_depth_data(fit)
    if data is None:
        return None
    caption = "Marks are the best measured depths, bars the depths statistically tied with them. "
    caption += (
        f"The line is the law with its {percent(fit.level)} interval, dashed beyond the measured sizes."
        if len(data.line)
        else "No line is drawn, because the data do not determine a law."
    )
    table = stack(measured=data.best, law=data.line)
    return Figure("best_depth", "Best depth against size", caption, table, lambda: draw_best_depth(data))


def best_depth_data(fit: Fit) -> BestDepthData | None:
    """Measured best depths, and the projected ones from the smallest size to `REACH` times the largest."""
    if not fit.best:
        return None
    params = study_of_fit(fit).comparison.rows["params"]
    low, high = float(params.min()), float(params.max())
    # The largest size is a point, so that the solid line ends there and the dashed one begins.
    inside = np.geomspace(low, high, max(2, 1 + math.ceil(PER_DECADE * math.log10(high / low))))
    beyond = np.geomspace(high, REACH * high, 1 + PER_DECADE)[1:]
    rows = [
        (found.params, found.depth, *found.interval)
        for found in (fit.project(float(size)) for size in [*inside, *beyond])
        if found.depth is not None
    ]
    columns = ["params", "depth", "low", "high"]
    line = pd.DataFrame(rows, columns=columns, dtype=float)
    best = pd.DataFrame(
        [
            (item.params, item.depth, min(item.near or (item.depth,)), max(item.near or (item.depth,)))
            for item in fit.best
        ],
        columns=["params", "depth", "near_low", "near_high"],
    )
    return BestDepthData(best, line, (low, high))


def draw_best_depth(data: BestDepthData) -> Canvas:
    """Draw the measured best depths, and the law with its interval: solid inside the measured sizes, dashed beyond."""
    canvas, axes = new_canvas(3.9)
    axes.set_yscale("log")
    low, high = data.measured
    best, line = data.best, data.line
    drawn = np.concatenate([best["near_low"], best["near_high"], line["depth"]])
    bottom, top = max(0.8, float(drawn.min()) / 1.4), float(drawn.max()) * 1.5
    axes.axvspan(low, high, color=palette.MUTED, alpha=0.12, linewidth=0, label="measured sizes")
    if len(line):
        ends = line["low"].fillna(bottom), line["high"].fillna(top)
        axes.fill_between(line["params"], *ends, color=palette.ACCENT, alpha=0.14, linewidth=0)
        for rows, dashes, label in (
            (line[line["params"] <= high], "-", "law"),
            (line[line["params"] >= high], (0, (4, 2)), "extrapolated"),
        ):
            axes.plot(rows["params"], rows["depth"], color=palette.ACCENT, linestyle=dashes, label=label)
    axes.vlines(best["params"], best["near_low"], best["near_high"], color=palette.MUTED, linewidth=3)
    texts = [
        f"N = {short(row['params'])}: {layers(int(row['depth']))} best, tied from {row['near_low']:.0f} to "
        f"{layers(int(row['near_high']))}"
        for row in best.to_dict("records")
    ]
    style = {"marker": "o", "color": palette.INK, "markersize": 6, "linestyle": "none", "zorder": 5}
    plot_values(axes, best["params"], best["depth"], texts, label="best measured", **style)
    axes.set_ylim(bottom, top)
    axes.set_xlim(low / 1.3, float(max(high, line["params"].max() if len(line) else 0)) * 1.3)
    size_axis(axes)
    if len(line):
        count_axis(axes.yaxis, math.log10(top / bottom))
    else:
        set_ticks(axes.yaxis, FixedLocator(sorted({*best["depth"], *best["near_low"], *best["near_high"]})))
    axes.set_xlabel("parameters N")
    axes.set_ylabel("best depth L (layers)")
    outside_legend(canvas)
    return canvas
