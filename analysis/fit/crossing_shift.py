"""The shift of crossings when one key of a study changes.

`paired_shifts` is for sensitivity runs: shapes around a crossing are trained again at other multiples of their learning
rate, with the same seeds. Two runs of the same shape and seed differ in the rate alone, so most of their noise cancels.
The differences of the two depths change their gap by δ, and the crossing moves to where the gap plus δ is zero. The
intervals invert tests, as that of a crossing does (Fieller's method): that the gap plus δ is zero, for the crossing
after the change, and that the change of the gap since the crossing plus δ is zero, for the shift.

`shift_between` is for any other key: the difference of ln N at a crossing between two fits, with an interval from their
two intervals (MOVER, Zou and Donner 2008, Statistics in Medicine 27, 1693). It assumes independent studies.
Shared seeds and data order make the true error smaller.

Sensitivity runs (rows with a value in the column `purpose`) enter nothing else: the lowest loss over several learning
rates would be taken for the loss of the shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.fit.measures import Value
from analysis.intervals import Interval, ends_of, interval_of, params_interval
from analysis.law.crossings import Crossing, Crossings, Gap, inverted_test, root
from analysis.runs.table import RunTable, why_not

#: Value of the column `purpose` of a sensitivity run; empty in the main study.
SENSITIVITY = "sensitivity"
#: `ChangedStudy.key` of sensitivity runs.
LEARNING_RATE = "learning rate"
#: Variance of a difference of two independent runs over that of one: assumed (and too large) if no shape has two seeds.
INDEPENDENT = 2.0


@dataclass(frozen=True)
class CrossingShift:
    """The shift of the crossing of two neighbouring depths under one change.

    Attributes:
        params, status: the crossing of the study itself, as in `Crossing`.
        changed_params, changed_interval, changed_status: the crossing after the change.
        shift: difference of ln N; None if one of the crossings is missing or outside the sizes measured.
        shift_interval: interval of `shift`; an open end is None. None without any bound or without a noise estimate.
        p_value: p-value of "the gap does not change"; only in a paired estimate with a noise estimate.
        runs, diverged: sensitivity runs used, and those of the two depths that diverged.
        reason: why there is no shift.
    """

    shallow: int
    deep: int
    params: float | None
    status: str
    changed_params: float | None = None
    changed_interval: Interval | None = None
    changed_status: str = "insufficient"
    shift: float | None = None
    shift_interval: Interval | None = None
    p_value: float | None = None
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


@dataclass(frozen=True)
class PairedRuns:
    """Sensitivity runs less the runs of the same shape and seed in the study.

    Attributes:
        groups: by shape and factor of the rate: depth, params, factor, x = ln N, count, change (mean, nats per token),
            variance of `change`.
        lost: depth, params and factor of the runs that diverged.
        dof: degrees of freedom of the variances, which are pooled over all shapes.
    """

    groups: pd.DataFrame
    lost: pd.DataFrame
    dof: float


def moved(studies: Sequence[ChangedStudy]) -> list[tuple[ChangedStudy, CrossingShift]]:
    """Shifts that are not noise, largest first.

    Paired estimates are tested together (Bonferroni): with four shifts of zero, one was significant at 95 % by itself
    in 11 of 100 simulated studies. Other estimates are tested one by one.
    """
    pairs = [(study, pair) for study in studies for pair in study.pairs]
    tests = sum(pair.p_value is not None for _, pair in pairs)
    found = [
        (study, pair)
        for study, pair in pairs
        if (pair.significant if pair.p_value is None else pair.p_value <= (1 - study.level) / tests)
    ]
    return sorted(found, key=lambda item: -abs(item[1].shift or 0.0))


def shift_between(own: Crossing, other: Crossing) -> CrossingShift:
    """The shift of one crossing between two independent studies.

    Of a crossing outside the sizes measured only bounds are known: the ends are then subtracted, which is wider.
    """
    (below, above), (low, high) = _log_ends(own.params_interval), _log_ends(other.params_interval)
    shift, ends = None, (low - above, high - below)
    if own.params is not None and other.params is not None:
        x, y = math.log(own.params), math.log(other.params)
        shift = y - x
        ends = shift - math.hypot(y - low, above - x), shift + math.hypot(high - y, x - below)
    after = (other.params, other.params_interval, other.status)
    return CrossingShift(own.shallow, own.deep, own.params, own.status, *after, shift, _bounds(*ends))


def _log_ends(interval: Interval | None) -> tuple[float, float]:
    """Interval of ln N; infinite where open, and without an interval."""
    low, high = ends_of(interval)
    return (math.log(low) if low > 0 else -math.inf), math.log(high)


def _bounds(low: float, high: float) -> Interval | None:
    """An interval whose infinite ends are None; None without any bound."""
    found = interval_of(low, high)
    return None if found == (None, None) else found


def split_sensitivity_runs(runs: RunTable) -> tuple[RunTable, RunTable | None]:
    """Split into the main study, which lists sensitivity runs as left out, and the sensitivity runs, if any."""
    frame = runs.frame
    if "purpose" not in frame.columns or not (frame["purpose"] != "").any():
        return runs, None
    rows = frame.index[frame["purpose"] != ""]
    usable = runs.used.index.intersection(rows)
    reason = "a sensitivity run: trained at another learning rate on purpose, so it enters no crossing"
    left_out = [*runs.left_out, *why_not(frame, dict.fromkeys(usable.tolist(), reason))]
    main = replace(runs, frame=frame.drop(index=rows), used=runs.used.drop(index=usable), left_out=left_out)
    return main, replace(runs, frame=frame.loc[rows], used=runs.used.loc[usable], left_out=[])


def paired_shifts(
    again: RunTable, rows: pd.DataFrame, curves: Curves, crossings: Crossings
) -> tuple[ChangedStudy, ...]:
    """The shifts of the crossings of neighbouring depths, for every multiple of the rate in the sensitivity runs.

    `again` are the sensitivity runs, see `split_sensitivity_runs`; `rows` (depth, params, seed, lr, loss) are those
    compared in the main study, of which `curves` and `crossings` are.
    """
    paired = pair_runs(again, rows, curves)
    studies = []
    for factor in sorted({*paired.groups["factor"], *paired.lost["factor"]}):
        here, lost = (part[part["factor"] == factor] for part in (paired.groups, paired.lost))
        part, name = PairedRuns(here, lost, paired.dof), f"{factor:g} times its rate"
        pairs = tuple(
            paired_shift(item, gap, part, name, curves, crossings.level)
            for item, gap in zip(crossings.items, crossings.gaps, strict=True)
            if item.params is not None and gap is not None
        )
        runs = int(here["count"].sum())
        studies.append(ChangedStudy(LEARNING_RATE, 1.0, factor, pairs, crossings.level, runs))
    return tuple(studies)


def pair_runs(again: RunTable, rows: pd.DataFrame, curves: Curves) -> PairedRuns:
    """Join sensitivity runs with the runs of the same shape and seed; the arguments are those of `paired_shifts`."""
    pairs = _joined(again.used, rows)
    groups = pairs.groupby(["depth", "params", "factor"])
    means = groups[["change", "base"]].mean().assign(count=groups.size()).reset_index()
    # The variance of a difference is in proportion to that of one seed.
    noise, ratio, dof = curves.noise, INDEPENDENT, float((means["count"] - 1).sum())
    if dof > 0 and noise.known:
        residual = pairs["change"] - groups["change"].transform("mean")
        ratio = float(((residual / noise.sd_at(pairs["base"].to_numpy(dtype=float))) ** 2).sum()) / dof
    else:
        dof = noise.dof
    variance = ratio * noise.sd_at(means["base"].to_numpy(dtype=float)) ** 2 / means["count"]
    lost = _joined(again.frame[again.frame["status"] == "diverged"], rows)
    return PairedRuns(means.assign(x=np.log(means["params"]), variance=variance), lost, dof)


def _joined(part: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Sensitivity runs with depth, params, seed, factor (of the rate), base (loss in the study) and change."""
    run = ["depth", "params", "seed"]
    own = rows[[*run, "lr"]].assign(base=rows["loss"])
    both = part[[*run, "lr", "tokens", "loss"]].merge(own, on=run, suffixes=("", "_own"))
    factor = (both["lr"] / both["lr_own"]).map(lambda value: float(f"{value:.6g}"))
    both = both.assign(factor=factor, change=both["loss"] - both["base"])
    both = both[np.isfinite(factor) & (factor > 0) & (factor != 1)]
    # Duplicates are averaged; of several checkpoints of one run the last counts.
    means = both.groupby([*run, "factor", "tokens"], dropna=False)[["base", "change"]].mean().reset_index()
    return pd.DataFrame(means.groupby([*run, "factor"], as_index=False).last())


def paired_shift(
    item: Crossing, gap: Gap, paired: PairedRuns, rate: str, curves: Curves, level: float
) -> CrossingShift:
    """The shift of one crossing, which has N, by runs with one row of `groups` per shape; a reason names the rate."""
    lost = int(paired.lost["depth"].isin((item.shallow, item.deep)).sum())
    found = CrossingShift(item.shallow, item.deep, item.params, item.status, diverged=lost)
    where = math.log(item.params or 1.0)
    change = variance = 0.0
    for depth, sign in ((item.shallow, 1.0), (item.deep, -1.0)):
        part = paired.groups[paired.groups["depth"] == depth]
        if part.empty:
            why = ": all its rows diverged" if lost else ""
            return replace(found, reason=f"depth {depth} has no row at {rate}{why}")
        weight = _weights(part["x"].to_numpy(dtype=float), where)
        change += sign * float(weight @ part["change"])
        variance += float(weight**2 @ part["variance"])
        found = replace(found, runs=found.runs + int(part.loc[weight > 0, "count"].sum()))
    after = Gap(gap.x, gap.value + change, gap.covariance + variance)
    if curves.noise.known:
        dof, se = min(paired.dof, curves.dof), math.sqrt(variance)
        quantile = float(student.ppf((1 + level) / 2, dof))
        gain = np.eye(len(gap.x)) - _weights(gap.x, where)
        low, high = inverted_test(
            replace(after, covariance=gain @ gap.covariance @ gain.T + variance), quantile
        )
        found = replace(
            found,
            # Differences that agree to the last digit have no error.
            p_value=float(2 * student.sf(abs(change) / se, dof)) if se > 0 else float(change == 0),
            shift_interval=_bounds(low - where, high - where),
            changed_interval=params_interval(inverted_test(after, quantile)),
        )
    place = root(gap.x, after.value)
    if math.isfinite(place):
        return replace(found, shift=place - where, changed_params=math.exp(place), changed_status="bracketed")
    side, status = ("below", "left_censored") if place < 0 else ("above", "right_censored")
    reason = f"the crossing moves {side} the sizes at which both depths were measured"
    return replace(found, changed_status=status, reason=reason)


def _weights(x: Floats, where: float) -> Floats:
    """Weights of linear interpolation at `where` between ascending places; outside them the nearest place alone."""
    return np.array([np.interp(where, x, row) for row in np.eye(len(x))])
