"""Figure: the width at each crossing against depth, with the threshold law."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.fit.document import Fit
from analysis.intervals import width_of
from analysis.law.threshold_law import ThresholdLaw
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    LINE,
    count_axis,
    draw_crossing,
    finish,
    new_canvas,
    stack,
)
from analysis.report.figures.figure import Context, Figure
from core.numbers import percent

#: Crossings with an estimate that the figure needs: with two the law is a line through two points.
LEAST = 3


def figure(context: Context) -> Figure | None:
    """Crossings and the law through them; None with fewer than `LEAST` crossings or without a law."""
    law = context.fit.law
    if not law.usable or len(law.depths) < LEAST:
        return None
    points = crossing_widths(context.fit)
    line = law_widths(law, 0.5 * float(points["shallow"].min()), float(points["deep"].max()))
    caption = (
        f"Width of each crossing with its {percent(context.fit.level)} interval; arrows are bounds, hollow marks "
        "are inconclusive. The line is the threshold law, shaded over all laws that are not rejected."
    )

    def draw() -> Canvas:
        canvas, axes = new_canvas(3.9)
        # The line of a steep law may leave the frame.
        widths = points[["value", "low", "high"]].to_numpy(dtype=float)
        seen = widths[np.isfinite(widths)]
        bottom, top = float(seen.min()) / 1.6, float(seen.max()) * 1.7
        axes.set_yscale("log")
        axes.set_ylim(bottom, top)
        axes.set_xlim(float(line["depth"].iloc[0]), float(line["depth"].iloc[-1]))
        low, high = line["low"].fillna(bottom), line["high"].fillna(top)
        axes.fill_between(line["depth"], low, high, color=palette.ACCENT, alpha=0.14, linewidth=0)
        axes.plot(line["depth"], line["width"], label="threshold law", color=palette.ACCENT, linewidth=1.7)
        for point in points.to_dict("records"):
            text = f"{point['shallow']} → {point['deep']} layers: width"
            colour = context.colours.get(int(point["shallow"]), palette.INK)
            draw_crossing(axes, float(point["depth"]), point, text, colour)
        count_axis(axes.yaxis, math.log10(top / bottom))
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        finish(canvas, axes, "depth L between the two, √(L₁·L₂)", "its width d at the crossing")
        return canvas

    table = stack(crossing=points, line=line)
    return Figure("transition", "The width at which a deeper model pays off", caption, table, draw)


def crossing_widths(fit: Fit) -> pd.DataFrame:
    """The width at each crossing of the depth between the two.

    Returns:
        shallow, deep, depth, status, value (width), low, high (NaN where open or absent).
    """
    rows = []
    for item in fit.crossings:
        if item.status != "insufficient":
            ends = (item.params, *(item.params_interval or (None, None)))
            weights = item.layer_weights
            widths = (math.nan if end is None else width_of(end, item.middle, weights) for end in ends)
            rows.append((item.shallow, item.deep, item.middle, item.status, *widths))
    return pd.DataFrame(rows, columns=["shallow", "deep", "depth", "status", "value", "low", "high"])


def law_widths(law: ThresholdLaw, shallow: float, deep: float) -> pd.DataFrame:
    """depth, width by the law, low and high over its region (NaN where there is no limit)."""
    depth = np.linspace(shallow, deep, LINE)
    rows = [(value, law.width(value), *law.width_interval(value)) for value in depth.tolist()]
    return pd.DataFrame(rows, columns=["depth", "width", "low", "high"], dtype=float)
