"""Power of a plan: whole studies are simulated on exactly its shapes, and analysed.

A simulated study is a run table of `analysis.design.simulated_study` with an assumed law, gaps and noise. It passes
through the pipeline of real studies (`analysis.fit.study`), so the estimate includes every
weakness of that pipeline: statuses, open intervals, noise estimated from few seeds.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.design.simulated_study import Shape, Truth, draw_curves, simulate_matched
from analysis.fit.study import Estimates, estimates_of
from analysis.intervals import Interval, width_of
from analysis.law.combined import Projection
from analysis.law.crossings import Crossing
from analysis.law.threshold import ThresholdFit, fit_threshold
from analysis.threads import single_threaded

STATUSES = ("bracketed", "left_censored", "right_censored", "ambiguous", "insufficient")
LAW_STATUSES = ("ok", "open", "not_converged", "insufficient")
#: Level of the intervals.
LEVEL = 0.95
#: Projected size over the largest size planned.
AHEAD = 10.0
#: A crossing of simulated curves is searched up to this factor beyond the sizes planned.
BEYOND = 20.0
#: Names of the changes that `compare_changes` tries, in this order.
CHANGES = ("seeds_x2", "seeds_x4", "sizes_x2", "top_x4")


@dataclass(frozen=True)
class PairPower:
    """Expected result for two neighbouring depths; shares are of the simulated studies.

    Attributes:
        shallow, deep: the pair.
        params, width: crossing by the law, as N and as the width of the shallow model.
        statuses: status of the crossing -> share.
        closed: share with an interval that has two ends.
        ratio: median of high/low of the closed intervals, in N; None where there is none.
        coverage: share of all intervals, open ones included, that contain the crossing of their study's own curves.
    """

    shallow: int
    deep: int
    params: float
    width: float
    statuses: dict[str, float]
    closed: float
    ratio: float | None
    coverage: float | None


@dataclass(frozen=True)
class LawPower:
    """Expected result for ln d = a + b·L.

    Attributes:
        a, b: true values.
        statuses: status of the law -> share of the studies.
        closed: share in which b has an interval with two ends.
        b_width: median width of the closed intervals.
        coverage: share of the intervals of b, open ones included, that contain the true b.
        ahead_params, ahead_depth: a size ten times the largest planned, and the best depth there by the true law.
        stated: share of the studies that state a best depth there, because the laws that they do not reject agree.
        band: medians of the low and of the high end of the interval of that depth, by all laws that are not rejected,
            over the studies with a law; an end is None where more than half of them are open.
    """

    a: float
    b: float
    statuses: dict[str, float]
    closed: float
    b_width: float | None
    coverage: float | None
    ahead_params: float
    ahead_depth: float
    stated: float
    band: Interval | None


@dataclass(frozen=True)
class PowerEstimate:
    """Expected result of a study if the assumptions hold.

    Attributes:
        studies, seed: number of simulated studies, and the seed of the simulation.
        level: of the intervals.
        seeds: seeds of every shape.
        crossings: of neighbouring depths.
        law: through them.
        share_error: largest standard error of a share, 1/(2·sqrt(studies)).
        b_widths: width of the interval of b in each study, infinite where it is open or there is no law.
    """

    studies: int
    seed: int
    level: float
    seeds: int
    crossings: tuple[PairPower, ...]
    law: LawPower
    share_error: float
    b_widths: tuple[float, ...]


@dataclass(frozen=True)
class Change:
    """A changed plan and its interval of b.

    Attributes:
        name: one of `CHANGES`; `words` describes it in the output.
        shapes, seeds: number of shapes, and of seeds of each.
        cost: training work over that of the plan: the sum of N over all runs, for equal tokens.
        width: median width of the interval of b, open intervals counting as infinite; None where that is infinite.
            Closed intervals alone would select lucky studies.
        closed: share of the studies with a closed interval.
        ratio: `width` over that of the plan on the same simulated studies; None where either is infinite.
        halves: the interval is at most half as wide; any finite width is, where that of the plan is infinite.
        cheapest: the cheapest change that halves it.
    """

    name: str
    words: str
    shapes: int
    seeds: int
    cost: float
    width: float | None
    closed: float
    ratio: float | None
    halves: bool
    cheapest: bool = False


@dataclass(frozen=True)
class ChangeComparison:
    """Changes of a plan, compared by the interval of b.

    Attributes:
        studies: simulated for every change, with the noise of as many studies of the plan.
        width: median width for the plan in those studies; None where infinite.
        changes: in the order tried.
    """

    studies: int
    width: float | None
    changes: tuple[Change, ...]


@single_threaded
def simulate_power(
    truth: Truth, shapes: Sequence[Shape], seeds: int, *, studies: int, seed: int = 0
) -> PowerEstimate:
    """Simulate studies of these shapes under an assumed truth; the result is a function of the arguments.

    Args:
        truth: its depths are those of the shapes, two or more.
        shapes: each (depth, width) once.
        seeds: of every shape.
        studies: number of simulated studies.
        seed: of the simulation.

    Raises:
        InputError: the truth gives a shape a loss that is not positive.
    """
    keys = [(seed, number) for number in range(studies)]
    simulated = [_simulated(truth, shapes, seeds, key) for key in keys]
    crossings = [study.crossings.items for study in simulated]
    laws = [study.laws[0] for study in simulated]
    ahead = AHEAD * max(map(_params, shapes))
    projected = [study.project(ahead) for study in simulated]
    true = [_true_crossings(truth, shapes, key) for key in keys]
    pairs = zip(
        itertools.pairwise(truth.depths), zip(*crossings, strict=True), zip(*true, strict=True), strict=True
    )
    return PowerEstimate(
        studies=studies,
        seed=seed,
        level=LEVEL,
        seeds=seeds,
        crossings=tuple(_pair(truth, *pair, found, params) for pair, found, params in pairs),
        law=_law(truth, laws, projected),
        share_error=0.5 / math.sqrt(studies),
        b_widths=tuple(_b_width(law) for law in laws),
    )


@single_threaded
def compare_changes(
    truth: Truth, shapes: Sequence[Shape], base: PowerEstimate, *, studies: int
) -> ChangeComparison:
    """Simulate more seeds, more sizes and larger sizes, and compare their intervals of b.

    Args:
        truth: as for `simulate_power`, like the following.
        shapes: of the plan.
        base: the estimate for the plan; its seeds and noise are used again.
        studies: simulated for each change, at most as many as `base` has.
    """
    count = min(studies, base.studies)
    before = _finite_median(base.b_widths[:count])
    work = math.fsum(map(_params, shapes)) * base.seeds
    tried = []
    for name, words, changed, seeds in _changes(shapes, base.seeds):
        studies_of = (_simulated(truth, changed, seeds, (base.seed, number)) for number in range(count))
        widths = [_b_width(fit_threshold(study.crossings, "log-linear")) for study in studies_of]
        width = _finite_median(widths)
        ratio = width / before if width is not None and before else None
        tried.append(
            Change(
                name=name,
                words=words,
                shapes=len(changed),
                seeds=seeds,
                cost=math.fsum(map(_params, changed)) * seeds / work,
                width=width,
                closed=float(np.isfinite(widths).mean()),
                ratio=ratio,
                halves=width is not None and (ratio is None or ratio <= 0.5),
            )
        )
    least = min((change.cost for change in tried if change.halves), default=None)
    changes = tuple(replace(change, cheapest=change.halves and change.cost == least) for change in tried)
    return ChangeComparison(count, before, changes)


def _simulated(truth: Truth, shapes: Sequence[Shape], seeds: int, key: tuple[int, int]) -> Estimates:
    """Simulate one study."""
    return estimates_of(simulate_matched(truth, shapes, seeds, key), level=LEVEL)


def _true_crossings(truth: Truth, shapes: Sequence[Shape], key: tuple[int, int]) -> list[float]:
    """N at which the curves of a simulated study cross, for each pair of neighbours."""
    sizes = [_params(shape) for shape in shapes]
    curves = draw_curves(truth, key)
    low, high = min(sizes) / BEYOND, max(sizes) * BEYOND
    return [curves.crossing(shallow, low, high) for shallow in truth.depths[:-1]]


def _pair(
    truth: Truth, shallow: int, deep: int, found: Sequence[Crossing], true: Sequence[float]
) -> PairPower:
    params = truth.crossing(shallow)
    intervals = [
        (item.params_interval, own)
        for item, own in zip(found, true, strict=True)
        if item.params_interval is not None
    ]
    ratios = [high / low for (low, high), _ in intervals if low is not None and high is not None]
    return PairPower(
        shallow=shallow,
        deep=deep,
        params=params,
        width=width_of(params, shallow),
        statuses=_shares(STATUSES, [item.status for item in found]),
        closed=len(ratios) / len(found),
        ratio=_finite_median(ratios),
        coverage=_coverage(intervals),
    )


def _law(truth: Truth, laws: Sequence[ThresholdFit], projected: Sequence[Projection]) -> LawPower:
    widths = np.array([_b_width(law) for law in laws])
    closed = widths[np.isfinite(widths)]
    return LawPower(
        a=truth.a,
        b=truth.b,
        statuses=_shares(LAW_STATUSES, [law.status for law in laws]),
        closed=len(closed) / len(laws),
        b_width=_finite_median(closed),
        coverage=_coverage([(law.b_interval, truth.b) for law in laws if law.b_interval is not None]),
        ahead_params=projected[0].params,
        ahead_depth=truth.best_depth(projected[0].params),
        stated=sum(item.depth is not None for item in projected) / len(projected),
        band=_band([item.interval for law, item in zip(laws, projected, strict=True) if law.a is not None]),
    )


def _band(intervals: Sequence[Interval]) -> Interval | None:
    """Medians of the ends; an open end counts as infinite."""
    ends = [
        (-math.inf if low is None else low, math.inf if high is None else high) for low, high in intervals
    ]
    if not ends:
        return None
    lows, highs = zip(*ends, strict=True)
    return _finite_median(lows), _finite_median(highs)


def _b_width(law: ThresholdFit) -> float:
    low, high = law.b_interval or (None, None)
    return math.inf if low is None or high is None else high - low


def _coverage(intervals: Sequence[tuple[Interval, float]]) -> float | None:
    """Share of the intervals that hold their true value."""
    held = [
        (low is None or low <= value) and (high is None or value <= high) for (low, high), value in intervals
    ]
    return sum(held) / len(held) if held else None


def _shares(names: Sequence[str], found: list[str]) -> dict[str, float]:
    return {name: found.count(name) / len(found) for name in names}


def _finite_median(values: Sequence[float]) -> float | None:
    """The median; None without values, or where it is infinite."""
    median = float(np.median(values)) if len(values) else math.inf
    return median if math.isfinite(median) else None


def _params(shape: Shape) -> float:
    """N = 12·L·d²: training work for equal tokens, up to a factor."""
    return 12.0 * shape[0] * shape[1] ** 2


def _changes(shapes: Sequence[Shape], seeds: int) -> list[tuple[str, str, list[Shape], int]]:
    """(name, words, shapes, seeds) of every change that is tried."""
    plan = list(shapes)
    step = math.gcd(*(width for _, width, _ in plan))
    denser, taller = list(plan), list(plan)
    for depth in sorted({shape[0] for shape in plan}):
        widths = sorted(width for other, width, _ in plan if other == depth)
        # Half-way in ln N between neighbours, where a whole width lies there.
        denser += [_shape(depth, math.sqrt(low * high), step) for low, high in itertools.pairwise(widths)]
        # Up to twice the largest width, as dense as before.
        spacing = math.log(widths[-1] / widths[0]) / (len(widths) - 1) if len(widths) > 1 else math.inf
        count = max(1, round(math.log(2) / spacing))
        taller += [_shape(depth, widths[-1] * 2.0 ** ((k + 1) / count), step) for k in range(count)]
    found = [
        (f"{2 * seeds} seeds for {seeds}", plan, 2 * seeds),
        (f"{4 * seeds} seeds for {seeds}", plan, 4 * seeds),
        ("sizes between all neighbours", _unique(denser), seeds),
        ("sizes up to 4 times larger", _unique(taller), seeds),
    ]
    return [(name, *change) for name, change in zip(CHANGES, found, strict=True)]


def _shape(depth: int, width: float, step: int) -> Shape:
    """The shape whose width is the multiple of `step` nearest to `width`, its budget its own N."""
    whole = step * max(1, round(width / step))
    return depth, whole, 12.0 * depth * whole**2


def _unique(shapes: list[Shape]) -> list[Shape]:
    """Each (depth, width) once: the first, which is that of the plan."""
    seen: dict[tuple[int, int], Shape] = {}
    for shape in shapes:
        seen.setdefault(shape[:2], shape)
    return list(seen.values())
