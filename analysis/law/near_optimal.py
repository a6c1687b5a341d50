"""Depths that lose next to nothing at a fixed size, and the nats that a shape loses.

The loss is flat about its best depth: at N = 7e9 the law of Liu et al. 2026 puts every depth from 36 to 67 within
0.005 nats per token of the best. A choice of shape needs this range, not the best depth alone. The module
uses `math` only, so that an answer from a published law loads no numerical library.
"""

import math
from typing import TYPE_CHECKING

from analysis.law.shape import NearOptimal
from analysis.units import NATS, LossUnit
from core.command_line import option
from core.errors import InputError

if TYPE_CHECKING:
    from analysis.law.published import AdditiveLaw

#: What counts as negligible: a number in the unit of the losses, a share of the loss as "0.5%", or `WITHIN`.
Within = float | str | None
#: Nats per token below which the loss of a shape counts as that of the best. Seeds of one cell differ by about as much.
WITHIN = 0.005


def near_optimal(
    law: "AdditiveLaw", params: float, depth: float | None, source: str, within: float = WITHIN
) -> NearOptimal | None:
    """The near-optimal depths at N = `params` and what `depth` loses; None if the law has no best depth there.

    They reach from the shallowest to the deepest model, of one layer to the depth at which the width is one, whose loss
    exceeds that of the best whole depth by at most `within` nats per token.
    """
    exact = law.best_depth(params)

    def loss(depth: float) -> float:
        return float(law.loss(params, depth))

    deepest = max(1, math.floor(params / 12))
    below = min(max(1, math.floor(exact)), deepest)
    best = min((below, min(below + 1, deepest)), key=loss)
    limit = loss(best) + within
    if not math.isfinite(limit):
        return None

    def last(end: int) -> int:
        """The depth farthest from the best, towards `end`, that is still within the limit."""
        if loss(end) <= limit:
            return end
        inside, outside = best, end
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            inside, outside = (middle, outside) if loss(middle) <= limit else (inside, middle)
        return inside

    lost = math.nan if depth is None else loss(depth) - loss(best)
    # The loss of a depth that is no whole number may lie below that of the best whole one; it then counts as none.
    # The loss of a depth below three is infinite by the published law.
    excess = max(0.0, lost) if math.isfinite(lost) else None
    return NearOptimal(within, (last(1), last(deepest)), excess, source)


def nats_of(within: Within, loss: float | None = None, unit: LossUnit = NATS) -> float:
    """What counts as negligible, in nats per token, from a number in a unit, or a share of a loss as 0.5%.

    Args:
        within: 0.005, the text "0.005" or "0.5%", or None for `WITHIN` nats.
        loss: of the best depth, nats per token; None where it is not known.
        unit: of the number.

    Raises:
        InputError: `within` is no positive number, or is a share where no loss is known.
    """
    if within is None:
        return WITHIN
    text = str(within).strip()
    try:
        value = float(text.removesuffix("%").strip())
    except ValueError:
        value = math.nan
    if not 0 < value < (100 if text.endswith("%") else math.inf):
        raise InputError(
            f"{option('within')} is {text}; it must be a positive number of {unit.name}, as 0.005, or a share of the "
            "loss, as 0.5%."
        )
    if not text.endswith("%"):
        return value / unit.per_nat
    if loss is None:
        raise InputError(
            f"{option('within', text)} is a share of a loss, and a published law gives differences of losses only. "
            f"Give nats per token: {option('within', 0.01)}"
        )
    return value / 100 * loss


def within_words(within: Within) -> str:
    """`0.005 nats`, or `0.5% of the loss`."""
    text = str(within).strip()
    return f"{text} of the loss" if text.endswith("%") else f"{nats_of(within):g} nats"
