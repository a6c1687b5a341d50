"""Figures: loss and accuracy against N, by depth."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.fit.document import Fit
from analysis.fit.scores import accuracy_data
from analysis.law.crossings import Crossing
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    LINE,
    WIDE,
    WIDTH,
    Axes,
    by_depth,
    finish,
    new_canvas,
    plot_values,
    points_of_depths,
    size_axis,
    stack,
)
from analysis.report.figures.figure import Context, Figure, study_of_fit
from analysis.runs.columns import TOKEN_GROUP
from core.numbers import short, span


def figure(context: Context) -> Figure:
    """Loss against size."""
    unit = context.fit.loss_unit
    entropy = None if context.entropy is None else unit.per_nat * context.entropy
    points, lines = loss_data(context.fit)
    caption = (
        "Marks are means over seeds; bars run from the lowest to the highest seed."
        if context.fit.noise.seeds > 1
        else "Each mark is the loss of one shape with one seed."
    )
    crossed = [item for item in context.fit.crossings if item.params is not None]
    if crossed:
        caption = f"{caption[:-1]}; crosses are where a deeper model takes the lead."
    by_budget = context.fit.tokens.rule == "compute"
    if by_budget:
        unit_words = "FLOPs" if context.fit.tokens.budget_unit == "FLOPs" else "training time"
        caption += f" A line joins the sizes of one depth at equal {unit_words}."
    if context.fit.tokens.rule == "groups":
        caption += (
            " Each group of equal N and tokens is moved to the curves: only differences inside it count."
        )
    if entropy is not None:
        caption += " The dotted line is the entropy of the data, the lowest possible loss."

    def draw(width: float) -> Canvas:
        canvas, axes = new_canvas(4.4, width=width)
        points_of_depths(axes, points, "loss", context.colours, "none")
        for depth, line in by_depth(lines):
            for _, part in line.groupby("budget") if by_budget else [(None, line)]:
                axes.plot(part["params"], part["loss"], color=context.colours[depth], linewidth=1.5)
        _mark_crossings(axes, crossed, lines)
        size_axis(axes)
        if entropy is not None:
            axes.axhline(entropy, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.4)
            place = {"va": "bottom", "fontsize": 10, "transform": axes.get_yaxis_transform()}
            axes.text(0.01, entropy, f"entropy of the data, {entropy:.3f}", color=palette.MUTED, **place)
        finish(canvas, axes, context.size_label, f"validation loss ({unit.name})")
        return canvas

    table = stack(point=points, curve=lines).assign(entropy=entropy)
    title = f"Loss against size, one curve per depth{' and budget' if by_budget else ''}"
    return Figure("loss", title, caption, table, lambda: draw(WIDE), narrow=lambda: draw(WIDTH))


def _mark_crossings(axes: Axes, crossed: Sequence[Crossing], lines: pd.DataFrame) -> None:
    """A cross on the two curves of each crossing with an N."""
    for item in crossed:
        assert item.params is not None
        line = lines[lines["depth"] == item.deep]
        loss = np.interp(math.log(item.params), np.log(line["params"]), line["loss"])
        text = f"{item.shallow} → {item.deep} layers: N = {short(item.params)} ({span(item.params_interval, short)})"
        style = {"marker": "x", "color": palette.INK, "markersize": 8, "markeredgewidth": 2, "zorder": 6}
        plot_values(axes, [item.params], [loss], [text], linestyle="none", **style)


def loss_data(fit: Fit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The losses of the shapes, and the curves through them.

    Returns:
        depth, width, params, loss (mean over seeds), low, high (lowest and highest seed), se (pooled), seeds, residual
        (loss less the curve); and depth, params, loss on the curves. A depth of one size has no curve. Losses compared
        inside groups of tokens are less the level of their group, see `Curves.group_level`; at equal FLOPs or time,
        where depths are not compared at one size, they are as measured, and the lines join those of one `budget`, its
        number. Losses are in the unit of the fit.
    """
    study = study_of_fit(fit)
    curves, per_nat = study.curves, fit.loss_unit.per_nat
    keys = ["depth", "params", *([TOKEN_GROUP] if TOKEN_GROUP in study.rows else [])]
    groups = study.rows.groupby(keys, sort=True)
    points = groups.agg(width=("width", "first"), low=("loss", "min"), high=("loss", "max")).reset_index()
    by_budget = fit.tokens.rule == "compute"
    level = np.zeros(len(points)) if by_budget else curves.group_level
    points = points.assign(
        loss=curves.mean - level,
        low=points["low"] - level,
        high=points["high"] - level,
        se=curves.se,
        seeds=curves.count,
        residual=curves.residual,
    )
    losses = ["loss", "low", "high", "se", "residual"]
    points[losses] *= per_nat
    columns = ["depth", "width", "params", "loss", "low", "high", "se", "seeds", "residual"]
    if by_budget:
        of_budget = points.rename(columns={TOKEN_GROUP: "budget"})[["depth", "params", "loss", "budget"]]
        return points[columns], of_budget.sort_values(["depth", "budget", "params"])
    lines = [pd.DataFrame(columns=["depth", "params", "loss"], dtype=float)]
    for depth in curves.depths:
        low, high = curves.range(depth)
        if low < high:
            # Ends exactly at the measured sizes: a curve is not defined beyond them.
            x = np.linspace(low, high, LINE)
            lines.append(
                pd.DataFrame({"depth": depth, "params": np.exp(x), "loss": per_nat * curves.loss(depth, x)})
            )
    return points[columns], pd.concat(lines[1:] or lines, ignore_index=True)


def accuracy_figure(context: Context) -> Figure | None:
    """Accuracy against size; None without an accuracy."""
    data = accuracy_data(context.fit)
    if data is None:
        return None

    def draw() -> Canvas:
        canvas, axes = new_canvas(4.4)
        points_of_depths(axes, data, "mean", context.colours, "-")
        size_axis(axes)
        axes.set_ylim(-0.03, 1.03)
        finish(canvas, axes, context.size_label, "accuracy (share of the targets)")
        return canvas

    caption = (
        "Share of the validation targets that the model ranks first, mean over the seeds; bars run from the lowest to "
        "the highest seed."
    )
    return Figure("accuracy", "Accuracy against size, one line per depth", caption, data, draw)
