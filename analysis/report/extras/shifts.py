"""Crossings beside those of another learning rate or parametrisation, as the plain table of a figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.fit.crossing_shift import Contrast
from analysis.fit.learning_rate_shift import Shift
from analysis.law.crossings import Crossing, Interval


@dataclass(frozen=True)
class MoveData:
    """Where the crossings of neighbouring depths lie under several conditions.

    Attributes:
        rows: shallow, deep, condition, params, low, high (NaN where open or not known), settled (whether the crossing
            is bracketed, or for a shift known).
        conditions: their order, that of the study itself first.
    """

    rows: pd.DataFrame
    conditions: tuple[str, ...]

    def table(self) -> pd.DataFrame:
        """For the CSV."""
        return self.rows


def sensitivity_data(crossings: Sequence[Crossing], shifts: Sequence[Shift]) -> MoveData | None:
    """The crossings at the study's own rate with their intervals, and at each other with that of the shift alone."""
    if not shifts:
        return None
    own = {(item.shallow, item.deep): item for item in crossings}
    rows = []
    for pair in sorted({(item.shallow, item.deep) for item in shifts}):
        found = own[pair]
        rows.append(_row(pair, "1 × rate", found.params, found.params_interval, found.status == "bracketed"))
        for item in shifts:
            # Of a pair without a run at that rate there is nothing to draw; the table says why.
            if (item.shallow, item.deep) == pair and item.shift_interval is not None:
                place = None if item.shift is None else item.params * math.exp(item.shift)
                low, high = (
                    None if end is None else item.params * math.exp(end) for end in item.shift_interval
                )
                rows.append(_row(pair, f"{item.factor:g} × rate", place, (low, high), item.shift is not None))
    factors = sorted({item.factor for item in shifts})
    return MoveData(pd.DataFrame(rows), ("1 × rate", *(f"{factor:g} × rate" for factor in factors)))


def contrast_data(contrasts: Sequence[Contrast]) -> MoveData | None:
    """The crossings of the study and of every other parametrisation, each with its own interval."""
    if not any(item.pairs for item in contrasts):
        return None
    rows, seen = [], set()
    for found in contrasts:
        for item in found.pairs:
            pair = (item.shallow, item.deep)
            if pair not in seen:
                seen.add(pair)
                rows.append(_row(pair, found.own, item.params, item.interval, item.status == "bracketed"))
            settled = item.other_status == "bracketed"
            rows.append(_row(pair, found.other, item.other_params, item.other_interval, settled))
    return MoveData(pd.DataFrame(rows), (contrasts[0].own, *(found.other for found in contrasts)))


def _row(
    pair: tuple[int, int], condition: str, params: float | None, interval: Interval | None, settled: bool
) -> dict[str, object]:
    low, high = interval or (None, None)
    ends = {"params": params, "low": low, "high": high}
    return {
        "shallow": pair[0],
        "deep": pair[1],
        "condition": condition,
        **{name: math.nan if value is None else value for name, value in ends.items()},
        "settled": settled,
    }
