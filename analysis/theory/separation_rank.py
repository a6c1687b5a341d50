"""Exact separation rank of the network of eq. 3 (Levine et al. 2020) with random weights.

One layer is y^i = sum_j sum_h <W^Q x^i, W^K x^j> W^O W^V x^j, without softmax, normalisation and ReLU. Half of the
positions form A, the others B. For random inputs A_i, B_j the matrix M[i, j] = y(A_i, B_j) has at most the separation
rank of y, and with a probability close to 1 exactly that rank once its rank is less than its size.

y is a polynomial of degree 3^L in its inputs, so in float64 the small singular values of M drown in rounding from L = 3
on. The rank is therefore computed modulo the prime 2^31 - 1, where arithmetic is exact. The result is never too high,
and too low with a probability of at most `odds_too_low`.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.errors import InputError
from analysis.theory.theorems import Bounds, check_shape, log3

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A Mersenne prime: a remainder is two shifts and adds, and a product of two residues stays below 2^62.
PRIME = 2**31 - 1
#: Beyond this depth the degree of y in weights and inputs, 3^(L+1) - 2, exceeds the prime, and `odds_too_low` is 1.
DEEPEST = 18
#: Sizes of the first and, by default, of the largest matrix. The largest takes half a minute and 0.5 GiB.
FIRST_GRID, LARGEST_GRID = 32, 2048
#: Rows eliminated at once. 64 products of a residue and its 16-bit half sum to at most 2^53: exact in float64.
_PANEL = 64
#: Rows below a panel that are updated at once, so that temporaries stay small beside M.
_ROWS = 128
#: Pairs of inputs evaluated at once, times d²: fits into the cache of a core.
_CHUNK = 1 << 17


@dataclass(frozen=True)
class Network:
    """Random weights as the two products that eq. 3 contains, residues modulo `PRIME`.

    Attributes:
        value: W^O W^V of each layer and head, (L, H, d, d).
        score: (W^K)^T W^Q, (L, H, d, d).
    """

    value: Ints
    score: Ints


@dataclass(frozen=True)
class SeparationRank:
    """The separation rank of one random network.

    Attributes:
        depth, width, heads, tokens: L, d, H and the number of positions.
        rank: rank of M.
        grid: inputs on each side, the size of M.
        saturated: the rank equals the grid, so it is only a lower bound of the separation rank.
        odds_too_low: bound of the probability that the random draw made the rank too low (Schwartz-Zippel).
    """

    depth: int
    width: int
    heads: int
    tokens: int
    rank: int
    grid: int
    saturated: bool
    odds_too_low: float


def separation_rank(
    depth: int,
    width: int,
    heads: int = 1,
    tokens: int | None = None,
    *,
    grid: int = LARGEST_GRID,
    seed: int = 0,
) -> SeparationRank:
    """Measure the separation rank of a random network at position 0. A is the first half of the positions.

    Args:
        depth: L.
        width: d.
        heads: H, which divides d.
        tokens: number of positions, even; 2·(d + 1) where None. More change nothing: the network depends on its inputs
            only through x^0 and a sum over positions (see `grid_matrix`), and d + 1 on each side reach all of these.
        grid: most inputs on each side; their number is doubled from `FIRST_GRID` until the rank is less than it.
        seed: seed of weights and inputs.

    Raises:
        InputError: a value that describes no such network.
    """
    tokens = _check(depth, width, heads, tokens, grid)
    network = random_network(depth, width, heads, seed=seed)
    size = min(FIRST_GRID, grid)
    while (rank := _grid_rank(network, tokens // 2, size, seed)) == size < grid:
        size = min(2 * size, grid)
    return SeparationRank(
        depth=depth,
        width=width,
        heads=heads,
        tokens=tokens,
        rank=rank,
        grid=size,
        saturated=rank == size,
        # A minor of M is a polynomial of degree 2·(3^L - 1) in the weights and 3^L in the inputs, for each of its rows.
        odds_too_low=min(1.0, size * (3.0 ** (depth + 1) - 2) / PRIME),
    )


def held(found: SeparationRank, limits: Bounds) -> tuple[bool | None, bool | None]:
    """Whether a rank respects its lower and its upper bound; None where there is none or a full grid leaves it open.

    A measured rank is never above the separation rank, so one above the upper bound disproves it, saturated or not.
    """
    value = log3(found.rank) if found.rank else -math.inf
    # A bound that is met with equality, as d + H at L = 1, must not fail by the last bit.
    slack = 1e-9
    lower = upper = None
    if limits.lower is not None and (value >= limits.lower - slack or not found.saturated):
        lower = value >= limits.lower - slack
    if limits.upper is not None and (value > limits.upper + slack or not found.saturated):
        upper = value <= limits.upper + slack
    return lower, upper


def _grid_rank(network: Network, positions: int, size: int, seed: int) -> int:
    """Draw `size` inputs on each side and compute the rank of M."""
    generator = np.random.default_rng([seed, 1, *range(positions)])
    inputs = generator.integers(0, PRIME, (2, size, positions, network.value.shape[-1]), dtype=np.int64)
    return modular_rank(grid_matrix(network, inputs[0], inputs[1]))


def random_network(depth: int, width: int, heads: int, *, seed: int = 0) -> Network:
    """Draw weights: uniform residues modulo `PRIME`."""
    generator = np.random.default_rng([seed, 0])
    inner = width // heads

    def draw(*shape: int) -> Ints:
        # The last two axes are multiplied, so they go first, as `_product` expects.
        return np.moveaxis(
            generator.integers(0, PRIME, (depth, heads, *shape), dtype=np.int64), (0, 1), (2, 3)
        )

    key, query, into, out = draw(inner, width), draw(inner, width), draw(inner, width), draw(width, inner)
    value, score = _product(out, into), _product(key.swapaxes(0, 1), query)
    return Network(np.moveaxis(value, (2, 3), (0, 1)), np.moveaxis(score, (2, 3), (0, 1)))


def modular_rank(matrix: Ints) -> int:
    """Compute the exact rank of a matrix of residues modulo `PRIME`.

    Panels of rows are brought to reduced echelon form, and their pivot columns are removed from all rows below by one
    matrix product, so nearly all work is BLAS: a residue times the upper and the lower half of another, in float64,
    where sums of up to 64 such products are whole numbers below 2^53.
    """
    rest = np.asarray(matrix, dtype=np.int64) % PRIME
    rank = 0
    while rest.any():
        panel, pivots = _reduced_echelon(rest[:_PANEL])
        rest = rest[_PANEL:]
        if not pivots:
            continue
        rank += len(pivots)
        keep = np.setdiff1d(np.arange(rest.shape[1]), pivots)
        below = np.empty((rest.shape[0], len(keep)), dtype=np.int64)
        above = panel[:, keep].astype(np.float64)
        for start in range(0, len(rest), _ROWS):
            part = rest[start : start + _ROWS]
            below[start : start + _ROWS] = _subtract_product(part[:, keep], part[:, pivots], above)
        rest = below
    return rank


def grid_matrix(network: Network, inside: Ints, outside: Ints) -> Ints:
    """Compute M[i, j]: coordinate 0 of the output at position 0 for the i-th input of A and the j-th of B.

    The network of eq. 3 depends on its inputs only through x^0 and S = sum_j x^j (x^j)^T, because one layer is

        y^i = P x^i,  P = sum_h W^O W^V S (W^K)^T W^Q,

    and the next layer's sum is P S P^T. S starts as S_A + S_B, so the cost of a pair does not depend on the number of
    positions. The last layer needs one row of P.

    `inside` and `outside` are the inputs of A and of B, (inputs, positions, d). Position 0 is the first of A.
    """
    width = network.value.shape[-1]
    # Pairs are the last axis: each product below then works on long rows.
    sums = [_product(x.transpose(2, 1, 0), x.transpose(1, 2, 0)) for x in (inside, outside)]
    # The first P is linear in S, so it is computed once for each side and not for each pair. One layer needs no P.
    deeper = network.value.shape[0] > 1
    sides = [(part, _mix(network, 0, part) if deeper else part) for part in sums]
    first = inside[:, 0].T[:, None]
    rows, columns = len(inside), len(outside)
    result = np.empty((rows, columns), dtype=np.int64)
    high = max(1, _CHUNK // (width**2 * columns))
    wide = min(columns, max(1, _CHUNK // width**2))
    for top, left in itertools.product(range(0, rows, high), range(0, columns, wide)):
        up, across = slice(top, top + high), slice(left, left + wide)
        total, mix = (
            _fold(a[:, :, up, None] + b[:, :, None, across]) for a, b in zip(sides[0], sides[1], strict=True)
        )
        result[up, across] = _forward(network, total, mix, first[:, :, up, None])
    return result


def _forward(network: Network, total: Ints, mix: Ints, token: Ints) -> Ints:
    """Compute coordinate 0 of the output for S and P of the first layer (d, d, …) and x (d, 1, …)."""
    layers, heads = network.value.shape[:2]
    for layer in range(1, layers):
        token = _product(mix, token)
        if layer < layers - 1:
            total = _product(_product(mix, total), np.swapaxes(mix, 0, 1))
            mix = _mix(network, layer, total)
    output: Any = 0
    for head in range(heads):
        row = network.value[-1, head, :1, :, None, None]
        # The last S is P S P^T; a row of it is three products of a row, not two of matrices.
        for factor in (mix, total, np.swapaxes(mix, 0, 1)) if layers > 1 else (total,):
            row = _product(row, factor)
        scored = _product(network.score[-1, head, :, :, None, None], token)
        output = _fold(output + _product(row, scored))
    return np.asarray(output[0, 0])


def _mix(network: Network, layer: int, total: Ints) -> Ints:
    """Compute P of a layer for S of shape (d, d, …)."""
    mix: Any = 0
    for value, score in zip(network.value[layer], network.score[layer], strict=True):
        ones = (1,) * (total.ndim - 2)
        left = _product(value.reshape(*value.shape, *ones), total)
        mix = _fold(mix + _product(left, score.reshape(*score.shape, *ones)))
    return np.asarray(mix)


def _fold(value: Ints) -> Ints:
    """Reduce non-negative numbers to residues, in place: 2^31 is 1 modulo `PRIME`, so upper bits are added to lower."""
    _half_fold(value)
    _half_fold(value)
    np.subtract(value, PRIME, out=value, where=value >= PRIME)
    return value


def _half_fold(value: Ints) -> None:
    """Reduce numbers below 2^63 to numbers below 2^33, in place."""
    upper = value >> 31
    value &= PRIME
    value += upper


def _product(left: Ints, right: Ints) -> Ints:
    """Multiply residues as matrices over the first two axes, elementwise over the rest: (i, k, …)·(k, j, …)."""
    total = left[:, 0, None] * right[None, 0]
    term = np.empty_like(total)
    for k in range(1, left.shape[1]):
        # A product is below 2^62 and a folded sum below 2^33: no overflow in 63 bits.
        _half_fold(total)
        total += np.multiply(left[:, k, None], right[None, k], out=term)
    return _fold(total)


def _reduced_echelon(panel: Ints) -> tuple[Ints, list[int]]:
    """Bring rows to reduced echelon form; return the rows that have a pivot, and the columns of the pivots."""
    panel = panel.copy()
    rows, pivots = [], []
    for index in range(len(panel)):
        columns = np.flatnonzero(panel[index])
        if not len(columns):
            continue
        column = int(columns[0])
        panel[index] = _fold(panel[index] * pow(int(panel[index, column]), -1, PRIME))
        factors = panel[:, column].copy()
        factors[index] = 0
        # PRIME - factor, so that the sum stays non-negative.
        panel = _fold(panel + (PRIME - factors)[:, None] * panel[index])
        rows.append(index)
        pivots.append(column)
    return panel[rows], pivots


def _subtract_product(target: Ints, factors: Ints, rows: Floats) -> Ints:
    """Compute `target` - `factors` @ `rows` modulo `PRIME`; `modular_rank` explains why float64 is exact here."""
    upper = _fold(((factors >> 16).astype(np.float64) @ rows).astype(np.int64))
    lower = ((factors & 0xFFFF).astype(np.float64) @ rows).astype(np.int64)
    return _fold(target + PRIME - _fold((upper << 16) + lower))


def _check(depth: int, width: int, heads: int, tokens: int | None, grid: int) -> int:
    """Refuse what describes no network; return the number of positions."""
    check_shape(depth, width, heads)
    if depth > DEEPEST:
        raise InputError(
            f"The depth is {depth}; a rank can be measured up to depth {DEEPEST}, beyond which the polynomial has too "
            "high a degree for the arithmetic. The bounds are defined for every depth."
        )
    if width % heads:
        raise InputError(
            f"{heads} heads do not divide the width {width}, so there is no such network to measure; the bounds do not "
            "need this."
        )
    tokens = 2 * (width + 1) if tokens is None else tokens
    if tokens < 2 or tokens % 2:
        raise InputError(
            f"{tokens} tokens have no balanced partition, which puts half of the positions on each side; "
            "take an even number of at least 2."
        )
    if grid < 1:
        raise InputError(f"The grid is {grid}; it must be a whole number of at least 1.")
    return tokens
