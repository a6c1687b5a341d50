"""The scores of a task in a run table: accuracy and others for which more is better."""

import re

import pandas as pd

from analysis.fit.document import Fit
from analysis.fit.measures import TARGETS, MeasureData, Value, measure_by_value

#: Measures other than the loss in a run table, for which more is better, and their names in sentences.
SCORES = {
    "accuracy": "accuracy",
    "induction_score": "induction score of a head",
    "induction_score_shifted": "induction score of a head at its best distance",
}
#: Columns of the accuracy at one difficulty of a task: `accuracy_hops_8` covers the sequences of eight hops. Other
#: columns of a foreign table, such as `accuracy_top_5`, do not match.
GRADED = re.compile(r"accuracy_(hops|diameter|height)_(\d+)")


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
    columns = () if fit.study is None else fit.study.rows.columns
    matches = [match for name in columns if (match := GRADED.fullmatch(str(name)))]
    tables: list[tuple[Value, pd.DataFrame | None]] = []
    for match in sorted(matches, key=lambda match: int(match[2])):
        rows = _rows_with(fit, match[0])
        # A task has one key of difficulty; a foreign table may have columns of another.
        if match[1] == matches[0][1] and len(rows):
            tables.append((int(match[2]), rows.assign(accuracy=rows[match[0]])))
    data = measure_by_value(tables, "accuracy", TARGETS["accuracy"]) if len(tables) > 1 else None
    return None if data is None else (matches[0][1], data)


def _rows_with(fit: Fit, name: str) -> pd.DataFrame:
    """The compared rows with a number from 0 to 1 in the column; a foreign table may hold percent there."""
    if fit.study is None or name not in fit.study.rows:
        return pd.DataFrame()
    rows = fit.study.rows
    numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float)
    return rows.assign(**{name: numbers})[(numbers >= 0) & (numbers <= 1)]
