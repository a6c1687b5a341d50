"""Depths that lose next to nothing at a fixed size, and the nats that a shape loses.

The loss is flat about its best depth: at N = 7e9 the law of Liu et al. 2026 puts every depth from 36 to 67 within
0.005 nats per token of the best. A choice of shape needs this range, not the best depth alone. The module
uses `math` only, so that an answer from a published law loads no numerical library.
"""

import math
from typing import TYPE_CHECKING, Any, Protocol

from analysis.errors import InputError

if TYPE_CHECKING:
    from analysis.curves.best_shapes import BestShape

#: Nats per token below which the loss of a shape counts as that of the best. Seeds of one cell differ by about as much.
WITHIN = 0.005


class LossModel(Protocol):
    """A law that predicts losses: a published one, or a surface fitted to a study."""

    def loss(self, params: float, depth: float) -> Any:
        """Nats per token of a shape, up to a constant at fixed N."""

    def best_depth(self, params: float) -> float | None:
        """The depth of lowest loss at fixed N; None where there is none. The loss rises on both sides of it."""


def near_optimal_depths(model: LossModel, params: float, within: float = WITHIN) -> tuple[int, int] | None:
    """The shallowest and the deepest model whose loss exceeds that of the best whole depth by at most `within`.

    Args:
        model: see `LossModel`.
        params: N, the size that all shapes share.
        within: nats per token.

    Returns:
        Two whole depths, from 1 to the depth at which the width is one; None if the model has no best depth there.
    """
    best = _best_whole(model, params)
    if best is None:
        return None
    limit = float(model.loss(params, best)) + within
    if not math.isfinite(limit):
        return None

    def last(end: int) -> int:
        """The depth farthest from the best, towards `end`, that is still within the limit."""
        inside, outside = best, end
        if float(model.loss(params, end)) <= limit:
            return end
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            if float(model.loss(params, middle)) <= limit:
                inside = middle
            else:
                outside = middle
        return inside

    return last(1), last(_deepest(params))


def near_optimal(
    model: LossModel, params: float, depth: float | None, source: str, within: float = WITHIN
) -> dict[str, Any] | None:
    """The near-optimal depths at N, and what one depth loses, for a document.

    Returns:
        `within` and `lost` in nats per token (`lost` is None without a depth, or where the model has no loss), `depths`
        as of `near_optimal_depths`, and `losses`, the source of the losses; None if the model has no best depth there.
    """
    depths = near_optimal_depths(model, params, within)
    best = _best_whole(model, params)
    if depths is None or best is None:
        return None
    lost = math.nan if depth is None else float(model.loss(params, depth) - model.loss(params, best))
    # A depth between the best whole ones may lose less than nothing; the published law counts no depth below three.
    known = max(0.0, lost) if math.isfinite(lost) else None
    return {"within": within, "depths": list(depths), "lost": known, "losses": source}


def measured_near_optimal(best: "BestShape", within: float = WITHIN) -> dict[str, Any]:
    """The same for the best measured shape of a budget, from the losses read off the curves there."""
    depths = measured_within(best, within)
    return {"within": within, "depths": [depths[0], depths[-1]], "lost": 0.0, "losses": "the curves there"}


def measured_within(best: "BestShape", within: float = WITHIN) -> tuple[int, ...]:
    """The measured depths of a budget whose loss exceeds the lowest by at most `within` nats per token, ascending."""
    return tuple(shape.depth for shape in best.shapes if shape.excess <= within)


def check_within(within: float) -> None:
    """InputError if `within` is not a positive number of nats."""
    if not 0 < within < math.inf:
        raise InputError(f"--within is {within:g}; it must be a positive number of nats per token, as 0.005.")


def depths_text(found: dict[str, Any] | None) -> str | None:
    """`36–67`: the near-optimal depths of a table."""
    if not found:
        return None
    depths: list[int] = found["depths"]
    return f"{depths[0]}–{depths[-1]}" if depths[-1] > depths[0] else str(depths[0])


def lost_text(found: dict[str, Any] | None) -> str | None:
    """`0.0077`: the nats lost by a shape, to a tenth of a millinat."""
    return f"{found['lost']:.4f}" if found and found["lost"] is not None else None


def _deepest(params: float) -> int:
    """The depth at which the width is one."""
    return max(1, math.floor(params / 12))


def _best_whole(model: LossModel, params: float) -> int | None:
    best = model.best_depth(params)
    if best is None or not math.isfinite(best):
        return None
    low = min(max(1, math.floor(best)), _deepest(params))
    both = (low, min(low + 1, _deepest(params)))
    return min(both, key=lambda depth: float(model.loss(params, depth)))
