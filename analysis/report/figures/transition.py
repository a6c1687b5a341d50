"""Figure: the width at each crossing against depth, with the threshold law, a rival and the published law."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.fit.document import Fit
from analysis.intervals import width_of
from analysis.law.crossings import Crossing
from analysis.law.projection import LEVINE2020
from analysis.numbers import percent
from analysis.report.figures import palette
from analysis.report.figures.canvas import Axes, count_axis, draw_bound, new_canvas, outside_legend
from analysis.report.figures.figure import Absent, Context, Figure
from analysis.report.figures.frames import LINE, drawn_law, stack, width_interval

NAME, TITLE = "transition", "The width at which a deeper model pays off"
#: Column of a law -> its name and style.
LINES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "width": ("threshold law", {"color": palette.ACCENT, "linewidth": 1.7}),
    "power": ("power law", {"color": palette.LAWS["power"][0], "linestyle": (0, (1, 1.4)), "linewidth": 1.9}),
    "published": (
        "Levine et al. 2020, 6–48 layers, English text: another regime",
        {"color": palette.MUTED, "linestyle": (0, (5, 3)), "linewidth": 1.3},
    ),
}


@dataclass(frozen=True)
class TransitionData:
    """Width at each crossing of the depth between the two, against that depth.

    Attributes:
        points: shallow, deep, depth, status, width, low, high (NaN where open or absent), and in_law, whether the
            estimate is among the law's points.
        line: depth, published (Levine et al. 2020), and if there are such laws width, low, high of the threshold law
            (low and high NaN where there is no limit) and power, the rival.
    """

    points: pd.DataFrame
    line: pd.DataFrame


def figure(context: Context) -> Figure | Absent:
    """Crossings and the laws through them."""
    data = transition_data(context.fit)
    if data is None:
        reason = "there is no law, and no pair of neighbouring depths has a settled crossing or a bound"
        return Absent(NAME, TITLE, reason)
    ours = (
        " The shaded region holds every law that is not rejected; the dotted line is a power law through the same "
        "crossings."
        if "width" in data.line
        else ""
    )
    caption = (
        f"Size of each crossing as the width of the depth between the two, with {percent(context.fit.level)} "
        "intervals. Dashed bars are "
        f"open-ended, arrows are bounds, hollow marks are inconclusive.{ours} The dashed line is the published law for "
        "6 to 48 layers on English text; compare its slope only."
    )
    table = stack(crossing=data.points, line=data.line)
    return Figure(NAME, TITLE, caption, table, lambda: draw_transition(data, context.colours))


def transition_data(fit: Fit) -> TransitionData | None:
    """Crossings of adjacent depths with the laws through them; None without a law, a settled crossing and a bound."""
    rows = [
        (item.shallow, item.deep, item.middle, item.status, *_widths(item))
        for item in fit.crossings
        if item.status != "insufficient"
    ]
    if not rows:
        return None
    points = pd.DataFrame(rows, columns=["shallow", "deep", "depth", "status", "width", "low", "high"])
    points = points.astype(dict.fromkeys(("width", "low", "high"), float))
    points = points.assign(in_law=points["depth"].isin(fit.law.depths))
    law = drawn_law(fit)
    # Inconclusive crossings alone make no figure.
    settled = points["status"] != "ambiguous"
    if law is None and points.loc[settled, ["width", "low", "high"]].isna().all(axis=None):
        return None
    depth = np.linspace(0.5 * float(points["shallow"].min()), float(points["deep"].max()), LINE)
    # The published law is that of the shallower depth: N there, then the width of the depth between the two.
    ratio = float(np.exp(np.mean(np.log(points["deep"] / points["shallow"]))))
    shallow = depth / math.sqrt(ratio)
    published = np.exp(LEVINE2020.a + LEVINE2020.b * shallow) * np.sqrt(shallow / depth)
    line = pd.DataFrame({"depth": depth, "published": published})
    if law is not None:
        bottom, top = width_interval(law, depth)
        line = line.assign(width=np.exp(law.a + law.b * depth), low=bottom, high=top)
    for rival in fit.rivals:
        if rival.form == "power" and rival.a is not None and rival.b is not None:
            line = line.assign(power=np.exp(rival.a + rival.b * np.log(depth)))
    return TransitionData(points, line)


def _widths(item: Crossing) -> tuple[float | None, ...]:
    """Width at the crossing of the depth between the two, and its interval."""
    ends = (item.params, *(item.params_interval or (None, None)))
    return tuple(None if end is None else width_of(end, item.middle) for end in ends)


def draw_transition(data: TransitionData, colours: Mapping[int, str]) -> Canvas:
    """Draw width at the crossing against depth, the threshold law with its region, its rival, and the published law."""
    canvas, axes = new_canvas(4.5)
    line = data.line
    # The line of a steep law may leave the frame.
    widths = data.points[["width", "low", "high"]].to_numpy(dtype=float)
    seen = np.concatenate([widths[np.isfinite(widths)], line["published"]])
    bottom, top = float(seen.min()) / 1.6, float(seen.max()) * 1.7
    axes.set_yscale("log")
    axes.set_ylim(bottom, top)
    axes.set_xlim(float(line["depth"].iloc[0]), float(line["depth"].iloc[-1]))
    if "width" in line:
        low, high = line["low"].fillna(bottom), line["high"].fillna(top)
        axes.fill_between(line["depth"], low, high, color=palette.ACCENT, alpha=0.14, linewidth=0)
    for name, (label, style) in LINES.items():
        if name in line:
            axes.plot(line["depth"], line[name], label=label, **style)
    for point in data.points.to_dict("records"):
        _draw_point(axes, point, colours.get(int(point["shallow"]), palette.INK), (bottom, top))
    outside_legend(canvas, 2, handlelength=2.6)
    count_axis(axes.yaxis, math.log10(top / bottom))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel("depth L between the two, √(L₁·L₂)")
    axes.set_ylabel("its width d at the crossing")
    return canvas


def _draw_point(axes: Axes, point: Mapping[Any, Any], colour: str, frame: tuple[float, float]) -> None:
    """Draw an interval with its estimate, an arrow for a bound, or a hollow mark for an inconclusive crossing."""
    x, width, low, high = float(point["depth"]), point["width"], point["low"], point["high"]
    bottom, top = frame
    if np.isfinite(width):
        settled = point["status"] == "bracketed" and bool(point["in_law"])
        ends = [low if np.isfinite(low) else bottom, high if np.isfinite(high) else top]
        dashes = "-" if settled else (0, (2, 2))
        axes.plot([x, x], ends, color=colour, linewidth=2.4 if settled else 1.4, alpha=0.55, linestyle=dashes)
        face = colour if settled else palette.PAPER
        axes.plot([x], [width], marker="o", markerfacecolor=face, color=colour, markersize=7, zorder=4)
    elif point["status"] == "left_censored" and np.isfinite(high):
        draw_bound(axes, x, high, high / 1.35, colour)
    elif point["status"] == "right_censored" and np.isfinite(low):
        draw_bound(axes, x, low, min(low * 1.35, top), colour)
