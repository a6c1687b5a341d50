"""Where a deeper net overtakes a shallower one: an interval, or a bound, or an honest "not identified".

The gap of a pair is loss(shallow) - loss(deep) as a function of ln N, positive where the deep net is better;
the crossing is where it goes from negative to positive. Statuses:

- `bracketed`: the shallow net is better by 2 standard errors at the small end of the common range, the deep
  one by 2 at the large end, at least 95 % of the bootstrap draws have exactly one sign change, and both ends
  of the interval lie inside the range;
- `left_censored`: the deep net is better everywhere measured, so the crossing lies below; the interval has no
  lower end;
- `right_censored`: the deep net is better nowhere measured; the interval has no upper end;
- `ambiguous`: anything between; `reason` says what is lacking, a point estimate is kept where there is one;
- `insufficient`: fewer than two sizes for a depth, or no common range.

With one seed there is no noise estimate, so no test and no interval: a sign change is then `ambiguous` and a
constant sign is `left_censored` or `right_censored` by sign alone, always with the reason "one seed: no noise
estimate".
"""

import itertools
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from analysis.curves import Curves, Floats, overlap

Status = Literal["bracketed", "left_censored", "right_censored", "ambiguous", "insufficient"]
Interval = tuple[float | None, float | None]

#: |z| that each end of the range needs, and the share of draws that must have exactly one sign change.
Z_ENDS = 2.0
SHARE_ONE = 0.95

ONE_SEED = "one seed: no noise estimate"


@dataclass(frozen=True)
class Crossing:
    """The crossing of one pair of depths.

    Attributes:
        shallow, deep: the two depths.
        adjacent: no depth of the study lies between them.
        params, params_interval: N at the crossing; an end is None where it lies outside what was measured.
        width, width_interval: of the shallow net at the crossing, sqrt(N / (12·L_shallow)).
        range: smallest and largest N measured for both.
        z_small, z_large: gap over its standard error at the ends of the range.
        draws_one, draws_none, draws_several: shares of the bootstrap draws by their number of sign changes;
            `several` includes the reversed order, where only the deep net's win ends.
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
    range: tuple[float, float] | None = None
    gap_small: float | None = None
    gap_large: float | None = None
    z_small: float | None = None
    z_large: float | None = None
    draws_one: float | None = None
    draws_none: float | None = None
    draws_several: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Crossing":
        """The inverse of `to_json`; keys of a later version are ignored."""
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        for name in ("params_interval", "width_interval", "range"):
            if known.get(name) is not None:
                known[name] = tuple(known[name])
        return cls(**{"adjacent": True, **known})


@dataclass(frozen=True)
class Crossings:
    """All pairs, and the bootstrap draws of ln N at each crossing for whatever is fitted through them.

    `draws` is (draws, pairs) in the order of `items`: -inf where the deep net wins everywhere in that draw,
    +inf where it wins nowhere; it has no rows when there is no noise estimate.
    """

    items: tuple[Crossing, ...]
    draws: Floats


@dataclass(frozen=True)
class Gap:
    """loss(shallow) - loss(deep) at the knots of both curves over their common range.

    Attributes:
        x: ln N of the knots.
        value: gap in nats a token.
        se: its standard error (NaN when the noise is not known).
        weights: (knots, points): `value = weights @ mean`.
    """

    x: Floats
    value: Floats
    se: Floats
    weights: Floats


@dataclass(frozen=True)
class Roots:
    """Sign changes of piecewise linear gaps, one entry a row of the input.

    Attributes:
        x: last upward crossing; -inf positive everywhere, +inf otherwise.
        one, none: exactly one sign change and that upward; no sign change.
    """

    x: Floats
    one: npt.NDArray[np.bool_]
    none: npt.NDArray[np.bool_]


def gap_of(curves: Curves, shallow: int, deep: int) -> Gap | None:
    """The gap of a pair, or None where the pair has no common range of at least two knots."""
    low, high = overlap(curves, (shallow, deep))
    if not low < high or min(len(curves.at(shallow)), len(curves.at(deep))) < 2:
        return None
    both = np.concatenate([curves.x[curves.at(shallow)], curves.x[curves.at(deep)]])
    x = np.unique(np.clip(both, low, high))
    weights = curves.weights(shallow, x) - curves.weights(deep, x)
    variance = np.einsum("kp,pq,kq->k", weights, curves.covariance, weights)
    return Gap(x, weights @ curves.mean, np.sqrt(np.maximum(variance, 0)), weights)


def roots(x: Floats, gaps: Floats) -> Roots:
    """Where piecewise linear functions through (x, gaps) change sign; `gaps` is (rows, len(x)).

    A gap of exactly zero counts as not positive: the deep net has overtaken only once it is better.
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


def find_crossings(curves: Curves, *, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Crossings:
    """Every pair of depths, adjacent pairs flagged.

    Args:
        curves: see `analysis.curves`.
        level: of the intervals.
        draws: of the bootstrap over seeds; all pairs share the draws, so that what is fitted through several
            crossings knows their correlation.
        seed: of the bootstrap.
    """
    depths = curves.depths
    means = (
        curves.draws(draws, np.random.default_rng(seed))
        if curves.noise.known
        else np.empty((0, len(curves.mean)))
    )
    items, columns = [], []
    for shallow, deep in itertools.combinations(depths, 2):
        adjacent = depths.index(deep) == depths.index(shallow) + 1
        gap = gap_of(curves, shallow, deep)
        if gap is None:
            items.append(_insufficient(curves, shallow, deep, adjacent))
            columns.append(np.full(len(means), np.nan))
            continue
        drawn = roots(gap.x, means @ gap.weights.T)
        items.append(_classify(shallow, deep, adjacent, gap, drawn, level))
        columns.append(drawn.x)
    return Crossings(tuple(items), np.column_stack(columns) if columns else np.empty((len(means), 0)))


def _insufficient(curves: Curves, shallow: int, deep: int, adjacent: bool) -> Crossing:
    few = [depth for depth in (shallow, deep) if len(curves.at(depth)) < 2]
    reason = (
        f"depth {few[0]} has only {len(curves.at(few[0]))} size; a curve needs two"
        if few
        else "the two depths have no common range of N"
    )
    return Crossing(shallow, deep, adjacent, "insufficient", reason)


def _classify(shallow: int, deep: int, adjacent: bool, gap: Gap, drawn: Roots, level: float) -> Crossing:
    point = roots(gap.x, gap.value[None, :])
    where = float(point.x[0])
    known = len(drawn.x) > 0
    z = gap.value / gap.se if known else np.full_like(gap.value, np.nan)
    interval = _interval(drawn.x, level) if known else None
    status, reason = _verdict(point, z, drawn, interval, known)
    if known and status == "left_censored":
        # All draws below the range: what is known is that the crossing lies below its small end.
        high = interval[1] if interval and math.isfinite(interval[1]) else float(gap.x[0])
        interval = (-math.inf, high)
    if known and status == "right_censored":
        low = interval[0] if interval and math.isfinite(interval[0]) else float(gap.x[-1])
        interval = (low, math.inf)
    params_interval = None if interval is None else (_params(interval[0]), _params(interval[1]))
    return Crossing(
        shallow=shallow,
        deep=deep,
        adjacent=adjacent,
        status=status,
        reason=reason,
        params=_params(where),
        params_interval=params_interval,
        width=_width(_params(where), shallow),
        width_interval=None
        if params_interval is None
        else (_width(params_interval[0], shallow), _width(params_interval[1], shallow)),
        range=(math.exp(gap.x[0]), math.exp(gap.x[-1])),
        gap_small=float(gap.value[0]),
        gap_large=float(gap.value[-1]),
        z_small=float(z[0]) if known else None,
        z_large=float(z[-1]) if known else None,
        draws_one=float(drawn.one.mean()) if known else None,
        draws_none=float(drawn.none.mean()) if known else None,
        draws_several=float((~drawn.one & ~drawn.none).mean()) if known else None,
    )


def _verdict(
    point: Roots, z: Floats, drawn: Roots, interval: tuple[float, float] | None, known: bool
) -> tuple[Status, str | None]:
    """Status and, where it is not `bracketed`, a sentence why."""
    one, none, deep_wins = bool(point.one[0]), bool(point.none[0]), point.x[0] == -np.inf
    if not known or interval is None:
        if not none:
            return "ambiguous", ONE_SEED
        return ("left_censored" if deep_wins else "right_censored"), ONE_SEED
    if not one and not none:
        return "ambiguous", "the mean curves change sign several times, or in the reverse order"
    if none:
        if interval == (-math.inf, math.inf):
            return "ambiguous", "the mean curves do not cross, but within the noise they might on either side"
        if deep_wins:
            if interval[1] == math.inf:
                return "ambiguous", "deep is ahead everywhere, but not beyond the noise"
            return "left_censored", "the deep net is better at every size measured"
        if interval[0] == -math.inf:
            return "ambiguous", "shallow is ahead everywhere, but not beyond the noise"
        return "right_censored", "the deep net is better at no size measured"
    faults = []
    if z[0] > -Z_ENDS:
        faults.append(f"at the smallest common N the shallow net leads by only {-z[0]:.1f} standard errors")
    if z[-1] < Z_ENDS:
        faults.append(f"at the largest common N the deep net leads by only {z[-1]:.1f} standard errors")
    share = float(drawn.one.mean())
    if share < SHARE_ONE:
        faults.append(f"only {share:.0%} of the draws have exactly one sign change")
    if not (math.isfinite(interval[0]) and math.isfinite(interval[1])):
        faults.append("the interval is not closed inside the sizes measured")
    return ("ambiguous", "; ".join(faults)) if faults else ("bracketed", None)


def _interval(values: Floats, level: float) -> tuple[float, float]:
    # `inverted_cdf` picks a draw and never averages one with an infinity.
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)


def _params(x: float) -> float | None:
    return math.exp(x) if math.isfinite(x) else None


def _width(params: float | None, depth: int) -> float | None:
    return None if params is None else math.sqrt(params / (12 * depth))
