"""How often training read its data: epochs, the tokens trained over the different training tokens that there are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.runs.remarks import About, Remark

if TYPE_CHECKING:
    # A plan uses `repeated` only, without loading a numerical library.
    import pandas as pd


@dataclass(frozen=True)
class Epochs:
    """The fewest and most epochs of the rows compared, and the number of rows without them."""

    low: float
    high: float
    unknown: int = 0

    @property
    def repeated(self) -> tuple[Remark, ...]:
        """That data were repeated; empty where none was read twice."""
        return repeated(self.high, "up to " if self.low < self.high else "")


def epochs_of(rows: "pd.DataFrame") -> Epochs | None:
    """The epochs of rows of a run table; None if no row has them."""
    from analysis.runs.columns import EPOCHS

    if EPOCHS not in rows:
        return None
    values = rows[EPOCHS].to_numpy(dtype=float)
    positive = values[values > 0]
    if not len(positive):
        return None
    return Epochs(float(positive.min()), float(positive.max()), len(rows) - len(positive))


def repeated(epochs: float, bound: str = "") -> tuple[Remark, ...]:
    """That data are read this often, with a bound as of `About.REPEATED_DATA`; empty without a second pass."""
    return (Remark(About.REPEATED_DATA, (epochs, bound)),) if epochs > 1 else ()
