"""Figures: the outcome of every run with its training time, and the loss during training."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

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
    MAX_END_LABELS,
    MOST_POINTS,
    WIDTH,
    Axes,
    new_canvas,
    size_axis,
)
from analysis.report.figures.figure import Context, Figure, Rows
from analysis.report.figures.frames import by_depth, stack
from analysis.runs.table import STOPPED, RunTable


@dataclass(frozen=True)
class HealthData:
    """The outcomes of all rows.

    Attributes:
        status: depth, outcome (used, forecast, a status, or left out), count.
        seconds: depth, params, seed, train_seconds of the rows that have it.
        diverged: depth, width, params, diverged, of.
    """

    status: pd.DataFrame
    seconds: pd.DataFrame
    diverged: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return stack(count=self.status, seconds=self.seconds, diverged=self.diverged)


def figure(context: Context) -> Figure:
    """The outcome of all rows, and training times."""
    data = health_data(context.runs, context.fit)
    caption = f"Outcome of all {len(context.runs.frame)} rows, and the training time of the finished ones."
    return Figure("health", "Run health", caption, data, lambda: draw_health(data, context.colours))


def training_figure(context: Context) -> Figure | None:
    """Loss during training; None without curves of used cells."""
    if context.curves is None:
        return None
    data = training_data(context.runs, context.curves)
    if data.rows.empty:
        return None
    caption = f"One line per finished cell ({data.rows['cell'].nunique()} cells), coloured by depth."
    return Figure(
        "training", "Loss during training", caption, data, lambda: draw_training(data, context.colours)
    )


def health_data(runs: RunTable, fit: Fit) -> HealthData:
    """Counts by outcome and depth, training seconds, and the shapes that diverged."""
    dropped = {item.get("row") for item in fit.left_out}
    outcome = [
        ("forecast" if status == STOPPED else "used")
        if row not in dropped
        else ("left out" if status == "done" else str(status))
        for row, status in zip(runs.frame.index, runs.frame["status"], strict=True)
    ]
    groups = runs.frame.assign(outcome=outcome).groupby(["depth", "outcome"], sort=True, dropna=False)
    seconds = runs.used[runs.used["train_seconds"].notna()][["depth", "params", "seed", "train_seconds"]]
    diverged = pd.DataFrame(fit.diverged, columns=["depth", "width", "params", "diverged", "of"])
    return HealthData(groups.size().rename("count").reset_index(), seconds.reset_index(drop=True), diverged)


def training_data(runs: RunTable, curves: pd.DataFrame) -> Rows:
    """Curves of the used cells: cell, step, loss, depth, width, seed.

    Args:
        runs: the run table, whose `cell` identifies the curves.
        curves: columns cell, step, loss; rows of other cells are dropped.

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
    merged = curves[["cell", "step", "loss"]].merge(shapes, on="cell", how="inner")
    finite = merged[np.isfinite(merged["loss"].to_numpy(dtype=float))]
    return Rows(finite.sort_values(["depth", "width", "seed", "step"]).reset_index(drop=True))


def draw_training(data: Rows, colours: Mapping[int, str]) -> Canvas:
    """Draw loss against step, one thin line per cell, with one label per depth."""
    canvas, axes = new_canvas(3.6)
    raster = len(data.rows) > MOST_POINTS
    for depth, rows in by_depth(data.rows):
        for _, cell in rows.groupby("cell", sort=True):
            style = {"color": colours[depth], "linewidth": 0.9, "alpha": 0.6, "rasterized": raster}
            axes.plot(cell["step"], cell["loss"], **style)
    depths = sorted(set(data.rows["depth"]))
    for depth in depths:
        axes.plot([], [], color=colours[depth], label=layers(depth))
    columns = 1 if len(depths) <= MAX_END_LABELS else 3
    axes.legend(frameon=False, loc="upper right", fontsize=8.5, ncols=columns)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats per token)")
    return canvas


def draw_health(data: HealthData, colours: Mapping[int, str]) -> Canvas:
    """Draw the outcome of all rows by depth, and training seconds against N."""
    timed = len(data.seconds) > 0
    bars = data.status["depth"].nunique(dropna=False)
    canvas = Canvas(figsize=(WIDTH, max(2.9, 1.2 + 0.24 * bars)), dpi=100, layout="constrained")
    grid = canvas.subplots(1, 2 if timed else 1, squeeze=False)[0]
    _draw_outcomes(grid[0], data.status)
    if timed:
        axes = grid[1]
        for (depth, rows), mark in zip(by_depth(data.seconds), itertools.cycle(MARKS), strict=False):
            axes.scatter(
                rows["params"],
                rows["train_seconds"],
                s=18,
                marker=mark,
                color=colours[depth],
                alpha=0.75,
                linewidths=0,
                label=layers(depth),
                rasterized=len(data.seconds) > MOST_POINTS,
            )
        size_axis(axes)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.set_title("training time per cell (seconds)", fontweight="bold")
        axes.set_xlabel("N")
        if data.seconds["depth"].nunique() <= MAX_END_LABELS:
            axes.legend(frameon=False, loc="upper left", fontsize=8.5)
    return canvas


def _draw_outcomes(axes: Axes, status: pd.DataFrame) -> None:
    table = status.assign(depth=status["depth"].fillna(-1)).pivot_table(
        index="depth", columns="outcome", values="count", aggfunc="sum", fill_value=0
    )
    names = sorted(table.columns, key=lambda name: (name != "used", name))
    looks = [(palette.GOOD, ""), (palette.BAD, "////"), (palette.MUTED, "...."), (palette.ACCENT, "xxxx")]
    y, left = np.arange(len(table)), np.zeros(len(table))
    for index, name in enumerate(names):
        counts = table[name].to_numpy(dtype=float)
        colour, hatch = looks[0 if name == "used" else 1 + (index - ("used" in names)) % 3]
        style = {"alpha": 0.85, "hatch": hatch, "edgecolor": palette.PAPER, "linewidth": 0}
        axes.barh(y, counts, left=left, color=colour, height=0.62, label=str(name), **style)
        left += counts
    for spot, total in zip(y, left, strict=True):
        offset = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(f"{total:.0f}", (total, spot), va="center", fontsize=9, **offset)
    axes.set_yticks(y, ["unknown" if depth < 0 else layers(int(depth)) for depth in table.index])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, left.max() * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_title("rows by outcome", fontweight="bold")
    # Below the tick labels, whose height does not grow with the number of bars.
    below = -0.34 / max(1.7, 0.24 * len(table))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, below), ncols=3, fontsize=8.5)
