"""Depths that lose next to nothing at a fixed size, and the nats that a shape loses.

The loss is flat about its best depth: at N = 7e9 the law of Liu et al. 2026 puts every depth from 36 to 67 within
0.005 nats per token of the best. A choice of shape needs this range, not the best depth alone. The module
uses `math` only, so that an answer from a published law loads no numerical library.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.errors import InputError

if TYPE_CHECKING:
    from analysis.curves.best_shapes import BestShape
    from analysis.law.shape import Law

#: Nats per token below which the loss of a shape counts as that of the best. Seeds of one cell differ by about as much.
WITHIN = 0.005


@dataclass(frozen=True)
class NearOptimal:
    """The depths that lose next to nothing at one N, and what one depth loses.

    Attributes:
        within: nats per token up to which a depth counts as near-optimal.
        depths: the shallowest and the deepest of them.
        lost: nats per token by which the depth in question exceeds the best whole depth; None if not known.
        losses: the source of the losses, in words.
    """

    within: float
    depths: tuple[int, int]
    lost: float | None
    losses: str

    @property
    def _deepest(params: float) -> int:
    """The depth at which the width is one."""
    return max(1, math.floor(params / 12))


def _best_whole(law: "Law", params: float) -> int | None:
    best = law.best_depth(params)
    if best is None or not math.isfinite(best):
        return None
    low = min(max(1, math.floor(best)), _deepest(params))
    both = (low, min(low + 1, _deepest(params)))
    return min(both, key=lambda depth: float(law.loss(params, depth)))
