"""Choose one learning rate per shape, because at a crossing the learning rate matters as much as the depth.

The lowest loss of several rates is biased down, and more for shapes with more rates. If a seed of a shape was trained
at three or more rates, its loss is therefore the minimum of a parabola in ln lr through all of them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.runs.columns import TOKEN_GROUP
from analysis.runs.left_out import RowReason, WhyNot

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Fewest rates of one seed for a parabola.
LEAST_RATES = 3
#: A rate whose mean loss exceeds that of the best rate by this share is not used for the parabola, unless it is next to
#: the best: far from its minimum the loss is no parabola, it rises without bound towards rates that diverge.
BOTTOM = 0.05


@dataclass(frozen=True)
class RateChoice:
    """Rows of one learning rate per shape.

    Attributes:
        rows: one row per shape and seed; if a parabola was fitted, `loss` is its minimum and `lr` the place of that.
        left_out: row -> reason, for the others.
        merged: those of `left_out` through which a parabola was fitted.
        lowest: number of shapes with the rate of the lowest mean loss.
        at_end: those of `lowest` with three or more rates of which the best is the first or last.
        bracketed: (depth, params) of the shapes with a parabola: their rates bracket the best one.
    """

    rows: pd.DataFrame
    left_out: dict[int, WhyNot]
    lowest: int = 0
    at_end: int = 0
    bracketed: frozenset[tuple[int, float]] = frozenset()
    merged: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Minimum:
    """The minimum of a parabola: ln lr there; which rows were used; each seed's nearest row, and its loss there."""

    rate: float
    used: Flags
    nearest: Integers
    losses: Floats


def choose_rates(rows: pd.DataFrame) -> RateChoice:
    """Choose the learning rate of every shape that was trained at several.

    Args:
        rows: one row per (depth, params, seed, lr), and token_group if there is that column, ordered by lr within a
            shape, with the column loss in nats per token.
    """
    lr = rows["lr"].to_numpy(dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        x = np.where(np.isfinite(lr) & (lr > 0), np.log(lr), np.nan)
    # Rates that differ by rounding are one.
    # Losses of a study itself are at equal tokens, without groups.
    shape = ["depth", "params", *([TOKEN_GROUP] if TOKEN_GROUP in rows else [])]
    frame = rows[[*shape, "seed", "loss"]].assign(x=x, rate=np.round(x, 9))
    shapes = frame.groupby(shape)
    several = frame[shapes["rate"].transform("nunique", dropna=False) > 1]
    left_out: dict[int, WhyNot] = {}
    minima: dict[int, tuple[float, float]] = {}
    bracketed = set()
    merged: set[int] = set()
    lowest = at_end = 0
    for _, part in several.groupby(shape):
        rates, losses = part["rate"].to_numpy(), part["loss"].to_numpy()
        seed = np.unique(part["seed"], return_inverse=True)[1]
        minimum = _minimum(part["x"].to_numpy(), rates, losses, seed)
        if minimum is None:
            best, is_end = _lowest(rates, losses)
            lowest, at_end = lowest + 1, at_end + is_end
            rate = float(np.exp(best)) if np.isfinite(best) else None
            why = WhyNot(RowReason.OTHER_RATE, (rate,))
            other = (rates != best) & ~(np.isnan(rates) & np.isnan(best))
            left_out |= dict.fromkeys(part.index[other], why)
            continue
        bracketed.add((int(part["depth"].iloc[0]), float(part["params"].iloc[0])))
        best = float(np.exp(minimum.rate))
        kept = part.index[minimum.nearest]
        minima |= {row: (loss, best) for row, loss in zip(kept, minimum.losses, strict=True)}
        reasons = {
            row: WhyNot(RowReason.IN_PARABOLA if used else RowReason.FAR_RATE, (best,))
            for row, used in zip(part.index, minimum.used, strict=True)
        }
        left_out |= {row: why for row, why in reasons.items() if row not in minima}
        merged |= set(part.index[minimum.used]) - set(minima)
    chosen = rows.drop(index=list(left_out))
    if minima:
        chosen.loc[list(minima), ["loss", "lr"]] = list(minima.values())
    return RateChoice(chosen, left_out, lowest, at_end, frozenset(bracketed), frozenset(merged))


def _means(rates: Floats, losses: Floats) -> tuple[Floats, Integers, Integers, Floats]:
    """The distinct rates in ascending order, which one a row has, the number of rows of each, and their mean loss."""
    distinct, row, count = np.unique(rates, return_inverse=True, return_counts=True)
    return distinct, row, count, np.bincount(row, weights=losses) / count


def _minimum(x: Floats, rates: Floats, losses: Floats, seed: Integers) -> _Minimum | None:
    """Least squares of loss = level of the seed + β·x + γ·x² with x = ln lr, for the rows of one shape.

    None without three rates of one seed, and if the rates used do not bracket the minimum.
    """
    if np.isnan(rates).any() or np.bincount(seed).max() < LEAST_RATES:
        return None
    _, row, _, means = _means(rates, losses)
    beside = np.abs(np.arange(len(means)) - np.argmin(means)) <= 1
    used = (beside | (means <= means.min() * (1 + BOTTOM)))[row]
    members, member = np.unique(seed[used], return_inverse=True)
    centre, scale = x[used].mean(), np.ptp(x[used])
    x = (x[used] - centre) / scale
    design = np.column_stack([x, x**2, np.eye(len(members))[member]])
    (slope, curvature, *levels), _, rank, _ = np.linalg.lstsq(design, losses[used])
    place = bracketed_minimum(slope, curvature, x)
    if place is None or rank < design.shape[1]:
        return None
    at_minimum = np.array(levels) + slope * place / 2
    if at_minimum.min() <= 0:
        return None
    # The rate of each seed nearest to the minimum represents it; of two equally near ones the lower.
    order = np.lexsort((x, np.abs(x - place), member))
    first = order[np.searchsorted(member[order], np.arange(len(members)))]
    return _Minimum(centre + scale * place, used, np.flatnonzero(used)[first], at_minimum)


def bracketed_minimum(slope: float, curvature: float, x: Floats) -> float | None:
    """The place of the minimum of slope·x + curvature·x², x = ln lr; None unless the rates bracket it."""
    place = -slope / (2 * curvature) if curvature > 0 else np.inf
    return float(place) if x.min() <= place <= x.max() else None


def _lowest(rates: Floats, losses: Floats) -> tuple[float, bool]:
    """The rate with the lowest mean loss among those with the most seeds; whether it is an end of three or more."""
    distinct, _, count, means = _means(rates, losses)
    best = float(distinct[np.lexsort((distinct, means, -count))[0]])
    finite = distinct[np.isfinite(distinct)]
    return best, len(finite) >= LEAST_RATES and best in (finite[0], finite[-1])
