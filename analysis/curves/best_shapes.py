"""The best depth of each measured budget, from the curves alone: no law, no extrapolation."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.curves.budgets import budgets, common_size
from analysis.curves.curves import Curves
from analysis.intervals import width_of

#: Two depths differ when their paired gap exceeds this many standard errors.
Z_DIFFERENT = 2.0


@dataclass(frozen=True)
class DepthAt:
    """One depth at one budget: the loss on its curve and the excess over the best depth's, nats per token.

    `se` and `z`, the excess in paired standard errors, are None if the noise is not known.
    """

    depth: int
    width: float
    loss: float
    se: float | None
    excess: float
    z: float | None


@dataclass(frozen=True)
class BestShape:
    """The frontier of one measured budget.

    Attributes:
        budget: as planned (or the geometric mean of a group of sizes).
        params: the N at which the losses are compared, covered by all `shapes`.
        depth, width, loss: of the depth with the lowest loss.
        near: all depths that do not differ from it (|z| < 2), itself included; None if the noise is not known.
        shapes: every depth measured there, by depth.
    """

    budget: float
    params: float
    depth: int
    width: float
    loss: float
    near: tuple[int, ...] | None
    shapes: tuple[DepthAt, ...]


def best_shapes(used: pd.DataFrame, curves: Curves) -> tuple[BestShape, ...]:
    """The best depth of every budget of `used`, the rows of `curves`, at which two or more depths can be compared."""
    found = [_compare(curves, budget, depths) for budget, depths in budgets(used)]
    return tuple(shape for shape in found if shape is not None)


def _compare(curves: Curves, budget: float, trained: list[int]) -> BestShape | None:
    x, depths = common_size(curves, math.log(budget), trained)
    if len(depths) < 2:
        return None
    weights = np.vstack([curves.rows(depth, np.array([x])) for depth in depths])
    loss = weights @ curves.values.ravel()
    best = int(np.argmin(loss))
    excess = loss - loss[best]
    known = curves.noise.known
    covariance = weights @ curves.covariance @ weights.T
    variance = np.diag(covariance)
    se = np.sqrt(np.maximum(variance, 0))
    apart = np.sqrt(np.maximum(variance + variance[best] - 2 * covariance[best], 0))
    z = np.divide(excess, apart, out=np.zeros_like(excess), where=apart > 0)
    params = math.exp(x)
    shapes = tuple(
        DepthAt(
            depth,
            width_of(params, depth),
            float(loss[i]),
            float(se[i]) if known else None,
            float(excess[i]),
            float(z[i]) if known else None,
        )
        for i, depth in enumerate(depths)
    )
    near = tuple(shape.depth for shape in shapes if shape.z is not None and shape.z < Z_DIFFERENT)
    winner = shapes[best]
    return BestShape(budget, params, winner.depth, winner.width, winner.loss, near if known else None, shapes)
