"""Figure: the loss during training."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.errors import InputError
from analysis.numbers import layers
from analysis.report.figures.canvas import MOST_POINTS, new_canvas, outside_legend
from analysis.report.figures.figure import Context, Figure
from analysis.report.figures.frames import by_depth
from analysis.runs.table import RunTable


def figure(context: Context) -> Figure | None:
    """Loss during training; None without curves of used cells."""
    table = None if context.curves is None else training_data(context.runs, context.curves)
    if table is None or table.empty:
        return None
    caption = f"One line per finished run ({table['cell'].nunique()} runs), coloured by depth."
    return Figure(
        "training", "Loss during training", caption, table, lambda: draw_training(table, context.colours)
    )


def training_data(runs: RunTable, curves: pd.DataFrame) -> pd.DataFrame:
    """Curves (cell, step, loss) of the used cells, with depth, width, seed; rows of other cells are dropped.

    Raises:
        InputError: a column is missing.
    """
    missing = [name for name in ("cell", "step", "loss") if name not in curves.columns]
    if missing:
        raise InputError(
            f"The training curves lack the column {', '.join(missing)}; they need cell, step and loss, "
            f"and have {', '.join(map(str, curves.columns))}."
        )
    shapes = runs.used[["cell", "depth", "width", "seed"]]
    merged: pd.DataFrame = curves[["cell", "step", "loss"]].merge(shapes, on="cell", how="inner")
    merged = merged[np.isfinite(merged["loss"].to_numpy(dtype=float))]
    return merged.sort_values(["depth", "width", "seed", "step"])


def draw_training(table: pd.DataFrame, colours: Mapping[int, str]) -> Canvas:
    """Draw loss against step, one thin line per cell, with one label per depth."""
    canvas, axes = new_canvas(3.8)
    for depth, rows in by_depth(table):
        style = {"linewidth": 0.8, "rasterized": len(table) > MOST_POINTS}
        for _, cell in rows.groupby("cell", sort=True):
            axes.plot(cell["step"], cell["loss"], color=colours[depth], **style)
        axes.plot([], [], color=colours[depth], label=layers(depth))
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats per token)")
    outside_legend(canvas)
    return canvas
