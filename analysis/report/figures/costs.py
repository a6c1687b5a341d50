"""Figure: loss against the time of one generated token, by depth."""

import itertools
import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.curves.curves import NEAR
from analysis.fit.document import Fit
from analysis.report.figures.canvas import (
    MARKS,
    WIDE,
    WIDTH,
    by_depth,
    finish,
    new_canvas,
    plot_values,
    shape_text,
    size_axis,
)
from analysis.report.figures.figure import Context, Figure, study_of_fit
from analysis.runs.costs import ShapeCosts, costs_of_one_device
from core.numbers import digits, layers


def figure(context: Context) -> Figure | None:
    """Loss against milliseconds per token at batch 1; None unless they were measured for two shapes of the study."""
    costs = costs_of_one_device(context.costs)
    data = cost_data(context.fit, costs)
    if len(data) < 2:
        return None
    place = f"{costs[0].machine}, {costs[0].precision}"

    def draw(width: float) -> Canvas:
        canvas, axes = new_canvas(4.4, width=width)
        for (depth, rows), mark in zip(by_depth(data), itertools.cycle(MARKS), strict=False):
            texts = [
                f"{shape_text(row)}: {row['loss']:.4f}, {digits(row['decode_ms'], 3)} ms per token"
                for row in rows.to_dict("records")
            ]
            style = {"color": context.colours[depth], "marker": mark, "linewidth": 1.5}
            plot_values(axes, rows["decode_ms"], rows["loss"], texts, label=layers(depth), **style)
        size_axis(axes)
        finish(canvas, axes, "milliseconds per generated token", f"loss ({context.fit.loss_unit.name})")
        return canvas

    return Figure(
        "costs",
        "Loss against the time of one token, one line per depth",
        "Losses are those of the curves at the size of each shape; times were measured alone, one sequence at a time "
        f"({place}). At one time, the lowest line is the best depth.",
        data,
        lambda: draw(WIDE),
        narrow=lambda: draw(WIDTH),
    )


def cost_data(fit: Fit, costs: list[ShapeCosts]) -> pd.DataFrame:
    """The shapes with a measured time of one token at batch 1: depth, width, params, loss on the curve, decode_ms."""
    curves, per_nat = study_of_fit(fit).curves, fit.loss_unit.per_nat
    rows = []
    for row in sorted(costs, key=lambda row: (row.depth, row.width)):
        size = row.size(fit.layer_weights)
        if row.depth not in curves.depths or row.batch != 1 or row.decode_ms is None:
            continue
        (low, high), x = curves.range(row.depth), math.log(size)
        if low - NEAR <= x <= high + NEAR:
            loss = per_nat * float(curves.loss(row.depth, np.clip([x], low, high))[0])
            rows.append((row.depth, row.width, size, loss, row.decode_ms))
    return pd.DataFrame(rows, columns=["depth", "width", "params", "loss", "decode_ms"])
