"""Figure: the best depth against N, measured and by the laws of the study."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator

from analysis.fit.document import Fit
from analysis.law.shape import REACH
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    finish,
    new_canvas,
    plot_values,
    set_ticks,
    size_axis,
    stack,
)
from analysis.report.figures.figure import Context, Figure, study_of_fit
from core.numbers import layers, percent, short

#: Points of the line per decade of N.
PER_DECADE = 12
#: Least distance of two labels of the axis of depths, over its height.
LEAST_GAP = 0.05


def figure(context: Context) -> Figure | None:
    """The best depth against N; None if no size has two depths."""
    fit = context.fit
    if not fit.best:
        return None
    best, line = best_depths(fit), law_line(fit)
    low, high = measured_sizes(fit)
    tied, lacking = (best["near_low"] < best["near_high"]).any(), (best["missing"] != "").any()
    caption = (
        f"Marks are the best measured depths{', bars the depths that are not excluded there' if tied else ''}"
    )
    caption += (
        "; hollow marks are sizes at which a depth that may be the best is not measured. "
        if lacking
        else ". "
    )
    caption += (
        f"The line is the depth of least expected loss with the {percent(fit.level)} interval of the best depth, "
        "dashed beyond the measured sizes."
        if len(line)
        else "No line is drawn, because no law determines a depth."
    )

    def draw() -> Canvas:
        canvas, axes = new_canvas(3.9)
        axes.set_yscale("log")
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
        style = {"marker": "o", "color": palette.INK, "markersize": 6, "linestyle": "none", "zorder": 5}
        for whole, look in ((True, {"label": "best measured"}), (False, {"markerfacecolor": palette.PAPER})):
            marks = best[(best["missing"] == "") == whole]
            texts = [
                f"N = {short(row['params'])}: {layers(int(row['depth']))} best, from {row['near_low']:.0f} to "
                f"{layers(int(row['near_high']))} not excluded"
                + ("" if whole else f"; not measured: {row['missing']} layers")
                for row in marks.to_dict("records")
            ]
            plot_values(axes, marks["params"], marks["depth"], texts, **(style | look))
        axes.set_ylim(bottom, top)
        axes.set_xlim(low / 1.3, float(max(high, line["params"].max() if len(line) else 0)) * 1.3)
        size_axis(axes)
        # Every depth that exists; where two would touch, the deeper one has no label.
        ticks = sorted({*context.colours, *best["depth"], *best["near_low"], *best["near_high"]})
        room = math.log(top / bottom) * LEAST_GAP
        shown = [depth for at, depth in enumerate(ticks) if not at or math.log(depth / ticks[at - 1]) > room]
        set_ticks(
            axes.yaxis, FixedLocator([depth for depth in shown if bottom <= depth <= top]), "{:g}".format
        )
        finish(canvas, axes, "parameters N", "best depth L (layers)")
        return canvas

    table = stack(measured=best, law=line)
    return Figure("best_depth", "Best depth against size", caption, table, draw)


def measured_sizes(fit: Fit) -> tuple[float, float]:
    """The smallest and the largest N measured."""
    params = study_of_fit(fit).comparison.rows["params"]
    return float(params.min()), float(params.max())


def best_depths(fit: Fit) -> pd.DataFrame:
    """params, depth, near_low, near_high (range of the depths not excluded) and missing depths of each budget."""
    rows = [
        (item.params, item.depth, *(near[0], near[-1]), " ".join(map(str, item.missing)))
        for item in fit.best
        for near in [item.near or (item.depth,)]
    ]
    return pd.DataFrame(rows, columns=["params", "depth", "near_low", "near_high", "missing"])


def law_line(fit: Fit) -> pd.DataFrame:
    """params, depth of least expected loss, low, high by the laws that are not rejected, where they state one.

    The sizes are a log grid from the smallest measured one to `REACH` times the largest.
    """
    low, high = measured_sizes(fit)
    # The largest size is a point, so that the solid line ends there and the dashed one begins.
    inside = np.geomspace(low, high, max(2, 1 + math.ceil(PER_DECADE * math.log10(high / low))))
    beyond = np.geomspace(high, REACH * high, 1 + PER_DECADE)[1:]
    shapes = [fit.predict(float(size), math.inf) for size in [*inside, *beyond]]
    rows = [
        (item.params, item.depth_exact, *item.depth_interval) for item in shapes if item.depth is not None
    ]
    return pd.DataFrame(rows, columns=["params", "depth", "low", "high"], dtype=float)
