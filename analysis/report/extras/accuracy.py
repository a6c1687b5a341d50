"""What the models of a task can do: the accuracy of each shape, and how well its heads copy what followed before."""

import re
from dataclasses import dataclass

import pandas as pd

from analysis.fit.document import Fit
from analysis.fit.measures import TARGETS, MeasureData, Value, measure_by_value
from analysis.fit.sentences import layers
from analysis.numbers import digits
from analysis.report.extras.measures import needed_sentence
from analysis.runs.table import STOPPED

#: Columns of a run table that are measured beside the loss, more being better, and how sentences call them.
SCORES = {
    "accuracy": "accuracy",
    "induction_score": "induction score of a head",
    "induction_score_shifted": "induction score of a head at its best distance",
}

#: Columns of the accuracy of one difficulty of a task: `accuracy_hops_8` is of the sequences of eight hops. Other words
#: would be of something else: `accuracy_top_5`.
GRADED = re.compile(r"accuracy_(hops|diameter)_(\d+)")


@dataclass(frozen=True)
class AccuracyData:
    """The accuracy of every shape.

    Attributes:
        points: one row a shape: depth, width, params, seeds, mean, low, high (over the seeds).
    """

    points: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.points


def accuracy_data(fit: Fit, name: str = "accuracy") -> AccuracyData | None:
    """The accuracy, from 0 to 1, of the runs that are compared; None where there is none, or the fit was read back.

    A run that was stopped early has a forecast of its loss and of nothing else.

    Args:
        fit: with its evidence.
        name: of the column, one of `SCORES`.
    """
    rows = _rows_with(fit, name)
    if rows.empty:
        return None
    groups = rows.groupby(["depth", "width", "params"], sort=True)[name]
    points = groups.agg(seeds="size", mean="mean", low="min", high="max").reset_index()
    return AccuracyData(points)


def graded_accuracy(fit: Fit) -> tuple[str, MeasureData] | None:
    """The accuracy against depth of each difficulty of a task, and what the task is harder by.

    None where the table has fewer than two difficulties, or the fit was read back.

    Args:
        fit: with its evidence.
    """
    if fit.evidence is None:
        return None
    found = [match for name in fit.evidence.comparison.rows.columns if (match := GRADED.fullmatch(str(name)))]
    tables: list[tuple[Value, pd.DataFrame | None]] = []
    for match in sorted(found, key=lambda match: int(match[2])):
        rows = _rows_with(fit, match[0])
        # A task is harder by one key; a table from elsewhere may have columns of another.
        if match[1] == found[0][1] and len(rows):
            tables.append((int(match[2]), rows.assign(accuracy=rows[match[0]])))
    data = measure_by_value(tables, "accuracy", TARGETS["accuracy"]) if len(tables) > 1 else None
    return None if data is None else (found[0][1], data)


def _rows_with(fit: Fit, name: str) -> pd.DataFrame:
    """The compared runs whose column is a number from 0 to 1; none where there is no such column.

    A column of a table from elsewhere may be in per cent, or something else of that name.
    """
    if fit.evidence is None or name not in fit.evidence.comparison.rows:
        return pd.DataFrame()
    rows = fit.evidence.comparison.rows
    rows = rows[rows["status"] != STOPPED]
    numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float)
    return rows.assign(**{name: numbers})[(numbers >= 0) & (numbers <= 1)]


def score_sentences(fit: Fit) -> list[str]:
    """The depth that each difficulty of a task takes, and the best mean of each depth of each of `SCORES`."""
    graded = graded_accuracy(fit)
    told = [needed_sentence(*graded)] if graded else []
    for name, called in SCORES.items():
        data = accuracy_data(fit, name)
        if data is None:
            continue
        best = data.points.loc[data.points.groupby("depth")["mean"].idxmax()]
        parts = [
            f"{digits(row['mean'], 3)} with {layers(int(row['depth']))}" for row in best.to_dict("records")
        ]
        told.append(f"Best mean {called}: {', '.join(parts)}.")
    return told
