"""What was measured inside the models, layer by layer, as the plain table of a figure."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.errors import InputError
from analysis.runs.table import RunTable

#: Columns of what was measured; `layer` counts from 1, and step 0 is before the first step.
COLUMNS = ("cell", "step", "name", "layer", "value")

#: Name of a measure -> its words, in the order of the figure.
WORDS = {
    "rank_residual": "distance from rank one",
    "rank_residual_noffn": "… without feed-forward",
    "rank_residual_noskip": "… without skips",
    "rank_residual_attention": "… attention alone",
    "token_cosine": "cosine between tokens",
    "layer_drop": "loss without the layer, more by",
    "induction_score": "induction, best head",
    "induction_score_shifted": "… at its best distance",
    "induction_shift": "… which is so many tokens",
    "grad_norm": "norm of the gradient",
    "update_ratio": "update over weights",
}

#: First words of measures' names -> what they say.
_MEANINGS = {
    "rank_residual": "Distance from rank one, as a share of the representations' norm: 0 where all tokens of a "
    "sequence are represented alike (Dong et al. 2021); below it that of the same weights without feed-forward "
    "networks, without skip connections, and without both.",
    "layer_drop": "The loss without the layer is more by what skipping that layer costs, in nats a token.",
    "induction_score": "Induction is the attention of a layer's best head to what followed the same token before; "
    "below it to what stands a fixed number of places behind that, at the best such distance.",
    "grad_norm": "The gradient is that of one step, before clipping; update over weights is what AdamW would take from "
    "the layer at the peak rate, as a share of its norm.",
}


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
        """What the panels show."""
        told = [words for name, words in _MEANINGS.items() if name in self.names]
        lines = "One line a depth: the mean over its cells, shaded from the lowest to the highest."
        return " ".join([lines, *told])


def diagnostics_data(runs: RunTable, measures: pd.DataFrame) -> DiagnosticsData | None:
    """The measures of the table's cells by depth and layer; None where there are none.

    Args:
        runs: the run table, whose `cell` names the cells; of a cell that diverged only the start is taken.
        measures: columns `COLUMNS`; of each cell step 0 is its start, and its last step its end.

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
    rows = (
        merged.groupby(["name", "when", "depth", "layer"], sort=False)["value"]
        .agg(value="mean", low="min", high="max", cells="size")
        .reset_index()
    )
    found = set(rows["name"])
    names = (*(name for name in WORDS if name in found), *sorted(found - set(WORDS)))
    place = {name: index for index, name in enumerate(names)}
    rows = rows.astype({"depth": int, "layer": int})
    rows = rows.assign(place=rows["name"].map(place), late=rows["when"] == "end")
    rows = rows.sort_values(["place", "late", "depth", "layer"]).drop(columns=["place", "late"])
    return DiagnosticsData(rows.reset_index(drop=True), names)
