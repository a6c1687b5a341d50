"""Power of a plan: whole studies are simulated on exactly its shapes, and analysed.

A simulated study is a run table of `analysis.design.simulated_study` with an assumed law, gaps and noise. It passes
through the pipeline of real studies (`analysis.fit.study`), so the estimate includes every weakness of that pipeline:
statuses, open intervals, noise estimated from few seeds.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.design.simulated_study import Shape, Truth, draw_curves, simulate_matched
from analysis.fit.study import Estimates, estimates_of
from analysis.intervals import Interval, ends_of, width_of
from analysis.law.crossings import Crossing
from analysis.law.threshold import fit_threshold
from analysis.law.threshold_law import ThresholdLaw
from analysis.threads import single_threaded

STATUSES = ("bracketed", "left_censored", "right_censored", "ambiguous", "insufficient")
LAW_STATUSES = ("ok", "open", "not_converged", "insufficient")
#: Level of the intervals.
LEVEL = 0.95
#: Projected size over the largest size planned.
AHEAD = 10.0


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
class PowerEstimate:
    """Expected result of a study if the assumptions hold.

    Attributes:
        studies, seed: number of simulated studies, and the seed of the simulation.
        seeds: seeds of every shape.
        crossings: of neighbouring depths.
        statuses: status of the law -> share of the studies.
        b_widths: width of the interval of b in each study, infinite where it is open or there is no law.
        b_width: median width of the closed intervals.
        b_coverage: share of the intervals of b, open ones included, that contain the true b.
        ahead_params, ahead_depth: a size ten times the largest planned, and the best depth there by the true law.
        stated: share of the studies that state a best depth there, because the laws that they do not reject agree.
        band: medians of the low and of the high end of the interval of that depth, by all laws that are not rejected,
            over the studies with a law; an end is None where more than half of them are open.
    """

    studies: int
    seed: int
    seeds: int
    crossings: tuple[PairPower, ...]
    statuses: dict[str, float]
    b_widths: tuple[float, ...]
    b_width: float | None
    b_coverage: float | None
    ahead_params: float
    ahead_depth: float
    stated: float
    band: Interval | None


@dataclass(frozen=True)
class Change:
    """A plan with more seeds or sizes, or as it is.

    Attributes:
        words: what is changed.
        shapes, seeds: number of shapes, and of seeds of each.
        cost: training work over that of the plan: the sum of N over all runs, for equal tokens.
        width: median width of the interval of b, open intervals counting as infinite; None where that is infinite.
            Closed intervals alone would select lucky studies.
        closed: share of the studies with a closed interval.
    """

    words: str
    shapes: int
    seeds: int
    cost: float
    width: float | None
    closed: float


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
    curves = [draw_curves(truth, key) for key in keys]
    laws = [study.laws[0] for study in simulated]
    ahead = AHEAD * truth.layer_weights * max(map(_work, shapes))
    projected = [study.predict(ahead) for study in simulated]
    widths = [_b_width(law) for law in laws]
    bands = [
        ends_of(item.depth_interval) for law, item in zip(laws, projected, strict=True) if law.a is not None
    ]
    lows, highs = zip(*bands, strict=True) if bands else ((), ())
    pairs = zip(truth.depths, zip(*(study.crossings.items for study in simulated), strict=True), strict=False)
    return PowerEstimate(
        studies=studies,
        seed=seed,
        seeds=seeds,
        crossings=tuple(
            _pair(truth, occurred, [curve.crossing(shallow) for curve in curves])
            for shallow, occurred in pairs
        ),
        statuses=_shares(LAW_STATUSES, [law.status for law in laws]),
        b_widths=tuple(widths),
        b_width=_finite_median([width for width in widths if math.isfinite(width)]),
        b_coverage=_coverage([(law.b_interval, truth.b) for law in laws]),
        ahead_params=ahead,
        ahead_depth=truth.best_depth(ahead),
        stated=sum(item.depth is not None for item in projected) / studies,
        band=(_finite_median(lows), _finite_median(highs)) if bands else None,
    )


@single_threaded
def compare_changes(
    truth: Truth, shapes: Sequence[Shape], base: PowerEstimate, *, studies: int
) -> tuple[Change, ...]:
    """Compare the interval of b with those of twice the seeds and of about twice the sizes.

    Args:
        truth: as for `simulate_power`, like the following.
        shapes: of the plan.
        base: the estimate for the plan, which is the first result; its noise is used again.
        studies: simulated for each change, at most as many as `base` has.
    """
    count, plan = min(studies, base.studies), list(shapes)
    work = math.fsum(map(_work, plan)) * base.seeds

    def change(words: str, changed: list[Shape], seeds: int, widths: Sequence[float]) -> Change:
        cost = math.fsum(map(_work, changed)) * seeds / work
        closed = float(np.isfinite(widths).mean())
        return Change(words, len(changed), seeds, cost, _finite_median(widths), closed)

    estimates = [change("the plan", plan, base.seeds, base.b_widths[:count])]
    for words, changed, seeds in (
        (f"{2 * base.seeds} seeds for {base.seeds}", plan, 2 * base.seeds),
        ("sizes between all neighbours", _denser(plan, truth.layer_weights), base.seeds),
    ):
        studies_of = (_simulated(truth, changed, seeds, (base.seed, number)) for number in range(count))
        widths = [_b_width(fit_threshold(study.crossings, "log-linear")) for study in studies_of]
        estimates.append(change(words, changed, seeds, widths))
    return tuple(estimates)


def _simulated(truth: Truth, shapes: Sequence[Shape], seeds: int, key: tuple[int, int]) -> Estimates:
    """Simulate one study."""
    return estimates_of(simulate_matched(truth, shapes, seeds, key), level=LEVEL)


def _pair(truth: Truth, crossings: Sequence[Crossing], true: Sequence[float]) -> PairPower:
    shallow, params = crossings[0].shallow, truth.crossing(crossings[0].shallow)
    intervals = [ends_of(item.params_interval) for item in crossings]
    ratios = [high / low for low, high in intervals if math.isfinite(high - low)]
    return PairPower(
        shallow=shallow,
        deep=crossings[0].deep,
        params=params,
        width=width_of(params, shallow, truth.layer_weights),
        statuses=_shares(STATUSES, [item.status for item in crossings]),
        closed=len(ratios) / len(crossings),
        ratio=_finite_median(ratios),
        coverage=_coverage(
            [(item.params_interval, value) for item, value in zip(crossings, true, strict=True)]
        ),
    )


def _b_width(law: ThresholdLaw) -> float:
    low, high = ends_of(law.b_interval)
    return high - low


def _coverage(intervals: Sequence[tuple[Interval | None, float]]) -> float | None:
    """Share of the intervals that hold their true value; None without an interval."""
    both = [(ends_of(interval), value) for interval, value in intervals if interval is not None]
    return sum(low <= value <= high for (low, high), value in both) / len(both) if both else None


def _shares(names: Sequence[str], occurred: list[str]) -> dict[str, float]:
    return {name: occurred.count(name) / len(occurred) for name in names}


def _finite_median(values: Sequence[float]) -> float | None:
    """The median; None without values, or where it is infinite."""
    median = float(np.median(values)) if len(values) else math.inf
    return median if math.isfinite(median) else None


def _work(shape: Shape) -> float:
    """L·d²: N, and training work for equal tokens, up to a factor."""
    return float(shape[0] * shape[1] ** 2)


def _denser(plan: list[Shape], layer_weights: float) -> list[Shape]:
    """The shapes, and those half-way in ln N between neighbours of a depth where another multiple of the step lies."""
    step = math.gcd(*(width for _, width, _ in plan))
    by_shape = {shape[:2]: shape for shape in plan}
    for (depth, low, _), (other, high, _) in itertools.pairwise(sorted(plan)):
        width = step * max(1, round(math.sqrt(low * high) / step))
        if other == depth:
            by_shape.setdefault((depth, width), (depth, width, layer_weights * depth * width**2))
    return list(by_shape.values())
