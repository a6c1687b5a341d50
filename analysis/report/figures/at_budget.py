"""Figure: what each depth costs at its best size, against the compute or the training time."""

import itertools
import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.fit.compute import ComputeAnswer
from analysis.law.crossings import Crossing
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    MARKS,
    WIDE,
    WIDTH,
    Axes,
    by_depth,
    finish,
    new_canvas,
    plot_values,
    shape_text,
    ticks_at,
)
from analysis.report.figures.figure import Context, Figure
from analysis.units import budget_number, budget_text
from core.numbers import digits, layers, percent, short

#: Places between two budgets at which the lines are drawn.
BETWEEN = 6
#: Places whose budgets differ by less, as a share, are one.
SAME = 1e-6
#: Points of an axis that one tick label takes.
TICK = 46


def figure(context: Context) -> Figure | None:
    """The cost of each depth against the budget; None without two budgets that have a best depth."""
    answer = context.fit.compute
    if answer is None or len(answer.best) < 2:
        return None
    data = budget_data(answer, context.fit.loss_unit.per_nat)
    crossed = [
        item for item in answer.crossings if item.params is not None and item.params_interval is not None
    ]
    place = "FLOPs" if answer.unit == "FLOPs" else "training time"
    word = "compute" if place == "FLOPs" else place
    caption = f"Each depth at its best size for this {word}; the best depth lies at 0."
    if crossed:
        caption += f" Bars below 0 are the crossings with their {percent(context.fit.level)} intervals."

    def draw(width: float) -> Canvas:
        canvas, axes = new_canvas(4.2, width=width)
        axes.set_xscale("log")
        for (depth, rows), mark in zip(by_depth(data), itertools.cycle(MARKS), strict=False):
            colour = context.colours[depth]
            axes.plot(rows["budget"], rows["excess"], color=colour, linewidth=2)
            seen = rows[rows["measured"]]
            texts = [
                f"{budget_text(row['budget'], answer.unit)}: {shape_text(row)}, {short(row['tokens'])} tokens, loss "
                f"{row['loss']:.4f}, +{digits(row['excess'])} %"
                for row in seen.to_dict("records")
            ]
            style = {"color": colour, "marker": mark, "linestyle": "none", "markersize": 6, "zorder": 4}
            plot_values(axes, seen["budget"], seen["excess"], texts, label=layers(depth), **style)
        axes.axhline(0, color=palette.INK, linewidth=0.9, zorder=1.5)
        for lane, item in enumerate(crossed, 1):
            _draw_crossing(axes, item, -0.07 * lane * float(data["excess"].max()), answer)
        ends = width * 0.8
        ticks_at(
            axes, answer.budgets, [budget_number(value, answer.unit) for value in answer.budgets], ends, TICK
        )
        finish(canvas, axes, place, "loss above the best depth, %")
        return canvas

    title = f"What each depth costs at its best size, by {word}"
    return Figure("at_budget", title, caption, data, lambda: draw(WIDE), narrow=lambda: draw(WIDTH))


def budget_data(answer: ComputeAnswer, per_nat: float) -> pd.DataFrame:
    """The depths at their best sizes, at the budgets and between them.

    Returns:
        budget, depth, width, params, tokens (all of the best size there), loss (in the unit of the fit), excess (over
        the best depth, percent), near (whether it may be the best), measured (whether it is a budget of the table).
    """
    grid = [
        place
        for low, high in itertools.pairwise(answer.budgets)
        for place in np.geomspace(low, high, BETWEEN, endpoint=False).tolist()
    ]
    rows = []
    for budget in (*grid, answer.budgets[-1]):
        best = answer.at(budget)
        if best.depth is None or best.loss is None:
            continue
        measured = any(abs(budget / value - 1) < SAME for value in answer.budgets)
        shapes = [(best.depth, best.width, best.params, best.tokens, 0.0)]
        shapes += [(item.depth, item.width, item.params, item.tokens, item.excess) for item in best.others]
        for depth, width, params, tokens, excess in shapes:
            is_near = best.near is not None and depth in best.near
            loss, more = per_nat * (best.loss + excess), 100 * excess / best.loss
            rows.append((budget, depth, width, params, tokens, loss, more, is_near, measured))
    names = ["budget", "depth", "width", "params", "tokens", "loss", "excess", "near", "measured"]
    return pd.DataFrame(rows, columns=names).sort_values(["depth", "budget"], ignore_index=True)


def _draw_crossing(axes: Axes, item: Crossing, y: float, answer: ComputeAnswer) -> None:
    """Draw a crossing with its interval below the lines, hollow if it is inconclusive."""
    assert item.params is not None
    assert item.params_interval is not None
    low, high = item.params_interval
    bar = [max(low or 0.0, answer.budgets[0]), min(high or math.inf, answer.budgets[-1])]
    solid = item.status == "bracketed"
    axes.plot(
        bar, [y, y], color=palette.INK, linewidth=3.5, alpha=0.45, linestyle="-" if solid else (0, (1, 0.8))
    )
    text = f"{layers(item.deep)} overtake {layers(item.shallow)} at {budget_text(item.params, answer.unit)}"
    face = palette.INK if solid else palette.PAPER
    style = {"marker": "D", "markersize": 5, "color": palette.INK, "markerfacecolor": face, "zorder": 5}
    plot_values(axes, [item.params], [y], [text], **style)
    axes.annotate(
        f"{item.shallow} → {item.deep}",
        (bar[1], y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=9.5,
    )
