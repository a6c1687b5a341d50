"""Figures and sentences of a series of studies: crossings and best depths by the value of the key that differs."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator

from analysis.curves.noise import Floats
from analysis.fit.crossing_shift import ChangedStudy
from analysis.fit.measures import MeasureData, ValueAxis, label
from analysis.fit.sentences import law_formula
from analysis.fit.series import BestData, CrossingData, Member
from analysis.intervals import Interval
from analysis.numbers import digits, ends, human, human_range, layers, percent, short, short_range, span
from analysis.report.extras.measures import compared_sentence, grouped, needed_sentence, set_values
from analysis.report.extras.shifts import shift_sentence
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    MARKS,
    count_axis,
    draw_crossing,
    new_canvas,
    outside_legend,
    plot_values,
    set_ticks,
)
from analysis.report.figures.figure import Figure
from analysis.tables import Column, Table

#: Share of the axis of values by which the marks of several pairs or budgets are moved apart.
APART = 0.012
#: Steps over which the lines of one value are spread, at most.
MOST_STEPS = 7
#: Margin of the frame, as a factor.
MARGIN = 1.6
#: Maximum number of pairs of depths with a sentence.
MOST_PAIRS = 3
#: Text for an inconclusive number.
UNSETTLED = "inconclusive"


def crossings_figure(data: CrossingData, key: str, level: float) -> Figure:
    """N at the crossings by value."""
    caption = (
        f"N at which the deeper model of each pair of neighbouring depths takes the lead, with {percent(level)} "
        "intervals. Arrows are bounds (downwards the deeper model leads at every measured size, upwards at none); "
        "hollow marks are inconclusive."
    )
    title = f"The crossings against {key}"
    return Figure("crossings", title, caption, data.table(), lambda: draw_crossings(data, key))


def best_figure(data: BestData, key: str) -> Figure:
    """The best depth by value."""
    caption = (
        "Depth of the lowest loss at each budget, read off the curves of each member at one N. Bars span the depths "
        "statistically tied with it (less than two standard errors of the paired difference)."
    )
    title = f"The best depth against {key}"
    return Figure("best_depth", title, caption, data.table(), lambda: draw_best(data, key))


def draw_crossings(data: CrossingData, key: str) -> Canvas:
    """Draw N at each crossing with its interval against the value; arrows are bounds, hollow marks inconclusive."""
    canvas, axes = new_canvas(4.2)
    pairs = list(data.rows.groupby(["shallow", "deep"], sort=True))
    values = data.rows[["params", "low", "high", "measured_low", "measured_high"]].to_numpy(dtype=float)
    known = values[np.isfinite(values)]
    # Room for the arrows of bounds.
    bottom, top = float(known.min()) / MARGIN, float(known.max()) * MARGIN
    axes.set_yscale("log")
    axes.set_ylim(bottom, top)
    set_values(axes, data.axis)
    colours = [light for light, _ in palette.sequence(len(pairs))]
    looks = zip(pairs, colours, itertools.cycle(MARKS), strict=False)
    for rank, (((shallow, deep), rows), colour, mark) in enumerate(looks):
        x = _beside(data.axis, rows["place"].to_numpy(dtype=float), rank, len(pairs))
        for place, row in zip(x, rows.to_dict("records"), strict=True):
            # An open bound is at the end of the measured sizes.
            low = (
                row["measured_high"]
                if row["status"] == "right_censored" and math.isnan(row["low"])
                else row["low"]
            )
            high = (
                row["measured_low"]
                if row["status"] == "left_censored" and math.isnan(row["high"])
                else row["high"]
            )
            text = f"{shallow} → {deep} layers at {label(row['value'])}: N ="
            ends_known = row | {"value": row["params"], "low": low, "high": high}
            draw_crossing(axes, place, ends_known, text, colour, mark)
        # Join only neighbouring values that are both settled.
        settled = rows[rows["status"] == "bracketed"].set_index("place")["params"]
        places = np.array(data.axis.places, dtype=float)
        x = _beside(data.axis, places, rank, len(pairs))
        axes.plot(x, settled.reindex(places), color=colour, linewidth=1.2)
        axes.plot([], [], marker=mark, color=colour, label=f"{shallow} → {deep}")
    count_axis(axes.yaxis, math.log10(top / bottom))
    axes.set_xlabel(key)
    axes.set_ylabel("N at the crossing")
    outside_legend(canvas, title="layers")
    return canvas


def draw_best(data: BestData, key: str) -> Canvas:
    """Draw the best depth of each budget against the value; bars span the depths statistically tied with it."""
    canvas, axes = new_canvas(4.0)
    budgets = list(data.rows.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(budgets), "budget")]
    axes.set_yscale("log")
    set_values(axes, data.axis)
    for rank, ((_, rows), colour) in enumerate(zip(budgets, colours, strict=True)):
        x = _beside(data.axis, rows["place"].to_numpy(dtype=float), rank, len(budgets))
        axes.vlines(x, rows["near_low"], rows["near_high"], color=colour, linewidth=1.4)
        name = f"N = {short(float(rows['params'].iloc[0]))}"
        style = {"color": colour, "marker": "o", "markersize": 5.5, "linewidth": 1.3, "label": name}
        texts = [
            f"{name}, {key} {label(value)}: {layers(int(depth))}"
            for value, depth in zip(rows["value"], rows["depth"], strict=True)
        ]
        plot_values(axes, x, rows["depth"], texts, **style)
    known = data.rows[["depth", "near_low", "near_high"]].to_numpy(dtype=float)
    depths = np.unique(known[np.isfinite(known)])
    axes.set_ylim(depths[0] / 1.25, depths[-1] * 1.25)
    set_ticks(axes.yaxis, FixedLocator(depths.tolist()), "{:.0f}".format)
    axes.set_xlabel(key)
    axes.set_ylabel("best depth (layers)")
    outside_legend(canvas)
    return canvas


def _beside(axis: ValueAxis, places: Floats, rank: int, count: int) -> Floats:
    """Places moved to the side of one of `count` lines, so that the bars of several lines do not hide each other."""
    first, last = axis.places[0], axis.places[-1]
    shift = APART * (rank - (count - 1) / 2) * min(1.0, MOST_STEPS / count)
    return places * (last / first) ** shift if axis.log else places + shift * max(last - first, 1.0)


def members_table(key: str, members: Sequence[Member], about: Sequence[Mapping[str, Any]]) -> Table:
    """Rows, depths, sizes and the law of each member; `about` is `members` of `series.json`."""
    columns = (
        Column(key, right=False),
        Column("rows used"),
        Column("depths"),
        Column("N"),
        Column("seeds"),
        Column("threshold law", right=False),
    )
    rows = []
    for member, item in zip(members, about, strict=True):
        law = None if member.fit is None else member.fit.law
        words = "no fit" if law is None else f"none: {law.reason}"
        if law is not None and law.a is not None and law.b is not None:
            words = law_formula(law.a, law.b)
        rows.append(
            (
                label(member.value),
                f"{item['used']} of {item['rows']}",
                ", ".join(map(str, item["depths"])) or None,
                short_range(item["params"]) if item["params"] else None,
                str(item["seeds"]),
                words,
            )
        )
    return Table("members", columns, rows)


def crossings_table(key: str, data: CrossingData, level: float) -> Table:
    """The crossings by pair and value."""
    columns = (
        Column("pair", right=False),
        Column(key, right=False),
        Column("status", right=False, look="tag"),
        Column("N", f"and {percent(level)} interval"),
        Column("interval", under="N"),
        Column("width", "of the shallower model"),
        Column("width interval", under="width"),
        Column("why", right=False, under="status"),
    )
    rows = [
        (
            f"{row['shallow']} → {row['deep']}",
            label(row["value"]),
            row["status"].replace("_", "-"),
            None if math.isnan(row["params"]) else short(row["params"]),
            short_range(_ends(row, "low", "high")),
            None if math.isnan(row["width"]) else digits(row["width"]),
            span(_ends(row, "width_low", "width_high")),
            row["reason"],
        )
        for row in data.rows.sort_values(["shallow", "deep"], kind="stable").to_dict("records")
    ]
    return Table("crossings by value", columns, rows)


def _ends(row: Mapping[Any, Any], *names: str) -> Interval:
    low, high = (None if math.isnan(row[name]) else float(row[name]) for name in names)
    return low, high


def series_sentences(
    key: str,
    members: Sequence[Member],
    crossings: CrossingData | None,
    best: BestData | None,
    shifts: Sequence[ChangedStudy],
    measures: Sequence[MeasureData],
    level: float,
    *,
    comparable: bool = False,
) -> list[str]:
    """The answer of a series, most important sentence first; `comparable` as in `write_series`."""
    needed = [text for data in measures if (text := needed_sentence(key, data))]
    if comparable:
        losses = [compared_sentence(key, data) for data in measures if data.name == "loss"]
        needed += [text for text in losses if text]
    crossed = [] if crossings is None else crossing_sentences(key, crossings, level)
    depths = best_sentences(key, best)
    if crossings is None or not (crossings.rows["status"] == "bracketed").any():
        # Inconclusive crossings come last.
        crossed, depths = depths, crossed
    shifted = [shift_sentence(shifts)] if shifts else []
    found = [*slope_sentences(key, members, level), *needed, *crossed, *shifted, *depths]
    nothing = (
        "No member of this series has two depths that can be compared, and none has a measure to show by "
    )
    return found or [f"{nothing}{key}."]


def slope_sentences(key: str, members: Sequence[Member], level: float) -> list[str]:
    """The slope of the threshold law at each value; empty if no value has one with an interval."""
    slopes = [_slope(member, level) for member in members]
    if set(slopes) == {UNSETTLED}:
        return []
    parts = grouped(slopes, [member.value for member in members])
    return [f"Slope b of the threshold law ln d = a + b·L, by {key}: {'; '.join(parts)}."]


def _slope(member: Member, level: float) -> str:
    law = None if member.fit is None else member.fit.law
    if law is None or law.b is None or law.b_interval is None or None in law.b_interval:
        return UNSETTLED
    return f"{digits(law.b)} ({percent(level)}: {ends(law.b_interval)})"


def crossing_sentences(key: str, data: CrossingData, level: float) -> list[str]:
    """One sentence per pair of neighbouring depths that is settled at some value: its crossing at each value."""
    sentences: list[str] = []
    silent = 0
    for (shallow, deep), rows in data.rows.groupby(["shallow", "deep"], sort=True):
        if len(sentences) == MOST_PAIRS or not (rows["status"] == "bracketed").any():
            silent += 1
            continue
        parts = grouped([_where(row, level) for row in rows.to_dict("records")], rows["value"])
        shallower = f"{shallow} layer{'s' * (shallow != 1)}"
        sentences.append(f"{deep} layers overtake {shallower}, by {key}: {'; '.join(parts)}.")
    if silent:
        pairs = f"{silent} more pairs of depths are" if silent > 1 else "1 more pair of depths is"
        few = "At no value does a crossing lie between two measured sizes; the table lists the bounds."
        sentences.append(f"{pairs} in the table." if sentences else few)
    return sentences


def _where(row: dict[Any, Any], level: float) -> str:
    match row["status"]:
        case "bracketed":
            return f"N ≈ {human(row['params'])} ({percent(level)}: {human_range(_ends(row, 'low', 'high'))})"
        case "left_censored":
            return "below all sizes measured"
        case "right_censored":
            return "nowhere up to the largest size"
        case _:
            return UNSETTLED


def best_sentences(key: str, data: BestData | None) -> list[str]:
    """The best depth by value, at the largest budget that most values have."""
    if data is None:
        return []
    counts = data.rows.groupby("budget").size()
    if counts.max() < 2:
        return []
    budget = float(counts[counts == counts.max()].index.max())
    rows = data.rows[data.rows["budget"] == budget].sort_values("place")
    parts = grouped([layers(depth) for depth in rows["depth"]], rows["value"], f"{key} ")
    return [f"Lowest loss at a budget of N ≈ {human(budget)}: {', '.join(parts)}."]
