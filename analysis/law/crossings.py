"""Find the size at which a deeper model overtakes a shallower one: an interval, a bound, or no answer.

The gap of two neighbouring depths is loss(shallow) - loss(deep) as a function of ln N. It is positive where the deep
model is better; the crossing is where it turns from negative to positive. The interval of the crossing is the set of N
at which a gap of zero is not rejected (Fieller's method: |gap| <= t·se). It may be closed, open on one side, or
unbounded. Statuses:

- `bracketed`: the gap changes sign once and upwards, the set is one closed interval inside the sizes measured, and the
  shallow model is significantly better at the small end, the deep one at the large end;
- `left_censored`: the deep model is better at every size measured, significantly at both ends; the interval has no
  lower end;
- `right_censored`: the deep model is better at no size measured, significantly at both ends; the interval has no upper
  end;
- `ambiguous`: anything between, with `reasons`; a point estimate is kept if there is one;
- `insufficient`: fewer than two sizes for a depth, no common range, or losses at different training tokens.

Two sizes of a depth cannot show how its curve bends. A sign change is then `ambiguous` without a point estimate, its
interval reaches from size to size, and the pair is not used for the law: such intervals, drawn from straight lines,
held the crossing in 0 to 42 % of simulated studies.

Without a noise estimate there is no test and no interval: a sign change is then `ambiguous`, and a constant sign is
`left_censored` or `right_censored` by the sign alone, always with the reason `NO_NOISE`.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from scipy.stats import t as student

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.intervals import LAYER_WEIGHTS, Interval, between, params_interval, params_of, width_of
from analysis.law.reasons import Because, Reason, has
from analysis.law.words import texts_of
from analysis.units import LOSS

CrossingStatus = Literal["bracketed", "left_censored", "right_censored", "ambiguous", "insufficient"]

#: Fewest sizes of a depth for a crossing between them.
LEAST_SIZES = 3
#: Difference in ln N up to which a size counts as measured at an end of a range.
NEAR_END = 0.1
#: Factor on the quantile for a fall of the gap from its maximum, whose place is chosen by the data.
TURNED = 1.2


@dataclass(frozen=True)
class Crossing:
    """The crossing of two neighbouring depths.

    Attributes:
        reasons: why the status is not `bracketed`; a crossing read from a file may have none.
        params, params_interval: N at the crossing; an end is None if it lies outside the sizes measured.
        range: smallest and largest N measured for both depths.
        gap_ends: nats at the ends of the range.
        diverged: (depth, N, runs) of shapes of the pair whose runs all diverged.
        contradicted: one of these lies on the wrong side of the crossing, which is then not used for the law.
        non_monotone: the deep model leads and the gap falls again significantly at the largest sizes, or its loss
            rises. The deep model may be trained too little there, so nothing should be projected from the crossing.
        layer_weights: N over L·d².
    """

    JSON_PROPERTIES: ClassVar = ("reason",)

    shallow: int
    deep: int
    status: CrossingStatus
    reasons: tuple[Because, ...] = ()
    params: float | None = None
    params_interval: Interval | None = None
    range: tuple[float, float] | None = None
    gap_ends: tuple[float, float] | None = field(default=None, metadata=LOSS)
    diverged: tuple[tuple[int, float, int], ...] = ()
    contradicted: bool = False
    non_monotone: bool = False
    layer_weights: float = LAYER_WEIGHTS

    @property
    def reason(self) -> str | None:
        """The words of `reasons`."""
        return texts_of(self.reasons)

    @property
    def middle(self) -> float:
        """The depth between the two to which the crossing belongs."""
        return between(self.shallow, self.deep)

    @property
    def settled(self) -> bool:
        """Whether the runs decide between the two depths: a crossing, or a lead beyond the noise at all sizes."""
        censored = self.status in ("left_censored", "right_censored")
        return self.status == "bracketed" or (censored and not has(self.reasons, Reason.NO_NOISE))

    @property
    def width(self) -> float | None:
        """Width of the shallow model at the crossing."""
        return None if self.params is None else width_of(self.params, self.shallow, self.layer_weights)


@dataclass(frozen=True)
class Gap:
    """loss(shallow) - loss(deep) on the grid of the curves inside the common range; between its places it is linear.

    Attributes:
        x: ln N.
        value: in nats per token.
        covariance: (grid, grid); NaN if the noise is not known.
    """

    x: Floats
    value: Floats
    covariance: Floats

    @cached_property
    def se(self) -> Floats:
        """Standard error of `value`; NaN if the noise is not known."""
        return np.asarray(np.sqrt(np.maximum(np.diag(self.covariance), 0)))


@dataclass(frozen=True)
class Crossings:
    """The crossings of all neighbouring depths, with their gaps.

    Attributes:
        items, gaps: one of each per pair; the gap of a pair that is insufficient or has a depth of two sizes is None.
        covariance: of the values of all gaps, one after the other, which share curves.
        quantile: of Student's t at `level`, with the degrees of freedom of the noise; NaN if that is not known.
        dof: degrees of freedom of the noise.
    """

    items: tuple[Crossing, ...]
    gaps: tuple[Gap | None, ...]
    covariance: Floats
    quantile: float
    level: float
    dof: float = math.inf


def gap_of(curves: Curves, shallow: int, deep: int) -> Gap | None:
    """The gap of a pair, or None if the pair has no common range or a depth has only one size."""
    inside = curves.inside(shallow, deep)
    if len(inside) < 2 or min(curves.sizes(shallow), curves.sizes(deep)) < 2:
        return None
    return Gap(curves.grid[inside], *_gaps(curves, [(shallow, deep)]))


def _gaps(curves: Curves, pairs: Sequence[tuple[int, int]]) -> tuple[Floats, Floats]:
    """The values of the gaps inside the common range of each pair, one pair after the other, and their covariance."""
    places = [[curves.index(depth)[curves.inside(*pair)] for depth in pair] for pair in pairs]
    of_shallow, of_deep = np.hstack([np.empty((2, 0), dtype=np.int64), *places])
    values, part = curves.values.ravel(), curves.covariance[of_shallow] - curves.covariance[of_deep]
    return values[of_shallow] - values[of_deep], part[:, of_shallow] - part[:, of_deep]


def root(x: Floats, gap: Floats) -> float:
    """The last upward sign change of a gap that is linear between the places x.

    -inf where the gap is positive everywhere, +inf where it has no upward change otherwise. A gap of exactly zero
    counts as not positive.
    """
    return -math.inf if np.all(gap > 0) else _upward(x, gap, -1, math.inf)


def inverted_test(gap: Gap, quantile: float) -> tuple[float, float]:
    """The interval of ln N in which a gap of zero is not rejected (Fieller's method).

    The hull of {x: |gap| <= t·se}; an end is infinite if the gap at that end of the range does not exceed t·se on the
    side that closes the interval.
    """
    z = np.divide(gap.value, gap.se, out=np.where(gap.value > 0, np.inf, -np.inf), where=gap.se > 0)
    shallow_first, deep_last = z[0] < -quantile, z[-1] > quantile
    low = _upward(gap.x, z + quantile, 0, math.inf) if shallow_first else -math.inf
    high = _upward(gap.x, z - quantile, -1, -math.inf) if deep_last else math.inf
    if not shallow_first and z[0] > quantile and np.all(z > quantile):
        return -math.inf, float(gap.x[0])
    if not deep_last and z[-1] < -quantile and np.all(z < -quantile):
        return float(gap.x[-1]), math.inf
    return low, high


def _upward(x: Floats, values: Floats, which: Literal[0, -1], nowhere: float) -> float:
    """The first or the last place where straight lines through (x, values) turn positive; `nowhere` without one."""
    up = np.flatnonzero((values[:-1] <= 0) & (values[1:] > 0))
    if not len(up):
        return nowhere
    k = int(up[which])
    left, right = float(values[k]), float(values[k + 1])
    share = 0.5 if not math.isfinite(right - left) else -left / (right - left)
    return float(x[k] + share * (x[k + 1] - x[k]))


def find_crossings(
    curves: Curves,
    *,
    level: float = 0.95,
    diverged: tuple[tuple[int, float, int], ...] = (),
    not_comparable: Because | None = None,
) -> Crossings:
    """Find the crossing of each two neighbouring depths.

    Args:
        curves: see `analysis.curves.curves`.
        level: of the intervals.
        diverged: (depth, N, runs) of shapes whose runs all diverged.
        not_comparable: why the losses of two depths cannot be compared at equal N, if so: all pairs are `insufficient`.
    """
    quantile = float(student.ppf((1 + level) / 2, curves.dof)) if curves.noise.is_measured else math.nan
    items: list[Crossing] = []
    gaps: list[Gap | None] = []
    kept = []
    for shallow, deep in itertools.pairwise(curves.depths):
        if not_comparable:
            items.append(Crossing(shallow, deep, "insufficient", (not_comparable,)))
            gaps.append(None)
            continue
        gap = gap_of(curves, shallow, deep)
        sizes, fewest = min((curves.sizes(depth), depth) for depth in (shallow, deep))
        if gap is None:
            reason = Because(Reason.ONE_SIZE, (fewest,)) if sizes < 2 else Because(Reason.NO_COMMON_RANGE)
            items.append(Crossing(shallow, deep, "insufficient", (reason,)))
        elif sizes < LEAST_SIZES:
            few = Because(Reason.TWO_SIZES, (fewest, sizes, LEAST_SIZES))
            items.append(_crossing(curves, shallow, deep, gap, quantile, diverged, few))
            gap = None
        else:
            items.append(_crossing(curves, shallow, deep, gap, quantile, diverged))
            kept.append((shallow, deep))
        gaps.append(gap)
    return Crossings(tuple(items), tuple(gaps), _gaps(curves, kept)[1], quantile, level, curves.dof)


def _crossing(
    curves: Curves,
    shallow: int,
    deep: int,
    gap: Gap,
    quantile: float,
    diverged: tuple[tuple[int, float, int], ...],
    few: Because | None = None,
) -> Crossing:
    """The crossing of a pair from its gap; `few` is why the pair can have no crossing between its sizes."""
    where = root(gap.x, gap.value)
    params, ends = params_of(where), inverted_test(gap, quantile) if math.isfinite(quantile) else None
    status, reasons = _verdict(gap, ends, quantile)
    if few and (status in ("bracketed", "ambiguous") or not _measured_at_ends(curves, shallow, deep)):
        status, reasons, params = "ambiguous", (few,), None
        if ends is not None:
            edges = zip(ends, gap.x[[0, -1]].tolist(), strict=True)
            low, high = (end if math.isinf(end) else edge for end, edge in edges)
            ends = low, high
    lost = tuple(item for item in diverged if item[0] in (shallow, deep))
    against = _against(where, shallow, deep, lost)
    if against and status != "ambiguous":
        status, reasons = "ambiguous", (against,)
    return Crossing(
        shallow,
        deep,
        status,
        reasons,
        params,
        params_interval(ends),
        range=(math.exp(gap.x[0]), math.exp(gap.x[-1])),
        gap_ends=(float(gap.value[0]), float(gap.value[-1])),
        diverged=lost,
        contradicted=against is not None,
        non_monotone=_non_monotone(curves, deep, gap, quantile),
    )


def _measured_at_ends(curves: Curves, shallow: int, deep: int) -> bool:
    """Whether both depths have a size near each end of their common range.

    Between two sizes far apart a straight line replaces a curve, and its error is not in the interval.
    """
    ranges = [curves.range(depth) for depth in (shallow, deep)]
    low, high = max(first for first, _ in ranges), min(last for _, last in ranges)
    sizes = [curves.x[curves.at(depth)] for depth in (shallow, deep)]
    return all(float(np.abs(measured - end).min()) <= NEAR_END for measured in sizes for end in (low, high))


def _non_monotone(curves: Curves, deep: int, gap: Gap, quantile: float) -> bool:
    """See `Crossing.non_monotone`; False without a noise estimate, or with two sizes."""
    if not math.isfinite(quantile) or curves.sizes(deep) < LEAST_SIZES:
        return False

    def exceeds(value: Floats, covariance: Floats, first: int, second: int, times: float) -> bool:
        """Whether the first place is significantly above the second."""
        variance = covariance[first, first] + covariance[second, second] - 2 * covariance[first, second]
        return bool(value[first] - value[second] > times * quantile * math.sqrt(max(variance, 0.0)) > 0)

    top = int(np.argmax(gap.value))
    # A gap that is largest at the smallest size only decays, as between curves of the same asymptote.
    leads = gap.value[top] > quantile * gap.se[top] and exceeds(gap.value, gap.covariance, top, 0, 1.0)
    if leads and exceeds(gap.value, gap.covariance, top, -1, TURNED):
        return True
    places = curves.index(deep)[curves.inside(deep)]
    loss, covariance = curves.values.ravel()[places], curves.covariance[np.ix_(places, places)]
    return exceeds(-loss, covariance, int(np.argmin(loss)), -1, TURNED)


def _verdict(
    gap: Gap, interval: tuple[float, float] | None, quantile: float
) -> tuple[CrossingStatus, tuple[Because, ...]]:
    """Status, and the reasons if it is not `bracketed`."""
    positive = gap.value > 0
    changes = np.diff(positive.astype(int))
    deep_wins, none = bool(positive.all()), not changes.any()
    if interval is None:
        if not none:
            return "ambiguous", (Because(Reason.NO_NOISE),)
        return ("left_censored" if deep_wins else "right_censored"), (Because(Reason.NO_NOISE),)
    if not none and (np.count_nonzero(changes) > 1 or changes.min() < 0):
        return "ambiguous", (Because(Reason.SEVERAL_CHANGES),)
    low, high = interval
    if none:
        if interval == (-math.inf, math.inf):
            return "ambiguous", (Because(Reason.MAY_CROSS),)
        end, edge = (high, 0) if deep_wins else (low, -1)
        if math.isinf(end):
            return "ambiguous", (Because(Reason.DEEP_UNSURE if deep_wins else Reason.SHALLOW_UNSURE),)
        if abs(gap.value[edge]) <= quantile * gap.se[edge]:
            unsure = Reason.DEEP_UNSURE_AT_SMALLEST if deep_wins else Reason.SHALLOW_UNSURE_AT_LARGEST
            return "ambiguous", (Because(unsure),)
        if deep_wins:
            return "left_censored", (Because(Reason.DEEP_AHEAD),)
        return "right_censored", (Because(Reason.DEEP_BEHIND),)
    z = gap.value / gap.se
    leads = (
        (low, Reason.SMALL_LEAD_AT_SMALLEST, -float(z[0])),
        (high, Reason.SMALL_LEAD_AT_LARGEST, float(z[-1])),
    )
    faults = [Because(reason, (lead, quantile)) for end, reason, lead in leads if not math.isfinite(end)]
    open_at = np.abs(z) <= quantile
    if not faults and np.count_nonzero(np.diff(open_at.astype(int)) > 0) + int(open_at[0]) > 1:
        faults.append(Because(Reason.SEPARATE_RANGES))
    return ("ambiguous" if faults else "bracketed"), tuple(faults)


def _against(
    where: float, shallow: int, deep: int, diverged: tuple[tuple[int, float, int], ...]
) -> Because | None:
    """Why diverged shapes contradict a crossing at ln N = `where`, if they do: a model that diverges is worse there.

    The deep model must not be worse above the crossing, and the shallow one must not be worse below it.
    """
    for depth, params, runs in diverged:
        x = math.log(params)
        if (depth == deep and x > where) or (depth == shallow and x < where):
            side = Reason.DIVERGED_ABOVE if depth == deep else Reason.DIVERGED_BELOW
            return Because(side, (depth, params, runs))
    return None
