"""The best depth at a size from all laws that the data of a study do not reject.

The interval of one law holds the truth only if the form of that law is right, and a few crossings seldom decide the
form. So a projection is the envelope of the laws through crossings (`threshold.REGRESSORS`) and the two loss surfaces:
from the lowest to the highest end of their intervals. A law that its own test rejects is excluded if another law is
much more likely; else it widens the interval. If every law through crossings is rejected, there is neither a depth nor
an interval. A surface that the other one rules out
(`analysis.law.loss_surfaces.supported`) is excluded too.

A crossing shows that there is a best depth, so beside crossings a surface without one, or without an interval, is
excluded. Without crossings it opens the interval: in an additive world the interval of the quadratic alone held the
best depth in 0 % of the studies at some sizes.

A depth is stated only if every law that is not rejected has one, with a slope above zero, and they agree within
`APART`; the root law, which lies between the two others, is not asked beside one of them. Else `depth` is None,
`reason` is why, and the interval is all that can be stated.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from analysis.intervals import hull
from analysis.law.crossings import Crossing
from analysis.law.loss_surfaces import SurfaceFit, supported
from analysis.law.shape import Shape, check_size
from analysis.law.threshold import TWO_POINTS
from analysis.law.threshold_law import ThresholdLaw

FittedLaw = ThresholdLaw | SurfaceFit

#: Laws disagree if the largest depth exceeds the smallest by more than this share.
APART = 0.25
#: A law or surface is rejected if its own test has a smaller p-value.
REJECTED = 0.05
#: A rejected law is excluded if minus twice its log-likelihood exceeds that of another law by this much.
DECISIVE = 10.0


def predict(
    laws: Sequence[ThresholdLaw],
    surfaces: Sequence[SurfaceFit],
    crossings: Sequence[Crossing],
    params: float,
    refusal: str | None = None,
) -> Shape:
    """Project the best depth at N = `params` from the fits of one study.

    Args:
        laws: through its crossings, log-linear first.
        surfaces: of its losses.
        crossings: of its pairs of depths.
        params: N = 12·L·d².
        refusal: why nothing is projected beyond the measured sizes, see `TokenRule.no_extrapolation`.

    Raises:
        InputError: `params` is no size.
    """
    check_size(params)
    level = laws[0].level
    measured = _measured(laws, surfaces, params)
    lines = [law for law in laws if law.usable]
    deciding, widening = _not_excluded(lines)
    kept = deciding + widening
    if silence := _silence(crossings, lines, kept, None if measured else refusal):
        return Shape(params, None, (None, None), level, "law", reason=silence, extrapolated=True)
    all_surfaces = supported(surfaces)
    surfaces = [item for item in all_surfaces if not rejected(item.p_value)]
    if lines:
        surfaces = [item for item in surfaces if item.covariance and item.best_depth(params) is not None]
    decide: dict[str, FittedLaw] = {law.form: law for law in deciding}
    every: dict[str, FittedLaw] = {law.form: law for law in kept}
    for surface in surfaces:
        decide[surface.form] = every[surface.form] = surface
    depths = {form: _possible(law.best_depth(params), params) for form, law in decide.items()}
    interval = hull([law.interval(params, level) for law in every.values()])
    agree_to: float | None = None
    reason = _no_extrapolation(deciding)
    if reason is None:
        reason, agree_to = _disagreement(decide, depths, _largest(kept, surfaces), params)
    if reason is None and not every:
        reason = laws[0].reason or "no law that is not rejected has a best depth"
        if dropped := [
            f"{item.form} p = {item.p_value:.1g}" for item in all_surfaces if rejected(item.p_value)
        ]:
            reason += f"; and the losses reject the loss surfaces ({', '.join(dropped)})"
    if reason is None and not lines and None in interval:
        reason = "the losses do not bound the best depth on both sides"
    first = next(iter(depths.values()), None)
    return Shape(
        params=params,
        depth_exact=first if reason is None else None,
        depth_interval=interval,
        level=level,
        source="law",
        laws=tuple(every),
        reason=reason,
        agree_to=agree_to,
        extrapolated=(first is None or lines[0].extrapolates(first)) if lines else not measured,
    )


def _silence(
    crossings: Sequence[Crossing],
    lines: Sequence[ThresholdLaw],
    kept: Sequence[ThresholdLaw],
    refusal: str | None,
) -> str | None:
    """Why there is neither a depth nor an interval, if so."""
    if refusal:
        return refusal
    if turned := [f"{item.shallow} → {item.deep}" for item in crossings if item.non_monotone]:
        return (
            "at the largest sizes the lead of the deeper model shrinks again, or its loss rises "
            f"({', '.join(turned)} layers), so deep models may be trained too little"
        )
    if lines and not kept:
        tests = ", ".join(f"{law.form} p = {law.p_value:.1g}" for law in lines)
        return f"the crossings reject every law through them ({tests})"
    return None


def apart(depths: Iterable[float | None]) -> bool:
    """Whether depths disagree, see `APART`; None is no depth."""
    stated = [depth for depth in depths if depth is not None]
    return len(stated) > 1 and max(stated) > (1 + APART) * min(stated)


def _possible(depth: float | None, params: float) -> float | None:
    """`depth`, None if a model of that depth would be narrower than one."""
    return depth if depth is not None and 12 * depth <= params else None


def rejected(p_value: float | None) -> bool:
    """Whether the test of a law or surface rejects its form; None is no test."""
    return p_value is not None and p_value < REJECTED


def _not_excluded(laws: Sequence[ThresholdLaw]) -> tuple[list[ThresholdLaw], list[ThresholdLaw]]:
    """The laws of the projection: those that decide whether a depth is stated, and those that widen the interval.

    Where crossings scatter about a law, its test may reject it and accept a wrong one by chance: in 23 % of the studies
    with five crossings and a scatter of 0.2 in ln d. So a rejected law widens the interval unless it is much
    worse than the best of the others. The root law widens it unless no other law is left.
    """
    accepted = [law for law in laws if not rejected(law.p_value)]
    least = min((_misfit(law) for law in accepted), default=-math.inf)
    close = [law for law in laws if law not in accepted and _misfit(law) - least < DECISIVE]
    ends = [law for law in accepted if law.form != "root"] or accepted
    return ends, [law for law in accepted if law not in ends] + close


def _misfit(law: ThresholdLaw) -> float:
    """Minus twice the log-likelihood of the crossings if the size of their errors is not known, but for a constant."""
    if law.chi2 is None or law.dof is None:
        return 0.0
    # Squares below their expectation are chance, and do not make a law better.
    return (law.dof + 2) * math.log(max(law.chi2, law.dof))


def _no_extrapolation(kept: Sequence[ThresholdLaw]) -> str | None:
    """Why the laws through crossings give no depth at any size; None if they do, or if there is none of them."""
    for law in kept:
        low, high = law.b_interval or (law.b, law.b)
        if law.status == "open":
            return TWO_POINTS if len(law.depths) == 2 else "the data bound the law on one side only"
        if (low is None or low <= 0) and (high is None or high >= 0):
            return f"the slope of the {law.form} law is compatible with zero"
        if law.b is not None and law.b <= 0:
            return f"the slope of the {law.form} law is not positive"
    return None


def _disagreement(
    found: Mapping[str, FittedLaw], depths: Mapping[str, float | None], start: float, params: float
) -> tuple[str | None, float | None]:
    """Why `found` give no common depth at N = `params`, None if they do; and up to which N they agree."""
    if apart(depths.values()):
        named = ", ".join(f"{form} {depth:.3g}" for form, depth in depths.items() if depth is not None)
        reason = f"the laws that are not rejected disagree at this size ({named} layers)"
        return reason, _agreement(found, start, params)
    for form, depth in depths.items():
        if depth is None:
            why = found[form].why_not(params)
            return why or f"the {form} law gives no finite depth with a width of one or more", None
    return None, None


def _agreement(found: Mapping[str, FittedLaw], start: float, params: float) -> float:
    """The N between `start` and `params` up to which the laws agree; 0 if they disagree at `start`."""

    def differ(size: float) -> bool:
        return apart(law.best_depth(size) for law in found.values())

    if start >= params or differ(start):
        return 0.0
    low, high = start, params
    # 40 halvings of ln N are far below any difference that matters.
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if differ(middle) else (middle, high)
    return low


def _largest(kept: Sequence[ThresholdLaw], surfaces: Sequence[SurfaceFit]) -> float:
    """The largest N of the crossings; without crossings that of the surfaces."""
    of_laws = [law.params_range for law in kept]
    of_surfaces = [surface.params_range for surface in surfaces if not kept]
    return max((ends[1] for ends in of_laws + of_surfaces if ends), default=math.inf)


def _measured(laws: Sequence[ThresholdLaw], surfaces: Sequence[SurfaceFit], params: float) -> bool:
    """Whether N lies within the sizes of the surfaces or of the crossings."""
    ranges = [law.params_range for law in laws] + [surface.params_range for surface in surfaces]
    return any(ends[0] <= params <= ends[1] for ends in ranges if ends)
