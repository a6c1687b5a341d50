"""Figure: loss against depth at fixed N."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.fit.document import Fit
from analysis.numbers import digits, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import depth_axis, new_canvas, outside_legend, plot_values, shape_text
from analysis.report.figures.figure import Context, Figure


def figure(context: Context) -> Figure | None:
    """Loss against depth, one line per size; None if no size has two depths."""
    data = profile_data(context.fit)
    if data is None:
        return None
    tied = "; rings mark depths that are statistically tied with it" if data["near"].any() else ""
    caption = (
        f"The filled mark is the lowest loss at each size, with its width d and aspect ratio d/L{tied}. An arrow marks "
        "a best depth that is the deepest tried."
    )
    return Figure(
        "depth_profile", "Loss against depth at each size", caption, data, lambda: draw_profile(data)
    )


def profile_data(fit: Fit) -> pd.DataFrame | None:
    """The depths of each size; None if no size has two depths.

    Returns:
        budget, params, depth, width, loss, se, excess (over the best depth, nats), z, aspect (d/L), increase (over the
        best depth, percent), best, near (statistically tied with it).
    """
    rows = [
        {
            "budget": best.budget,
            "params": best.params,
            **{name: getattr(shape, name) for name in ("depth", "width", "loss", "se", "excess", "z")},
            "aspect": shape.width / shape.depth,
            "increase": 100 * shape.excess / best.loss,
            "best": shape.depth == best.depth,
            "near": best.near is not None and shape.depth in best.near,
        }
        for best in fit.best
        for shape in best.shapes
    ]
    return pd.DataFrame(rows) if rows else None


def draw_profile(table: pd.DataFrame) -> Canvas:
    """Draw one line per size; the best depth is filled, depths tied with it are ringed."""
    canvas, axes = new_canvas(3.9)
    depths = sorted(set(table["depth"]))
    sizes = list(table.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(sizes), "budget")]
    axes.set_xscale("log")
    # Room for the labels of the best depths and the arrows.
    axes.set_xlim(depths[0] / 1.2, depths[-1] * (depths[-1] / depths[0]) ** 0.35 * 1.15)
    labelled: list[float] = []
    # From the largest size, whose label matters most.
    for colour, (_, rows) in reversed(list(zip(colours, sizes, strict=True))):
        x, y = (rows[name].to_numpy(dtype=float) for name in ("depth", "loss"))
        near, best = rows["near"].to_numpy(dtype=bool), rows["best"].to_numpy(dtype=bool)
        name = f"N = {short(float(rows['params'].iloc[0]))}"
        if near.sum() > 1:
            axes.scatter(x[near], y[near], s=110, color="none", edgecolors=colour, linewidths=1.1, zorder=3)
        texts = [
            f"{shape_text(row)}, d/L = {digits(row['aspect'])}: loss {row['loss']:.4f} (+{row['increase']:.2f} %)"
            for row in rows.to_dict("records")
        ]
        style = {"color": colour, "linewidth": 1.5, "marker": "o", "markersize": 4.5, "zorder": 3}
        plot_values(axes, x, y, texts, label=name, markerfacecolor=palette.PAPER, **style)
        at = int(best.argmax())
        filled = {"color": colour, "marker": "o", "markersize": 7, "zorder": 4}
        plot_values(axes, x[best], y[best], texts[at : at + 1], **filled)
        # Of labels at nearly the same height only the first.
        if all(abs(y[at] - other) > 0.08 * np.ptp(table["loss"]) for other in labelled):
            labelled.append(y[at])
            text = f"d = {digits(rows['width'].iloc[at])}, d/L = {digits(rows['aspect'].iloc[at])}"
            box = {"facecolor": palette.PAPER, "edgecolor": "none", "pad": 0.4, "alpha": 0.8}
            place = {"xytext": (6, -5), "textcoords": "offset points", "va": "top", "bbox": box}
            axes.annotate(text, (x[at], y[at]), fontsize=8, **place)
        if x[at] == depths[-1]:
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6}
            axes.annotate("", (x[at] * 1.3, y[at]), xytext=(x[at], y[at]), arrowprops=arrow)
    axes.margins(y=0.1)
    depth_axis(axes, depths)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("depth L (layers)")
    axes.set_ylabel("validation loss (nats per token)")
    handles, labels = axes.get_legend_handles_labels()
    outside_legend(canvas, handles=handles[::-1], labels=labels[::-1])
    return canvas
