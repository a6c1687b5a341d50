"""Choose one learning rate per shape, because at a crossing the learning rate matters as much as the depth.

The lowest loss of several rates is biased down, and more for shapes with more rates. If a seed of a shape was trained
at three or more rates, its loss is therefore the minimum of a parabola in ln lr through all of them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.groups import numbered

Floats = npt.NDArray[np.float64]
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
        lowest: number of shapes with the rate of the lowest mean loss.
        at_end: those of `lowest` with three or more rates of which the best is the first or last.
        enclosed: (depth, params) of the shapes with a parabola: their rates enclose the best one.
    """

    rows: pd.DataFrame
    left_out: dict[int, str]
    lowest: int
    at_end: int
    enclosed: frozenset[tuple[int, float]] = frozenset()


def choose_rates(rows: pd.DataFrame) -> RateChoice:
    """Choose the learning rate of every shape that was trained at several.

    Args:
        rows: one row per (depth, params, seed, lr), with the column loss in nats per token, in an order that does not
            depend on that of the table.
    """
    shape = numbered(rows["depth"].to_numpy(dtype=float), rows["params"].to_numpy(dtype=float))
    lr = rows["lr"].to_numpy(dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        x = np.where(np.isfinite(lr) & (lr > 0), np.log(lr), np.nan)
    loss = rows["loss"].to_numpy(dtype=float)
    # Rates that differ by rounding are one. Numbered in order of the rate, a missing rate last.
    rates = numbered(shape, np.round(x, 9))
    if len(rates) == 0 or rates.max() == shape.max():
        return RateChoice(rows, {}, 0, 0)
    frame = pd.DataFrame(
        {"shape": shape, "seed": rows["seed"].to_numpy(), "x": x, "loss": loss, "rate": rates}
    )
    several = frame.groupby("shape")["rate"].nunique().to_numpy()[shape] > 1
    most = frame.groupby(["shape", "seed"])["rate"].nunique().groupby("shape").max().to_numpy()
    known = frame["x"].notna().groupby(frame["shape"]).all().to_numpy()
    laid = _parabolas(frame, (several & (most >= LEAST_RATES)[shape] & known[shape]))
    by_rate = several & ~laid.good[shape]
    kept, chosen, lowest, at_end = _lowest(frame, by_rate)
    keep = ~several | kept | laid.representative
    left_out: dict[int, str] = {}
    for i in np.flatnonzero(~keep):
        best = "" if by_rate[i] else f"{np.exp(laid.best[shape[i]]):.4g}"
        if by_rate[i]:
            rate = f"{np.exp(chosen[i]):.4g}" if np.isfinite(chosen[i]) else "the one not given"
            reason = f"another learning rate of this shape, {rate}, was chosen (lowest mean loss)"
        elif laid.used[i]:
            reason = "one of several learning rates of this shape and seed; compared is the minimum of a parabola in "
            reason += f"ln lr, at {best}"
        else:
            reason = f"a learning rate too far from the best of this shape, {best}, for the parabola in ln lr"
        left_out[int(rows.index[int(i)])] = reason
    at = laid.representative
    replaced = rows.assign(
        loss=np.where(at, laid.loss, rows["loss"]), lr=np.where(at, np.exp(laid.best[shape]), rows["lr"])
    )
    found = rows[["depth", "params"]][laid.representative].to_numpy()
    enclosed = frozenset((int(depth), float(params)) for depth, params in found)
    return RateChoice(replaced[keep], left_out, lowest, at_end, enclosed)


@dataclass(frozen=True)
class _Parabolas:
    """`good` and `best` (ln lr) are by shape; `used`, `representative` and `loss` (at the minimum) by row."""

    good: Flags
    best: Floats
    used: Flags
    representative: Flags
    loss: Floats


def _parabolas(frame: pd.DataFrame, wanted: Flags) -> _Parabolas:
    """Least squares of loss = level of the seed + β·ln lr + γ·(ln lr)², β and γ common to the seeds of a shape.

    Subtracting the means of each seed removes the levels and leaves two normal equations per shape.
    """
    shapes = int(frame["shape"].max()) + 1
    used = np.zeros(len(frame), dtype=bool)
    used[np.flatnonzero(wanted)] = _near_best(frame[wanted])
    part = frame[used]
    shape = part["shape"].to_numpy()

    def total(values: Floats) -> Floats:
        return np.bincount(shape, weights=values, minlength=shapes).astype(float)

    with np.errstate(invalid="ignore", divide="ignore"):
        centre = total(part["x"].to_numpy()) / np.bincount(shape, minlength=shapes)
        x = part["x"].to_numpy() - centre[shape]
        y = part["loss"].to_numpy()
        seed = part.groupby(["shape", "seed"]).ngroup().to_numpy()
        count = np.bincount(seed)
        mean_x, mean_q, mean_y = (np.bincount(seed, weights=values) / count for values in (x, x**2, y))
        u, q, v = x - mean_x[seed], x**2 - mean_q[seed], y - mean_y[seed]
        uu, uq, qq, uv, qv = total(u * u), total(u * q), total(q * q), total(u * v), total(q * v)
        determinant = uu * qq - uq**2
        gamma = (uu * qv - uq * uv) / determinant
        beta = (qq * uv - uq * qv) / determinant
        place = -beta / (2 * gamma)
        level = mean_y[seed] - beta[shape] * mean_x[seed] - gamma[shape] * mean_q[seed]
        minimum = level + (beta * place / 2)[shape]
    low, high = np.full(shapes, np.inf), np.full(shapes, -np.inf)
    np.minimum.at(low, shape, x)
    np.maximum.at(high, shape, x)
    least = np.full(shapes, np.inf)
    with np.errstate(invalid="ignore"):
        np.minimum.at(least, shape, minimum)
        inside = (place >= low) & (place <= high) & (least > 0)
        good = (determinant > 1e-9 * uu * qq) & (gamma > 0) & inside
    # The rate of each seed nearest to the minimum represents it; rows are sorted by rate, so a tie goes to the lower.
    far = np.abs(x - place[shape])
    first = np.lexsort((np.arange(len(part)), far, seed))
    nearest = first[np.r_[True, seed[first][1:] != seed[first][:-1]]] if len(part) else first
    rows = np.flatnonzero(used)
    loss = np.full(len(frame), np.nan)
    loss[rows] = minimum
    representative = np.zeros(len(frame), dtype=bool)
    representative[rows[nearest]] = True
    fine = good[frame["shape"].to_numpy()]
    return _Parabolas(good, centre + place, used & fine, representative & fine, loss)


def _near_best(part: pd.DataFrame) -> Flags:
    """Rows of rates whose mean loss is near the best, and of the neighbours of the best rate."""
    if part.empty:
        return np.zeros(0, dtype=bool)
    mean = part.groupby(["shape", "rate"])["loss"].mean().reset_index()
    place = mean.groupby("shape").cumcount()
    lowest = mean.groupby("shape")["loss"].transform("min")
    best = place.where(mean["loss"] == lowest).groupby(mean["shape"]).transform("min")
    mean["near"] = (mean["loss"] <= lowest * (1 + BOTTOM)) | ((place - best).abs() <= 1)
    return part["rate"].map(mean.set_index("rate")["near"]).to_numpy(dtype=bool)


def _lowest(frame: pd.DataFrame, wanted: Flags) -> tuple[Flags, Floats, int, int]:
    """For each shape the rate with the lowest mean loss among those with the most seeds.

    Returns:
        Whether a row is at that rate, its ln for every row, the number of shapes, and of those with it at an end.
    """
    part = frame[wanted]
    rates = part.groupby(["shape", "rate"]).agg(
        seeds=("seed", "nunique"), loss=("loss", "mean"), x=("x", "first")
    )
    rates = rates.reset_index().sort_values(
        ["shape", "seeds", "loss", "x"], ascending=[True, False, True, True]
    )
    best = rates.drop_duplicates("shape").set_index("shape")
    ends = rates.groupby("shape")["x"].agg(["min", "max", "count"])
    at_end = (ends["count"] >= LEAST_RATES) & ((best["x"] == ends["min"]) | (best["x"] == ends["max"]))
    chosen = frame["shape"].map(best["x"]).to_numpy(dtype=float)
    kept = wanted & (frame["rate"].to_numpy() == frame["shape"].map(best["rate"]).to_numpy())
    return kept, chosen, len(best), int(at_end.sum())
