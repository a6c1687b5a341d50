"""Choose one learning rate per shape, because at a crossing the learning rate matters as much as the depth.

The lowest loss of several rates is biased down, and more for shapes with more rates. If a seed of a shape was trained
at three or more rates, its loss is therefore the minimum of a parabola in ln lr through all of them.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

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
        lowest: number of shapes with the rate of the lowest mean loss.
        at_end: those of `lowest` with three or more rates of which the best is the first or last.
        bracketed: (depth, params) of the shapes with a parabola: their rates bracket the best one.
    """

    rows: pd.DataFrame
    left_out: dict[int, str]
    lowest: int = 0
    at_end: int = 0
    bracketed: frozenset[tuple[int, float]] = frozenset()


@dataclass(frozen=True)
class _Minimum:
    """The minimum of a parabola: ln lr there, the rows used, and the loss there by the row that represents a seed."""

    x: float
    used: pd.Index
    losses: dict[int, float]


def choose_rates(rows: pd.DataFrame) -> RateChoice:
    """Choose the learning rate of every shape that was trained at several.

    Args:
        rows: one row per (depth, params, seed, lr), ordered by lr within a shape, with the column loss in nats per
            token.
    """
    lr = rows["lr"].to_numpy(dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        x = np.where(np.isfinite(lr) & (lr > 0), np.log(lr), np.nan)
    # Rates that differ by rounding are one.
    frame = rows[["depth", "params", "seed", "loss"]].assign(x=x, rate=np.round(x, 9))
    shape = frame.groupby(["depth", "params"])
    several = frame[shape["rate"].transform("nunique", dropna=False) > 1]
    left_out: dict[int, str] = {}
    minima: dict[int, tuple[float, float]] = {}
    bracketed = set()
    lowest = at_end = 0
    for _, part in several.groupby(["depth", "params"]):
        found = _minimum(part)
        if found is None:
            best, is_end = _lowest(part)
            lowest, at_end = lowest + 1, at_end + is_end
            name = f"{np.exp(best):.4g}" if np.isfinite(best) else "the one not given"
            reason = f"another learning rate of this shape, {name}, was chosen (lowest mean loss)"
            left_out |= dict.fromkeys(
                part.index[~np.isclose(part["rate"], best, 0, 0, equal_nan=True)], reason
            )
            continue
        bracketed.add((int(part["depth"].iloc[0]), float(part["params"].iloc[0])))
        minima |= {row: (loss, np.exp(found.x)) for row, loss in found.losses.items()}
        laid = "one of several learning rates of this shape and seed; compared is the minimum of a parabola in ln lr at"
        far = "a learning rate too far from the best for the parabola in ln lr, whose minimum is at"
        for row in part.index.difference(list(found.losses)):
            left_out[row] = f"{laid if row in found.used else far} {np.exp(found.x):.4g}"
    chosen = rows.drop(index=list(left_out))
    if minima:
        chosen.loc[list(minima), ["loss", "lr"]] = list(minima.values())
    return RateChoice(chosen, left_out, lowest, at_end, frozenset(bracketed))


def _minimum(part: pd.DataFrame) -> _Minimum | None:
    """Least squares of loss = level of the seed + β·ln lr + γ·(ln lr)² for the rows of one shape.

    None without three rates of one seed, and if the rates used do not bracket the minimum.
    """
    if part["x"].isna().any() or part.groupby("seed")["rate"].nunique().max() < LEAST_RATES:
        return None
    means = part.groupby("rate")["loss"].mean()
    beside = np.abs(np.arange(len(means)) - np.argmin(means)) <= 1
    part = part[part["rate"].isin(means.index[beside | (means <= means.min() * (1 + BOTTOM))])]
    centre, scale = part["x"].mean(), part["x"].max() - part["x"].min()
    x = ((part["x"] - centre) / scale).to_numpy()
    seeds, seed = np.unique(part["seed"], return_inverse=True)
    design = np.column_stack([x, x**2, np.eye(len(seeds))[seed]])
    (slope, curvature, *levels), _, rank, _ = np.linalg.lstsq(design, part["loss"])
    if rank < design.shape[1] or curvature <= 0:
        return None
    place = -slope / (2 * curvature)
    losses = np.array(levels) + slope * place / 2
    if not x.min() <= place <= x.max() or losses.min() <= 0:
        return None
    # The rate of each seed nearest to the minimum represents it; of two equally near ones the lower.
    nearest = pd.Series(np.abs(x - place), part.index).groupby(seed).idxmin()
    return _Minimum(float(centre + scale * place), part.index, dict(zip(nearest, losses, strict=True)))


def _lowest(part: pd.DataFrame) -> tuple[float, bool]:
    """The rate with the lowest mean loss among those with the most seeds; whether it is an end of three or more."""
    rates = part.groupby("rate", dropna=False).agg(seeds=("seed", "nunique"), loss=("loss", "mean"))
    rates = rates.reset_index().sort_values(["seeds", "loss", "rate"], ascending=[False, True, True])
    best = float(rates["rate"].iloc[0])
    ends = (rates["rate"].min(), rates["rate"].max())
    return best, bool(rates["rate"].count() >= LEAST_RATES and best in ends)
