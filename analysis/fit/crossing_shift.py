"""The shift of crossings when one key of a study changes.

There are two estimates:

- `paired_shifts`, for sensitivity runs: shapes around a crossing are trained again at other multiples of their learning
  rate, with the same seeds. Two runs of the same shape and seed differ in the rate alone, so most of their noise
  cancels. The differences of the two depths change their gap by δ at the crossing, and the crossing moves to where the
  gap plus δ is zero.
- `shift_between`, for any other key: the difference of ln N at a crossing between two fits, with an interval from their
  two intervals (MOVER, Zou and Donner 2008, Statistics in Medicine 27, 1693). It assumes independent studies. Shared
  seeds and data order make the true error smaller.

Sensitivity runs (rows with a value in the column `purpose`) enter nothing else: the lowest loss over several learning
rates would be taken for the loss of the shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.fit.measures import Value
from analysis.intervals import Interval
from analysis.law.crossings import Crossing, Gap, gap_of, roots
from analysis.runs.table import RunTable

#: Value of the column `purpose` of a sensitivity run; empty in the main study.
SENSITIVITY = "sensitivity"
#: `ChangedStudy.key` of sensitivity runs.
LEARNING_RATE = "learning rate"
#: Variance of a difference of two independent runs over that of one: assumed (and too large) if no shape has two seeds.
INDEPENDENT = 2.0
#: Share of the common range to either side over which the slope of the gap is taken.
_BESIDE = 0.02


@dataclass(frozen=True)
class CrossingShift:
    """The shift of the crossing of two neighbouring depths under one change.

    Attributes:
        params, params_interval, status: the crossing of the study itself, as in `Crossing`.
        changed_params, changed_interval, changed_status: the crossing after the change. In a paired estimate
            `changed_interval` holds the error of the shift alone.
        shift: difference of ln N; None if one of the crossings is missing or outside the sizes measured.
        shift_interval: interval of `shift`; an open end is None. None without any bound or without a noise estimate.
        p_value: p-value of "the gap does not change"; only in a paired estimate with a noise estimate.
        gap_change, gap_change_se: δ, the change of loss(shallow) - loss(deep) at the crossing in nats per token, and
            its standard error; only in a paired estimate.
        runs, diverged: sensitivity runs used, and those of the two depths that diverged.
        reason: why there is no shift.
    """

    shallow: int
    deep: int
    params: float | None
    params_interval: Interval | None
    status: str
    changed_params: float | None = None
    changed_interval: Interval | None = None
    changed_status: str = "insufficient"
    shift: float | None = None
    shift_interval: Interval | None = None
    p_value: float | None = None
    gap_change: float | None = None
    gap_change_se: float | None = None
    runs: int = 0
    diverged: int = 0
    reason: str | None = None

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        low, high = self.shift_interval or (None, None)
        return (low is not None and low > 0) or (high is not None and high < 0)


@dataclass(frozen=True)
class ChangedStudy:
    """The crossings of a study, and those after one key was changed.

    Attributes:
        key: the key that differs, such as `training.parametrisation`; `LEARNING_RATE` for sensitivity runs.
        base, value: value of the key before and after the change; for sensitivity runs multiples of the rate.
        pairs: neighbouring depths that have a crossing on both sides.
        level: of the intervals.
        runs: number of rows after the change.
        slope_change: change of the slope b of the threshold law; None where one has no law.
    """

    key: str
    base: Value
    value: Value
    pairs: tuple[CrossingShift, ...]
    level: float
    runs: int
    slope_change: float | None = None


def moved(studies: Sequence[ChangedStudy]) -> list[tuple[ChangedStudy, CrossingShift]]:
    """Shifts that are not noise, largest first.

    Paired estimates are tested together (Holm 1979, Scand. J. Statistics 6, 65): with four shifts of zero, one was
    significant at 95 % by itself in 11 of 100 simulated studies. Other estimates are tested one by one.
    """
    every = [(study, pair) for study in studies for pair in study.pairs]
    found = [(study, pair) for study, pair in every if pair.p_value is None and pair.significant]
    tested = sorted(
        ((pair.p_value, study, pair) for study, pair in every if pair.p_value is not None),
        key=lambda item: item[0],
    )
    for rank, (p_value, study, pair) in enumerate(tested):
        if p_value > (1 - study.level) / (len(tested) - rank):
            break
        found.append((study, pair))
    return sorted(found, key=lambda item: -abs(item[1].shift or 0.0))


def shift_between(own: Crossing, other: Crossing) -> CrossingShift:
    """The shift of one crossing between two independent studies."""
    # A crossing that is `insufficient` bounds nothing, like an interval open on both sides.
    ours, theirs = (_map_ends(math.log, item.params_interval or (None, None)) for item in (own, other))
    x, y = (None if item.params is None else math.log(item.params) for item in (own, other))
    interval = difference(y, theirs, x, ours)
    return CrossingShift(
        own.shallow,
        own.deep,
        own.params,
        own.params_interval,
        own.status,
        other.params,
        other.params_interval,
        other.status,
        shift=None if x is None or y is None else y - x,
        shift_interval=None if interval == (None, None) else interval,
    )


def difference(
    first: float | None, of_first: Interval, second: float | None, of_second: Interval
) -> Interval:
    """Interval of `first` - `second` from the intervals of both; an end is None if an end it needs is None.

    If a value itself is unknown (a crossing outside the sizes measured), the ends are subtracted, which is wider.
    """
    (low, high), (below, above) = of_first, of_second
    if first is None or second is None:
        return (
            None if low is None or above is None else low - above,
            None if high is None or below is None else high - below,
        )
    gap = first - second
    return (
        None if low is None or above is None else gap - math.hypot(first - low, above - second),
        None if high is None or below is None else gap + math.hypot(high - first, second - below),
    )


def split_sensitivity_runs(runs: RunTable) -> tuple[RunTable, RunTable | None]:
    """Split into the main study, which lists sensitivity runs as left out, and the sensitivity runs, if any."""
    frame = runs.frame
    if "purpose" not in frame.columns or not (frame["purpose"] != "").any():
        return runs, None
    rows = frame.index[frame["purpose"] != ""]
    usable = runs.used.index.intersection(rows)
    reason = "a sensitivity run: trained at another learning rate on purpose, so it enters no crossing"
    out = [
        {"row": row, **({"cell": cell} if cell else {}), "reason": reason}
        for row, cell in zip(usable.tolist(), frame.loc[usable, "cell"], strict=True)
    ]
    main = replace(
        runs, frame=frame.drop(index=rows), used=runs.used.drop(index=usable), left_out=[*runs.left_out, *out]
    )
    return main, replace(runs, frame=frame.loc[rows], used=runs.used.loc[usable], left_out=[])


def paired_shifts(
    again: RunTable, rows: pd.DataFrame, curves: Curves, crossings: Sequence[Crossing], level: float
) -> tuple[ChangedStudy, ...]:
    """The shifts of the crossings of neighbouring depths, for every multiple of the rate in the sensitivity runs.

    Args:
        again: sensitivity runs, see `split_sensitivity_runs`.
        rows: rows compared in the main study (depth, params, seed, lr, loss).
        curves: of the main study.
        crossings: of the main study.
        level: of the intervals.
    """
    pairs = pair_runs(again.used, rows)
    lost = pair_runs(again.frame[again.frame["status"] == "diverged"], rows)
    groups, dof = group_changes(pairs, curves)
    gaps = [
        (item, gap)
        for item in crossings
        if item.params is not None and (gap := gap_of(curves, item.shallow, item.deep))
    ]
    studies = []
    for factor in sorted({*pairs["factor"], *lost["factor"]}):
        found = []
        for item, gap in gaps:
            near = lost[(lost["factor"] == factor) & lost["depth"].isin((item.shallow, item.deep))]
            start = CrossingShift(
                item.shallow, item.deep, item.params, item.params_interval, item.status, diverged=len(near)
            )
            here = groups[groups["factor"] == factor]
            found.append(paired_shift(start, f"{factor:g} times its rate", gap, here, dof, curves, level))
        runs = int((pairs["factor"] == factor).sum())
        studies.append(ChangedStudy(LEARNING_RATE, 1.0, factor, tuple(found), level, runs))
    return tuple(studies)


def pair_runs(part: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Sensitivity runs joined with the runs of the same shape and seed: depth, params, seed, factor, base, change."""
    own = rows[["depth", "params", "seed", "lr", "loss"]]
    run = ["depth", "params", "seed", "lr", "tokens"]
    part = part.groupby(run, dropna=False).agg(loss=("loss", "mean")).reset_index()
    both = part.merge(own, on=["depth", "params", "seed"], suffixes=("", "_own"))
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = (both["lr"] / both["lr_own"]).to_numpy(dtype=float)
    both = both.assign(factor=[float(f"{value:.6g}") for value in factor], base=both["loss_own"])
    both = both[np.isfinite(factor) & (both["factor"] > 0) & (both["factor"] != 1)]
    both = both.assign(change=both["loss"] - both["base"])
    # In a table with several checkpoints the last row of each run comes last.
    both = both.sort_values(["depth", "params", "factor", "seed", "tokens"], kind="stable")
    both = both.drop_duplicates(["depth", "params", "factor", "seed"], keep="last")
    paired: pd.DataFrame = both[["depth", "params", "seed", "factor", "base", "change"]].reset_index(
        drop=True
    )
    return paired


def group_changes(pairs: pd.DataFrame, curves: Curves) -> tuple[pd.DataFrame, float]:
    """Means of the differences, and the degrees of freedom of their noise.

    The noise is pooled over all shapes, in proportion to the noise of one seed. One row per shape and factor: depth,
    factor, x = ln N, change (mean), count, variance of the mean.
    """
    keys = ["depth", "params", "factor"]
    means = pairs.groupby(keys, sort=True).agg(
        change=("change", "mean"), base=("base", "mean"), count=("change", "size")
    )
    frame = means.reset_index()
    frame["x"] = np.log(frame["params"].to_numpy(dtype=float))
    sd = curves.noise.sd_at(frame["base"].to_numpy(dtype=float))
    residual = pairs["change"] - pairs.groupby(keys)["change"].transform("mean")
    each = curves.noise.sd_at(pairs["base"].to_numpy(dtype=float))
    dof = float((frame["count"] - 1).sum())
    ratio, free = INDEPENDENT, curves.noise.dof
    if dof > 0 and curves.noise.known:
        ratio, free = float(np.sum((residual.to_numpy(dtype=float) / each) ** 2)) / dof, dof
    return frame.assign(variance=ratio * sd**2 / frame["count"]), free


def paired_shift(
    start: CrossingShift,
    rate: str,
    gap: Gap,
    groups: pd.DataFrame,
    dof: float,
    curves: Curves,
    level: float,
) -> CrossingShift:
    """Complete a shift from the rows of `group_changes` at one rate, which a reason names."""
    place = start.params or 1.0
    where = math.log(place)
    change = variance = 0.0
    runs = 0
    for depth, sign in ((start.shallow, 1.0), (start.deep, -1.0)):
        part = groups[groups["depth"] == depth]
        if part.empty:
            lost = ": all its rows diverged" if start.diverged else ""
            return replace(start, reason=f"depth {depth} has no row at {rate}{lost}")
        weight = _weights(part["x"].to_numpy(dtype=float), where)
        change += sign * float(weight @ part["change"].to_numpy(dtype=float))
        variance += float(weight**2 @ part["variance"].to_numpy(dtype=float))
        runs += int(part.loc[weight > 0, "count"].sum())
    known = curves.noise.known
    se = math.sqrt(variance)
    start = replace(start, gap_change=change, gap_change_se=se if known else None, runs=runs)
    if known:
        # Differences that agree to the last digit have no error.
        far = abs(change) / se if se > 0 else math.inf * abs(change) if change else 0.0
        start = replace(start, p_value=float(2 * student.sf(far, dof)))
    slope, slope_se = _slope(gap, where)
    if slope <= 0:
        return replace(start, reason="the gap does not rise where it crosses zero, so it gives no shift")
    # An error of the slope scales the shift as an error of δ in the same proportion would.
    se = math.hypot(se, change * slope_se / slope) if known else 0.0
    reach = float(student.ppf((1 + level) / 2, dof)) * se if known else 0.0
    found = roots(gap.x, gap.value[None, :] + np.array([[change], [change + reach], [change - reach]]))
    interval = _shift_interval(float(found[1]), float(found[2]), gap, where) if known else None
    start = replace(
        start,
        shift_interval=interval,
        changed_interval=interval and _map_ends(lambda end: place * math.exp(end), interval),
    )
    if not math.isfinite(found[0]):
        below = found[0] < 0
        return replace(
            start,
            changed_status="left_censored" if below else "right_censored",
            reason=f"the crossing moves {'below' if below else 'above'} the sizes at which both depths were measured",
        )
    shift = float(found[0]) - where
    return replace(start, shift=shift, changed_params=place * math.exp(shift), changed_status="bracketed")


def _shift_interval(low: float, high: float, gap: Gap, where: float) -> Interval | None:
    """The shift between two roots; a root beyond the sizes on the far side is still bounded by them."""
    ends = (
        None if low == -math.inf else min(low, float(gap.x[-1])) - where,
        None if high == math.inf else max(high, float(gap.x[0])) - where,
    )
    return None if ends == (None, None) else ends


def _weights(x: Floats, where: float) -> Floats:
    """Weights of linear interpolation at `where` between ascending sizes; outside them the nearest size alone."""
    weight = np.zeros(len(x))
    right = int(np.searchsorted(x, where))
    if right in (0, len(x)):
        weight[min(right, len(x) - 1)] = 1.0
        return weight
    share = (where - x[right - 1]) / (x[right] - x[right - 1])
    weight[right - 1], weight[right] = 1 - share, share
    return weight


def _slope(gap: Gap, where: float) -> tuple[float, float]:
    """Slope of the gap at ln N = `where` and its standard error, nats per token and e-fold of N.

    The error is NaN if the noise is not known.
    """
    last, beside = len(gap.x) - 1, _BESIDE * (gap.x[-1] - gap.x[0])
    left = max(int(np.searchsorted(gap.x, where - beside, side="right")) - 1, 0)
    right = min(int(np.searchsorted(gap.x, where + beside)), last)
    run = float(gap.x[right] - gap.x[left])
    slope = float(gap.value[right] - gap.value[left]) / run
    variance = (np.eye(last + 1)[right] - np.eye(last + 1)[left]) @ gap.covariance
    return slope, math.sqrt(max(float(variance[right] - variance[left]), 0.0)) / run


def _map_ends(function: Any, interval: Interval) -> Interval:
    low, high = interval
    return (None if low is None else function(low), None if high is None else function(high))
