"""How often training read its data: epochs, the tokens trained over the different training tokens that there are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.numbers import digits

if TYPE_CHECKING:
    # A plan uses the warning only, without loading a numerical library.
    import pandas as pd


@dataclass(frozen=True)
class Epochs:
    """The fewest and most epochs of the rows compared, and the number of rows without them."""

    low: float
    high: float
    unknown: int = 0

    @property
    def warning(self) -> str:
        """The consequence of repeated data; empty where none was read twice."""
        return repeat_warning(self.high, "up to " if self.low < self.high else "")


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


def repeat_warning(epochs: float, about: str = "") -> str:
    """The consequence of this many epochs, after a word such as `at least `; empty without a second pass."""
    if epochs <= 1:
        return ""
    return (
        f"Training reads its data {about}{digits(epochs, 3)} times (epochs). Repeated tokens lower the loss less than "
        "new ones (Muennighoff et al. 2023, arXiv 2305.16264), so crossings hold for this amount of data only."
    )
