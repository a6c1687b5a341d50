"""Figure: loss against N, with one curve per depth."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.fit.document import Fit
from analysis.report.figures import palette
from analysis.report.figures.canvas import new_canvas, outside_legend, points_of_depths, size_axis
from analysis.report.figures.figure import Context, Figure
from analysis.report.figures.frames import LINE, by_depth, concat, shape_points, stack, study_of_fit


@dataclass(frozen=True)
class LossData:
    """Loss against N by depth.

    Attributes:
        points: depth, width, params, loss (mean over seeds), low, high (lowest and highest seed), se (pooled), seeds,
            residual (loss less the curve).
        lines: depth, params, loss on the fitted curves; a depth of one size has none.
        entropy: entropy of the data in nats per token, where known.
    """

    points: pd.DataFrame
    lines: pd.DataFrame
    entropy: float | None


def figure(context: Context) -> Figure:
    """Loss against size."""
    fit = context.fit
    data = loss_data(fit, context.entropy)
    marks = (
        "Marks are means over seeds; bars run from the lowest to the highest seed."
        if fit.noise.get("seeds", 1) > 1
        else "Each mark is the loss of one shape with one seed."
    )
    caption = f"{marks} {curves_phrase(fit)}"
    if data.entropy is not None:
        caption += " The dotted line is the entropy of the data, the lowest possible loss."
    return Figure(
        "loss",
        "Loss against size, one curve per depth",
        caption,
        stack(point=data.points, curve=data.lines).assign(entropy=data.entropy),
        lambda: draw_loss(data, context.colours, context.size_label),
    )


def loss_data(fit: Fit, entropy: float | None = None) -> LossData:
    """Points and curves of the losses."""
    curves = study_of_fit(fit).curves
    points = shape_points(fit).assign(se=curves.se, seeds=curves.count, residual=curves.residual)
    lines = []
    for depth in curves.depths:
        low, high = curves.range(depth)
        if low < high:
            # Ends exactly at the measured sizes: a curve is not defined beyond them.
            x = np.linspace(low, high, LINE)
            lines.append(pd.DataFrame({"depth": depth, "params": np.exp(x), "loss": curves.loss(depth, x)}))
    return LossData(
        points[["depth", "width", "params", "loss", "low", "high", "se", "seeds", "residual"]],
        concat(lines, "depth", "params", "loss"),
        entropy,
    )


def draw_loss(data: LossData, colours: Mapping[int, str], size_label: str) -> Canvas:
    """Draw the points with the range of their seeds, and the curve of each depth, against N on a log axis."""
    canvas, axes = new_canvas(4.4)
    points_of_depths(axes, data.points, "loss", colours)
    for depth, line in by_depth(data.lines):
        axes.plot(line["params"], line["loss"], color=colours[depth], linewidth=1.5)
    size_axis(axes)
    if data.entropy is not None:
        axes.axhline(data.entropy, color=palette.MUTED, linestyle=(0, (1, 2)), linewidth=1.4)
        place = {"va": "bottom", "fontsize": 8.5, "transform": axes.get_yaxis_transform()}
        axes.text(
            0.01, data.entropy, f"entropy of the data, {data.entropy:.3f}", color=palette.MUTED, **place
        )
    axes.set_ylabel("validation loss (nats per token)")
    axes.set_xlabel(size_label)
    outside_legend(canvas, 6)
    return canvas


def curves_phrase(fit: Fit) -> str:
    """How the curves are fitted and how far the points lie from power laws."""
    curves = study_of_fit(fit).curves
    if all(len(curves.at(depth)) < 2 for depth in curves.depths):
        return "No depth has two sizes, so there are no curves."
    text = (
        "The curves are power laws with an offset and a common exponent, and smooth deviations of each depth"
    )
    if len(curves.x) <= curves.parameters:
        return f"{text}, with as many parameters as points, so their fit cannot be tested."
    if curves.noise.source != "seeds" or curves.misfit_p is None:
        return f"{text}; residuals are {float((curves.residual**2).mean()) ** 0.5:.2g} nats (rms)."
    return (
        f"{text}; the losses deviate from power laws by {curves.misfit_rms:.2g} nats beyond the seed noise (lack of "
        f"fit, p = {curves.misfit_p:.2g}), which every interval includes."
    )
