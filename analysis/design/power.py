"""Power of a plan: whole studies are simulated on exactly its shapes, and analysed.

A simulated study is a run table of `analysis.design.simulated_study` with an assumed law, gaps and noise. It passes
through the pipeline of real studies (`build_curves`, `find_crossings`, `fit_threshold`), so the estimate includes every
weakness of that pipeline: statuses, open intervals, noise estimated from few seeds.

`simulate_power` estimates how often each crossing is found and how wide its interval and those of the law are;
`compare_changes` simulates changes of the plan and compares their intervals of b and their costs.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.curves.curves import build_curves
from analysis.curves.noise import Floats
from analysis.design.simulated_study import Truth, simulate_matched
from analysis.intervals import Interval
from analysis.law.crossings import Crossing, find_crossings
from analysis.law.projection import law_of, recommend, solve_depth
from analysis.law.threshold import ThresholdFit, fit_threshold
from analysis.threads import single_threaded

#: (depth, width, budget).
Shape = tuple[int, int, float]

STATUSES = ("bracketed", "left_censored", "right_censored", "ambiguous", "insufficient")
LAW_STATUSES = ("ok", "open", "not_converged", "insufficient")
#: Draws of the bootstrap in a simulated study. They only decide whether 95 % of them have one sign change; the
#: intervals are inverted tests and need none.
DRAWS = 200
#: Level of the intervals.
LEVEL = 0.95
#: Projected size over the largest size planned.
AHEAD = 10.0
#: Resamples of the simulated studies for the standard error of a median.
RESAMPLES = 400
#: Fewest values for that error; resampling one value would give an error of zero.
LEAST_VALUES = 5
#: Names of the changes that `compare_changes` tries, in this order.
CHANGES = ("seeds_x2", "seeds_x4", "sizes_x2", "top_x4", "both_x4", "depth")


@dataclass(frozen=True)
class PairPower:
    """Expected result for two neighbouring depths; shares are of the simulated studies.

    Attributes:
        shallow, deep: the pair.
        params, width: true crossing, as N and as the width of the shallow model.
        statuses: status of the crossing -> share.
        closed: share with an interval that has two ends.
        ratio: median of high/low of the closed intervals, in N; None where there is none. `ratio_error` is its standard
            error from the number of simulated studies.
        coverage: share of all intervals, open ones included, that contain the true crossing.
    """

    shallow: int
    deep: int
    params: float
    width: float
    statuses: dict[str, float]
    closed: float
    ratio: float | None
    ratio_error: float | None
    coverage: float | None


@dataclass(frozen=True)
class LawPower:
    """Expected result for ln d = a + b·L.

    Attributes:
        a, b: true values.
        statuses: status of the law -> share of the studies.
        closed: share in which b has an interval with two ends.
        b_width, a_width: median width of the closed intervals; `b_width_error` is its standard error from the number of
            simulated studies.
        b_width_overall: median over all studies, where an open interval or a missing law counts as infinitely wide;
            None where that is infinite. Plans are compared by it: closed intervals alone would select lucky studies.
        coverage: share of the intervals of b, open ones included, that contain the true b.
        ahead_params, ahead_depth: a size ten times the largest planned, and the best depth there by the true law.
        band: medians of the low and of the high end of the depth projected there, over the studies with a law; an end
            is None where more than half of them are open.
    """

    a: float
    b: float
    statuses: dict[str, float]
    closed: float
    b_width: float | None
    b_width_error: float | None
    a_width: float | None
    b_width_overall: float | None
    coverage: float | None
    ahead_params: float
    ahead_depth: float
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
        closed: share of the studies with a closed interval.
        ratio: `width` over that of the plan on the same simulated studies; None where either is infinite.
            `ratio_error` is its standard error from the number of simulated studies.
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
    ratio_error: float | None
    halves: bool
    cheapest: bool


@dataclass(frozen=True)
class ChangeComparison:
    """Changes of a plan, compared by the interval of b.

    Attributes:
        studies: simulated for every change, with the noise of as many studies of the plan.
        width: median width for the plan in those studies; None where infinite.
        changes: in the order tried.
        seeds: number of seeds that should halve the width, extrapolated with 1/sqrt(seeds) from the most seeds tried;
            not simulated. None where a change halves it, or where nothing can be extrapolated.
    """

    studies: int
    width: float | None
    changes: tuple[Change, ...]
    seeds: int | None


@single_threaded
def simulate_power(
    truth: Truth,
    shapes: Sequence[Shape],
    seeds: int,
    *,
    studies: int = 100,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> PowerEstimate:
    """Simulate studies of these shapes under an assumed truth; the result is a function of the arguments.

    Args:
        truth: assumed law, gaps and noise; its depths are those of the shapes, two or more.
        shapes: (depth, width, budget), each once.
        seeds: seeds of every shape.
        studies: number of simulated studies.
        seed: seed of the simulation.
        advance: called after every simulated study.

    Raises:
        InputError: the truth gives a shape a loss that is not positive.
    """
    found = []
    for number in range(studies):
        found.append(_simulated(truth, shapes, seeds, (seed, number)))
        advance()
    generator = np.random.default_rng(seed)
    pairs = [
        _pair(truth, shallow, deep, [crossings[index] for crossings, _ in found], generator)
        for index, (shallow, deep) in enumerate(itertools.pairwise(truth.depths))
    ]
    laws = [law for _, law in found]
    return PowerEstimate(
        studies=studies,
        seed=seed,
        level=LEVEL,
        seeds=seeds,
        crossings=tuple(pairs),
        law=_law(truth, laws, AHEAD * max(map(_params, shapes)), generator),
        share_error=0.5 / math.sqrt(studies),
        b_widths=tuple(_b_width(law) for law in laws),
    )


@single_threaded
def compare_changes(
    truth: Truth,
    shapes: Sequence[Shape],
    base: PowerEstimate,
    *,
    studies: int,
    advance: Callable[[], None] = lambda: None,
) -> ChangeComparison:
    """Simulate more seeds, more sizes, larger ranges and one more depth, and compare their intervals of b.

    Args:
        truth: as for `simulate_power`.
        shapes: of the plan.
        base: the estimate for the plan; its seeds and noise are used again.
        studies: simulated for each change, at most as many as `base` has.
        advance: called after every simulated study.

    Raises:
        InputError: the truth gives a shape a loss that is not positive.
    """
    count = min(studies, base.studies)
    before = np.array(base.b_widths[:count])
    generator = np.random.default_rng(base.seed)
    work = math.fsum(map(_params, shapes)) * base.seeds
    tried = []
    for name, words, assumed, changed, seeds in _changes(truth, list(shapes), base.seeds):
        after = np.empty(count)
        for number in range(count):
            _, law = _simulated(assumed, changed, seeds, (base.seed, number))
            after[number] = _b_width(law)
            advance()
        ratio, error = _ratio(before, after, generator)
        width = _finite(np.median(after))
        tried.append(
            Change(
                name=name,
                words=words,
                shapes=len(changed),
                seeds=seeds,
                cost=math.fsum(map(_params, changed)) * seeds / work,
                width=width,
                closed=float(np.isfinite(after).mean()),
                ratio=ratio,
                ratio_error=error,
                halves=width is not None and (ratio is None or ratio <= 0.5),
                cheapest=False,
            )
        )
    least = min((change.cost for change in tried if change.halves), default=None)
    changes = tuple(replace(change, cheapest=change.halves and change.cost == least) for change in tried)
    return ChangeComparison(count, _finite(np.median(before)), changes, _extrapolated_seeds(changes))


def _simulated(
    truth: Truth, shapes: Sequence[Shape], seeds: int, key: tuple[int, int]
) -> tuple[tuple[Crossing, ...], ThresholdFit]:
    """Simulate one study and analyse it: crossings of neighbours, and the law."""
    curves = build_curves(simulate_matched(truth, shapes, seeds, key))
    found = find_crossings(curves, level=LEVEL, draws=DRAWS, delta=None, neighbours=True)
    return found.items, fit_threshold(found, "log-linear")


def _pair(
    truth: Truth, shallow: int, deep: int, found: list[Crossing], generator: np.random.Generator
) -> PairPower:
    params = truth.crossing(shallow)
    intervals = [item.params_interval for item in found if item.params_interval is not None]
    ratios = [high / low for low, high in intervals if low is not None and high is not None]
    ratio, error = _median(np.array(ratios), generator)
    return PairPower(
        shallow=shallow,
        deep=deep,
        params=params,
        width=math.sqrt(params / (12 * shallow)),
        statuses=_shares(STATUSES, [item.status for item in found]),
        closed=len(ratios) / len(found),
        ratio=ratio,
        ratio_error=error,
        coverage=_coverage(params, intervals),
    )


def _law(truth: Truth, laws: list[ThresholdFit], params: float, generator: np.random.Generator) -> LawPower:
    widths = np.array([_b_width(law) for law in laws])
    b_width, error = _median(widths[np.isfinite(widths)], generator)
    slopes = [law.b_interval for law in laws if law.b_interval is not None]
    levels = [law.a_interval for law in laws if law.a_interval is not None]
    a_widths = [high - low for low, high in levels if low is not None and high is not None]
    return LawPower(
        a=truth.a,
        b=truth.b,
        statuses=_shares(LAW_STATUSES, [law.status for law in laws]),
        closed=float(np.isfinite(widths).mean()),
        b_width=b_width,
        b_width_error=error,
        a_width=float(np.median(a_widths)) if a_widths else None,
        b_width_overall=_finite(np.median(widths)),
        coverage=_coverage(truth.b, slopes),
        ahead_params=params,
        ahead_depth=solve_depth(truth.a, truth.b, params),
        band=_projected(laws, params),
    )


def _projected(laws: list[ThresholdFit], params: float) -> Interval | None:
    """Medians of the ends of the projected depth over the laws there are; an open end counts as infinite."""
    ends = []
    for law in laws:
        if (usable := law_of(law)) is None:
            continue
        # If the width falls with the depth, no depth is best and both ends are open.
        low, high = recommend(usable, [params])[0]["depth_interval"] if usable.b > 0 else (None, None)
        ends.append((-math.inf if low is None else low, math.inf if high is None else high))
    if not ends:
        return None
    lows, highs = np.array(ends).T
    return _finite(np.median(lows)), _finite(np.median(highs))


def _b_width(law: ThresholdFit) -> float:
    low, high = law.b_interval or (None, None)
    return math.inf if low is None or high is None else high - low


def _coverage(value: float, intervals: Sequence[Interval]) -> float | None:
    held = [(low is None or low <= value) and (high is None or value <= high) for low, high in intervals]
    return sum(held) / len(held) if held else None


def _shares(names: Sequence[str], found: list[str]) -> dict[str, float]:
    return {name: found.count(name) / len(found) for name in names}


def _finite(value: np.floating[Any]) -> float | None:
    return float(value) if np.isfinite(value) else None


def _median(values: Floats, generator: np.random.Generator) -> tuple[float | None, float | None]:
    """Median of finite values and its standard error from resampling; None without values, or with too few."""
    if not len(values):
        return None, None
    if len(values) < LEAST_VALUES:
        return float(np.median(values)), None
    picks = generator.integers(len(values), size=(RESAMPLES, len(values)))
    return float(np.median(values)), float(np.std(np.median(values[picks], axis=1)))


def _ratio(
    before: Floats, after: Floats, generator: np.random.Generator
) -> tuple[float | None, float | None]:
    """Ratio of the medians, and its standard error from resampling whole studies, so that pairing counts."""
    first, second = float(np.median(before)), float(np.median(after))
    if not math.isfinite(first) or not math.isfinite(second) or first == 0:
        return None, None
    picks = generator.integers(len(before), size=(RESAMPLES, len(before)))
    above, below = np.median(after[picks], axis=1), np.median(before[picks], axis=1)
    # With almost half of the intervals open some resamples have an infinite median, and there is no error.
    usable = np.isfinite(above) & np.isfinite(below)
    return second / first, float(np.std(above / below)) if usable.all() else None


def _extrapolated_seeds(changes: tuple[Change, ...]) -> int | None:
    """Seeds at which the width should be halved, from the most seeds tried; None where some change halves it."""
    if any(change.halves for change in changes):
        return None
    last = max((change for change in changes if change.name.startswith("seeds")), key=lambda c: c.seeds)
    return None if last.ratio is None else math.ceil(last.seeds * (last.ratio / 0.5) ** 2)


def _params(shape: Shape) -> float:
    """N = 12·L·d²: training work for equal tokens, up to a factor."""
    return 12.0 * shape[0] * shape[1] ** 2


def _changes(truth: Truth, shapes: list[Shape], seeds: int) -> list[tuple[str, str, Truth, list[Shape], int]]:
    """(name, words, truth, shapes, seeds) of every change that is tried."""
    step = math.gcd(*(width for _, width, _ in shapes))
    extended, deeper, words = _one_more_depth(truth, shapes, step)
    found = [
        (f"{2 * seeds} seeds for {seeds}", truth, shapes, 2 * seeds),
        (f"{4 * seeds} seeds for {seeds}", truth, shapes, 4 * seeds),
        ("sizes between all neighbours", truth, _denser(shapes, step), seeds),
        ("sizes up to 4 times larger", truth, _wider_range(shapes, step, 1, 4), seeds),
        ("sizes 4 times larger and smaller", truth, _wider_range(shapes, step, 4, 4), seeds),
        (words, extended, deeper, seeds),
    ]
    return [(name, *change) for name, change in zip(CHANGES, found, strict=True)]


def _denser(shapes: list[Shape], step: int) -> list[Shape]:
    """Add a shape between any two neighbours of a depth, half-way in ln N, where a whole width lies there."""
    between = [
        _shape(depth, math.sqrt(low * high), step)
        for depth, widths in _by_depth(shapes).items()
        for low, high in itertools.pairwise(widths)
    ]
    return _unique([*shapes, *between])


def _wider_range(shapes: list[Shape], step: int, below: float, above: float) -> list[Shape]:
    """Add to each depth sizes down to its smallest N over `below` and up to `above` times its largest."""
    found = list(shapes)
    for depth, widths in _by_depth(shapes).items():
        found += _beyond(depth, widths, step, widths[0] / math.sqrt(below), widths[-1] * math.sqrt(above))
    return _unique(found)


def _one_more_depth(truth: Truth, shapes: list[Shape], step: int) -> tuple[Truth, list[Shape], str]:
    """Add one depth, as far above the deepest as that is above the one before.

    Both are measured from a third to three times the N of their crossing, as in the plan of `levine2020`: a depth whose
    crossing is not reached adds next to nothing.
    """
    before, last = truth.depths[-2:]
    added = 2 * last - before
    widths = _by_depth(shapes)[last]
    low, high = truth.crossing(last) / 3, truth.crossing(last) * 3
    count = max(len(widths), 3)
    new = [_shape(added, math.sqrt(params / (12 * added)), step) for params in np.geomspace(low, high, count)]
    old = _beyond(last, widths, step, math.sqrt(low / (12 * last)), math.sqrt(high / (12 * last)))
    extended = replace(truth, depths=(*truth.depths, added))
    return extended, _unique([*shapes, *old, *new]), f"one more depth, {added}, at its crossing"


def _beyond(depth: int, widths: list[int], step: int, low: float, high: float) -> list[Shape]:
    """Shapes of a depth from its smallest width down to `low` and from its largest up to `high`, as dense as before."""
    spacing = math.log(widths[-1] / widths[0]) / (len(widths) - 1) if len(widths) > 1 else math.inf
    found = []
    for start, end, sign in ((widths[0], low, -1), (widths[-1], high, 1)):
        far = sign * math.log(end / start)
        if far > 1e-9:
            count = max(1, round(far / spacing))
            found += [_shape(depth, start * (end / start) ** ((k + 1) / count), step) for k in range(count)]
    return found


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


def _by_depth(shapes: list[Shape]) -> dict[int, list[int]]:
    """Depth -> its widths, ascending."""
    found: dict[int, list[int]] = {}
    for depth, width, _ in sorted(shapes):
        found.setdefault(depth, []).append(width)
    return found
