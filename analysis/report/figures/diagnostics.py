"""Figures by cell: loss during training, and diagnostics inside the models, layer by layer."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, MaxNLocator

from analysis.report.figures import palette
from analysis.report.figures.canvas import (
    MARKS,
    MOST_POINTS,
    Axes,
    by_depth,
    finish,
    new_canvas,
    outside_legend,
    plot_values,
    set_ticks,
)
from analysis.report.figures.figure import Context, Figure
from analysis.runs.table import RunTable
from analysis.units import NATS, LossUnit
from core.errors import InputError
from core.numbers import layers, short

#: Columns of the measures; `layer` counts from 1, and step 0 is before the first step.
COLUMNS = ("cell", "step", "name", "layer", "value")

#: The measure that is a difference of losses.
LOSS_INCREASE = "layer_drop"
#: Name of a measure -> its title, in the order of the figure.
WORDS = {
    "rank_residual": "distance from rank one",
    "rank_residual_noffn": "… without feed-forward",
    "rank_residual_noskip": "… without skips",
    "rank_residual_attention": "… attention alone",
    "token_cosine": "cosine between tokens",
    LOSS_INCREASE: "loss increase without the layer",
    "induction_score": "induction, best head",
    "induction_score_shifted": "… at its best distance",
    "induction_shift": "… the distance in tokens",
    "attention_self": "attention to the token itself",
    "attention_previous": "… to the token before",
    "attention_first": "… to the first token",
    "attention_same": "… to earlier equal tokens",
}
#: The distance from rank one, on every path.
DISTANCE = "rank_residual"
_TITLES = {"start": "before training", "end": "at the end"}


def figure(context: Context) -> Figure | None:
    """Diagnostics of the layers; None without measures."""
    table = diagnostics_data(context.runs, context.measures)
    if table is None:
        return None
    unit, is_loss = context.fit.loss_unit, table["name"] == LOSS_INCREASE
    table.loc[is_loss, ["value", "low", "high"]] *= unit.per_nat
    caption = (
        "One line per depth: the mean over its runs, shaded from the lowest to the highest. docs/reference.md defines "
        "the measures."
    )
    if is_loss.any() and unit != NATS:
        caption += f" Increases of the loss are in {unit.name} here."
    title = "Inside the models, layer by layer"
    return Figure("diagnostics", title, caption, table, lambda: draw_diagnostics(table, context.colours))


def diagnostics_data(runs: RunTable, measures: pd.DataFrame | None) -> pd.DataFrame | None:
    """The measures of the table's cells by depth and layer, in the order of the figure; None if there are none.

    Step 0 is the start of a cell, its last step the end; of a diverged cell only the start is used.

    Returns:
        name, when (`start` or `end`), depth, layer, value (mean over the cells of the depth), low, high (of these
        cells), cells.

    Raises:
        InputError: a column is missing.
    """
    if measures is None or not len(measures) or "cell" not in runs.frame:
        return None
    merged = _of_cells("measures of layers", measures, COLUMNS, runs.frame[["cell", "depth", "status"]])
    last = merged.groupby("cell")["step"].transform("max")
    is_start = merged["step"] == 0
    merged = merged.assign(when=np.where(is_start, "start", "end"))
    merged = merged[is_start | ((merged["step"] == last) & (merged["status"] != "diverged"))]
    if not len(merged):
        return None
    names = [*WORDS, *sorted(set(merged["name"]) - set(WORDS))]
    merged["name"] = pd.Categorical(merged["name"], names)
    merged["when"] = pd.Categorical(merged["when"], list(_TITLES))
    groups = merged.groupby(["name", "when", "depth", "layer"], sort=True, observed=True)["value"]
    rows: pd.DataFrame = groups.agg(value="mean", low="min", high="max", cells="size").reset_index()
    return rows.astype({"name": str, "when": str, "depth": int, "layer": int})


def draw_diagnostics(table: pd.DataFrame, colours: Mapping[int, str]) -> Canvas:
    """Draw one line per depth over its layers; the panels of a row share one scale."""
    names = list(dict.fromkeys(table["name"]))
    height = 0.9 + 1.45 * len(names)
    canvas, grid = new_canvas(height, len(names), 2, sharex=True, sharey="row", squeeze=False)
    distances = table.loc[table["name"].str.startswith(DISTANCE), "low"]
    floor = min(0.1, distances[distances > 0].min()) / 2
    for name, row in zip(names, grid, strict=True):
        is_log = name.startswith(DISTANCE)
        for when, axes in zip(_TITLES, row, strict=True):
            rows = table[(table["name"] == name) & (table["when"] == when)]
            _draw(axes, rows, colours, lowest=0 if is_log else -np.inf)
        row[0].set_title(WORDS.get(name, name))
        row[0].yaxis.set_major_locator(MaxNLocator(4))
        if is_log:
            # One scale for all paths.
            row[0].set(yscale="log", ylim=(floor, 1.5))
            locator = LogLocator(subs=(1, 2, 5) if 1.5 / floor < 100 else (1,), numticks=6)
            set_ticks(row[0].yaxis, locator, lambda y: f"{y:.0e}" if y < 1e-3 else short(y))
    for title, axes in zip(_TITLES.values(), grid[-1], strict=True):
        axes.set_xlabel(f"layer, {title}")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    outside_legend(canvas)
    return canvas


def _draw(axes: Axes, rows: pd.DataFrame, colours: Mapping[int, str], lowest: float) -> None:
    """Draw the values above `lowest`: a distance may round to zero, which a log axis lacks."""
    for (depth, part), mark in zip(by_depth(rows), itertools.cycle(MARKS), strict=False):
        x, colour = part["layer"], colours.get(depth, palette.MUTED)
        value, low, high = (part[name].where(part[name] > lowest) for name in ("value", "low", "high"))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        style = {"color": colour, "marker": mark, "markersize": 4, "linewidth": 1.5}
        texts = [f"layer {layer} of {depth}: {mean:.2g}" for layer, mean in zip(x, value, strict=True)]
        plot_values(axes, x, value, texts, label=layers(depth), **style)


def training_figure(context: Context) -> Figure | None:
    """Loss during training; None without curves of used cells."""
    table = None if context.curves is None else training_data(context.runs, context.curves)
    if table is None or table.empty:
        return None
    unit = context.fit.loss_unit
    table = table.assign(loss=unit.per_nat * table["loss"])
    caption = f"One line per finished run ({table['cell'].nunique()} runs), coloured by depth."
    title = "Loss during training"
    return Figure("training", title, caption, table, lambda: draw_training(table, context.colours, unit))


def training_data(runs: RunTable, curves: pd.DataFrame) -> pd.DataFrame:
    """Curves (cell, step, loss) of the used cells, with depth, width, seed; rows of other cells are dropped.

    Raises:
        InputError: a column is missing.
    """
    shapes = runs.used[["cell", "depth", "width", "seed"]]
    merged = _of_cells("training curves", curves, ("cell", "step", "loss"), shapes)
    return merged.sort_values(["depth", "width", "seed", "step"])


def draw_training(table: pd.DataFrame, colours: Mapping[int, str], unit: LossUnit = NATS) -> Canvas:
    """Draw loss in this unit against step, one thin line per cell, with one label per depth."""
    canvas, axes = new_canvas(3.8)
    for depth, rows in by_depth(table):
        style = {"linewidth": 0.8, "rasterized": len(table) > MOST_POINTS}
        for _, cell in rows.groupby("cell", sort=True):
            axes.plot(cell["step"], cell["loss"], color=colours[depth], **style)
        axes.plot([], [], color=colours[depth], label=layers(depth))
    finish(canvas, axes, "optimizer step", f"loss ({unit.name})")
    return canvas


def _of_cells(what: str, table: pd.DataFrame, columns: Sequence[str], cells: pd.DataFrame) -> pd.DataFrame:
    """The columns of a table, the last of them finite, joined with `cells`; InputError if a column is missing."""
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InputError(
            f"The {what} lack the column {', '.join(missing)}; they need {', '.join(columns)}, and have "
            f"{', '.join(map(str, table.columns))}."
        )
    rows: pd.DataFrame = table[np.isfinite(table[columns[-1]].to_numpy(dtype=float))]
    return rows[list(columns)].merge(cells, on="cell")
