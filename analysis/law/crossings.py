"""Find the size at which a deeper model overtakes a shallower one: an interval, a bound, or no answer.

The gap of a pair is loss(shallow) - loss(deep) as a function of ln N. It is positive where the deep model is better;
the crossing is where it turns from negative to positive. The interval of the crossing is the set of N at which a gap of
zero is not rejected (Fieller's method: |gap| <= t·se). It may be closed, open on one side, or unbounded. A second
interval comes from the bootstrap. Statuses:

- `bracketed`: the gap of the curves changes sign once and upwards, the interval is closed inside the sizes measured
  (the shallow model is significantly better at the small end, the deep one at the large end), and at least 95 % of the
  bootstrap draws have exactly one sign change;
- `left_censored`: the deep model is better at every size measured, significantly at both ends; the interval has no
  lower end;
- `right_censored`: the deep model is better at no size measured, significantly at both ends; the interval has no upper
  end;
- `ambiguous`: anything between, with a `reason`; a point estimate is kept if there is one;
- `insufficient`: fewer than two sizes for a depth, or no common range.

Two sizes of a depth cannot show how its curve bends. A sign change is then `ambiguous` without a point estimate, its
interval reaches from size to size, and the pair is not used for the law (issue 15: such intervals, drawn from straight
lines, held the crossing in 0 to 42 % of simulated studies).

Without a noise estimate there is no test and no interval: a sign change is then `ambiguous`, and a constant sign is
`left_censored` or `right_censored` by the sign alone, always with the reason "no noise estimate".
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from analysis.curves.curves import Curves
from analysis.curves.noise import Floats
from analysis.intervals import Interval, between, params_interval, params_of, width_of

Status = Literal["bracketed", "left_censored", "right_censored", "ambiguous", "insufficient"]

#: Share of draws that must have exactly one sign change.
SHARE_ONE = 0.95
#: Steps of ln N at which a gap is computed; between them it is linear.
STEPS = 200
#: Fewest sizes of a depth for a crossing between them.
LEAST_SIZES = 3
#: Difference in ln N up to which a size counts as measured at an end of a range.
NEAR_END = 0.1
#: Standard errors at which a size is significant for `first_significant`.
Z_SIGNIFICANT = 2.0

#: Factor on the quantile for a fall of the gap from its maximum, whose place is chosen by the data.
TURNED = 1.2

NO_NOISE = "no noise estimate"


@dataclass(frozen=True)
class FirstSignificant:
    """The estimator of Levine et al. 2020: a width of the shallow model with its error, and N at that width.

    The middle between the first size where the shallow model is significantly worse and the size to its left; the
    distance between the two is its error.
    """

    width: float
    error: float
    params: float


@dataclass(frozen=True)
class Crossing:
    """The crossing of one pair of depths.

    Attributes:
        adjacent: no depth of the study lies between them.
        params, params_interval: N at the crossing; an end is None if it lies outside the sizes measured.
        width, width_interval: of the shallow model at the crossing, sqrt(N / (12·L_shallow)).
        bootstrap_interval: of N, percentiles of the draws: a second method, for comparison.
        range: smallest and largest N measured for both.
        gap_small, gap_large: nats at the ends of the range; z_small, z_large: over their standard errors.
        draws_one, draws_none, draws_several: shares of the bootstrap draws by their number of sign changes; `several`
            includes a single change in the reversed order.
        delta: a relative gap; delta_params, delta_interval, delta_status: the N at which the deep model is better by
            that share of the shallow model's loss. It is better determined than the crossing at zero, where two curves
            may be nearly parallel.
        first_significant: the estimator of the paper; None if no size is significant.
        diverged: (depth, N, runs) of shapes of the pair whose runs all diverged.
        contradicted: one of these lies on the wrong side of the crossing, which is then not used for the law.
        turns_back: the deep model leads and the gap falls again significantly at the largest sizes, or its loss
            rises. The deep model may be trained too little there, so nothing should be projected from the crossing.
    """

    shallow: int
    deep: int
    adjacent: bool
    status: Status
    reason: str | None = None
    params: float | None = None
    params_interval: Interval | None = None
    width: float | None = None
    width_interval: Interval | None = None
    bootstrap_interval: Interval | None = None
    range: tuple[float, float] | None = None
    gap_small: float | None = None
    gap_large: float | None = None
    z_small: float | None = None
    z_large: float | None = None
    draws_one: float | None = None
    draws_none: float | None = None
    draws_several: float | None = None
    delta: float | None = None
    delta_params: float | None = None
    delta_interval: Interval | None = None
    delta_status: Status | None = None
    first_significant: FirstSignificant | None = None
    diverged: tuple[tuple[int, float, int], ...] = ()
    contradicted: bool = False
    turns_back: bool = False

    @property
    def middle(self) -> float:
        """The depth between the two to which the crossing belongs."""
        return between(self.shallow, self.deep)


@dataclass(frozen=True)
class Gap:
    """loss(shallow)·(1 - δ) - loss(deep) on a grid of the common range.

    Attributes:
        x: ln N of the grid.
        value, se: in nats per token; `se` is NaN if the noise is not known.
        jacobian: (grid, parameters of the curves).
    """

    x: Floats
    value: Floats
    se: Floats
    jacobian: Floats


@dataclass(frozen=True)
class Crossings:
    """All pairs with their gaps.

    Attributes:
        items, gaps: one of each per pair; the gap of a pair that is insufficient or has a depth of two sizes is None.
        covariance: of the parameters of the curves, which the gaps share.
        quantile: of Student's t at `level`, with the degrees of freedom of the noise; NaN if that is not known.
        dof: degrees of freedom of the noise.
    """

    items: tuple[Crossing, ...]
    gaps: tuple[Gap | None, ...]
    covariance: Floats
    quantile: float
    level: float
    dof: float = math.inf


@dataclass(frozen=True)
class Roots:
    """Sign changes of piecewise linear gaps, one entry per row of the input."""

    #: The last upward crossing; -inf positive everywhere, +inf otherwise.
    x: Floats
    #: Exactly one sign change, and that upward; no sign change.
    one: npt.NDArray[np.bool_]
    none: npt.NDArray[np.bool_]


def gap_of(curves: Curves, shallow: int, deep: int) -> Gap | None:
    """The gap of a pair, or None if the pair has no common range or a depth has only one size."""
    return next(iter(_gaps_of(curves, shallow, deep, (0.0,))), None)


def _gaps_of(curves: Curves, shallow: int, deep: int, deltas: tuple[float, ...]) -> list[Gap]:
    """The gaps of a pair at several δ, from one evaluation of the curves; empty if there is no gap."""
    (one, end), (other, last) = curves.range(shallow), curves.range(deep)
    low, high = max(one, other), min(end, last)
    if not low < high or min(len(curves.at(shallow)), len(curves.at(deep))) < 2:
        return []
    x = np.linspace(low, high, STEPS + 1)
    (ours, our_slopes), (theirs, their_slopes) = curves.both(shallow, x), curves.both(deep, x)
    found = []
    for delta in deltas:
        jacobian = (1 - delta) * our_slopes - their_slopes
        variance = np.vecdot(jacobian @ curves.covariance, jacobian)
        found.append(Gap(x, (1 - delta) * ours - theirs, np.sqrt(np.maximum(variance, 0)), jacobian))
    return found


def roots(x: Floats, gaps: Floats) -> Roots:
    """Find where piecewise linear functions through (x, gaps) change sign; `gaps` is (rows, len(x)).

    A gap of exactly zero counts as not positive.
    """
    positive = gaps > 0
    up = ~positive[:, :-1] & positive[:, 1:]
    down = positive[:, :-1] & ~positive[:, 1:]
    ups, downs = up.sum(axis=1), down.sum(axis=1)
    last = up.shape[1] - 1 - np.argmax(up[:, ::-1], axis=1)
    rows = np.arange(len(gaps))
    left, right = gaps[rows, last], gaps[rows, last + 1]
    rise = np.where(ups > 0, right - left, 1.0)
    root = x[last] + (x[last + 1] - x[last]) * (-left / rise)
    outside = np.where(positive.all(axis=1), -np.inf, np.inf)
    return Roots(np.where(ups > 0, root, outside), (ups == 1) & (downs == 0), (ups == 0) & (downs == 0))


def inverted_test(gap: Gap, quantile: float) -> tuple[float, float]:
    """The interval of ln N in which a gap of zero is not rejected (Fieller's method).

    The hull of {x: |gap| <= t·se}; an end is infinite if the gap at that end of the range does not exceed t·se on the
    side that closes the interval.
    """
    z = np.divide(gap.value, gap.se, out=np.where(gap.value > 0, np.inf, -np.inf), where=gap.se > 0)
    shallow_first, deep_last = z[0] < -quantile, z[-1] > quantile
    low = _passes(gap.x, z + quantile, first=True) if shallow_first else -math.inf
    high = _passes(gap.x, z - quantile, first=False) if deep_last else math.inf
    if not shallow_first and z[0] > quantile and np.all(z > quantile):
        return -math.inf, float(gap.x[0])
    if not deep_last and z[-1] < -quantile and np.all(z < -quantile):
        return float(gap.x[-1]), math.inf
    return low, high


def _passes(x: Floats, values: Floats, *, first: bool) -> float:
    """The first or the last place where straight lines through (x, values) turn positive."""
    up = np.flatnonzero((values[:-1] <= 0) & (values[1:] > 0))
    if not len(up):
        return math.inf if first else -math.inf
    k = int(up[0] if first else up[-1])
    left, right = float(values[k]), float(values[k + 1])
    share = 0.5 if not math.isfinite(right - left) else -left / (right - left)
    return float(x[k] + share * (x[k + 1] - x[k]))


def find_crossings(
    curves: Curves,
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    delta: float | None = 0.005,
    diverged: tuple[tuple[int, float, int], ...] = (),
    neighbours: bool = False,
) -> Crossings:
    """Find the crossing of every pair of depths.

    Args:
        curves: see `analysis.curves.curves`.
        level: of the intervals.
        draws: of the bootstrap.
        seed: of the bootstrap.
        delta: relative gap of the second crossing, if any.
        diverged: (depth, N, runs) of shapes whose runs all diverged.
        neighbours: only pairs of adjacent depths, which are sufficient for a law.
    """
    depths, known = curves.depths, curves.noise.known
    size = curves.size
    moves = curves.draws(draws, np.random.default_rng(seed)) if known else np.empty((0, size))
    quantile = float(student.ppf((1 + level) / 2, curves.dof)) if known else math.nan
    items, gaps = [], []
    for shallow, deep in itertools.pairwise(depths) if neighbours else itertools.combinations(depths, 2):
        adjacent = depths.index(deep) == depths.index(shallow) + 1
        both = _gaps_of(curves, shallow, deep, (0.0,) if delta is None else (0.0, delta))
        few = _few_sizes(curves, shallow, deep)
        sure = few is None or _measured_at_ends(curves, shallow, deep)
        gaps.append(both[0] if both and few is None else None)
        if not both:
            items.append(_insufficient(curves, shallow, deep, adjacent))
            continue
        lost = tuple(item for item in diverged if item[0] in (shallow, deep))
        first = first_significant(curves, shallow, deep)
        item = Crossing(shallow, deep, adjacent, "insufficient", first_significant=first, diverged=lost)
        item = _classify(item, _read(both[0], moves, quantile, few, sure=sure), level)
        if delta is not None:
            again = _read(both[1], moves, quantile, few, sure=sure)
            item = replace(
                item,
                delta=delta,
                delta_params=again.params,
                delta_interval=params_interval(again.interval),
                delta_status=again.status,
            )
        items.append(replace(item, turns_back=_turns_back(curves, deep, both[0], quantile)))
    covariance = curves.covariance if known else np.full((size, size), np.nan)
    return Crossings(tuple(items), tuple(gaps), covariance, quantile, level, curves.dof)


def _insufficient(curves: Curves, shallow: int, deep: int, adjacent: bool) -> Crossing:
    few = [depth for depth in (shallow, deep) if len(curves.at(depth)) < 2]
    reason = (
        f"depth {few[0]} has only {len(curves.at(few[0]))} size; a curve needs two"
        if few
        else "the two depths have no common range of N"
    )
    return Crossing(shallow, deep, adjacent, "insufficient", reason)


@dataclass(frozen=True)
class _Reading:
    """What one gap gives: ln N of its zero, N there if it is an estimate, draws, interval (None: no noise), status."""

    gap: Gap
    x: float
    params: float | None
    drawn: Roots
    interval: tuple[float, float] | None
    status: Status
    reason: str | None


def _read(gap: Gap, moves: Floats, quantile: float, few: str | None, *, sure: bool) -> _Reading:
    """What a gap gives; `few` is why the pair has no crossing, `sure` whether the ends of the gap are measured."""
    point = roots(gap.x, gap.value[None, :])
    drawn = roots(gap.x, gap.value + moves @ gap.jacobian.T)
    interval = inverted_test(gap, quantile) if len(moves) else None
    status, reason = _verdict(point, gap, drawn, interval, quantile)
    x = float(point.x[0])
    params = params_of(x)
    if few and (status in ("bracketed", "ambiguous") or not sure):
        status, reason, params = "ambiguous", few, None
        if interval is not None:
            low, high = (
                end if math.isinf(end) else edge for end, edge in zip(interval, gap.x[[0, -1]], strict=True)
            )
            interval = float(low), float(high)
    return _Reading(gap, x, params, drawn, interval, status, reason)


def _few_sizes(curves: Curves, shallow: int, deep: int) -> str | None:
    """Why a pair cannot have a crossing between its sizes, if it cannot."""
    few = [depth for depth in (shallow, deep) if len(curves.at(depth)) < LEAST_SIZES]
    if not few:
        return None
    return (
        f"depth {few[0]} has only {len(curves.at(few[0]))} sizes, and a crossing needs {LEAST_SIZES}, because two do "
        "not show how a curve bends"
    )


def _measured_at_ends(curves: Curves, shallow: int, deep: int) -> bool:
    """Whether both depths have a size near each end of their common range.

    Between two sizes far apart a straight line replaces a curve, and its error is not in the interval.
    """
    ranges = [curves.range(depth) for depth in (shallow, deep)]
    low, high = max(first for first, _ in ranges), min(last for _, last in ranges)
    sizes = [curves.x[curves.at(depth)] for depth in (shallow, deep)]
    return all(float(np.abs(own - end).min()) <= NEAR_END for own in sizes for end in (low, high))


def _turns_back(curves: Curves, deep: int, gap: Gap, quantile: float) -> bool:
    """See `Crossing.turns_back`; False without a noise estimate, or with two sizes."""
    if not math.isfinite(quantile) or len(curves.at(deep)) < LEAST_SIZES:
        return False

    def exceeds(value: Floats, slopes: Floats, first: int, second: int, times: float) -> bool:
        """Whether the first place is significantly above the second."""
        move = slopes[first] - slopes[second]
        error = math.sqrt(max(float(move @ curves.covariance @ move), 0.0))
        return bool(value[first] - value[second] > times * quantile * error > 0)

    top = int(np.argmax(gap.value))
    # A gap that is largest at the smallest size only decays, as between curves of the same asymptote.
    leads = gap.value[top] > quantile * gap.se[top] and exceeds(gap.value, gap.jacobian, top, 0, 1.0)
    if leads and exceeds(gap.value, gap.jacobian, top, -1, TURNED):
        return True
    loss, jacobian = curves.both(deep, np.linspace(*curves.range(deep), STEPS + 1))
    return exceeds(-loss, jacobian, int(np.argmin(loss)), -1, TURNED)


def _classify(item: Crossing, found: _Reading, level: float) -> Crossing:
    """`item` with its crossing."""
    gap, drawn, known = found.gap, found.drawn, found.interval is not None
    status, reason = found.status, found.reason
    against = _against(found.x, item)
    if against and status != "ambiguous":
        status, reason = "ambiguous", against
    params, ends = found.params, params_interval(found.interval)

    def width(size: float | None) -> float | None:
        return None if size is None else width_of(size, item.shallow)

    return replace(
        item,
        status=status,
        reason=reason,
        params=params,
        params_interval=ends,
        width=width(params),
        width_interval=None if ends is None else (width(ends[0]), width(ends[1])),
        bootstrap_interval=params_interval(percentiles(drawn.x, level)) if known else None,
        range=(math.exp(gap.x[0]), math.exp(gap.x[-1])),
        gap_small=float(gap.value[0]),
        gap_large=float(gap.value[-1]),
        z_small=float(gap.value[0] / gap.se[0]) if known else None,
        z_large=float(gap.value[-1] / gap.se[-1]) if known else None,
        draws_one=float(drawn.one.mean()) if known else None,
        draws_none=float(drawn.none.mean()) if known else None,
        draws_several=float((~drawn.one & ~drawn.none).mean()) if known else None,
        contradicted=against is not None,
    )


def first_significant(curves: Curves, shallow: int, deep: int) -> FirstSignificant | None:
    """The paper's own estimator, from points joined by straight lines; None if no size is significant.

    Levine et al. 2020, section 5.1. More seeds make smaller gaps significant, so it also depends on their number.
    """
    if curves.noise.source != "seeds":
        return None
    ours, theirs = curves.at(shallow), curves.at(deep)
    x = curves.x[ours]
    inside = (x >= curves.x[theirs][0] - 1e-9) & (x <= curves.x[theirs][-1] + 1e-9)
    gap = curves.mean[ours] - np.interp(x, curves.x[theirs], curves.mean[theirs])
    se = np.hypot(curves.se[ours], np.interp(x, curves.x[theirs], curves.se[theirs]))
    worse = np.flatnonzero(inside & (gap > Z_SIGNIFICANT * se))
    if not len(worse) or worse[0] == 0:
        return None
    widths = np.sqrt(np.exp(x[[worse[0] - 1, worse[0]]]) / (12 * shallow))
    width = float(widths.mean())
    return FirstSignificant(width, float(np.diff(widths)[0]), 12 * shallow * width**2)


def _verdict(
    point: Roots, gap: Gap, drawn: Roots, interval: tuple[float, float] | None, quantile: float
) -> tuple[Status, str | None]:
    """Status, and the reason if it is not `bracketed`."""
    one, none, deep_wins = bool(point.one[0]), bool(point.none[0]), point.x[0] == -np.inf
    if interval is None:
        if not none:
            return "ambiguous", NO_NOISE
        return ("left_censored" if deep_wins else "right_censored"), NO_NOISE
    if not one and not none:
        return "ambiguous", "the curves change sign several times, or in the reverse order"
    low, high = interval
    if none:
        if interval == (-math.inf, math.inf):
            return "ambiguous", "the curves do not cross, but within the noise they might on either side"
        if deep_wins:
            if high == math.inf:
                return "ambiguous", "the deep model is better everywhere, but not beyond the noise"
            if gap.value[0] <= quantile * gap.se[0]:
                return (
                    "ambiguous",
                    "the deep model is better everywhere, but not beyond the noise at the smallest size",
                )
            return "left_censored", "the deep model is better at every size measured"
        if low == -math.inf:
            return "ambiguous", "the shallow model is better everywhere, but not beyond the noise"
        if -gap.value[-1] <= quantile * gap.se[-1]:
            return (
                "ambiguous",
                "the shallow model is better everywhere, but not beyond the noise at the largest size",
            )
        return "right_censored", "the deep model is better at no size measured"
    z = gap.value / gap.se
    faults = [
        f"at the {size} common N the {model} model leads by only {lead:.1f} standard errors ({quantile:.1f} are needed)"
        for end, size, model, lead in ((low, "smallest", "shallow", -z[0]), (high, "largest", "deep", z[-1]))
        if not math.isfinite(end)
    ]
    share = float(drawn.one.mean())
    if not faults and share < SHARE_ONE:
        faults.append(f"only {share:.0%} of the draws have exactly one sign change")
    return ("ambiguous", "; ".join(faults)) if faults else ("bracketed", None)


def _against(where: float, item: Crossing) -> str | None:
    """Why diverged shapes contradict a crossing at ln N = `where`, if they do: a model that diverges is worse there.

    The deep model must not be worse above the crossing, and the shallow one must not be worse below it.
    """
    for depth, params, runs in item.diverged:
        x = math.log(params)
        if (depth == item.deep and x > where) or (depth == item.shallow and x < where):
            side = "above" if depth == item.deep else "below"
            every = "its only run" if runs == 1 else f"all {runs} runs"
            return f"depth {depth} diverged at N = {params:,.0f} ({every}), {side} the crossing of the others"
    return None


def percentiles(values: Floats, level: float) -> tuple[float, float]:
    """The central `level` of the draws."""
    # `inverted_cdf` picks a draw and never averages one with an infinity.
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)
