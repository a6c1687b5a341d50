"""Depths that lose next to nothing at a fixed size, and the nats that a shape loses.

The loss is flat about its best depth: at N = 7e9 the law of Liu et al. 2026 puts every depth from 36 to 67 within
0.005 nats per token of the best. A choice of shape needs this range, not the best depth alone. The module
uses `math` only, so that an answer from a published law loads no numerical library.
"""

import math
from typing import TYPE_CHECKING

from analysis.errors import InputError
from analysis.law.shape import Law, NearOptimal

if TYPE_CHECKING:
    from analysis.curves.best_shapes import BestShape

#: Nats per token below which the loss of a shape counts as that of the best. Seeds of one cell differ by about as much.
WITHIN = 0.005


def near_optimal_depths(law: Law, params: float, within: float = WITHIN) -> tuple[int, int] | None:
    """The shallowest and the deepest model whose loss exceeds that of the best whole depth by at most `within`.

    Args:
        law: of the loss.
        params: N, the size that all shapes share.
        within: nats per token.

    Returns:
        Two whole depths, from 1 to the depth at which the width is one; None if the law has no best depth there.
    """
    best = _best_whole(law, params)
    if best is None:
        return None
    limit = float(law.loss(params, best)) + within
    if not math.isfinite(limit):
        return None

    def last(end: int) -> int:
        """The depth farthest from the best, towards `end`, that is still within the limit."""
        inside, outside = best, end
        if float(law.loss(params, end)) <= limit:
            return end
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            if float(law.loss(params, middle)) <= limit:
                inside = middle
            else:
                outside = middle
        return inside

    return last(1), last(_deepest(params))


def near_optimal(
    law: Law, params: float, depth: float | None, source: str, within: float = WITHIN
) -> NearOptimal | None:
    """The near-optimal depths at N and what `depth` loses by a law of the loss; None if it has no best depth there."""
    depths = near_optimal_depths(law, params, within)
    best = _best_whole(law, params)
    if depths is None or best is None:
        return None
    lost = math.nan if depth is None else float(law.loss(params, depth) - law.loss(params, best))
    # A depth between the best whole ones may lose less than nothing; the published law counts no depth below three.
    return NearOptimal(within, depths, max(0.0, lost) if math.isfinite(lost) else None, source)


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


def _deepest(params: float) -> int:
    """The depth at which the width is one."""
    return max(1, math.floor(params / 12))


def _best_whole(law: Law, params: float) -> int | None:
    best = law.best_depth(params)
    if best is None or not math.isfinite(best):
        return None
    low = min(max(1, math.floor(best)), _deepest(params))
    both = (low, min(low + 1, _deepest(params)))
    return min(both, key=lambda depth: float(law.loss(params, depth)))
