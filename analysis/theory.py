"""The theory of Levine et al. 2020 (arXiv 2006.12467): bounds of the separation rank, and exact ranks.

The network of eq. 3 is self-attention without softmax, normalisation and ReLU: one layer is
y^i = sum_j sum_h <W^Q x^i, W^K x^j> W^O W^V x^j. Half of the positions form A, the others B. For almost all weights the
separation rank grows doubly exponentially with depth L below the threshold L = log3 d (Theorem 1), and above it only
exponentially, with width d as much as with depth (Theorem 2). Bounds are log3 of the rank: it has up to 10^47 digits.

The theorems are those of an earlier revision of the paper, with one constant of Theorem 2 restored, see `bounds`.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from core.errors import InputError

Ints = npt.NDArray[np.int64]

#: Larger shapes are refused: below these limits no formula leaves the range of a float.
DEEPEST, WIDEST = 10**6, 10**100
#: Example of Corollary 1, a model like BERT-large: depth, width, heads.
EXAMPLE = (6, 1000, 16)
#: A Mersenne prime: a product of two residues stays below 2^62.
PRIME = 2**31 - 1
FIRST_GRID = 32
#: Rows eliminated at once. 64 products of a residue and a 16-bit half sum to at most 2^53: exact in float64.
_PANEL = 64


@dataclass(frozen=True)
class Bounds:
    """Bounds of the separation rank of a shape, as log3 of the rank.

    `threshold` is log3 d. `theorem` is None on the boundary L = log3 d, which neither covers; there are no bounds then.
    `lower` is also None unless d > H. At or below 0 it is vacuous, because every function but zero has rank 1.
    """

    depth: int
    width: int
    heads: int
    threshold: float
    theorem: Literal[1, 2] | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class SeparationRank:
    """The separation rank of a random network.

    `grid` is the number of inputs on each side. `saturated`: the rank equals the grid, so it is only a lower bound.
    `odds_too_low` bounds the probability that the random draw made the rank too low (Schwartz-Zippel).
    """

    tokens: int
    rank: int
    grid: int
    saturated: bool
    odds_too_low: float


def log3(value: float) -> float:
    """Logarithm to base 3, exact for the powers of 3 (a quotient of logarithms gives 4.999… for 243)."""
    quotient = math.log(value) / math.log(3)
    nearest = round(quotient)
    return float(nearest) if nearest >= 0 and 3**nearest == value else quotient


def bounds(depth: int, width: int, heads: int = 1) -> Bounds:
    """Bound the separation rank by the theorem that covers the shape. The heads need not divide the width.

    Theorem 1 (eq. 7): 3^(L-2)·(log3(d - H) - L + 2 - log3 2) <= log3 sep <= (3^L - 1)/2 · log3(d + H).

    Theorem 2 (eq. 8): d·L/2 + b1 + b2 <= log3 sep <= 2·d·L + c1 + c2 with b1 = -L·(H/2 + 1),
    b2 = -d·(1 + log3((d - H)/2)/2), c1 = L and c2 = -2·d·log3(d / (2·sqrt(2e))) + log3 d.

    c2 differs from the available text of the earlier revision, where a fraction has lost its bar. Read as a product it
    puts the upper bound below the lower one (-413 < 2071 at L = 12, d = 1000, H = 16).

    Raises:
        InputError: depth, width or heads below 1, or too large for a float.
    """
    for name, value, most in (("depth", depth, DEEPEST), ("width", width, WIDEST), ("heads", heads, WIDEST)):
        if not 1 <= value <= most:
            raise InputError(f"The {name} must be a whole number from 1 to {most:.0e}.")
    power, threshold, lower = 3**depth, log3(width), None
    if power == width:
        return Bounds(depth, width, heads, threshold, None, None, None)
    if power < width:
        if heads < width:
            lower = 3.0 ** (depth - 2) * (log3(width - heads) - depth + 2 - log3(2))
        return Bounds(depth, width, heads, threshold, 1, lower, (power - 1) // 2 * log3(width + heads))
    if heads < width:
        b1 = -depth * (heads / 2 + 1)
        b2 = -width * (1 + log3((width - heads) / 2) / 2)
        lower = width * depth / 2 + b1 + b2
    c2 = -2 * width * log3(width / (2 * math.sqrt(2 * math.e))) + threshold
    return Bounds(depth, width, heads, threshold, 2, lower, 2 * width * depth + depth + c2)


def matching_width(shallow: int) -> float:
    """Compute the width at which a model of this depth can match the deeper model of `EXAMPLE` (Corollary 1).

    Its upper bound is the deeper model's lower bound there; 0 if every width is enough.
    """
    needed, heads = bounds(*EXAMPLE).lower or 0.0, EXAMPLE[2]
    return max(0.0, math.pow(3, needed / ((3**shallow - 1) // 2)) - heads)


def separation_rank(
    depth: int, width: int, heads: int = 1, tokens: int | None = None, grid: int = 2048, seed: int = 0
) -> SeparationRank:
    """Compute the separation rank of a random network at position 0. A is the first half of the positions.

    For random inputs A_i, B_j the matrix M[i, j] = y(A_i, B_j) has at most the separation rank of y, and with a
    probability close to 1 exactly that rank once its rank is less than its size. y is a polynomial of degree 3^L in its
    inputs, so in float64 the small singular values of M drown in rounding from L = 3 on. Weights, inputs and the rank
    are therefore residues modulo `PRIME`, where arithmetic is exact. The result is never too high.

    `tokens` is the number of positions, 2·(d + 1) if None. More change nothing: the network depends on its inputs only
    through x^0 and a sum over positions (see `grid_matrix`), and d + 1 on each side reach all of these. M has `grid`
    inputs on each side at most: their number is doubled from `FIRST_GRID` until the rank is less.

    Raises:
        InputError: a value that describes no such network.
    """
    bounds(depth, width, heads)
    tokens = 2 * (width + 1) if tokens is None else tokens
    if 3 ** (depth + 1) > PRIME:
        raise InputError(
            f"The depth is {depth}; beyond 18 the degree of the output exceeds the prime {PRIME}."
        )
    if width % heads:
        raise InputError(f"{heads} heads do not divide the width {width}; only the bounds allow this.")
    if tokens < 2 or tokens % 2:
        raise InputError(f"{tokens} tokens have no equal halves; take an even number of at least 2.")
    value, score = random_weights(depth, width, heads, seed)
    size = rank = 0
    while rank == size < grid:
        size = min(2 * size or FIRST_GRID, grid)
        inputs = np.random.default_rng([seed, 1]).integers(0, PRIME, (2, size, tokens // 2, width))
        rank = modular_rank(grid_matrix(value, score, *inputs))
    # A minor of M is a polynomial of degree 2·(3^L - 1) in the weights and 3^L in the inputs, for each of its rows.
    odds = min(1.0, size * (3.0 ** (depth + 1) - 2) / PRIME)
    return SeparationRank(tokens, rank, size, rank == size, odds)


def random_weights(depth: int, width: int, heads: int, seed: int = 0) -> tuple[Ints, Ints]:
    """Draw the two products of weights in eq. 3, W^O W^V and (W^K)^T W^Q, each (L, H, d, d)."""
    inner = width // heads
    pairs = np.random.default_rng([seed, 0]).integers(0, PRIME, (2, 2, depth, heads, inner, width))
    # `_product` multiplies over the first two axes.
    left, right = pairs[:, 0].transpose(4, 3, 0, 1, 2), pairs[:, 1].transpose(3, 4, 0, 1, 2)
    weights = _product(left, right).transpose(2, 3, 4, 0, 1)
    return weights[0], weights[1]


def grid_matrix(value: Ints, score: Ints, inside: Ints, outside: Ints) -> Ints:
    """Compute M[i, j]: coordinate 0 of the output at position 0 for the i-th input of A and the j-th of B.

    With S = sum_j x^j (x^j)^T over all positions, one layer is y^i = P x^i, P = sum_h W^O W^V S (W^K)^T W^Q, and the
    next layer's S is P S P^T. So for Q, the product of the P so far, S of a layer is Q S Q^T, and the output is Q x^0.
    S starts as S_A + S_B, so the cost of a pair does not depend on the number of positions.

    `inside` and `outside` are the inputs of A and of B, (inputs, positions, d). Position 0 is the first of A.
    """
    layers = [(v[..., None], s[..., None]) for v, s in zip(value, score, strict=True)]
    sums = [_product(side.transpose(2, 1, 0), side.transpose(1, 2, 0)) for side in (inside, outside)]
    # The first P is linear in S, so it is computed once for each side and not for each pair.
    first = [_mix(*layers[0], side) for side in sums]
    result = np.empty((len(inside), len(outside)), dtype=np.int64)
    for i, token in enumerate(inside[:, 0, :, None, None]):
        # The last axis is j.
        total = _residues(sums[0][..., i, None] + sums[1])
        chain = _residues(first[0][..., i, None] + first[1])
        for values, scores in layers[1:-1]:
            chain = _product(_mix(values, scores, chain, total, chain.swapaxes(0, 1)), chain)
        output = _product(chain, token)
        if len(layers) > 1:
            # One row of the last P is enough.
            values, scores = layers[-1]
            output = _product(_mix(values[:, :1], scores, chain, total, chain.swapaxes(0, 1)), output)
        result[i] = output[0, 0]
    return result


def modular_rank(matrix: Ints) -> int:
    """Compute the exact rank of a matrix of residues modulo `PRIME`.

    Panels of rows are brought to reduced echelon form, and their pivot columns are removed from all rows below by one
    matrix product in float64: a residue times the upper and the lower half of another, see `_PANEL`.
    """
    rest = _residues(np.asarray(matrix, dtype=np.int64))
    rank = 0
    while rest.any():
        panel, rest = rest[:_PANEL].copy(), rest[_PANEL:]
        pivots: dict[int, int] = {}
        for row in range(len(panel)):
            if len(nonzero := np.flatnonzero(panel[row])):
                pivots[row] = column = int(nonzero[0])
                panel[row] = _residues(panel[row] * pow(int(panel[row, column]), -1, PRIME))
                others = panel[:, [column]] * (np.arange(len(panel)) != row)[:, None]
                panel = _residues(panel - others * panel[row])
        rank += len(pivots)
        columns = [*pivots.values()]
        keep = np.setdiff1d(np.arange(rest.shape[1]), columns)
        above, factors = panel[[*pivots]][:, keep].astype(np.float64), rest[:, columns]
        upper = _residues(((factors >> 16) @ above).astype(np.int64))
        lower = ((factors & 0xFFFF) @ above).astype(np.int64)
        rest = _residues(rest[:, keep] - (upper << 16) - lower)
    return rank


def _residues(values: Ints) -> Ints:
    """Reduce modulo `PRIME`; three times as fast as NumPy's remainder."""
    return values - values // PRIME * PRIME


def _product(left: Ints, right: Ints) -> Ints:
    """Multiply residues as matrices over the first two axes, elementwise over the rest: (i, k, …)·(k, j, …)."""
    total: Any = 0
    for k in range(left.shape[1]):
        # A product is below 2^62 and a residue below 2^31: no overflow in 63 bits.
        total = _residues(total + left[:, k, None] * right[None, k])
    return np.asarray(total)


def _mix(values: Ints, scores: Ints, *factors: Ints) -> Ints:
    """Sum W^O W^V · factors · (W^K)^T W^Q over the heads: P of a layer for the factors of its S."""
    total: Any = 0
    for value, score in zip(values, scores, strict=True):
        total += functools.reduce(_product, (*factors, score), value)
    return _residues(total)
