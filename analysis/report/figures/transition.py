"""Figure: the width at each crossing against depth, with the threshold law."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.fit.document import Fit
from analysis.intervals import width_of
from analysis.law.advice import law_of
from analysis.law.crossings import Crossing
from analysis.numbers import percent
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    count_axis,
    draw_crossing,
    new_canvas,
    outside_legend,
)
from analysis.report.figures.figure import Context, Figure
from analysis.report.figures.frames import LINE, stack, width_interval

#: Crossings with an estimate that the figure needs: with two the law is a line through two points.
LEAST = 3


@dataclass(frozen=True)
class TransitionData:
    """Width at each crossing of the depth between the two, against that depth.

    Attributes:
        points: shallow, deep, depth, status, value (width), low, high (NaN where open or absent).
        line: depth, width, low, high by the threshold law (low and high NaN where there is no limit).
    """

    points: pd.DataFrame
    line: pd.DataFrame


def figure(context: Context) -> Figure | None:
    """Crossings and the law through them; None with fewer than `LEAST` crossings or without a law."""
    data = transition_data(context.fit)
    if data is None:
        return None
    caption = (
        f"Width of each crossing with its {percent(context.fit.level)} interval; arrows are bounds, hollow marks "
        "are inconclusive. The line is the threshold law, shaded over all laws that are not rejected."
    )
    table = stack(crossing=data.points, line=data.line)
    return Figure(
        "transition",
        "The width at which a deeper model pays off",
        caption,
        table,
        lambda: draw_transition(data, context.colours),
    )


def transition_data(fit: Fit) -> TransitionData | None:
    """Crossings of adjacent depths with the law through them; None with fewer than `LEAST` or without a law."""
    law = law_of(fit.law)
    if law is None or len(fit.law.depths) < LEAST:
        return None
    rows = [
        (item.shallow, item.deep, item.middle, item.status, *_widths(item))
        for item in fit.crossings
        if item.status != "insufficient"
    ]
    points = pd.DataFrame(rows, columns=["shallow", "deep", "depth", "status", "value", "low", "high"])
    points = points.astype(dict.fromkeys(("value", "low", "high"), float))
    depth = np.linspace(0.5 * float(points["shallow"].min()), float(points["deep"].max()), LINE)
    low, high = width_interval(law, depth)
    line = pd.DataFrame({"depth": depth, "width": np.exp(law.a + law.b * depth), "low": low, "high": high})
    return TransitionData(points, line)


def _widths(item: Crossing) -> tuple[float | None, ...]:
    """Width at the crossing of the depth between the two, and its interval."""
    ends = (item.params, *(item.params_interval or (None, None)))
    return tuple(None if end is None else width_of(end, item.middle) for end in ends)


def draw_transition(data: TransitionData, colours: Mapping[int, str]) -> Canvas:
    """Draw width at the crossing against depth, and the threshold law with its region."""
    canvas, axes = new_canvas(3.9)
    line = data.line
    # The line of a steep law may leave the frame.
    widths = data.points[["value", "low", "high"]].to_numpy(dtype=float)
    seen = widths[np.isfinite(widths)]
    bottom, top = float(seen.min()) / 1.6, float(seen.max()) * 1.7
    axes.set_yscale("log")
    axes.set_ylim(bottom, top)
    axes.set_xlim(float(line["depth"].iloc[0]), float(line["depth"].iloc[-1]))
    low, high = line["low"].fillna(bottom), line["high"].fillna(top)
    axes.fill_between(line["depth"], low, high, color=palette.ACCENT, alpha=0.14, linewidth=0)
    axes.plot(line["depth"], line["width"], label="threshold law", color=palette.ACCENT, linewidth=1.7)
    for point in data.points.to_dict("records"):
        text = f"{point['shallow']} → {point['deep']} layers: width"
        colour = colours.get(int(point["shallow"]), palette.INK)
        draw_crossing(axes, float(point["depth"]), point, text, colour)
    outside_legend(canvas)
    count_axis(axes.yaxis, math.log10(top / bottom))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel("depth L between the two, √(L₁·L₂)")
    axes.set_ylabel("its width d at the crossing")
    return canvas
