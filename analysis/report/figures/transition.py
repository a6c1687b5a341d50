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
from analysis.law.projection import LEVINE2020
from analysis.numbers import digits, percent
from analysis.report.figures import palette
from analysis.report.figures.canvas import Axes, count_axis, new_canvas
from analysis.report.figures.figure import Absent, Context, Figure
from analysis.report.figures.frames import LINE, drawn_law, stack, width_interval

NAME, TITLE = "transition", "The width at which a deeper model pays off"
#: Dashes of the published law and of the power law.
PUBLISHED, POWER = (0, (5, 3)), (0, (1, 1.4))
#: Maximum number of pairs with a label beside their mark; more would overlap.
MAX_NOTES = 7
#: Shares of the frame beyond which words to the right of a point, or below it, would leave it.
NEAR_RIGHT, NEAR_FOOT = 0.68, 0.12


@dataclass(frozen=True)
class TransitionData:
    """Width of the shallower model at each crossing against its depth.

    Attributes:
        points: shallow, deep, status, width, low, high (NaN where open or absent), and in_law, whether the estimate is
            among the law's points.
        line: depth, published (Levine et al. 2020), and if there are such laws width, low, high of the threshold law
            (low and high NaN where there is no limit) and power, the rival.
    """

    points: pd.DataFrame
    line: pd.DataFrame
    level: float

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return stack(crossing=self.points, line=self.line)


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
        f"Width of the shallower model at each crossing, with {percent(context.fit.level)} intervals. Dashed bars are "
        f"open-ended, arrows are bounds, hollow marks are inconclusive.{ours} The dashed line is the published law for "
        "6 to 48 layers on English text; compare its slope only."
    )
    return Figure(NAME, TITLE, caption, data, lambda: draw_transition(data, context.colours))


def transition_data(fit: Fit) -> TransitionData | None:
    """Crossings of adjacent depths with the laws through them; None without a law, a settled crossing and a bound."""
    columns = ["shallow", "deep", "status", "width", "low", "high", "in_law"]
    rows = [
        (
            item.shallow,
            item.deep,
            item.status,
            item.width,
            *(item.width_interval or (None, None)),
            item.shallow in fit.law.depths,
        )
        for item in fit.crossings
        if item.adjacent and item.status != "insufficient"
    ]
    if not rows:
        return None
    points = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("width", "low", "high"), float))
    law = drawn_law(fit)
    # Inconclusive crossings alone make no figure.
    settled = points["status"] != "ambiguous"
    if law is None and points.loc[settled, ["width", "low", "high"]].isna().all(axis=None):
        return None
    depth = np.linspace(0.5 * float(points["shallow"].min()), float(points["deep"].max()), LINE)
    line = pd.DataFrame({"depth": depth, "published": np.exp(LEVINE2020.a + LEVINE2020.b * depth)})
    if law is not None:
        bottom, top = width_interval(law, depth)
        line = line.assign(width=np.exp(law.a + law.b * depth), low=bottom, high=top)
    for rival in fit.rivals:
        if rival.form == "power" and rival.a is not None and rival.b is not None:
            line = line.assign(power=np.exp(rival.a + rival.b * np.log(depth)))
    return TransitionData(points, line, fit.level)


def draw_transition(data: TransitionData, colours: Mapping[int, str]) -> Canvas:
    """Draw width at the crossing against depth, the threshold law with its region, its rival, and the published law."""
    canvas, axes = new_canvas(4.3)
    line = data.line
    axes.set_yscale("log")
    edge, near = float(line["depth"].iloc[-1]), float(line["depth"].iloc[0])
    axes.plot(line["depth"], line["published"], color=palette.MUTED, linestyle=PUBLISHED, linewidth=1.3)
    bottom, top = _frame(data)
    if "width" in line:
        low, high = line["low"].fillna(bottom), line["high"].fillna(top)
        axes.fill_between(line["depth"], low, high, color=palette.ACCENT, alpha=0.14, linewidth=0)
        axes.plot(line["depth"], line["width"], color=palette.ACCENT, linewidth=1.7, label="threshold law")
    if "power" in line:
        style = {"color": palette.LAWS["power"][0], "linestyle": POWER, "linewidth": 1.9}
        axes.plot(line["depth"], line["power"], label="power law", **style)
    # Before the labels, whose place depends on the distance to the frame.
    axes.set_xlim(near, edge)
    axes.set_ylim(bottom, top)
    notes = len(data.points) <= MAX_NOTES
    for point in data.points.to_dict("records"):
        colour = colours.get(int(point["shallow"]), palette.INK)
        _draw_point(axes, point, colour, (bottom, top), notes)
    axes.annotate(
        "Levine et al. 2020, 6–48 layers, English text: another regime",
        (edge, float(line["published"].iloc[-1])),
        xytext=(-4, 5),
        textcoords="offset points",
        color=palette.MUTED,
        fontsize=8.5,
        ha="right",
        va="bottom",
    )
    if "width" in line:
        axes.legend(frameon=False, loc="lower right", fontsize=8.5, handlelength=2.6)
    count_axis(axes.yaxis, math.log10(top / bottom))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel("depth L of the shallower model")
    axes.set_ylabel("its width d at the crossing")
    return canvas


def _frame(data: TransitionData) -> tuple[float, float]:
    """Ends of the axis of widths; the line of a steep law may leave the frame."""
    widths = data.points[["width", "low", "high"]].to_numpy(dtype=float)
    laws = [data.line[name].to_numpy(dtype=float) for name in ("width", "power") if name in data.line]
    published = data.line["published"].to_numpy(dtype=float)
    seen = np.concatenate([widths[np.isfinite(widths)], *laws])
    seen = seen[(seen > 0) & np.isfinite(seen)]
    top, bottom = float(published[-1]) * 1.7, float(published[0]) / 1.6
    if seen.size:
        measured = widths[np.isfinite(widths)] if np.isfinite(widths).any() else seen
        top = max(top, min(float(seen.max()), 8 * float(measured.max())) * 1.7)
        bottom = min(bottom, max(float(seen.min()), float(measured.min()) / 8) / 1.6)
    return bottom, top


def _draw_point(
    axes: Axes, point: Mapping[Any, Any], colour: str, frame: tuple[float, float], notes: bool
) -> None:
    """Draw an interval with its estimate, an arrow for a bound, or a hollow mark for an inconclusive crossing."""
    x, width, low, high = float(point["shallow"]), point["width"], point["low"], point["high"]
    pair = f"{int(point['shallow'])} → {int(point['deep'])}"
    bottom, top = frame
    if np.isfinite(width):
        settled = point["status"] == "bracketed" and bool(point["in_law"])
        ends = [low if np.isfinite(low) else bottom, high if np.isfinite(high) else top]
        dashes = "-" if settled else (0, (2, 2))
        axes.plot([x, x], ends, color=colour, linewidth=2.4 if settled else 1.4, alpha=0.55, linestyle=dashes)
        face = colour if settled else palette.PAPER
        axes.plot([x], [width], marker="o", markerfacecolor=face, color=colour, markersize=7, zorder=4)
        words = f"d ≈ {digits(width)}" if point["status"] == "bracketed" else "inconclusive"
        _note(axes, x, width, f"{pair}: {words}", notes)
        return
    if point["status"] not in ("left_censored", "right_censored"):
        return
    below = point["status"] == "left_censored"
    bound = high if below else low
    if np.isfinite(bound):
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8}
        end = bound / 1.35 if below else min(bound * 1.35, top)
        axes.annotate("", xy=(x, end), xytext=(x, bound), arrowprops=arrow)
        axes.plot([x], [bound], marker="_", color=colour, markersize=12)
        _note(axes, x, bound, f"{pair}: {'below' if below else 'above'} {digits(bound)}", notes)


def _note(axes: Axes, x: float, y: float, text: str, wanted: bool) -> None:
    """Write words to the lower right of a point; near the frame to its upper left, or above."""
    if not wanted:
        return
    across, up = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
    left, above = across > NEAR_RIGHT, across > NEAR_RIGHT or up < NEAR_FOOT
    above = above and up < 1 - NEAR_FOOT
    offset = {"xytext": (-9 if left else 9, 7 if above else -7), "textcoords": "offset points"}
    place = {"ha": "right" if left else "left", "va": "bottom" if above else "top"}
    axes.annotate(text, (x, y), fontsize=9, **offset, **place)
