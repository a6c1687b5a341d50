"""Depths that lose next to nothing at a fixed size, and the nats that a shape loses.

The loss is flat about its best depth: at N = 7e9 the law of Liu et al. 2026 puts every depth from 36 to 67 within
0.005 nats per token of the best. A choice of shape needs this range, not the best depth alone. The module
uses `math` only, so that an answer from a published law loads no numerical library.
"""

import math
from typing import TYPE_CHECKING

from analysis.errors import InputError
from analysis.law.shape import NearOptimal

if TYPE_CHECKING:
    from analysis.curves.best_shapes import BestShape
    from analysis.law.loss_surfaces import SurfaceFit
    from analysis.law.published import AdditiveLaw

#: Nats per token below which the loss of a shape counts as that of the best. Seeds of one cell differ by about as much.
WITHIN = 0.005


def near_optimal(
    law: "SurfaceFit | AdditiveLaw", params: float, depth: float | None, source: str, within: float = WITHIN
) -> NearOptimal | None:
    """The near-optimal depths at N = `params` and what `depth` loses; None if the law has no best depth there.

    They reach from the shallowest to the deepest model, of one layer to the depth at which the width is one, whose loss
    exceeds that of the best whole depth by at most `within` nats per token.
    """
    exact = law.best_depth(params)
    if exact is None or not math.isfinite(exact):
        return None

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
    # A depth between the best whole ones may lose less than nothing; the published law counts no depth below three.
    known = max(0.0, lost) if math.isfinite(lost) else None
    return NearOptimal(within, (last(1), last(deepest)), known, source)


def measured_near_optimal(best: "BestShape", within: float = WITHIN) -> NearOptimal:
    """The same for the best measured shape of a size, from the losses read off the curves there."""
    depths = measured_within(best, within)
    return NearOptimal(within, (depths[0], depths[-1]), 0.0, "the curves there")


def measured_within(best: "BestShape", within: float = WITHIN) -> tuple[int, ...]:
    """The measured depths of a size whose loss exceeds the lowest by at most `within` nats per token, ascending."""
    return tuple(shape.depth for shape in best.shapes if shape.excess <= within)


def check_within(within: float) -> None:
    """InputError if `within` is not a positive number of nats."""
    if not 0 < within < math.inf:
        raise InputError(f"--within is {within:g}; it must be a positive number of nats per token, as 0.005.")
