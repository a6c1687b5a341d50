"""The best depth at a limit of cost, such as 5 ms per token: each depth at the size that just meets the limit.

At one limit the depths differ in N: a deeper model costs more per parameter. The joint posterior of the curves has the
difference of two depths at two sizes, with its error, as it has that at one size. A depth is excluded if another one
has a lower loss there by more than t standard errors; the others are near.

The cost of a depth is the non-decreasing one of least squares over its measured sizes (isotonic regression of ln cost),
straight in ln cost over ln N between them. Nothing is extrapolated: a limit above the largest cost of a depth, or below
its least one, leaves the depth without a size. Below, its loss at the smallest size is a bound, because losses fall
with N: a depth that is significantly worse even there is excluded. Any other depth without a size is missing, and may
be the best. An error of the costs moves N, and so the loss, of each depth on its own.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from analysis.curves.curves import NEAR, Curves
from analysis.curves.noise import Floats
from analysis.intervals import LAYER_WEIGHTS, width_of
from analysis.law.at_limit import COST_ERROR, AtLimit, DepthAtLimit, Limit

#: Relative distance from a measured cost at which a limit counts as that cost.
SAME_COST = 1e-9


class ShapeCost(NamedTuple):
    """The cost of one shape: its depth, N, and the cost in seconds or bytes."""

    depth: int
    params: float
    cost: float


class _Costs(NamedTuple):
    """The costs of one depth: ln N, strictly ascending, and ln cost, not descending."""

    x: Floats
    y: Floats

    def largest_within(self, limit: float) -> float:
        """Ln N of the largest size whose ln cost is at most `limit`, inside the measured sizes."""
        if limit >= self.y[-1]:
            return float(self.x[-1])
        right = int(np.searchsorted(self.y, limit, side="right"))
        if right == 0:
            return float(self.x[0])
        left = right - 1
        share = (limit - self.y[left]) / (self.y[right] - self.y[left])
        return float(self.x[left] + share * (self.x[right] - self.x[left]))


def at_limit(
    curves: Curves,
    quantile: float,
    costs: Iterable[ShapeCost],
    limit: Limit,
    relative_error: float = COST_ERROR,
    layer_weights: float = LAYER_WEIGHTS,
) -> AtLimit:
    """Compare the depths of a study, each at its size of the limited cost.

    Args:
        curves: of the losses.
        quantile: of Student's t, as for the crossings; NaN if the noise is not known.
        costs: of shapes of these depths; those of other depths are ignored.
        limit: positive, in the unit of `costs`.
        relative_error: standard deviation of a cost over the cost.
        layer_weights: N over L·d².
    """
    measured, bound = _costs_of(costs, curves), math.log(limit.value)
    sizes: dict[int, tuple[float, float, float]] = {}
    too_small, too_large = [], []
    for depth in curves.depths:
        if depth not in measured or bound > measured[depth].y[-1] + SAME_COST:
            too_large.append(depth)
        elif bound < measured[depth].y[0] - SAME_COST:
            too_small.append(depth)
        else:
            shifts = (0.0, -relative_error, relative_error)
            at, low, high = (measured[depth].largest_within(bound + shift) for shift in shifts)
            sizes[depth] = at, low, high
    if not sizes:
        return AtLimit(limit, (), None, tuple(too_small), tuple(too_large))
    # The loss at its smallest size bounds that of a depth that is too costly.
    order = [*sizes, *too_small]
    places = [sizes[depth][0] if depth in sizes else curves.range(depth)[0] for depth in order]
    weights = np.vstack([curves.rows(depth, np.array([x])) for depth, x in zip(order, places, strict=True)])
    loss = weights @ curves.values.ravel()
    by_cost = [_spread(curves, depth, *sizes[depth][1:]) if depth in sizes else 0.0 for depth in order]
    covariance = weights @ curves.covariance @ weights.T + np.diag(np.square(by_cost))
    gap, variance = loss[:, None] - loss, np.diag(covariance)
    se = np.sqrt(np.maximum(variance[:, None] + variance - 2 * covariance, 0.0))
    best = int(np.argmin(loss[: len(sizes)]))
    near, excluded = None, set[int]()
    if math.isfinite(quantile):
        out = (gap[:, : len(sizes)] > quantile * se[:, : len(sizes)]).any(axis=1)
        excluded = {depth for depth, is_out in zip(order, out, strict=True) if is_out} - {order[best]}
        near = tuple(sorted(sizes.keys() - excluded))
    shapes = []
    for rank, depth in enumerate(order[: len(sizes)]):
        params, low, high = (math.exp(x) for x in sizes[depth])
        error = float(se[rank, best]) if math.isfinite(quantile) else None
        width, above = width_of(params, depth, layer_weights), float(gap[rank, best])
        shapes.append(DepthAtLimit(depth, params, width, (low, high), float(loss[rank]), above, error))
    without_size = tuple(sorted(excluded - sizes.keys()))
    may_be_best = tuple(depth for depth in too_small if depth not in excluded)
    return AtLimit(limit, tuple(shapes), near, may_be_best, tuple(too_large), without_size)


def _costs_of(costs: Iterable[ShapeCost], curves: Curves) -> dict[int, _Costs]:
    """The costs by depth, of the sizes inside those of its losses."""
    by_depth: dict[int, dict[float, list[float]]] = {}
    for item in costs:
        if item.depth in curves.depths:
            low, high = curves.range(item.depth)
            x = math.log(item.params)
            if low - NEAR <= x <= high + NEAR:
                costs_at = by_depth.setdefault(item.depth, {})
                costs_at.setdefault(min(max(x, low), high), []).append(math.log(item.cost))
    lines = {}
    for depth, costs_at in by_depth.items():
        sizes = sorted(costs_at)
        means = np.array([np.mean(costs_at[size]) for size in sizes])
        lines[depth] = _Costs(np.array(sizes), np.asarray(isotonic_regression(means).x))
    return lines


def _spread(curves: Curves, depth: int, low: float, high: float) -> float:
    """Standard deviation of the loss of a depth by the error of its costs, of N at minus and at plus one of theirs."""
    first, last = curves.loss(depth, np.array([low, high]))
    return abs(float(first - last)) / 2
