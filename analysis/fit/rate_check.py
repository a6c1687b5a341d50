"""Whether the learning rate was checked at each crossing, and the interval of a crossing that includes the check.

Losses at one learning rate per shape compare shapes under a rule of the rate. If the rule is off by an amount that
depends on depth, the crossing is off too: simulated with 0.03 nats at a factor of two, 14 % of 95 % intervals held the
crossing at the best rates. A crossing is checked if three rates or more bracket the best one for both depths at the
sizes next to it. Either the study trained these rates (`analysis.runs.learning_rates`) or sensitivity runs did: the
shapes next to a crossing trained again, with the same seeds, at other multiples of their rate. Sensitivity runs (rows
with a value in the column `purpose`) enter nothing else: the lowest loss over several rates would be taken for the loss
of the shape.

From sensitivity runs the loss at the best rate is that of the parabola in ln lr through the lowest mean loss and its
two neighbours. It changes the gap of the two depths and so moves their crossing. The interval that is stated holds the
interval at the study's own rates and the one at the best rates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.fit.crossing_shift import CrossingShift, interpolation, shift_by
from analysis.intervals import hull
from analysis.law.crossings import Crossing, Crossings, Gap
from analysis.law.reasons import Because, Reason
from analysis.law.words import texts_of
from analysis.runs.comparison import ComparedRuns
from analysis.runs.learning_rates import bracketed_minimum
from analysis.runs.left_out import RowReason, WhyNot
from analysis.runs.table import RunTable, why_not

#: Value of the column `purpose` of a sensitivity run; empty in the main study.
SENSITIVITY = "sensitivity"
#: Variance of a difference of two independent runs over that of one: assumed (and too large) if no shape has two seeds.
INDEPENDENT = 2.0
#: Standard errors by which a rate at the end of those tried must be better for the best one to lie beyond it: by chance
#: in 4 % of the checks of eight shapes whose loss does not depend on the rate.
BEYOND = 2.6


@dataclass(frozen=True)
class PairCheck:
    """The check of one pair of neighbouring depths.

    Attributes:
        reasons: why the learning rate is not checked; none if it is. No default: a file without it is refused.
        shift: of the crossing from the rates of the study to the best ones; None without sensitivity runs.
    """

    JSON_PROPERTIES: ClassVar = ("reason",)

    shallow: int
    deep: int
    reasons: tuple[Because, ...]
    shift: CrossingShift | None = None

    @property
    def reason(self) -> str | None:
        """The words of `reasons`."""
        return texts_of(self.reasons)


@dataclass(frozen=True)
class RateCheck:
    """Whether the learning rate was checked, by pair of depths."""

    JSON_PROPERTIES: ClassVar = ("checked",)

    pairs: tuple[PairCheck, ...]

    @property
    def checked(self) -> bool:
        """Whether the check of no pair is missing."""
        return all(not pair.reasons for pair in self.pairs)


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


def split_sensitivity_runs(runs: RunTable) -> tuple[RunTable, RunTable | None]:
    """Split into the main study, which lists sensitivity runs as left out, and the sensitivity runs, if any."""
    frame = runs.frame
    if "purpose" not in frame.columns or not (frame["purpose"] != "").any():
        return runs, None
    rows = frame.index[frame["purpose"] != ""]
    usable = runs.used.index.intersection(rows)
    why = WhyNot(RowReason.SENSITIVITY)
    left_out = [*runs.left_out, *why_not(frame, dict.fromkeys(usable.tolist(), why))]
    main = replace(runs, frame=frame.drop(index=rows), used=runs.used.drop(index=usable), left_out=left_out)
    return main, replace(runs, frame=frame.loc[rows], used=runs.used.loc[usable], left_out=[])


def check_rates(
    again: RunTable | None, main: ComparedRuns, curves: Curves, crossings: Crossings
) -> RateCheck | None:
    """Check the learning rate of neighbouring depths; None if no pair can be compared.

    `again` are the sensitivity runs, if there are any; `main`, `curves` and `crossings` are those of the study itself.
    """
    best = (
        None if again is None else _best_rates(pair_runs(again, main.rows, curves), curves.noise.is_measured)
    )
    pairs = []
    for item, gap in zip(crossings.items, crossings.gaps, strict=True):
        if item.status == "insufficient":
            continue
        near = near_crossing(main.rows, item)
        shapes = set(zip(near["depth"], near["params"], strict=True))
        unchecked = () if shapes <= main.bracketed else (Because(Reason.NO_RATES),)
        pair = PairCheck(item.shallow, item.deep, reasons=unchecked)
        if pair.reasons and best and gap and item.params is not None:
            tried = near_crossing(best.groups, item)
            if tried["depth"].nunique() == 2:
                shift = _shift_to_best(item, gap, best, curves, crossings.level)
                beyond = tuple(int(depth) for depth in tried.loc[~tried["bracketed"], "depth"].unique())
                reasons = (Because(Reason.RATE_BEYOND, beyond),) if beyond else ()
                pair = replace(pair, shift=shift, reasons=reasons)
        pairs.append(pair)
    return RateCheck(tuple(pairs)) if pairs else None


def near_crossing(rows: pd.DataFrame, item: Crossing) -> pd.DataFrame:
    """Rows of both depths at the largest size up to the crossing and the smallest above it; all rows without one."""
    parts = [rows[rows["depth"] == depth] for depth in (item.shallow, item.deep)]
    if item.params is not None:
        for i, part in enumerate(parts):
            sizes = np.unique(part["params"])
            right = int(np.searchsorted(sizes, item.params, side="right"))
            parts[i] = part[part["params"].isin(sizes[max(0, right - 1) : right + 1])]
    return pd.concat(parts)


def widened(crossings: Sequence[Crossing], check: RateCheck | None) -> tuple[Crossing, ...]:
    """Crossings whose intervals hold the crossing at the best rates too, where sensitivity runs have measured it."""
    shifts = {(pair.shallow, pair.deep): pair.shift for pair in (check.pairs if check else ())}
    stated = []
    for item in crossings:
        shift = shifts.get((item.shallow, item.deep))
        if shift and shift.changed_interval and item.params_interval:
            item = replace(item, params_interval=hull([item.params_interval, shift.changed_interval]))
            if item.status == "bracketed" and None in (item.params_interval or ()):
                item = replace(item, status="ambiguous", reasons=(Because(Reason.BEST_RATES_OUTSIDE),))
        stated.append(item)
    return tuple(stated)


def pair_runs(again: RunTable, rows: pd.DataFrame, curves: Curves) -> PairedRuns:
    """Join sensitivity runs with the runs of the same shape and seed (rows compared in the study, of `curves`)."""
    pairs = _joined(again.used, rows)
    groups = pairs.groupby(["depth", "params", "factor"])
    means = groups[["change", "base"]].mean().assign(count=groups.size()).reset_index()
    # The variance of a difference is in proportion to that of one seed.
    noise, ratio, dof = curves.noise, INDEPENDENT, float((means["count"] - 1).sum())
    if dof > 0 and noise.is_measured:
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
    study_runs = rows[[*run, "lr"]].assign(base=rows["loss"])
    both = part[[*run, "lr", "tokens", "loss"]].merge(study_runs, on=run, suffixes=("", "_own"))
    factor = (both["lr"] / both["lr_own"]).map(lambda value: float(f"{value:.6g}"))
    both = both.assign(factor=factor, change=both["loss"] - both["base"])
    both = both[np.isfinite(factor) & (factor > 0) & (factor != 1)]
    # Duplicates are averaged; of several checkpoints of one run the last counts.
    means = both.groupby([*run, "factor", "tokens"], dropna=False)[["base", "change"]].mean().reset_index()
    return pd.DataFrame(means.groupby([*run, "factor"], as_index=False).last())


def _shift_to_best(item: Crossing, gap: Gap, best: PairedRuns, curves: Curves, level: float) -> CrossingShift:
    """The shift of one crossing, which has N, from the study's rates to the best ones, of which `best` has a row."""
    where, change, variance, runs = math.log(item.params or 1.0), 0.0, 0.0, 0
    for depth, sign in ((item.shallow, 1.0), (item.deep, -1.0)):
        part = best.groups[best.groups["depth"] == depth]
        weight = interpolation(part["x"].to_numpy(dtype=float), where)
        change += sign * float(weight @ part["change"])
        variance += float(weight**2 @ part["variance"])
        runs += int(part.loc[weight > 0, "count"].sum())
    quantile = float(student.ppf((1 + level) / 2, min(best.dof, curves.dof)))
    moved = shift_by(item, gap, change, variance, quantile if curves.noise.is_measured else math.nan)
    return replace(moved, runs=runs, diverged=int(best.lost["depth"].isin((item.shallow, item.deep)).sum()))


def _best_rates(paired: PairedRuns, has_noise: bool) -> PairedRuns:
    """One row per shape for the change to its best rate, with `bracketed`: whether the rates bracket that rate.

    `has_noise` is whether there is a noise estimate.
    """
    shape, lines = ["depth", "params"], []
    lost = {at: np.log(part["factor"].to_numpy(dtype=float)) for at, part in paired.lost.groupby(shape)}
    for at, part in paired.groups.groupby(shape):
        best = _best_rate(part, lost.get(at, np.empty(0)), has_noise)
        lines.append((*at, part["x"].iloc[0], part["count"].sum(), *best))
    columns = [*shape, "x", "count", "change", "variance", "bracketed"]
    return replace(paired, groups=pd.DataFrame(lines, columns=columns))


def _best_rate(part: pd.DataFrame, diverged: Floats, has_noise: bool) -> tuple[float, float, bool]:
    """Change of the mean loss of a shape at its best rate, its variance, and whether the rates bracket that rate.

    `part` has a row of `PairedRuns.groups` per factor; `diverged` are ln of the factors at which runs diverged.
    """
    # The study's own rate is the factor 1, of which the change is 0.
    table = np.vstack([[1.0, 0.0, 0.0], part[["factor", "change", "variance"]].to_numpy(dtype=float)])
    factor, y, variance = table[np.argsort(table[:, 0])].T
    x, sd, lowest = np.log(factor), np.sqrt(variance), int(np.argmin(y))
    tried = np.concatenate([x, diverged])
    bracketed = bool(tried.min() < x[lowest] < tried.max())
    if has_noise and tried.min() < 0 < tried.max():
        # A rate at the end that is better within the noise gives no reason to look beyond it.
        bracketed |= bool(y[lowest] + BEYOND * sd[lowest] > 0)
    weights = np.eye(len(x))[lowest]
    if len(x) >= 3:
        middle = min(max(lowest, 1), len(x) - 2)
        near = slice(middle - 1, middle + 2)
        inverse = np.linalg.inv(np.vander(x[near], 3))
        curvature, slope, _ = inverse @ y[near]
        place = bracketed_minimum(slope, curvature, x[near])
        if place is not None:
            # To first order the place of a minimum does not change its value: the weights are those of interpolation.
            weights = np.zeros(len(x))
            weights[near] = np.array([place**2, place, 1.0]) @ inverse
            bracketed = True
    # Differences share the run at the study's own rate, which is half of the variance of each.
    parts = weights * sd
    return float(weights @ y), float((parts.sum() ** 2 + parts @ parts) / 2), bracketed
