"""Figures: the outcome of every run with its training time, and the loss during training."""

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.errors import InputError
from analysis.fit.document import Fit
from analysis.numbers import layers, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    MARKS,
    MOST_POINTS,
    WIDTH,
    Axes,
    new_canvas,
    outside_legend,
    size_axis,
)
from analysis.report.figures.figure import Context, Figure
from analysis.report.figures.frames import by_depth, stack
from analysis.runs.table import RunTable


def figure(context: Context) -> Figure:
    """The outcome of all rows, and training times."""
    status, seconds = health_data(context.runs, context.fit)
    return Figure(
        "health",
        "Run health",
        f"Outcome of all {len(context.runs.frame)} rows, and the training time of the finished ones.",
        stack(count=status, seconds=seconds),
        lambda: draw_health(status, seconds, context.colours),
    )


def training_figure(context: Context) -> Figure | None:
    """Loss during training; None without curves of used cells."""
    table = None if context.curves is None else training_data(context.runs, context.curves)
    if table is None or table.empty:
        return None
    caption = f"One line per finished cell ({table['cell'].nunique()} cells), coloured by depth."
    return Figure(
        "training", "Loss during training", caption, table, lambda: draw_training(table, context.colours)
    )


def health_data(runs: RunTable, fit: Fit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The outcomes of all rows, and the training seconds of those that have them.

    Returns:
        depth, outcome (used, a status, or left out), count; and depth, params, seed, train_seconds.
    """
    dropped = {item.get("row") for item in fit.left_out}
    outcome = [
        "used" if row not in dropped else ("left out" if status == "done" else str(status))
        for row, status in zip(runs.frame.index, runs.frame["status"], strict=True)
    ]
    groups = runs.frame.assign(outcome=outcome).groupby(["depth", "outcome"], sort=True, dropna=False)
    seconds = runs.used[runs.used["train_seconds"].notna()][["depth", "params", "seed", "train_seconds"]]
    return groups.size().rename("count").reset_index(), seconds


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
        style = {"linewidth": 0.9, "alpha": 0.6, "rasterized": len(table) > MOST_POINTS}
        for _, cell in rows.groupby("cell", sort=True):
            axes.plot(cell["step"], cell["loss"], color=colours[depth], **style)
        axes.plot([], [], color=colours[depth], label=layers(depth))
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats per token)")
    outside_legend(canvas, 6)
    return canvas


def draw_health(status: pd.DataFrame, seconds: pd.DataFrame, colours: Mapping[int, str]) -> Canvas:
    """Draw the outcome of all rows by depth, and training seconds against N."""
    timed = len(seconds) > 0
    bars = status["depth"].nunique(dropna=False)
    canvas = Canvas(figsize=(WIDTH, max(2.9, 1.2 + 0.24 * bars)), dpi=100, layout="constrained")
    grid = canvas.subplots(1, 2 if timed else 1, squeeze=False)[0]
    _draw_outcomes(grid[0], status)
    if timed:
        axes = grid[1]
        style = {"s": 18, "alpha": 0.75, "linewidths": 0, "rasterized": len(seconds) > MOST_POINTS}
        for (depth, rows), mark in zip(by_depth(seconds), itertools.cycle(MARKS), strict=False):
            axes.scatter(rows["params"], rows["train_seconds"], marker=mark, color=colours[depth], **style)
        size_axis(axes)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.set_title("training time per cell (seconds)")
        axes.set_xlabel("N")
    return canvas


def _draw_outcomes(axes: Axes, status: pd.DataFrame) -> None:
    table = status.assign(depth=status["depth"].fillna(-1)).pivot_table(
        index="depth", columns="outcome", values="count", aggfunc="sum", fill_value=0
    )
    looks = itertools.cycle([(palette.BAD, "////"), (palette.MUTED, "...."), (palette.ACCENT, "xxxx")])
    y, left = np.arange(len(table)), np.zeros(len(table))
    for name in sorted(table.columns, key=lambda name: (name != "used", name)):
        colour, hatch = (palette.GOOD, "") if name == "used" else next(looks)
        style = {"alpha": 0.85, "hatch": hatch, "edgecolor": palette.PAPER, "linewidth": 0}
        bars = axes.barh(y, table[name], left=left, color=colour, height=0.62, label=str(name), **style)
        left += table[name].to_numpy(dtype=float)
    axes.bar_label(bars, [f"{total:.0f}" for total in left], padding=4, fontsize=9)
    axes.set_yticks(y, ["unknown" if depth < 0 else layers(int(depth)) for depth in table.index])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, left.max() * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_title("rows by outcome")
    # Below the tick labels, whose height does not grow with the number of bars.
    below = -0.34 / max(1.7, 0.24 * len(table))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, below), ncols=3)
