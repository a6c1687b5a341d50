"""Power laws with an offset, loss = E_L + A_L·N^-α, with one exponent α for all depths L."""

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from analysis.curves.noise import Floats

Ranks = npt.NDArray[np.int64]

#: Largest exponent α; a steeper curve is nearly a step. Exponents from which the search starts.
MOST_ALPHA = 3.0
_ALPHAS = (0.0, *(float(alpha) for alpha in np.geomspace(0.02, MOST_ALPHA, 14)))


def common_exponent(rank: Ranks, x: Floats, loss: Floats, weight: Floats) -> float:
    """The common exponent α of least squares, refined from a coarse grid because there may be two minima.

    Args:
        rank: of the depth of each point, from 0 on.
        x: ln N.
        loss: nats per token.
        weight: inverse variances.
    """
    same = (rank[:, None] == np.arange(rank.max() + 1)).astype(float)
    count = same.sum(axis=0)
    # With two sizes of each depth any exponent fits exactly, and a line is the simplest.
    if np.sum(np.maximum(count - 2, 0)) < 2:
        return 0.0
    shifted = x - x.mean()
    share = weight / (same @ (same.T @ weight))
    loss = loss - same @ (same.T @ (share * loss))

    def square(alpha: float) -> float:
        decay = _decay(shifted, alpha)
        decay = np.where(same @ count > 1, decay - same @ (same.T @ (share * decay)), 0.0)
        along = same.T @ (weight * decay**2)
        slope = same.T @ (weight * decay * loss) / np.where(along > 0, along, 1.0)
        return float(weight @ (loss - decay * (same @ slope)) ** 2)

    values = [square(alpha) for alpha in _ALPHAS]
    best = int(np.argmin(values))
    ends = _ALPHAS[max(best - 1, 0)], _ALPHAS[min(best + 1, len(_ALPHAS) - 1)]
    refined = minimize_scalar(square, bounds=ends, method="bounded", options={"xatol": 1e-6})
    return float(refined.x) if refined.fun < values[best] else _ALPHAS[best]


def designs(
    rank: Ranks, x: Floats, loss: Floats, weight: Floats, alpha: float, places: tuple[Ranks, Floats]
) -> tuple[Floats, Floats]:
    """The matrix H of the coefficients at the points and at `places` (rank, ln N).

    Its columns are the level and the slope of each depth, and, unless α is at an end of its range, the derivative by α.
    The other arguments are those of `common_exponent`, and α.
    """
    centre = float(x.mean())
    ranks = np.arange(rank.max() + 1)

    def design(rank: Ranks, x: Floats, alpha: float) -> Floats:
        same = (rank[:, None] == ranks).astype(float)
        return np.hstack([same, same * _decay(x - centre, alpha)[:, None]])

    both = [(rank, x), places]
    tables = [design(*where, alpha) for where in both]
    if not 1e-3 < alpha < MOST_ALPHA - 1e-3:
        return tables[0], tables[1]
    root = np.sqrt(weight)
    slopes = np.linalg.lstsq(tables[0] * root[:, None], loss * root, rcond=1e-10)[0][len(ranks) :]
    for index, (depth, place) in enumerate(both):
        s = place - centre
        derivative = slopes[depth] * (s * np.exp(-alpha * s) - _decay(s, alpha)) / alpha
        tables[index] = np.column_stack([tables[index], derivative])
    return tables[0], tables[1]


def _decay(shifted: Floats, alpha: float) -> Floats:
    """(1 - exp(-α·s)) / α: a power law in N that becomes the line s at α = 0, so that both are one family."""
    return shifted if alpha == 0 else np.asarray(-np.expm1(-alpha * shifted) / alpha)
