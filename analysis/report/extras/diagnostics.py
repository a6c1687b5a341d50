"""Figure and sentence of the diagnostics inside the models, layer by layer."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.errors import InputError
from analysis.numbers import digits, layers, short
from analysis.report.figures import palette
from analysis.report.figures.canvas import MARKS, WIDTH, Axes, outside_legend
from analysis.report.figures.figure import Context, Figure
from analysis.runs.table import RunTable

#: Columns of the measures; `layer` counts from 1, and step 0 is before the first step.
COLUMNS = ("cell", "step", "name", "layer", "value")

#: Name of a measure -> its title, in the order of the figure.
WORDS = {
    "rank_residual": "distance from rank one",
    "rank_residual_noffn": "… without feed-forward",
    "rank_residual_noskip": "… without skips",
    "rank_residual_attention": "… attention alone",
    "token_cosine": "cosine between tokens",
    "layer_drop": "loss increase without the layer",
    "induction_score": "induction, best head",
    "induction_score_shifted": "… at its best distance",
    "induction_shift": "… the distance in tokens",
    "grad_norm": "norm of the gradient",
    "update_ratio": "update over weights",
}
#: Name of a measure -> what it measures, for the caption.
MEANINGS = {
    "rank_residual": "Distance from rank one, as a share of the norm of the representations, is 0 if all tokens of a "
    "sequence have the same representation (Dong et al. 2021); below it for the same weights without feed-forward "
    "networks, without skip connections, and without both.",
    "layer_drop": "Loss increase without the layer is what skipping it costs, in nats per token.",
    "induction_score": "Induction is the attention of a layer's best head to the token after the previous occurrence; "
    "below it the same at a fixed distance behind that token, the best such distance.",
    "grad_norm": "The gradient is that of one step, before clipping; update over weights is AdamW's update at the peak "
    "learning rate, relative to the norm of the layer.",
}
#: Paths of the distance from rank one -> words in a sentence.
PATHS = {
    "rank_residual_attention": "by attention alone",
    "rank_residual_noskip": "without skip connections",
    "rank_residual_noffn": "without feed-forward networks",
    "rank_residual": "as the models are",
}
#: The distance from rank one, on every path.
DISTANCE = "rank_residual"
#: Measures on a log axis.
_LOG = (DISTANCE, "grad_norm", "update_ratio")
#: Layers up to which a line has marks.
_MARKED = 16
_TITLES = {"start": "before training", "end": "at the end"}


@dataclass(frozen=True)
class DiagnosticsData:
    """Measures by layer, at the start and at the end of training.

    Attributes:
        rows: name, when (`start` or `end`), depth, layer, value (mean over the cells of the depth), low, high (of these
            cells), cells.
        names: the measures in the order of the figure.
    """

    rows: pd.DataFrame
    names: tuple[str, ...]

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows

    @property
    def caption(self) -> str:
        """The caption of the panels."""
        lines = "One line per depth: the mean over its cells, shaded from the lowest to the highest."
        return " ".join([lines, *(words for name, words in MEANINGS.items() if name in self.names)])


def figure(context: Context) -> Figure | None:
    """Diagnostics of the layers; None without measures."""
    data = None if context.measures is None else diagnostics_data(context.runs, context.measures)
    if data is None:
        return None
    title = "Inside the models, layer by layer"
    return Figure("diagnostics", title, data.caption, data, lambda: draw_diagnostics(data, context.colours))


def diagnostics_data(runs: RunTable, measures: pd.DataFrame) -> DiagnosticsData | None:
    """The measures of the table's cells by depth and layer; None if there are none.

    Args:
        runs: the run table, whose `cell` identifies the cells; of a diverged cell only the start is used.
        measures: columns `COLUMNS`; step 0 is the start of a cell, its last step the end.

    Raises:
        InputError: a column is missing.
    """
    missing = [name for name in COLUMNS if name not in measures.columns]
    if missing:
        raise InputError(
            f"The measures of layers lack the column {', '.join(missing)}; they need {', '.join(COLUMNS)}, and have "
            f"{', '.join(map(str, measures.columns))}."
        )
    known = runs.frame
    if not len(measures) or "cell" not in known.columns:
        return None
    merged = measures[list(COLUMNS)].merge(known[["cell", "depth", "status"]], on="cell", how="inner")
    merged = merged[np.isfinite(merged["value"].to_numpy(dtype=float))]
    last = merged.groupby("cell")["step"].transform("max")
    is_start = merged["step"] == 0
    merged = merged.assign(when=np.where(is_start, "start", "end"))
    merged = merged[is_start | ((merged["step"] == last) & (merged["status"] != "diverged"))]
    if not len(merged):
        return None
    groups = merged.groupby(["name", "when", "depth", "layer"], sort=False)["value"]
    rows = groups.agg(value="mean", low="min", high="max", cells="size").reset_index()
    found = set(rows["name"])
    names = (*(name for name in WORDS if name in found), *sorted(found - set(WORDS)))
    place = {name: index for index, name in enumerate(names)}
    rows = rows.astype({"depth": int, "layer": int})
    rows = rows.assign(place=rows["name"].map(place), late=rows["when"] == "end")
    rows = rows.sort_values(["place", "late", "depth", "layer"]).drop(columns=["place", "late"])
    return DiagnosticsData(rows.reset_index(drop=True), names)


def draw_diagnostics(data: DiagnosticsData, colours: Mapping[int, str]) -> Canvas:
    """Draw one line per depth over its layers; the panels of a row share one scale."""
    count = len(data.names)
    canvas = Canvas(figsize=(WIDTH, 0.9 + 1.45 * count), dpi=100, layout="constrained")
    grid: Any = canvas.subplots(count, 2, sharex=True, sharey="row", squeeze=False)
    for name, row in zip(data.names, grid, strict=True):
        for when, axes in zip(_TITLES, row, strict=True):
            _draw(axes, data, name, when, colours)
        row[0].set_title(WORDS.get(name, name), fontweight="bold")
        if name.startswith(DISTANCE):
            # One scale for all paths.
            row[0].set_ylim(_frame(data))
        if name.startswith(_LOG):
            low, high = row[0].get_ylim()
            locator = LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,), numticks=6)
            row[0].yaxis.set_major_locator(locator)
    for when, axes in zip(_TITLES, grid[-1], strict=True):
        axes.set_xlabel(f"layer, {_TITLES[when]}")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    # One entry per depth, the same in every panel.
    handles, labels = grid[0, 0].get_legend_handles_labels()
    outside_legend(canvas, 8, handles=handles, labels=labels)
    return canvas


def _draw(axes: Axes, data: DiagnosticsData, name: str, when: str, colours: Mapping[int, str]) -> None:
    rows = data.rows[(data.rows["name"] == name) & (data.rows["when"] == when)]
    is_log = name.startswith(_LOG)
    for depth, mark in zip(sorted(set(data.rows["depth"])), itertools.cycle(MARKS), strict=False):
        part = rows[rows["depth"] == depth]
        colour = colours.get(depth, palette.MUTED)
        x = part["layer"].to_numpy()
        value, low, high = (part[column].to_numpy(dtype=float) for column in ("value", "low", "high"))
        if is_log:
            # A distance may round to zero.
            value, low, high = (np.where(y > 0, y, np.nan) for y in (value, low, high))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        style = {"marker": mark if depth <= _MARKED else None, "markersize": 4, "linewidth": 1.5}
        axes.plot(x, value, color=colour, label=layers(depth), **style)
    if is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:.0e}" if value < 1e-3 else short(value))
        )
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.margins(x=0.04)


def _frame(data: DiagnosticsData) -> tuple[float, float]:
    """Ends of the axis of all distances from rank one."""
    low = data.rows.loc[data.rows["name"].str.startswith(DISTANCE), "low"].to_numpy(dtype=float)
    return float(low[low > 0].min(initial=0.1)) / 2, 1.5


def rank_sentence(data: DiagnosticsData | None) -> str:
    """The tokens' distance from rank one behind the last layer of the deepest models; empty if not measured."""
    if data is None or DISTANCE not in data.names:
        return ""
    depth = int(data.rows.loc[data.rows["name"] == DISTANCE, "depth"].max())
    found = data.rows[data.rows["depth"] == depth].set_index(["name", "when", "layer"])["value"]
    parts = []
    for when, words in (("start", "before training"), ("end", "at the end of training")):
        last = {name: (name, when, depth) for name in PATHS}
        if all(key in found.index for key in last.values()):
            values = ", ".join(f"{_small(found[last[name]])} {path}" for name, path in PATHS.items())
            parts.append(f"{words} {values}")
    if not parts:
        return ""
    which = "the only layer" if depth == 1 else f"the last of {depth} layers"
    return f"Distance of the tokens from rank one behind {which}: {'; '.join(parts)}."


def _small(value: float) -> str:
    return f"{value:.0e}" if 0 < value < 1e-4 else digits(value)
