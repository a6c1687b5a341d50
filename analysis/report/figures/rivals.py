"""Figure: the best depth against N by each law."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.fit.document import Fit
from analysis.fit.sentences import law_name
from analysis.numbers import percent
from analysis.report.figures import palette
from analysis.report.figures.canvas import count_axis, new_canvas, outside_legend, size_axis
from analysis.report.figures.figure import Absent, Context, Figure
from analysis.report.figures.frames import concat, drawn_law, stack, study_of_fit

NAME, TITLE = "rivals", "The best depth by each law"
#: Largest N drawn, and points per decade.
FARTHEST, PER_DECADE = 1e13, 8
#: Dashes of the laws, which never differ in colour alone.
DASHES = {
    "log-linear": "-",
    "root": (0, (3, 1.4)),
    "power": (0, (1, 1.4)),
    "additive": (0, (5, 2)),
    "response": (0, (5, 2, 1, 2)),
}
#: Largest depth drawn; a deeper line leaves the frame.
DEEPEST = 2000.0


@dataclass(frozen=True)
class RivalsData:
    """The best depth against N by each law.

    Attributes:
        lines: law, params, depth (NaN where there is none).
        interval: params, low, high of the projected depth by all laws that are not rejected; NaN where there is no
            limit.
        best: params, depth, near_low, near_high: measured, without any law.
        measured: smallest and largest N measured.
    """

    lines: pd.DataFrame
    interval: pd.DataFrame
    best: pd.DataFrame
    measured: tuple[float, float]


def figure(context: Context) -> Figure | Absent:
    """The best depth by each law."""
    data = rivals_data(context.fit)
    if data is None:
        return Absent(NAME, TITLE, context.fit.law.reason or "no law has a best depth")
    level = percent(context.fit.level)
    interval = f", with the {level} interval of all laws that are not rejected" if len(data.interval) else ""
    caption = (
        f"Best depth by each law{interval}. Points are the best measured depths, bars the depths statistically tied "
        "with them. Sizes beyond the shaded range are extrapolation."
    )
    table = stack(law=data.lines, band=data.interval, measured=data.best)
    return Figure(NAME, TITLE, caption, table, lambda: draw_rivals(data))


def rivals_data(fit: Fit) -> RivalsData | None:
    """The best depth of each law from the smallest measured size to 10¹³; None if no law has any."""
    params = study_of_fit(fit).comparison.rows["params"]
    low, high = float(params.min()), float(params.max())
    end = max(FARTHEST, 10 * high)
    grid = np.geomspace(low, end, max(2, 1 + math.ceil(PER_DECADE * math.log10(end / low))))
    parts = []
    for name, advice in fit.advices().items():
        found = [advice(float(value)) for value in grid]
        depths = np.array([math.nan if depth is None or depth <= 0 else depth for depth in found])
        depths[~np.isfinite(depths)] = math.nan
        parts.append(pd.DataFrame({"law": name, "params": grid, "depth": depths}))
    if all(part["depth"].isna().all() for part in parts):
        return None
    interval = concat([], "params", "low", "high")
    if drawn_law(fit) is not None:
        ends = np.array([fit.project(float(value)).interval for value in grid], dtype=float)
        interval = pd.DataFrame({"params": grid, "low": ends[:, 0], "high": ends[:, 1]})
    rows = [
        (item.params, item.depth, min(item.near or (item.depth,)), max(item.near or (item.depth,)))
        for item in fit.best
    ]
    best = pd.DataFrame(rows, columns=["params", "depth", "near_low", "near_high"])
    return RivalsData(pd.concat(parts, ignore_index=True), interval, best, (low, high))


def draw_rivals(data: RivalsData) -> Canvas:
    """Draw best depth against N by each law, the law's interval, the measured depths, and the measured range."""
    canvas, axes = new_canvas(4.6)
    axes.set_yscale("log")
    axes.axvspan(*data.measured, color=palette.MUTED, alpha=0.16, linewidth=0, label="measured sizes")
    drawn = np.concatenate([data.lines["depth"].dropna(), data.best["near_low"], data.best["near_high"]])
    top = min(float(drawn.max()), DEEPEST) * 1.5
    bottom = max(0.5, float(drawn.min())) / 1.3
    if len(data.interval):
        low, high = data.interval["low"].fillna(bottom), data.interval["high"].fillna(top)
        axes.fill_between(data.interval["params"], low, high, color=palette.ACCENT, alpha=0.14, linewidth=0)
    for law, rows in data.lines.groupby("law", sort=False):
        name = str(law)
        if not rows["depth"].between(bottom, top).any():
            continue
        colour, width = palette.LAWS[name][0], 2.2 if name == "log-linear" else 1.8
        style = {"color": colour, "linestyle": DASHES[name], "linewidth": width}
        axes.plot(rows["params"], rows["depth"], label=law_name(name), **style)
    best = data.best
    axes.vlines(
        best["params"], best["near_low"], best["near_high"], color=palette.INK, linewidth=3.4, alpha=0.3
    )
    dots = {"marker": "o", "color": palette.INK, "markersize": 5, "linestyle": "none", "zorder": 5}
    axes.plot(best["params"], best["depth"], label="best measured", **dots)
    axes.set_ylim(bottom, top)
    axes.set_xlim(float(data.lines["params"].min()) / 1.5, float(data.lines["params"].max()) * 1.5)
    size_axis(axes)
    count_axis(axes.yaxis, math.log10(top / bottom))
    axes.set_xlabel("parameters N")
    axes.set_ylabel("best depth L by each law")
    outside_legend(canvas, 3, handlelength=3.2)
    return canvas
