"""Figure: loss against depth at fixed N."""

import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.fit.document import Fit
from analysis.numbers import short
from analysis.report.figures import palette
from analysis.report.figures.canvas import depth_axis, new_canvas, outside_legend
from analysis.report.figures.figure import Absent, Context, Figure

NAME, TITLE = "depth_profile", "Loss against depth at fixed size"


def figure(context: Context) -> Figure | Absent:
    """Loss against depth, one line per budget."""
    data = profile_data(context.fit)
    if data is None:
        return Absent(NAME, TITLE, "no two depths can be compared at one N")
    near = (
        "Ringed are the depths that are statistically tied with it (less than two standard errors of the paired "
        "difference)."
        if context.fit.noise.get("known")
        else "Without a noise estimate, no depth can be called tied with it."
    )
    caption = f"One line per budget, read off the curves at one N. The filled mark is the lowest loss. {near}"
    return Figure(NAME, TITLE, caption, data, lambda: draw_profile(data))


def profile_data(fit: Fit) -> pd.DataFrame | None:
    """Budget, params, depth, width, loss, se, excess, z, best, near; None if no budget has two depths."""
    rows = [
        {
            "budget": best.budget,
            "params": best.params,
            **{name: getattr(shape, name) for name in ("depth", "width", "loss", "se", "excess", "z")},
            "best": shape.depth == best.depth,
            "near": best.near is not None and shape.depth in best.near,
        }
        for best in fit.best
        for shape in best.shapes
    ]
    return pd.DataFrame(rows) if rows else None


def draw_profile(table: pd.DataFrame) -> Canvas:
    """Draw one line per budget; the best depth is filled, the near-optimal set ringed."""
    canvas, axes = new_canvas(4.2)
    depths = sorted(set(table["depth"]))
    budgets = list(table.groupby("budget", sort=True))
    colours = [light for light, _ in palette.sequence(len(budgets), "budget")]
    axes.set_xscale("log")
    for colour, (_, rows) in zip(colours, budgets, strict=True):
        x, y = (rows[name].to_numpy(dtype=float) for name in ("depth", "loss"))
        near, best = rows["near"].to_numpy(dtype=bool), rows["best"].to_numpy(dtype=bool)
        name = f"N = {short(float(rows['params'].iloc[0]))}"
        axes.plot(x, y, color=colour, linewidth=1.5, label=name)
        axes.scatter(x, y, s=16, color=palette.PAPER, edgecolors=colour, linewidths=1.2, zorder=3)
        if near.sum() > 1:
            axes.scatter(x[near], y[near], s=120, color="none", edgecolors=colour, linewidths=1.1, zorder=3)
        axes.scatter(x[best], y[best], s=46, color=colour, zorder=4)
    depth_axis(axes, depths)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("depth L (layers)")
    axes.set_ylabel("validation loss (nats per token)")
    outside_legend(canvas, 5)
    return canvas
