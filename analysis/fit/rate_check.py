"""Whether the learning rate was checked at each crossing, and the interval of a crossing that includes the check.

Losses at one learning rate per shape compare shapes under a rule of the rate. If the rule is off by an amount that
depends on depth, the crossing is off too: simulated with 0.03 nats at a factor of two, 14 % of 95 % intervals held the
crossing at the best rates. A crossing is checked if three rates or more enclose the best one for both depths
at the sizes next to it. Either the study trained these rates (`analysis.runs.learning_rates`) or sensitivity runs did.

From sensitivity runs the loss at the best rate is that of the parabola in ln lr through the lowest mean loss and its
two neighbours. It changes the gap of the two depths and so moves their crossing. The interval that is stated holds the
interval at the study's own rates and the one at the best rates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.fit.crossing_shift import CrossingShift, group_changes, pair_runs, paired_shift
from analysis.law.crossings import Crossing, gap_of
from analysis.numbers import counted, duration, listed
from analysis.runs.comparison import Comparison
from analysis.runs.table import RunTable

#: Standard errors by which a rate at the end of those tried must be better for the best one to lie beyond it: by chance
#: in 4 % of the checks of eight shapes whose loss does not depend on the rate.
BEYOND = 2.6
NONE = "no three rates enclose the best one"
OUTSIDE = "at the best learning rates the crossing may lie outside the sizes measured"


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
    """Whether the learning rate was checked, as a sentence and by pair of depths.

    Attributes:
        runs, flops, seconds: of the missing part of the check; FLOPs and seconds are None without a plan.
        how: how to add the missing part.
    """

    pairs: tuple[PairCheck, ...]
    runs: int
    how: str
    flops: float | None = None
    seconds: float | None = None

    JSON_PROPERTIES = ("checked", "sentence")

    @property
    def checked(self) -> bool:
        """Whether the check of no pair is missing."""
        return all(pair.reason is None for pair in self.pairs)

    @property
    def sentence(self) -> str:
        """The state of the check, and what the missing part of it takes."""
        missing = [pair for pair in self.pairs if pair.reason]
        if not missing:
            shifted = any(pair.shift for pair in self.pairs)
            words = "; the intervals of crossings include the shift to the best rates" if shifted else ""
            return f"The learning rate is checked: rates enclose the best one at every crossing{words}."
        names = listed([f"{pair.shallow} → {pair.deep}" for pair in missing])
        where = f" for {names}" if len(missing) < len(self.pairs) else ""
        cost = "" if self.seconds is None else f", about {duration(self.seconds)}"
        return f"The learning rate is not checked{where}: {self.how} ({counted(self.runs, 'run')}{cost})."


def check_rates(
    again: RunTable | None, main: Comparison, curves: Curves, crossings: Sequence[Crossing], level: float
) -> RateCheck | None:
    """Check the learning rate of neighbouring depths; None if no pair can be compared.

    `again` are the sensitivity runs, if there are any; `main`, `curves` and `crossings` are those of the study itself.
    """
    items = [item for item in crossings if item.status != "insufficient"]
    if not items:
        return None
    best, dof = (None, 0.0) if again is None else _best_rates(again, main.rows, curves)
    pairs, missing = [], []
    for item in items:
        near = [_near(main.rows, item, depth) for depth in (item.shallow, item.deep)]
        shapes = {
            (int(depth), float(n)) for part in near for depth, n in part[["depth", "params"]].to_numpy()
        }
        pair = PairCheck(item.shallow, item.deep, reason=None if shapes <= main.bracketed else NONE)
        if pair.reason and best is not None and item.params is not None:
            pair = _with_runs(pair, item, best, dof, curves, level)
        pairs.append(pair)
        missing += near if pair.reason else []
    runs = 2 * len(pd.concat(missing).index.unique()) if missing else 0
    how = (
        "add the shapes next to each crossing at half and double their rates, with `sensitivity` in `purpose`"
    )
    return RateCheck(tuple(pairs), runs, how)


def near_crossing(rows: pd.DataFrame, params: float) -> pd.DataFrame:
    """Rows of the largest size up to `params` and of the smallest size above it."""
    sizes = np.sort(rows["params"].unique())
    right = int(np.searchsorted(sizes, params, side="right"))
    return rows[rows["params"].isin(sizes[max(0, right - 1) : right + 1])]


def widened(crossings: Sequence[Crossing], check: RateCheck | None) -> tuple[Crossing, ...]:
    """Crossings whose intervals hold the crossing at the best rates too, where sensitivity runs have measured it."""
    shifts = {(pair.shallow, pair.deep): pair.shift for pair in (check.pairs if check else ())}
    return tuple(_widened(item, shifts.get((item.shallow, item.deep))) for item in crossings)


def _widened(item: Crossing, shift: CrossingShift | None) -> Crossing:
    if shift is None or shift.shift_interval is None or item.params is None or item.params_interval is None:
        return item
    own_low, own_high = item.params_interval
    low = -math.inf if own_low is None else math.log(own_low / item.params)
    high = math.inf if own_high is None else math.log(own_high / item.params)
    left = -math.inf if shift.shift_interval[0] is None else shift.shift_interval[0]
    right = math.inf if shift.shift_interval[1] is None else shift.shift_interval[1]
    if shift.shift is None:
        # The crossing leaves the sizes on the side where the interval of its shift is open.
        low, high = min(low, low + left), max(high, high + right)
    else:
        # The errors of the crossing and of the shift are independent (MOVER, see `crossing_shift`).
        low, high = (
            min(low, shift.shift - math.hypot(low, shift.shift - left)),
            max(high, shift.shift + math.hypot(high, right - shift.shift)),
        )
    ends = [item.params * math.exp(low), item.params * math.exp(min(high, 700.0))]
    smallest, largest = item.range or (0.0, math.inf)
    found = (ends[0] if ends[0] >= smallest else None, ends[1] if ends[1] <= largest else None)
    item = replace(item, params_interval=found)
    if item.status == "bracketed" and None in found:
        return replace(item, status="ambiguous", reason=OUTSIDE)
    return item


def _near(rows: pd.DataFrame, item: Crossing, depth: int) -> pd.DataFrame:
    """Rows of one depth next to the crossing; all of them without one."""
    part = rows[rows["depth"] == depth]
    return part if item.params is None else near_crossing(part, item.params)


def _with_runs(
    pair: PairCheck, item: Crossing, best: pd.DataFrame, dof: float, curves: Curves, level: float
) -> PairCheck:
    """The check of a pair by sensitivity runs; as it was if one of its depths has none."""
    gap = gap_of(curves, item.shallow, item.deep)
    near = {depth: _near(best, item, depth) for depth in (item.shallow, item.deep)}
    if gap is None or any(part.empty for part in near.values()):
        return pair
    start = CrossingShift(item.shallow, item.deep, item.params, item.params_interval, item.status)
    shift = paired_shift(start, "its best rate", gap, best, dof, curves, level)
    beyond = [str(depth) for depth, part in near.items() if not part["enclosed"].all()]
    reason = f"the best rate at depth {listed(beyond)} may lie beyond those tried" if beyond else None
    return replace(pair, shift=shift, reason=reason)


def _best_rates(again: RunTable, rows: pd.DataFrame, curves: Curves) -> tuple[pd.DataFrame, float]:
    """The change of the loss to that at the best rate, by shape, and the degrees of freedom of its noise.

    One row per shape as `group_changes` has, with `enclosed`: whether rates on both sides are worse.
    """
    groups, dof = group_changes(pair_runs(again.used, rows), curves)
    lost = pair_runs(again.frame[again.frame["status"] == "diverged"], rows)
    lines = []
    for (depth, params), part in groups.groupby(["depth", "params"], sort=True):
        died = lost["factor"][(lost["depth"] == depth) & (lost["params"] == params)]
        found = _best_rate(part, np.log(died.to_numpy(dtype=float)), curves.noise.known)
        lines.append((depth, params, float(part["x"].iloc[0]), int(part["count"].sum()), *found))
    names = ["depth", "params", "x", "count", "change", "variance", "enclosed"]
    return pd.DataFrame(lines, columns=names), dof


def _best_rate(part: pd.DataFrame, died: Floats, known: bool) -> tuple[float, float, bool]:
    """Change of the mean loss of a shape at its best rate, its variance, and whether rates enclose that rate.

    `part` has a row of `group_changes` per factor; `died` are the ln of the factors at which runs diverged; `known` is
    whether there is a noise estimate.
    """
    table = np.log(part["factor"].to_numpy(dtype=float)), part["change"], np.sqrt(part["variance"])
    # The study's own rate is the factor 1, of which the change is 0.
    points = np.column_stack([np.zeros(3), np.array(table, dtype=float)])
    x, y, sd = points[:, np.argsort(points[0])]
    lowest = int(np.argmin(y))
    tried = np.concatenate([x, died])
    enclosed = bool(tried.min() < x[lowest] < tried.max())
    if not enclosed and known and tried.min() < 0 < tried.max():
        # A rate at the end that is better within the noise gives no reason to look beyond it.
        enclosed = bool(y[lowest] + BEYOND * sd[lowest] > 0)
    weights = np.eye(len(x))[lowest]
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
