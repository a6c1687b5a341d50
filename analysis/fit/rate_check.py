"""Whether the learning rate was checked at each crossing, and the interval of a crossing that includes the check.

Losses at one learning rate per shape compare shapes under a rule of the rate. If the rule is off by an amount that
depends on depth, the crossing is off too: simulated with 0.03 nats at a factor of two, 14 % of 95 % intervals held the
crossing at the best rates (issue 15). A crossing is checked if three rates or more enclose the best one for both depths
at the sizes next to it. Either the study trained these rates (`analysis.runs.learning_rates`) or sensitivity runs did.

From sensitivity runs the loss at the best rate is that of the parabola in ln lr through the lowest mean loss and its
two neighbours. It changes the gap of the two depths and so moves their crossing. The interval that is stated holds the
interval at the study's own rates and the one at the best rates.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves.curves import Curves
from analysis.fit.crossing_shift import CrossingShift, group_changes, pair_runs, paired_shift
from analysis.law.crossings import Crossing, gap_of
from analysis.numbers import counted, duration, layers, listed, scientific
from analysis.runs.comparison import Comparison
from analysis.runs.table import RunTable

#: Training FLOPs per parameter and token (Kaplan et al. 2020, section 2.1).
FLOPS = 6
#: Standard errors by which a rate at the end of those tried must be better for the best one to lie beyond it: by chance
#: in 4 % of the checks of eight shapes whose loss does not depend on the rate.
BEYOND = 2.6
#: Pairs that the sentence names; beyond it their number.
MOST_NAMED = 3
OUTSIDE = "at the best learning rates the crossing may lie outside the sizes measured"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PairCheck:
    """The check of one pair of neighbouring depths.

    Attributes:
        shift: of the crossing from the study's own rates to the best ones; None without sensitivity runs.
        reason: why the learning rate is not checked; None if it is.
    """

    shallow: int
    deep: int
    shift: CrossingShift | None = None
    reason: str | None = None


@dataclass(frozen=True)
class RateCheck:
    """Whether the learning rate was checked.

    Attributes:
        pairs: pairs of neighbouring depths that can be compared.
        sentence: the state of the check, and what the missing part of it takes.
        runs, flops, seconds: of the missing part; FLOPs and seconds are None if unknown.
        how: how to add the missing part.
    """

    checked: bool
    sentence: str
    pairs: tuple[PairCheck, ...]
    runs: int = 0
    flops: float | None = None
    seconds: float | None = None
    how: str = ""


def check_rates(
    again: RunTable | None,
    comparison: Comparison,
    curves: Curves,
    crossings: Sequence[Crossing],
    level: float,
) -> RateCheck | None:
    """Check the learning rate of every pair of neighbouring depths; None if no pair can be compared.

    Args:
        again: sensitivity runs, if there are any.
        comparison: of the main study.
        curves: of the main study.
        crossings: of the main study.
        level: of the intervals of shifts.
    """
    items = [item for item in crossings if item.adjacent and item.status != "insufficient"]
    if not items:
        return None
    best, dof = (None, 0.0) if again is None else _best_rates(again, comparison.rows, curves)
    pairs = []
    for item in items:
        pair = PairCheck(item.shallow, item.deep, reason=_unchecked(item, comparison))
        if pair.reason and best is not None and item.params is not None:
            pair = _with_runs(pair, item, best, dof, curves, level)
        pairs.append(pair)
    open_pairs = [item for item, pair in zip(items, pairs, strict=True) if pair.reason]
    return rate_check(tuple(pairs), *_missing(comparison.rows, open_pairs))


def rate_check(
    pairs: tuple[PairCheck, ...], runs: int, flops: float | None, seconds: float | None, how: str
) -> RateCheck:
    """The check of all pairs, with what its missing part takes."""
    missing = [pair for pair in pairs if pair.reason]
    if not missing:
        shifted = any(pair.shift for pair in pairs)
        words = " Their intervals include the shift to the best rates." if shifted else ""
        return RateCheck(
            True, f"The learning rate is checked: rates enclose the best one at every crossing.{words}", pairs
        )
    names = [f"{pair.shallow} → {pair.deep}" for pair in missing]
    which = listed(names) if len(names) <= MOST_NAMED else f"{len(names)} of {len(pairs)} pairs of depths"
    where = "" if len(missing) == len(pairs) else f" for {which}"
    costs = [
        *([f"{scientific(flops)} FLOPs"] if flops else []),
        *([f"about {duration(seconds)}"] if seconds else []),
    ]
    cost = f" ({', '.join(costs)})" if costs else ""
    why = listed(list(dict.fromkeys(str(pair.reason) for pair in missing)))
    sentence = (
        f"The learning rate was not checked{where}: {why}, and at the best rates depths may compare otherwise. The "
        f"check takes {counted(runs, 'run')}{cost}; {how}."
    )
    return RateCheck(False, sentence, pairs, runs, flops, seconds, how)


def near_crossing(rows: pd.DataFrame, params: float) -> pd.DataFrame:
    """Rows of the largest size up to `params` and of the smallest size above it."""
    sizes = np.sort(rows["params"].unique())
    right = int(np.searchsorted(sizes, params, side="right"))
    return rows[rows["params"].isin(sizes[max(0, right - 1) : right + 1])]


def widened(crossings: Sequence[Crossing], check: RateCheck | None) -> tuple[Crossing, ...]:
    """Crossings whose intervals hold the crossing at the best rates too, where sensitivity runs have measured it."""
    shifts = {(pair.shallow, pair.deep): pair.shift for pair in (check.pairs if check else ()) if pair.shift}
    return tuple(_widened(item, shifts.get((item.shallow, item.deep))) for item in crossings)


def _widened(item: Crossing, shift: CrossingShift | None) -> Crossing:
    if shift is None or shift.shift_interval is None or item.params is None or item.params_interval is None:
        return item
    ends = tuple(
        side * math.inf if end is None else math.log(end)
        for side, end in zip((-1, 1), item.params_interval, strict=True)
    )
    moved = tuple(
        side * math.inf if end is None else end
        for side, end in zip((-1, 1), shift.shift_interval, strict=True)
    )
    place, (low, high) = math.log(item.params), ends
    if shift.shift is None:
        # The crossing leaves the sizes on the side where its interval is open.
        low, high = min(low, low + moved[0]), max(high, high + moved[1])
    else:
        # The error of the crossing and that of the shift are independent (MOVER, see `difference`).
        centre = place + shift.shift
        low = min(low, centre - math.hypot(place - low, shift.shift - moved[0]))
        high = max(high, centre + math.hypot(high - place, moved[1] - shift.shift))
    smallest, largest = item.range or (0.0, math.inf)
    found = (
        None if low < math.log(smallest) else math.exp(low),
        None if high > math.log(largest) else math.exp(high),
    )
    widths = tuple(
        None if end is None or item.width is None else item.width * math.sqrt(end / item.params)
        for end in found
    )
    item = replace(item, params_interval=found, width_interval=(widths[0], widths[1]))
    if item.status == "bracketed" and None in found:
        return replace(item, status="ambiguous", reason=OUTSIDE)
    return item


def _unchecked(item: Crossing, comparison: Comparison) -> str | None:
    """Why the rates of the study itself do not check a pair; None if they do."""
    for depth in (item.shallow, item.deep):
        part = comparison.rows[comparison.rows["depth"] == depth]
        near = part if item.params is None else near_crossing(part, item.params)
        shapes = {(int(deep), float(params)) for deep, params in near[["depth", "params"]].to_numpy()}
        if not shapes <= comparison.enclosed:
            several = comparison.enclosed or shapes & comparison.several
            return "rates do not enclose the best one" if several else "each shape has one rate"
    return None


def _with_runs(
    pair: PairCheck, item: Crossing, best: pd.DataFrame, dof: float, curves: Curves, level: float
) -> PairCheck:
    """The check of a pair by sensitivity runs; as it was if one of its depths has none."""
    gap = gap_of(curves, item.shallow, item.deep)
    parts = [near_crossing(best[best["depth"] == d], item.params or 0.0) for d in (item.shallow, item.deep)]
    if gap is None or any(part.empty for part in parts):
        return pair
    start = CrossingShift(item.shallow, item.deep, item.params, item.params_interval, item.status)
    shift = paired_shift(start, "its best rate", gap, best, dof, curves, level)
    beyond = [
        depth
        for depth, part in zip((item.shallow, item.deep), parts, strict=True)
        if not part["enclosed"].all()
    ]
    reason = None
    if beyond:
        named = listed([layers(depth) for depth in beyond])
        reason = f"the best rate of {named} may lie beyond those tried"
    return replace(pair, shift=shift, reason=reason)


def _best_rates(again: RunTable, rows: pd.DataFrame, curves: Curves) -> tuple[pd.DataFrame, float]:
    """The change of the loss to that at the best rate, by shape, and the degrees of freedom of its noise.

    One row per shape as `group_changes` has, with `enclosed`: whether rates on both sides are worse.
    """
    groups, dof = group_changes(pair_runs(again.used, rows), curves)
    lost = pair_runs(again.frame[again.frame["status"] == "diverged"], rows)
    lines = []
    for (depth, params), part in groups.groupby(["depth", "params"], sort=True):
        died = lost[(lost["depth"] == depth) & (lost["params"] == params)]["factor"]
        change, variance, enclosed = _best_rate(part, np.log(died.to_numpy(dtype=float)), curves.noise.known)
        lines.append(
            {
                "depth": depth,
                "params": params,
                "x": math.log(params),
                "change": change,
                "variance": variance,
                "count": int(part["count"].sum()),
                "enclosed": enclosed,
            }
        )
    names = ["depth", "params", "x", "change", "variance", "count", "enclosed"]
    return pd.DataFrame(lines, columns=names), dof


def _best_rate(part: pd.DataFrame, died: Floats, known: bool) -> tuple[float, float, bool]:
    """Change of the mean loss of a shape at its best rate, its variance, and whether rates enclose that rate.

    Args:
        part: rows of `group_changes`, one per factor.
        died: ln of the factors at which runs diverged.
        known: whether there is a noise estimate.
    """
    part = part.sort_values("factor")
    x = np.insert(np.log(part["factor"].to_numpy(dtype=float)), 0, 0.0)
    order = np.argsort(x)
    x, y, sd = (
        np.insert(values, 0, 0.0)[order]
        for values in (
            x[1:],
            part["change"].to_numpy(dtype=float),
            np.sqrt(part["variance"].to_numpy(dtype=float)),
        )
    )
    lowest = int(np.argmin(y))
    weights = np.eye(len(x))[lowest]
    tried = np.concatenate([x, died])
    enclosed = bool(tried.min() < x[lowest] < tried.max())
    if not enclosed and known and tried.min() < 0 < tried.max():
        # A rate at the end that is better within the noise gives no reason to look beyond it.
        enclosed = bool(y[lowest] + BEYOND * sd[lowest] > 0)
    if len(x) >= 3:
        middle = min(max(lowest, 1), len(x) - 2)
        near = slice(middle - 1, middle + 2)
        inverse = np.linalg.inv(np.vander(x[near], 3))
        gamma, beta, _ = inverse @ y[near]
        place = -beta / (2 * gamma) if gamma > 0 else math.inf
        if x[near][0] <= place <= x[near][-1]:
            # To first order the place of a minimum does not change its value: the weights are those of interpolation.
            weights = np.zeros(len(x))
            weights[near] = np.array([place**2, place, 1.0]) @ inverse
            enclosed = True
    # Differences share the run at the study's own rate, which is half of the variance of each.
    parts = weights * sd
    return float(weights @ y), float((parts.sum() ** 2 + parts @ parts) / 2), enclosed


def _missing(rows: pd.DataFrame, items: Collection[Crossing]) -> tuple[int, float | None, float | None, str]:
    """Runs, FLOPs, seconds (unknown) and words of the check of some pairs, for a table without a plan."""
    crossed = [item for item in items if item.params is not None]
    parts = [
        near_crossing(rows[rows["depth"] == depth], item.params or 0.0)
        for item in crossed
        for depth in (item.shallow, item.deep)
    ]
    what = "at the sizes next to each crossing train both depths"
    if not parts:
        parts, what = [rows], "train the shapes"
    near = pd.concat(parts)
    near = near[~near.index.duplicated()]
    tokens = near["tokens"].to_numpy(dtype=float)
    flops = float(FLOPS * np.sum(near["params"].to_numpy(dtype=float) * tokens)) * 2
    how = f"{what} again with the same seeds at half and double their rates and add these rows"
    if crossed:
        how += ", with `sensitivity` in the column `purpose`"
    return 2 * len(near), flops if math.isfinite(flops) else None, None, how
