"""Drawing of the crossings and of the law through them: gaps, transition, residuals."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.numbers import digits, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import WIDTH, Axes, count_axis, new_canvas, size_axis
from analysis.report.figures.frames import GapData, GapPanel, ResidualData, TransitionData

#: Dashes: of the published law, of the power law, of the line of a clear lead.
PUBLISHED, POWER, LEAD = (0, (5, 3)), (0, (1, 1.4)), (0, (4, 2, 1, 2))
#: Pairs that have words beside their mark; more would cover each other.
MAX_NOTES = 7
#: Shares of the frame beyond which words to the right of a point, or below it, would run past it.
NEAR_RIGHT, NEAR_FOOT = 0.68, 0.12


def draw_gaps(data: GapData) -> Canvas:
    """One panel a pair: gap, noise ribbon, zero line, and the crossing with its two intervals."""
    count = len(data.panels)
    columns = 1 if count == 1 else (2 if count in (2, 4) else 3)
    rows = math.ceil(count / columns)
    canvas = Canvas(figsize=(WIDTH, 0.35 + 2.55 * rows), dpi=100, layout="constrained")
    grid = canvas.subplots(rows, columns, squeeze=False, sharex=True)
    flat = [axes for line in grid for axes in line]
    for axes, panel in zip(flat, data.panels, strict=False):
        _draw_gap(axes, panel, data.quantile)
    for axes in flat[count:]:
        axes.set_visible(False)
    for index, axes in enumerate(flat[:count]):
        # After all are drawn: they share one axis of N.
        size_axis(axes, small=True)
        if index + columns >= count:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("N")
    canvas.supylabel("loss of shallower − loss of deeper (nats)", fontsize=9.5)
    return canvas


def _draw_gap(axes: Axes, panel: GapPanel, quantile: float) -> None:
    item, line = panel.crossing, panel.line
    x, gap, se, ahead = (line[name].to_numpy(dtype=float) for name in ("params", "gap", "se", "ahead"))
    if item.params_interval is not None and item.params_interval != (None, None):
        low, high = item.params_interval
        axes.axvspan(low or x[0], high or x[-1], color=palette.ACCENT, alpha=0.16, linewidth=0)
    axes.axhline(0, color=palette.INK, linewidth=0.9)
    if np.isfinite(se).all():
        reach = quantile * se
        axes.fill_between(x, gap - reach, gap + reach, color=palette.MUTED, alpha=0.28, linewidth=0)
    if item.delta:
        axes.plot(x, ahead, color=palette.GOOD, linewidth=1.2, linestyle=LEAD)
        if item.delta_params is not None:
            height = float(np.interp(math.log(item.delta_params), np.log(x), ahead))
            axes.plot([item.delta_params], [height], marker="^", color=palette.GOOD, markersize=6, zorder=5)
    axes.plot(x, gap, color=palette.INK, linewidth=1.6)
    # Measured sizes as ticks on the frame: a curve between them is a fit.
    axes.plot(
        panel.sizes["params"],
        np.zeros(len(panel.sizes)),
        transform=axes.get_xaxis_transform(),
        marker="|",
        markersize=7,
        linestyle="none",
        color=palette.MUTED,
    )
    if item.bootstrap_interval is not None and item.params is not None:
        first, last = item.bootstrap_interval
        ends = [first or x[0], last or x[-1]]
        axes.plot(ends, [0, 0], color=palette.ACCENT, linewidth=2.6, solid_capstyle="butt", zorder=4)
        # Caps are seen where the bar is hidden by the mark; an open end has none.
        closed = [end for end in (first, last) if end is not None]
        axes.plot(
            closed,
            np.zeros(len(closed)),
            marker="|",
            markersize=13,
            markeredgewidth=1.6,
            linestyle="none",
            color=palette.ACCENT,
            zorder=4,
        )
    if item.params is not None:
        axes.plot([item.params], [0], marker="D", color=palette.ACCENT, markersize=5.5, zorder=5)
    axes.set_title(f"{item.shallow} → {item.deep} layers", fontweight="bold")
    words = {
        "bracketed": f"N ≈ {short(item.params or 0)}",
        "ambiguous": "not settled",
        "left_censored": "deeper leads everywhere",
        "right_censored": "deeper leads nowhere",
        "insufficient": "too few points",
    }
    axes.text(
        0.97,
        0.1,
        words[item.status],
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        fontsize=9,
        color=palette.ACCENT,
    )
    axes.yaxis.set_major_locator(MaxNLocator(5))


def draw_transition(data: TransitionData, colours: Mapping[int, str]) -> Canvas:
    """Width at the crossing against depth, our law with its band, its rival, and the published law."""
    canvas, axes = new_canvas(4.3)
    line = data.line
    axes.set_yscale("log")
    edge, near = float(line["depth"].iloc[-1]), float(line["depth"].iloc[0])
    axes.plot(line["depth"], line["published"], color=palette.MUTED, linestyle=PUBLISHED, linewidth=1.3)
    widths = data.points[["width", "low", "high"]].to_numpy(dtype=float)
    laws = [line[name].to_numpy(dtype=float) for name in ("width", "power") if name in line]
    published = line["published"].to_numpy(dtype=float)
    seen = np.concatenate([widths[np.isfinite(widths)], *laws])
    seen = seen[(seen > 0) & np.isfinite(seen)]
    top, bottom = float(published[-1]) * 1.7, float(published[0]) / 1.6
    if seen.size:
        # A steep law would flatten all the rest; its line may leave the frame.
        measured = widths[np.isfinite(widths)] if np.isfinite(widths).any() else seen
        top = max(top, min(float(seen.max()), 8 * float(measured.max())) * 1.7)
        bottom = min(bottom, max(float(seen.min()), float(measured.min()) / 8) / 1.6)
    if "width" in line:
        low, high = line["low"].fillna(bottom), line["high"].fillna(top)
        axes.fill_between(line["depth"], low, high, color=palette.ACCENT, alpha=0.14, linewidth=0)
        axes.plot(line["depth"], line["width"], color=palette.ACCENT, linewidth=1.7, label="threshold law")
    if "power" in line:
        colour = palette.LAWS["power"][0]
        axes.plot(
            line["depth"], line["power"], color=colour, linestyle=POWER, linewidth=1.9, label="power law"
        )
    # Before the words: where they go depends on how far the frame is.
    axes.set_xlim(near, edge)
    axes.set_ylim(bottom, top)
    notes = len(data.points) <= MAX_NOTES
    for point in data.points.to_dict("records"):
        colour = colours.get(int(point["shallow"]), palette.INK)
        _draw_transition_point(axes, point, colour, (bottom, top), notes)
    axes.annotate(
        "Levine et al. 2020, 6–48 layers, English text: another regime",
        (edge, float(published[-1])),
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


def _draw_transition_point(
    axes: Axes, point: Mapping[Any, Any], colour: str, frame: tuple[float, float], notes: bool
) -> None:
    """An interval with its estimate, an arrow for a bound, a hollow mark for what is not settled."""
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
        words = f"d ≈ {digits(width)}" if point["status"] == "bracketed" else "not settled"
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
    """Words to the lower right of a point, clear of a rising line; to its upper left, or above, near the frame."""
    if not wanted:
        return
    across, up = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
    left, above = across > NEAR_RIGHT, across > NEAR_RIGHT or up < NEAR_FOOT
    axes.annotate(
        text,
        (x, y),
        xytext=(-9 if left else 9, 7 if above and up < 1 - NEAR_FOOT else -7),
        textcoords="offset points",
        ha="right" if left else "left",
        va="bottom" if above and up < 1 - NEAR_FOOT else "top",
        fontsize=9,
    )


def draw_residuals(data: ResidualData) -> Canvas:
    """Left the residuals of ln d with the intervals of the crossings, right the slope without each pair."""
    rows = data.rows
    canvas = Canvas(figsize=(WIDTH, 1.5 + 0.34 * max(len(rows), 4)), dpi=100, layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    y = np.arange(len(rows))
    residual, b = rows["residual"].to_numpy(dtype=float), rows["b"].to_numpy(dtype=float)
    ends = rows[["low", "high"]].to_numpy(dtype=float)
    reach = np.abs(np.concatenate([residual, ends[np.isfinite(ends)]])).max() * 1.15 or 1.0
    left.axvline(0, color=palette.ACCENT, linewidth=1.6)
    if data.scatter > 0:
        left.axvspan(-data.scatter, data.scatter, color=palette.ACCENT, alpha=0.14, linewidth=0)
    for place, value, (low, high) in zip(y, residual, ends, strict=True):
        bar = [low if np.isfinite(low) else -reach, high if np.isfinite(high) else reach]
        solid = np.isfinite(low) and np.isfinite(high)
        dashes = "-" if solid else (0, (2, 2))
        left.plot(bar, [place, place], color=palette.INK, linewidth=1.8, alpha=0.55, linestyle=dashes)
        left.plot([value], [place], marker="o", color=palette.INK, markersize=6)
    left.set_xlim(-reach, reach)
    left.set_title("residual of ln d", fontweight="bold")
    left.set_xlabel("crossing less law")
    right.axvline(data.b, color=palette.ACCENT, linewidth=1.6)
    bottom, top = data.b_interval
    limits = [value for value in (bottom, top, data.b, *b) if value is not None]
    margin = 0.12 * (max(limits) - min(limits)) or 0.1
    frame = (min(limits) - margin, max(limits) + margin)
    # An open interval is shaded to the frame.
    first, last = frame[0] if bottom is None else bottom, frame[1] if top is None else top
    right.axvspan(first, last, color=palette.ACCENT, alpha=0.14, linewidth=0)
    right.plot(b, y, marker="s", linestyle="none", color=palette.INK, markersize=6)
    right.set_xlim(*frame)
    right.set_title("slope b without the pair", fontweight="bold")
    right.set_xlabel("b")
    left.set_yticks(y, [f"{int(s)} → {int(d)}" for s, d in zip(rows["shallow"], rows["deep"], strict=True)])
    left.set_ylim(len(rows) - 0.5, -0.5)
    for axes in (left, right):
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    return canvas
