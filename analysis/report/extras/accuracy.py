"""Figures and sentences of the accuracy of a task, by size and by difficulty."""

import re
from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.fit.document import Fit
from analysis.fit.measures import TARGETS, MeasureData, Value, measure_by_value
from analysis.numbers import digits, layers
from analysis.report.extras.measures import measure_figure, needed_sentence
from analysis.report.figures.canvas import new_canvas, outside_legend, points_of_depths, size_axis
from analysis.report.figures.figure import Context, Figure

#: Measures other than the loss in a run table, for which more is better, and their names in sentences.
SCORES = {
    "accuracy": "accuracy",
    "induction_score": "induction score of a head",
    "induction_score_shifted": "induction score of a head at its best distance",
}

#: Columns of the accuracy at one difficulty of a task: `accuracy_hops_8` covers the sequences of eight hops. Other
#: columns of a foreign table, such as `accuracy_top_5`, do not match.
GRADED = re.compile(r"accuracy_(hops|diameter)_(\d+)")


def figure(context: Context) -> Figure | None:
    """Accuracy against size; None without an accuracy."""
    data = accuracy_data(context.fit)
    if data is None:
        return None
    return Figure(
        "accuracy",
        "Accuracy against size, one line per depth",
        "Share of the validation targets that the model ranks first, mean over the seeds; bars run from the lowest to "
        "the highest seed.",
        data,
        lambda: draw_accuracy(data, context.colours, context.size_label),
    )


def graded_figure(context: Context) -> Figure | None:
    """Accuracy against depth by difficulty; None with fewer than two difficulties."""
    graded = graded_accuracy(context.fit)
    if graded is None:
        return None
    key, data = graded
    return measure_figure(data, key, "accuracy_graded", "Accuracy against depth, one line per difficulty")


def accuracy_data(fit: Fit, name: str = "accuracy") -> pd.DataFrame | None:
    """Depth, width, params, seeds, mean, low, high of one of `SCORES` for each shape; None without any."""
    rows = _rows_with(fit, name)
    if rows.empty:
        return None
    groups = rows.groupby(["depth", "width", "params"], sort=True)[name]
    return groups.agg(seeds="size", mean="mean", low="min", high="max").reset_index()


def graded_accuracy(fit: Fit) -> tuple[str, MeasureData] | None:
    """The key that makes the task harder, and the accuracy against depth of each difficulty.

    None if the table has fewer than two difficulties, or the fit was read from a file.
    """
    if fit.study is None:
        return None
    found = [match for name in fit.study.rows.columns if (match := GRADED.fullmatch(str(name)))]
    tables: list[tuple[Value, pd.DataFrame | None]] = []
    for match in sorted(found, key=lambda match: int(match[2])):
        rows = _rows_with(fit, match[0])
        # A task has one key of difficulty; a foreign table may have columns of another.
        if match[1] == found[0][1] and len(rows):
            tables.append((int(match[2]), rows.assign(accuracy=rows[match[0]])))
    data = measure_by_value(tables, "accuracy", TARGETS["accuracy"]) if len(tables) > 1 else None
    return None if data is None else (found[0][1], data)


def _rows_with(fit: Fit, name: str) -> pd.DataFrame:
    """The compared rows with a number from 0 to 1 in the column; a foreign table may hold percent there."""
    if fit.study is None or name not in fit.study.rows:
        return pd.DataFrame()
    rows = fit.study.rows
    numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float)
    return rows.assign(**{name: numbers})[(numbers >= 0) & (numbers <= 1)]


def draw_accuracy(table: pd.DataFrame, colours: Mapping[int, str], size_label: str) -> Canvas:
    """Draw accuracy against N on a log axis, one line per depth; bars run from the lowest to the highest seed."""
    canvas, axes = new_canvas(4.4)
    points_of_depths(axes, table, "mean", colours, "-")
    size_axis(axes)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("accuracy (share of the targets)")
    axes.set_xlabel(size_label)
    outside_legend(canvas)
    return canvas


def score_sentences(fit: Fit) -> list[str]:
    """The depth that each difficulty of a task needs, and the best mean score of each depth."""
    graded = graded_accuracy(fit)
    sentences = [needed_sentence(*graded)] if graded else []
    for name, title in SCORES.items():
        data = accuracy_data(fit, name)
        if data is None:
            continue
        best = data.loc[data.groupby("depth")["mean"].idxmax()].to_dict("records")
        parts = [f"{digits(row['mean'], 3)} with {layers(int(row['depth']))}" for row in best]
        sentences.append(f"Best mean {title}: {', '.join(parts)}.")
    return sentences
