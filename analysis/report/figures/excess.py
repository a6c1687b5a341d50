"""Figure: the loss of each depth above that of the best depth, in percent, against size."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, MaxNLocator
from scipy.sparse import csr_array

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.fit.document import Fit
from analysis.intervals import width_of
from analysis.law.answer_words import MOST_DEPTHS, largest
from analysis.law.crossings import Crossing
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    WIDE,
    WIDTH,
    Axes,
    by_depth,
    new_canvas,
    plot_values,
    set_frame,
    set_ticks,
    shape_text,
    size_axis,
)
from analysis.report.figures.figure import Context, Figure, study_of_fit
from analysis.units import NATS
from core.numbers import digits, human, human_range, layers, percent, short, span

#: Least range of ln N in which the same depths are compared.
LEAST_RANGE = 0.05
#: Room above the highest cost that the frame must show, as a factor.
ROOM = 1.12
#: Factor up to which the frame is made higher so that no line leaves it.
MOST_WHOLE = 1.5
#: Least height of the frame, in percent.
LEAST_TOP = 0.1
#: Points of a line of labels, and points per letter.
LABEL, LETTER = 12.5, 6.2


def figure(context: Context) -> Figure | None:
    """The cost of each depth against size, titled by its finding; None with too few sizes to compare two depths."""
    fit = context.fit
    table = excess_data(fit)
    if table is None:
        return None
    top = top_of(table)
    highest = table.sort_values("excess").iloc[-1]
    caption = "Loss above that of the best depth of the same size, which lies at 0; marks are measured sizes."
    if table["high"].notna().any():
        caption = f"{caption[:-1]}, shaded bands {percent(fit.level)} intervals of the difference."
    drawn = drawn_crossings(fit.crossings)
    if drawn:
        bars = "Bars below 0 are the crossings with their intervals"
        hollow = "" if all(item.status == "bracketed" for item in drawn) else ", dashed if inconclusive"
        caption += f" {bars}{hollow}."
    if highest["excess"] > top:
        caption = (
            f"{caption[:-1]}; {layers(int(highest['depth']))} leave the frame, up to "
            f"+{digits(highest['excess'])} % at {human(highest['params'])}."
        )

    def draw(width: float) -> Canvas:
        return _draw(context, table, drawn, top, width)

    return Figure(
        "excess", finding(fit, table), caption, table, lambda: draw(WIDE), narrow=lambda: draw(WIDTH)
    )


def excess_data(fit: Fit) -> pd.DataFrame | None:
    """What each depth costs against the best depth, on the grid of the curves, at measured sizes and at crossings.

    Returns:
        params, depth, width (of that N, of a measured shape its own), loss (on the curve, in the unit of the
        fit), excess (over the lowest loss of this N, percent), low, high (its interval at the level of the fit,
        at least 0; NaN without a noise estimate), margin (half the interval of the difference to the best of
        the other depths), near (whether it is not excluded), measured (whether the depth has a shape of this
        N), part (number of the range of sizes in which the same depths are compared; ranges beside each other
        have consecutive numbers). Only places of the reading with two depths of several sizes, in ranges of at
        least `LEAST_RANGE`. None if there is no such range.
    """
    study = study_of_fit(fit)
    curves, reading, per_nat = study.curves, fit.reading, fit.loss_unit.per_nat
    lines = dict(zip(reading.depths, reading.losses, strict=True))
    depths = [depth for depth in reading.depths if len(curves.at(depth)) > 1]
    x = np.log(np.array(reading.params))
    if not depths or not len(x):
        return None
    losses = np.array([lines[depth] for depth in depths], dtype=float)
    inside = np.isfinite(losses)
    # Runs of places with the same depths; one with a single place or depth gives no line.
    changes = (inside[:, 1:] != inside[:, :-1]).any(axis=0).astype(int)
    # Between two places without two common depths there is a hole.
    changes += (inside[:, 1:] & inside[:, :-1]).sum(axis=0) < 2
    part = np.cumsum(np.r_[0, changes])
    lengths = np.array([np.ptp(x[part == index]) for index in part])
    compared = (inside.sum(axis=0) > 1) & (lengths >= LEAST_RANGE)
    if not compared.any():
        return None
    near = [() if reading.near is None else reading.near[at] for at in np.flatnonzero(compared)]
    x, inside, part = x[compared], inside[:, compared], part[compared]
    losses = np.where(inside, losses[:, compared], np.inf)
    first, second = np.argsort(losses, axis=0, kind="stable")[:2]
    lowest, next_lowest = np.sort(losses, axis=0)[:2]
    lead = 100 * (next_lowest - lowest) / lowest
    shapes = study.rows.groupby(["depth", "params"], sort=True)["width"].first()
    parts = []
    for row, depth in enumerate(depths):
        at = np.flatnonzero(inside[row])
        rivals = np.where(first[at] == row, second[at], first[at])
        margin = 100 * study.crossings.quantile * _se_of_gaps(curves, depths, x[at], row, rivals) / lowest[at]
        excess = 100 * (losses[row, at] - lowest[at]) / lowest[at]
        best = first[at] == row
        # A curve has a point for each group of tokens, a shape has one width.
        widths = shapes[depth]
        distance = np.abs(x[at][:, None] - np.log(widths.index.to_numpy(dtype=float)))
        measured = distance.min(axis=1) < 1e-8
        params = np.exp(x[at])
        width = np.array([width_of(float(size), depth, study.layer_weights) for size in params])
        width[measured] = widths.to_numpy(dtype=float)[distance.argmin(axis=1)[measured]]
        parts.append(
            pd.DataFrame(
                {
                    "params": params,
                    "depth": depth,
                    "width": width,
                    "loss": per_nat * losses[row, at],
                    "excess": excess,
                    "low": np.maximum(excess - margin, 0),
                    "high": np.maximum(np.where(best, margin - lead[at], excess + margin), 0),
                    "margin": margin,
                    "near": [depth in near[place] for place in at],
                    "measured": measured,
                    "part": part[at],
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _se_of_gaps(curves: Curves, depths: list[int], x: Floats, row: int, rivals: Any) -> Floats:
    """Standard error of the loss of a depth less that of its rival at each x, nats per token."""
    weights = curves.weights(depths[row], x)
    for index in np.unique(rivals):
        those = rivals == index
        weights[those] -= curves.weights(depths[index], x[those])
    # Eight weights of a place are not zero, so the sparse product is quick for many depths.
    sparse = csr_array(weights)
    variance = (np.asarray(sparse @ curves.covariance) * weights).sum(axis=1)
    return np.asarray(np.sqrt(np.maximum(variance, 0)))


def top_of(table: pd.DataFrame) -> float:
    """The largest cost that the frame shows, in percent.

    The frame shows every depth at the largest size, and at every size the depths next to the best one; the cost of a
    depth far from the best one would hide what happens near the crossings.
    """
    matters = []
    for _, rows in table.groupby("params"):
        best = int(rows["excess"].to_numpy().argmin())
        matters.append(float(rows["excess"].iloc[max(0, best - 1) : best + 2].max()))
    last = table[table["params"] == table["params"].max()]["excess"].max()
    top = ROOM * max(float(last), float(np.quantile(matters, 0.9)), LEAST_TOP)
    whole = ROOM * float(table["excess"].max())
    return whole if whole < MOST_WHOLE * top else top


def drawn_crossings(items: Sequence[Crossing]) -> list[Crossing]:
    """The crossings with an N, which have a bar in the figure."""
    return [item for item in items if item.params is not None]


def finding(fit: Fit, table: pd.DataFrame) -> str:
    """The title: which depth wins from which size on, and what the worst one costs at the largest size compared."""
    ranges = fit.reading.ranges
    largest = float(table["params"].max())
    last = table[table["params"] == largest].sort_values("excess")
    rivals = sorted({*ranges[-1].depths, *ranges[-1].rivals}) if ranges else []
    if not ranges or len(rivals) > MOST_DEPTHS:
        won = "The runs do not decide between the depths"
    else:
        final = ranges[-1]
        where = f" above {human(final.low)}" if final.high == fit.reading.params[-1] else ""
        where = where or f" from {human(final.low)} to {human(final.high)}"
        if len(ranges) == 1:
            where = f" at every size measured ({human_range((final.low, final.high))})"
        if len(rivals) > 1:
            first = ", ".join(str(depth) for depth in rivals[:-1])
            won = f"The runs do not decide between {first} and {layers(rivals[-1])}{where}"
        else:
            name = layers(rivals[0])
            won = f"{name} {'wins' if name == '1 layer' else 'win'}{where}"
    worst = last.iloc[-1]
    if worst["excess"] <= worst["margin"]:
        return f"{won}; at {human(largest)} the losses do not differ significantly"
    costs = "costs" if worst["depth"] == 1 else "cost"
    noise = "" if math.isfinite(worst["margin"]) else " (no noise estimate)"
    return (
        f"{won}; {layers(int(worst['depth']))} {costs} {digits(worst['excess'])} % at {human(largest)}{noise}"
    )


def sizes_json(table: pd.DataFrame, fit: Fit) -> dict[str, Any]:
    """The numbers of `my size` on the page: by depth its losses at ascending ln N, and whether it is near there.

    A place at which a depth is not measured has None; `missing` has those that may be the best there. `count` is how N
    is counted, widths are multiples of `step`, and `start` is ln N of the first size shown.
    """
    part = table.groupby("params")["part"].first()
    x = part.index.to_numpy(dtype=float)
    # Halfway in a hole no depth has a loss.
    x = _with_breaks(x, np.diff(part) > 1)

    def listed(values: pd.Series) -> list[float | None]:
        return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values.reindex(x)]

    depths = [
        {
            "depth": depth,
            "loss": listed(indexed["loss"]),
            "near": [value is True for value in indexed["near"].reindex(x)],
        }
        for depth, rows in by_depth(table)
        for indexed in [rows.set_index("params")]
    ]
    return {
        "sizes": [float(f"{value:.9g}") for value in np.log(x)],
        "depths": depths,
        "missing": [() if at is None else at.missing for at in map(fit.reading.at, x)],
        "step": fit.reading.width_step or 1,
        "count": fit.count,
        "start": math.log(next((item.params for item in largest(fit.best)), float(x[-1]))),
    }


def _draw(context: Context, table: pd.DataFrame, crossed: list[Crossing], top: float, width: float) -> Canvas:
    depths, stated = by_depth(table), context.fit.loss_unit
    unit = "" if stated == NATS else f" {stated.name}"
    lanes = _lanes(crossed, table, width)
    strip = LABEL * 1.15 * (max(lanes, default=-1) + 1) + 4 * bool(lanes)
    height = max(3.3 if width == WIDE else 3.4, (1.2 * LABEL * len(depths) + strip) / 72 + 0.9)
    canvas, axes = new_canvas(height, width=width)
    axes.set_xscale("log")
    low, high = float(table["params"].min()), float(table["params"].max())
    margin = (high / low) ** 0.015
    axes.set_xlim(low / margin, high * margin)
    # The strip of the crossings lies below zero; 0.75 inch is for the labels of the axis.
    plot = 72 * (height - 0.75) - strip
    below = max(strip / plot * top, 0.03 * top)
    axes.set_ylim(-below, top)
    part = table.groupby("params")["part"].first()
    best = table.loc[table.groupby("params")["loss"].idxmin(), "depth"].to_numpy()
    # A line breaks at a hole, and where another depth is compared from there on and is the best.
    breaks = (np.diff(part) > 1) | ((np.diff(part) > 0) & (np.diff(best) != 0))
    places = _with_breaks(part.index.to_numpy(dtype=float), breaks)
    for depth, rows in depths:
        colour = context.colours[depth]
        line = rows.set_index("params").reindex(places)
        ends = line["low"], line["high"].clip(upper=2 * top)
        axes.fill_between(places, *ends, color=colour, alpha=0.16, linewidth=0)
        axes.plot(places, line["excess"], color=colour, linewidth=2)
        # A mark above the frame is not in the SVG, so it may have no text either.
        seen = rows[rows["measured"] & (rows["excess"] <= top)]
        texts = [
            f"{shape_text(row)}: loss {row['loss']:.4f}{unit}, +{digits(row['excess'])} % "
            f"({span((row['low'], row['high']))})"
            if math.isfinite(row["high"])
            else f"{shape_text(row)}: loss {row['loss']:.4f}{unit}, +{digits(row['excess'])} %"
            for row in seen.to_dict("records")
        ]
        style = {"marker": "o", "markersize": 4, "linestyle": "none", "zorder": 4, "clip_on": False}
        plot_values(axes, seen["params"], seen["excess"], texts, color=colour, **style)
    axes.axhline(0, color=palette.INK, linewidth=0.9, zorder=1.5)
    for item, lane in zip(crossed, lanes, strict=True):
        _draw_crossing(axes, item, -below + (max(lanes) - lane + 0.5) * LABEL * 1.15 * top / plot)
    _label_lines(axes, depths, context, top, top / plot)
    size_axis(axes)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, top)
    set_ticks(axes.yaxis, FixedLocator([tick for tick in ticks if 0 <= tick <= top]), lambda y: f"{y:g} %")
    axes.grid(axis="x", visible=False)
    axes.set_xlabel(context.size_label)
    axes.set_ylabel("loss above the best depth")
    set_frame(axes, math.log)
    return canvas


def _with_breaks(places: Floats, breaks: Any) -> Floats:
    """Ascending N with one more, at which nothing is measured, wherever `breaks` is true between two of them."""
    at = np.flatnonzero(breaks) + 1
    return np.insert(places, at, np.sqrt(places[at - 1] * places[at]))


def _lanes(items: list[Crossing], table: pd.DataFrame, width: float) -> list[int]:
    """The lane of each crossing below zero, so that neither bars nor labels touch."""
    low, high = math.log(table["params"].min()), math.log(table["params"].max())
    per_point = (high - low) / (72 * (width - 1.5))
    ends: list[float] = []
    lanes = []
    for item in items:
        left, right = _bar(item, low, high)
        label = per_point * (LETTER * len(_name(item)) + 10)
        left, right = (left - label, right) if _is_labelled_left(right, low, high) else (left, right + label)
        lane = next((at for at, end in enumerate(ends) if end < left), len(ends))
        ends[lane : lane + 1] = [right]
        lanes.append(lane)
    return lanes


def _bar(item: Crossing, low: float, high: float) -> tuple[float, float]:
    """The ends of the interval of a crossing in ln N, open ends at the ends `low` and `high` of the frame."""
    start, stop = item.params_interval or (item.params, item.params)
    return max(math.log(start), low) if start else low, min(math.log(stop), high) if stop else high


def _is_labelled_left(right: float, low: float, high: float) -> bool:
    """Whether the bar ends so near the right end of the frame that there is room for its label left of it only."""
    return right > high - 0.12 * (high - low)


def _name(item: Crossing) -> str:
    return f"{item.shallow} → {item.deep}"


def _draw_crossing(axes: Axes, item: Crossing, y: float) -> None:
    assert item.params is not None
    low, high = (math.log(end) for end in axes.get_xlim())
    left, right = (math.exp(end) for end in _bar(item, low, high))
    solid = item.status == "bracketed"
    axes.plot(
        [left, right],
        [y, y],
        color=palette.INK,
        linewidth=3.5,
        alpha=0.45,
        linestyle="-" if solid else (0, (1, 0.8)),
        solid_capstyle="butt",
    )
    axes.plot([item.params] * 2, [y, 0], color=palette.MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
    text = (
        f"{layers(item.deep)} overtake {layers(item.shallow)} at N = {short(item.params)} "
        f"({span(item.params_interval, short)})"
    )
    face = palette.INK if solid else palette.PAPER
    style = {"marker": "D", "markersize": 5, "color": palette.INK, "markerfacecolor": face, "zorder": 5}
    plot_values(axes, [item.params], [y], [text], **style)
    place = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 9.5}
    if _is_labelled_left(math.log(right), low, high):
        axes.annotate(_name(item), (left, y), ha="right", **(place | {"xytext": (-5, 0)}))
    else:
        axes.annotate(_name(item), (right, y), ha="left", **place)


def _label_lines(
    axes: Axes, depths: list[tuple[int, pd.DataFrame]], context: Context, top: float, per_point: float
) -> None:
    """Write the depth of each line right of the frame, moved apart, with a thin line from where it ends."""
    start, edge = axes.get_xlim()
    ends = []
    for depth, rows in depths:
        last = rows.iloc[int(rows["params"].to_numpy().argmax())]
        ends.append((min(float(last["excess"]), top), float(last["params"]), depth))
    ends.sort()
    room = LABEL * per_point
    places = _apart([end[0] for end in ends], room, top)
    for (y, x, depth), place in zip(ends, places, strict=True):
        colour = context.colours[depth]
        is_early = math.log(edge / x) > 0.03 * math.log(edge / start)
        if is_early:
            leader = {"color": colour, "linewidth": 0.8, "linestyle": (0, (1, 2)), "zorder": 1}
            axes.plot([x, edge], [y, y], clip_on=False, **leader)
        # The text is ink, because the colours of lines have too little contrast for text.
        arrow = {"arrowstyle": "-", "color": colour, "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate(
            layers(depth),
            xy=(edge if is_early else x, y),
            xytext=(1 + 16 / (72 * 8), place),
            textcoords=("axes fraction", "data"),
            fontweight="bold",
            va="center",
            ha="left",
            annotation_clip=False,
            arrowprops=arrow,
        )


def _apart(values: list[float], room: float, top: float) -> list[float]:
    """Ascending values moved up until neighbours are `room` apart, and down again below `top`."""
    places: list[float] = []
    for value in values:
        places.append(max(value, places[-1] + room) if places else value)
    limit = top
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - room
    return places
