"""The shape beyond the measured sizes: the depth of least expected loss, if what it can lose is negligible.

The losses are flat about the best depth, so a depth that loses next to nothing can be named where the best depth itself
is known within a factor of two only. A depth is stated if, by the laws that the data do not reject, it loses at most
`within` nats per token against the best one at the level of the fit. Else the projection has no depth, and its
reasons have the depth of least expected loss and what it can lose.
"""

from collections.abc import Sequence

from analysis.law.crossings import Crossing
from analysis.law.decision import Decision, GapLaws
from analysis.law.near_optimal import WITHIN
from analysis.law.reasons import Because, Reason
from analysis.law.shape import REACH, NearOptimal, Projection, check_size
from analysis.units import NATS, LossUnit

#: The source of a loss, in words.
LAWS_WORDS = "the laws that these losses do not reject"


def predict(
    laws: GapLaws,
    crossings: Sequence[Crossing],
    params: float,
    *,
    level: float,
    within: float = WITHIN,
    refusal: Because | None = None,
    unit: LossUnit = NATS,
) -> Projection:
    """The shape at N = `params` by the laws of one study; without a depth where they do not determine one.

    Args:
        laws: of the gaps between its depths.
        crossings: of its pairs of depths.
        params: N = 12·L·d².
        level: of the interval and of the bound of what is lost.
        within: nats per token that the depth may lose.
        refusal: why nothing is projected beyond the measured sizes, see `TokenRule.refusal`.
        unit: of the losses that the reason names; the numbers of the shape are in nats per token.

    Raises:
        InputError: `params` is no size.
    """
    check_size(params)
    low, high = laws.params_range or (params, params)
    outside = not low <= params * (1 + 1e-9) or not params <= high * (1 + 1e-9)
    if reason := _silence(laws, crossings, params, refusal if outside else None):
        return Projection(params, None, (None, None), level, "none", reasons=(reason,), extrapolated=outside)
    decision = laws.decide(params, level)
    if decision is None:
        return Projection(
            params, None, (None, None), level, "none", reasons=laws.reasons, extrapolated=outside
        )
    determined = decision.bound <= within
    return Projection(
        params,
        float(decision.depth) if determined else None,
        decision.depth_interval,
        level,
        "law" if determined else "band",
        LAWS_WORDS,
        laws=decision.laws,
        reasons=() if determined else (undetermined(decision, within, unit),),
        extrapolated=outside,
        near_optimal=lost_by(decision, decision.depth, within) if determined else None,
    )


def lost_by(decision: Decision, depth: float, within: float) -> NearOptimal:
    """What a depth loses by a decision, and the depths that lose next to nothing."""
    expected, bound = decision.lost(depth)
    return NearOptimal(within, decision.near(within), expected, LAWS_WORDS, bound)


def undetermined(decision: Decision, within: float, unit: LossUnit) -> Because:
    """Why no depth is stated: what the best choice may lose."""
    return Because(
        Reason.MAY_LOSE, (decision.depth, unit.per_nat * decision.bound, unit.name, unit.per_nat * within)
    )


def _silence(
    laws: GapLaws, crossings: Sequence[Crossing], params: float, refusal: Because | None
) -> Because | None:
    """Why no law is asked, if so."""
    if refusal:
        return refusal
    if laws.params_range and params > REACH * laws.params_range[1] * (1 + 1e-9):
        return Because(Reason.ABOVE_SIZES, (REACH, laws.params_range[1]))
    if laws.params_range and params < laws.params_range[0] / REACH * (1 - 1e-9):
        return Because(Reason.BELOW_SIZES, (REACH, laws.params_range[0]))
    ends = [item.params_interval for item in crossings if item.params_interval]
    for side, reason in ((0, Reason.NO_DEEPER_WORSE), (1, Reason.NO_SHALLOWER_WORSE)):
        if ends and all(interval[side] is None for interval in ends):
            return Because(reason)
    if turned := [f"{item.shallow} → {item.deep}" for item in crossings if item.non_monotone]:
        return Because(Reason.TURNED, tuple(turned))
    return None
