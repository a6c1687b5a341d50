"""Drawing of the figures with matplotlib's object interface: no window, no global state.

Each function takes the data of one figure (`analysis.figure_data`) and returns a drawing in the light colours
of `analysis.palette`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis import palette
from analysis.figure_data import (
    GapData,
    GapPanel,
    HealthData,
    LossData,
    ProfileData,
    TrainingData,
    TransitionData,
    by_depth,
    spread,
)
from analysis.wording import digits, layers, short

Axes = Any

#: Inches at 100 dots an inch; drawn for a column of 720 pixels.
WIDTH = 7.2

#: Lines that can be labelled at their ends.
MAX_END_LABELS = 8

STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": palette.INK,
    "axes.labelcolor": palette.INK,
    "axes.edgecolor": palette.MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": palette.GRID,
    "grid.linewidth": 0.8,
    "xtick.color": palette.MUTED,
    "ytick.color": palette.MUTED,
    "xtick.labelcolor": palette.INK,
    "ytick.labelcolor": palette.INK,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "path.simplify": True,
}


def draw_loss(data: LossData, colours: Mapping[int, str]) -> Canvas:
    """Loss against N, log axis, one line a depth with the spread of its seeds, labelled at its end."""
    canvas, axes = _canvas(4.1)
    ends = []
    for depth, rows in by_depth(data.points):
        colour = colours[depth]
        x, y = rows["params"].to_numpy(), rows["loss"].to_numpy()
        axes.vlines(x, rows["low"], rows["high"], color=colour, linewidth=1.6, alpha=0.45)
        axes.plot(x, y, color=colour, marker="o", markersize=4.5)
        ends.append((x[-1], y[-1], layers(depth), colour))
    low, high = data.points["params"].min(), data.points["params"].max()
    axes.set_xlim(low / 1.12, high * (high / low) ** 0.16)
    _sizes(axes)
    if data.floor is not None:
        axes.axhline(data.floor, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.4)
        axes.text(
            low / 1.1,
            data.floor,
            f" entropy of the data, {data.floor:.3f}",
            color=palette.MUTED,
            va="bottom",
            fontsize=8.5,
        )
    axes.set_ylabel("validation loss (nats a token)")
    axes.set_xlabel("non-embedding parameters N = 12·L·d²")
    _end_labels(axes, ends)
    return canvas


def draw_gaps(data: GapData) -> Canvas:
    """One panel a pair: gap, noise ribbon, zero line, and the crossing with its interval."""
    count = len(data.panels)
    columns = 1 if count == 1 else (2 if count in (2, 4) else 3)
    rows = math.ceil(count / columns)
    canvas = Canvas(figsize=(WIDTH, 0.35 + 2.55 * rows), dpi=100, layout="constrained")
    grid = canvas.subplots(rows, columns, squeeze=False, sharex=True)
    flat = [axes for line in grid for axes in line]
    for axes, panel in zip(flat, data.panels, strict=False):
        _draw_gap(axes, panel)
    for axes in flat[count:]:
        axes.set_visible(False)
    for index, axes in enumerate(flat[:count]):
        if index + columns >= count:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("N")
    canvas.supylabel("loss of shallower − loss of deeper (nats)", fontsize=9.5)
    return canvas


def _draw_gap(axes: Axes, panel: GapPanel) -> None:
    item, knots = panel.crossing, panel.knots
    x, gap, se = (knots[name].to_numpy(dtype=float) for name in ("params", "gap", "se"))
    if item.params_interval is not None:
        low, high = item.params_interval
        axes.axvspan(low or x[0], high or x[-1], color=palette.ACCENT, alpha=0.16, linewidth=0)
    axes.axhline(0, color=palette.INK, linewidth=0.9)
    if np.isfinite(se).all():
        axes.fill_between(x, gap - 2 * se, gap + 2 * se, color=palette.MUTED, alpha=0.28, linewidth=0)
    axes.plot(x, gap, color=palette.INK, marker="o", markersize=3.2, linewidth=1.4)
    axes.set_title(f"{item.shallow} → {item.deep} layers", fontweight="bold")
    if item.params is not None:
        axes.plot([item.params], [0], marker="D", color=palette.ACCENT, markersize=5, zorder=5)
    words = {
        "bracketed": f"N ≈ {short(item.params or 0)}",
        "ambiguous": "not settled",
        "left_censored": "deeper leads everywhere",
        "right_censored": "deeper leads nowhere",
        "insufficient": "too few points",
    }
    axes.text(
        0.97,
        0.06,
        words[item.status],
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        fontsize=9,
        color=palette.ACCENT,
    )
    _sizes(axes, small=True)
    axes.yaxis.set_major_locator(MaxNLocator(5))


def draw_profile(data: ProfileData) -> Canvas:
    """Loss against depth, one line a budget; the best depth filled, what cannot be told from it ringed."""
    canvas, axes = _canvas(4.0)
    depths = sorted(set(data.rows["depth"]))
    place = {depth: index for index, depth in enumerate(depths)}
    budgets = list(data.rows.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(budgets), "budget")]
    ends = []
    for colour, (_, rows) in zip(colours, budgets, strict=True):
        x = [place[depth] for depth in rows["depth"]]
        y = rows["loss"].to_numpy(dtype=float)
        axes.plot(x, y, color=colour, linewidth=1.5)
        axes.scatter(x, y, s=16, color=palette.PAPER, edgecolors=colour, linewidths=1.2, zorder=3)
        near, best = rows["near"].to_numpy(dtype=bool), rows["best"].to_numpy(dtype=bool)
        if near.sum() > 1:
            spots = np.array(x)[near]
            axes.scatter(spots, y[near], s=120, color="none", edgecolors=colour, linewidths=1.1, zorder=3)
        axes.scatter(np.array(x)[best], y[best], s=46, color=colour, zorder=4)
        ends.append((x[-1], y[-1], f"N = {short(float(rows['params'].iloc[0]))}", colour))
    axes.xaxis.set_major_locator(FixedLocator(range(len(depths))))
    axes.set_xticklabels([str(depth) for depth in depths])
    axes.set_xlim(-0.25, len(depths) - 1 + 0.32 * max(1.0, (len(depths) - 1) / 2))
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("depth L (layers)")
    axes.set_ylabel("validation loss (nats a token)")
    _end_labels(axes, ends)
    return canvas


def draw_transition(data: TransitionData, colours: Mapping[int, str]) -> Canvas:
    """Width at the crossing against depth, our law with its band, and the published law as another regime."""
    canvas, axes = _canvas(4.1)
    line = data.line
    axes.set_yscale("log")
    axes.plot(line["depth"], line["published"], color=palette.MUTED, linestyle=(0, (5, 3)), linewidth=1.3)
    tops = [float(line["published"].iloc[-1])]
    if "width" in line:
        axes.fill_between(
            line["depth"], line["low"], line["high"], color=palette.ACCENT, alpha=0.14, linewidth=0
        )
        axes.plot(line["depth"], line["width"], color=palette.ACCENT, linewidth=1.6)
    widths = data.points[["width", "low", "high"]].to_numpy(dtype=float)
    seen = widths[np.isfinite(widths)]
    lowest = float(seen.min()) if seen.size else tops[0] / 3
    bottom = min(lowest, float(line["published"].iloc[0])) / 1.6
    top = max(*tops, float(seen.max()) if seen.size else 0.0) * 1.7
    for point in data.points.to_dict("records"):
        _draw_transition_point(axes, point, colours.get(int(point["shallow"]), palette.INK), top)
    axes.set_ylim(bottom, top)
    axes.annotate(
        "Levine et al. 2020, 6–48 layers, English text: another regime",
        (float(line["depth"].iloc[-1]), tops[0]),
        xytext=(-4, 5),
        textcoords="offset points",
        color=palette.MUTED,
        fontsize=8.5,
        ha="right",
        va="bottom",
    )
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    edge = float(line["depth"].iloc[-1])
    axes.set_xlim(float(line["depth"].iloc[0]), edge)
    axes.set_xlabel("depth L of the shallower net")
    axes.set_ylabel("its width d at the crossing")
    return canvas


def _draw_transition_point(axes: Axes, point: Mapping[Any, Any], colour: str, top: float) -> None:
    """An interval with its estimate, an arrow for a bound, a hollow mark for what is not settled."""
    x, width, low, high = float(point["shallow"]), point["width"], point["low"], point["high"]
    pair = f"{int(point['shallow'])} → {int(point['deep'])}"
    if point["status"] == "bracketed":
        axes.plot([x, x], [low, high], color=colour, linewidth=2.4, alpha=0.55)
        axes.plot([x], [width], marker="o", color=colour, markersize=7)
        _note(axes, x, width, f"{pair}: d ≈ {digits(width)}")
        return
    if point["status"] == "ambiguous":
        if np.isfinite(width):
            ends = [low if np.isfinite(low) else width, high if np.isfinite(high) else width]
            axes.plot([x, x], ends, color=colour, linewidth=1.4, alpha=0.5, linestyle=(0, (2, 2)))
            axes.plot([x], [width], marker="o", markerfacecolor=palette.PAPER, color=colour, markersize=7)
            _note(axes, x, width, f"{pair}: not settled")
        return
    bound = high if point["status"] == "left_censored" else low
    if np.isfinite(bound):
        factor = 1 / 1.35 if point["status"] == "left_censored" else 1.35
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8}
        axes.annotate("", xy=(x, min(bound * factor, top)), xytext=(x, bound), arrowprops=arrow)
        axes.plot([x], [bound], marker="_", color=colour, markersize=12)
        words = "below" if point["status"] == "left_censored" else "above"
        _note(axes, x, bound, f"{pair}: {words} {digits(bound)}")


def _note(axes: Axes, x: float, y: float, text: str) -> None:
    """Words to the lower right of a point, clear of a rising line."""
    axes.annotate(text, (x, y), xytext=(9, -7), textcoords="offset points", va="top", fontsize=9)


def draw_training(data: TrainingData, colours: Mapping[int, str]) -> Canvas:
    """Loss against step, one thin line a cell, coloured by depth."""
    canvas, axes = _canvas(3.6)
    for depth, rows in by_depth(data.rows):
        for _, cell in rows.groupby("cell", sort=True):
            axes.plot(cell["step"], cell["loss"], color=colours[depth], linewidth=0.9, alpha=0.6)
    handles = [axes.plot([], [], color=colour, label=layers(depth))[0] for depth, colour in colours.items()]
    axes.legend(handles=handles, frameon=False, loc="upper right")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats a token)")
    return canvas


def draw_health(data: HealthData, colours: Mapping[int, str]) -> Canvas:
    """Outcome of all rows by depth, and training seconds against N."""
    timed = len(data.seconds) > 0
    bars = data.status["depth"].nunique(dropna=False)
    canvas = Canvas(figsize=(WIDTH, max(2.9, 1.2 + 0.24 * bars)), dpi=100, layout="constrained")
    grid = canvas.subplots(1, 2 if timed else 1, squeeze=False)[0]
    _draw_outcomes(grid[0], data.status)
    if timed:
        axes = grid[1]
        for depth, rows in by_depth(data.seconds):
            colour = colours[depth]
            axes.scatter(rows["params"], rows["train_seconds"], s=18, color=colour, alpha=0.75, linewidths=0)
        _sizes(axes)
        axes.set_ylim(bottom=0)
        axes.set_title("training time of a cell (seconds)", fontweight="bold")
        axes.set_xlabel("N")
    return canvas


def _draw_outcomes(axes: Axes, status: pd.DataFrame) -> None:
    table = status.assign(depth=status["depth"].fillna(-1)).pivot_table(
        index="depth", columns="outcome", values="count", aggfunc="sum", fill_value=0
    )
    names = sorted(table.columns, key=lambda name: (name != "used", name))
    shades = [palette.GOOD, palette.BAD, palette.MUTED, palette.ACCENT]
    y = np.arange(len(table))
    left = np.zeros(len(table))
    for index, name in enumerate(names):
        counts = table[name].to_numpy(dtype=float)
        colour = palette.GOOD if name == "used" else shades[1 + (index - ("used" in names)) % 3]
        axes.barh(y, counts, left=left, color=colour, height=0.62, label=str(name), alpha=0.85)
        left += counts
    for spot, total in zip(y, left, strict=True):
        label = f"{total:.0f}"
        axes.annotate(
            label, (total, spot), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_yticks(y, ["unknown" if depth < 0 else layers(int(depth)) for depth in table.index])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, left.max() * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_title("rows by outcome", fontweight="bold")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize=8.5)


def _canvas(height: float) -> tuple[Canvas, Axes]:
    canvas = Canvas(figsize=(WIDTH, height), dpi=100, layout="constrained")
    return canvas, canvas.subplots()


def _sizes(axes: Axes, *, small: bool = False) -> None:
    """A log axis of N with ticks such as 2k, 5k, 10k; fewer of them on a small panel."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    dense, medium = (1.3, 2.5) if small else (2.2, 4)
    steps = (1, 2, 5) if decades < dense else (1, 3) if decades < medium else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _end_labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """A label right of every line's end, pushed apart where they would overlap; a legend for many lines."""
    if len(ends) > MAX_END_LABELS:
        handles = [
            axes.plot([], [], marker="o", color=colour, label=label)[0] for _, _, label, colour in ends
        ]
        axes.legend(handles=handles, frameon=False, fontsize=8, ncols=2, loc="upper right")
        return
    low, high = axes.get_ylim()
    # A line of text is about 13 of the 410 pixels of a plot's height.
    places = spread([y for _, y, _, _ in ends], 0.045 * (high - low))
    for (x, y, label, colour), place in zip(ends, places, strict=True):
        offset = (place - y) / (high - low) * axes.bbox.height * 72 / axes.figure.dpi
        axes.annotate(
            label,
            (x, y),
            xytext=(9, offset),
            textcoords="offset points",
            color=colour,
            va="center",
            fontweight="bold",
        )
