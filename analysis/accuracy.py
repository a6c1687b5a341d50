"""What the nets of a task can do: the accuracy of each shape, and how well its heads copy what followed before."""

from dataclasses import dataclass

import pandas as pd

from analysis.fit import Fit
from analysis.numbers import digits
from analysis.runs import STOPPED
from analysis.wording import layers

#: Columns of a run table that are measured beside the loss, more being better, and how sentences call them.
SCORES = {"accuracy": "accuracy", "induction_score": "induction score of a head"}


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
    if fit.evidence is None or name not in fit.evidence.comparison.rows:
        return None
    rows = fit.evidence.comparison.rows
    rows = rows[rows["status"] != STOPPED]
    numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=float)
    # A column of a table from elsewhere may be in per cent, or something else of that name.
    rows = rows.assign(score=numbers)[(numbers >= 0) & (numbers <= 1)]
    if rows.empty:
        return None
    groups = rows.groupby(["depth", "width", "params"], sort=True)["score"]
    points = groups.agg(seeds="size", mean="mean", low="min", high="max").reset_index()
    return AccuracyData(points)


def score_sentences(fit: Fit) -> list[str]:
    """The best mean score of each depth, a sentence for each of `SCORES` that the table has."""
    told = []
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
