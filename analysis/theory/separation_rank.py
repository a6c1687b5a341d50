"""The separation rank of the network of eq. 3 (Levine et al. 2020), measured on random weights.

y^{l,i} = sum_j sum_h <W^Q x^i, W^K x^j> W^O W^V x^j, layer upon layer, without softmax, normalisation and ReLU. With
half of the positions in A and the others in B, M[i, j] = y(A_i, B_j) for random inputs A_i, B_j is a matrix whose rank
is at most the separation rank of y, and equals it (with a probability next to 1) once it is less than the grid's size.

y is a polynomial of degree 3^L in its inputs, so the singular values of M in float64 fade into rounding for L >= 3. The
rank is therefore computed in the field of integers modulo the prime 2^31 - 1, where arithmetic is exact: there a rank
never comes out too high, and too low only by bad luck of the draw, with the probability `odds_too_low` at most.
"""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from analysis.errors import InputError
from analysis.theory.theorems import Bounds, bounds, equation_7, log3

Arithmetic = Literal["exact", "float64", "both"]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A Mersenne prime: a remainder is two shifts and adds, and a product of two residues stays below 2^62.
PRIME = 2**31 - 1
#: Beyond this depth the degree of y and its weights, 3^(L+1) - 2, passes the prime, and no draw can be relied on.
DEEPEST = 18
#: The first grid; doubled until the rank is less than it.
FIRST_GRID = 32
#: Float64 tells the rank up to this depth only: 3^L is 9 at L = 2, and 27 at L = 3, where it finds about 80 of 232.
FLOAT_DEPTH = 2
#: The largest grid given to the float64 SVD: seconds at this size, and eight times as many at each doubling.
FLOAT_GRID = 2048
#: Singular values below this times the largest one times the grid's size count as zero (as `numpy.linalg.matrix_rank`).
FLOAT_TOLERANCE = float(np.finfo(np.float64).eps)
#: Why a sweep passes over a shape that is no network.
UNDIVIDED = "the heads do not divide the width, so there is no such network"
#: More partitions than this are not run one by one.
MOST_PARTITIONS = 100

#: Rows eliminated at once. 64 products of a residue and its 16-bit half sum to at most 2^53: exact in float64.
_PANEL = 64
#: Rows below a panel that are updated at once, so that temporaries stay small beside M.
_ROWS = 128
#: Pairs of inputs evaluated at once, times d²: what stays in a core's cache.
_CHUNK = 1 << 17
#: Copies of M that are alive at once in elimination and in the SVD.
_COPIES = 4
_GIB = 2**30


@dataclass(frozen=True)
class Network:
    """Random weights of the network, as the two products that eq. 3 holds of them.

    Attributes:
        value: W^O W^V of each layer and head, (L, H, d, d).
        score: (W^K)^T W^Q, (L, H, d, d).
        exact: residues modulo `PRIME`; else float64.
    """

    value: npt.NDArray[Any]
    score: npt.NDArray[Any]
    exact: bool


@dataclass(frozen=True)
class SeparationRank:
    """The separation rank of one random network.

    Attributes:
        depth, width, heads, tokens: L, d, H and the number of positions.
        partition: positions in A, from 0; all others are in B. The output is that at position 0.
        rank: the one to use, see `trusted`.
        exact: modulo `PRIME`; None where it was not asked for.
        float64: by singular values; None where it was not asked for, or the grid is beyond `FLOAT_GRID`.
        trusted: `exact`, or `float64` where only that was asked for and the depth is at most 2, or `none`.
        grid: inputs on each side.
        saturated: the rank is the grid's size, so the separation rank is at least that and may be any more.
        stopped_by: why the grid was not doubled further where it is saturated: `memory`, `time` or `grid`.
        odds_too_low: bound of the probability that bad luck of the draw made the exact rank too low (Schwartz-Zippel).
        seconds: taken.
    """

    depth: int
    width: int
    heads: int
    tokens: int
    partition: tuple[int, ...]
    rank: int
    exact: int | None
    float64: int | None
    trusted: Literal["exact", "float64", "none"]
    grid: int
    saturated: bool
    stopped_by: Literal["memory", "time", "grid"] | None
    odds_too_low: float | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "partition": list(self.partition)}


@dataclass(frozen=True)
class Held:
    """Whether a rank respects bounds given as log3; None where the bound is missing or a saturated grid leaves it open.

    A measured rank is never above the separation rank, so one above `upper` disproves it, saturated or not.
    """

    lower: bool | None
    upper: bool | None


@dataclass(frozen=True)
class SweepRow:
    """One shape of a sweep: its rank beside the theorem that covers it.

    Attributes:
        measured: None where it was not run, with `reason`.
        bounds: by the theorem that covers the shape.
        held: whether they hold.
        formula_7: equation 7's bounds as formulas; outside L < log3 d its lower one is not claimed by any theorem.
        formula_7_held: whether those hold.
    """

    depth: int
    width: int
    heads: int
    tokens: int
    measured: SeparationRank | None
    reason: str | None
    bounds: Bounds
    held: Held | None
    formula_7: tuple[float | None, float]
    formula_7_held: Held | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        measured = self.measured.to_json() if self.measured else None
        return {**asdict(self), "measured": measured, "formula_7": list(self.formula_7)}


class _OutOfTimeError(Exception):
    """A grid was not finished in time; the one before it is the answer."""


class _Matmul(Protocol):
    def __call__(self, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]: ...


def default_tokens(width: int) -> int:
    """Positions with which more change nothing, 2·(d + 1).

    The network sees its inputs only through x^0 and the sum of x x^T over the positions (see `_matrix`), and d + 1
    positions a side already give every such pair that more would.
    """
    return 2 * (width + 1)


def separation_rank(
    depth: int,
    width: int,
    heads: int = 1,
    tokens: int | None = None,
    *,
    partition: Sequence[int] | None = None,
    arithmetic: Arithmetic = "both",
    grid: int | None = None,
    memory: float = 2.0,
    seconds: float = 120.0,
    seed: int = 0,
) -> SeparationRank:
    """Measure the separation rank of a random network at position 0 with respect to a balanced partition.

    Args:
        depth: L.
        width: d.
        heads: H, which divides d.
        tokens: positions, even; `default_tokens` where None.
        partition: positions in A (half of them); the first half where None.
        arithmetic: `exact`, `float64`, or both. Both use the same grid, and each its own draw of weights.
        grid: inputs on each side; None doubles from `FIRST_GRID` until the rank is less than the grid.
        memory: limit in GiB; the grid is not doubled beyond it.
        seconds: limit of time; the grid is not doubled into it.
        seed: of weights and inputs.

    Raises:
        InputError: a value that describes no such network or partition, or one that fits neither memory nor time.
    """
    _check(depth, width, heads, memory, seconds)
    tokens = default_tokens(width) if tokens is None else tokens
    inside = _check_partition(tokens, partition)
    began = time.monotonic()
    largest = _largest_grid(depth, width, heads, tokens, memory)
    if grid is not None and grid < 1:
        raise InputError(f"The grid is {grid}; it must be a whole number of at least 1.")
    if (grid or min(FIRST_GRID, largest)) > largest or largest < 1:
        raise _does_not_fit(depth, width, heads, tokens, grid or 1, memory, largest)
    if arithmetic != "exact" and (grid or 0) > FLOAT_GRID:
        raise InputError(
            f"A grid of {grid} is too large for the float64 SVD, which takes up to {FLOAT_GRID}."
        )
    by_float = arithmetic == "float64"
    limit = min(largest, FLOAT_GRID) if by_float else largest
    deadline = began + seconds

    size = min(FIRST_GRID, limit) if grid is None else grid
    done: tuple[int, int] | None = None
    stopped: Literal["memory", "time", "grid"] | None = None
    while True:
        started = time.monotonic()
        try:
            found = _rank(depth, width, heads, tokens, inside, size, seed, not by_float, deadline)
        except _OutOfTimeError:
            if done is None:
                raise InputError(
                    f"A grid of {size} for depth {depth}, width {width} was not finished in {seconds:g} s; allow more "
                    "time (--seconds), or take a smaller width, depth or grid."
                ) from None
            stopped = "time"
            break
        done = (size, found)
        if found < size:
            break
        if grid is not None or size >= limit:
            stopped = "memory" if grid is None and limit == largest else "grid"
            break
        # The next grid has four times the entries and eight times the elimination, so it takes four times at least.
        if time.monotonic() + 4 * (time.monotonic() - started) > deadline:
            stopped = "time"
            break
        size = min(2 * size, limit)
    size, found = done
    other = None
    if arithmetic == "both" and size <= FLOAT_GRID:
        other = _rank(depth, width, heads, tokens, inside, size, seed, False, math.inf)
    # A minor of M is a polynomial of this degree in weights and inputs: 2·(3^L - 1) for the weights, 3^L for inputs.
    odds = min(1.0, size * (3.0 ** (depth + 1) - 2) / PRIME) if depth < 600 else 1.0
    return SeparationRank(
        depth=depth,
        width=width,
        heads=heads,
        tokens=tokens,
        partition=inside,
        rank=found,
        exact=None if by_float else found,
        float64=found if by_float else other,
        trusted="exact" if not by_float else "float64" if depth <= FLOAT_DEPTH else "none",
        grid=size,
        saturated=found == size,
        stopped_by=stopped,
        odds_too_low=None if by_float else odds,
        seconds=time.monotonic() - began,
    )


def balanced_partitions(tokens: int) -> Iterator[tuple[int, ...]]:
    """Every half of the positions, as A; position 0, whose output is looked at, is in A for the first half of them."""
    _check_partition(tokens, None)
    return itertools.combinations(range(tokens), tokens // 2)


def partition_ranks(
    depth: int,
    width: int,
    heads: int = 1,
    tokens: int | None = None,
    *,
    count: int | None = None,
    arithmetic: Arithmetic = "both",
    grid: int | None = None,
    memory: float = 2.0,
    seconds: float = 120.0,
    seed: int = 0,
) -> tuple[SeparationRank, ...]:
    """The ranks with respect to several balanced partitions; by Proposition 1 they are equal.

    Each partition has inputs of its own and the weights of the others. Position 0 is in A for some and in B for others:
    the rank is the same, because swapping A and B transposes M, and because y does not change when positions other
    than 0 trade places.

    `count` partitions are drawn without replacement, the first two being the first half of the positions and its
    complement; None runs all. The other arguments are those of `separation_rank`.

    Raises:
        InputError: as `separation_rank`; also where all are more than `MOST_PARTITIONS`, or `count` is not a number of
            partitions.
    """
    _check(depth, width, heads, memory, seconds)
    tokens = default_tokens(width) if tokens is None else tokens
    first = _check_partition(tokens, None)
    total = math.comb(tokens, tokens // 2)
    if (total if count is None else count) > MOST_PARTITIONS:
        raise InputError(
            f"{tokens} tokens have {total:,} balanced partitions; up to {MOST_PARTITIONS} are run. Ask for fewer, as "
            "--partitions 6, or take fewer tokens (8 have 70)."
        )
    if count is not None and not 1 <= count <= total:
        raise InputError(
            f"{count} partitions were asked for; {tokens} tokens have {total:,}, so ask for 1 to "
            f"{min(total, MOST_PARTITIONS)}, or for all."
        )
    chosen = (
        list(balanced_partitions(tokens)) if count is None else _draw_partitions(tokens, first, count, seed)
    )
    return tuple(
        separation_rank(
            depth,
            width,
            heads,
            tokens,
            partition=inside,
            arithmetic=arithmetic,
            grid=grid,
            memory=memory,
            seconds=seconds,
            seed=seed,
        )
        for inside in chosen
    )


def held(rank: int, saturated: bool, lower: float | None, upper: float | None) -> Held:
    """Whether a measured rank respects bounds of the separation rank given as log3."""
    value = log3(rank) if rank > 0 else -math.inf
    # A bound that is met with equality, as d + H at L = 1, must not fail by the last bit.
    slack = 1e-9
    above = None if lower is None else True if value >= lower - slack else None if saturated else False
    below = None if upper is None else False if value > upper + slack else None if saturated else True
    return Held(above, below)


def sweep(
    depths: Sequence[int],
    widths: Sequence[int],
    heads: Sequence[int] = (1,),
    tokens: int | None = None,
    *,
    memory: float = 2.0,
    seconds: float = 30.0,
    seed: int = 0,
) -> tuple[SweepRow, ...]:
    """The exact rank of every combination, beside the bounds of the theorem that covers it.

    What cannot be run (heads that do not divide the width, a shape that fits neither memory nor time) has no rank and
    the reason. `tokens` is for all shapes, `default_tokens` of each width where None; `memory`, `seconds` and `seed`
    are those of `separation_rank`, for each shape.

    Raises:
        InputError: a list is empty, or has a value below 1; tokens that have no balanced partition.
    """
    for name, values in (("depths", depths), ("widths", widths), ("heads", heads)):
        if not values:
            raise InputError(f"A sweep needs {name}; none are given.")
    if tokens is not None:
        _check_partition(tokens, None)
    rows = []
    for depth, width, head in itertools.product(depths, widths, heads):
        limits = bounds(depth, width, head)
        seven = equation_7(depth, width, head)
        positions = default_tokens(width) if tokens is None else tokens
        measured, reason = None, None
        if width % head:
            rows.append(SweepRow(depth, width, head, positions, None, UNDIVIDED, limits, None, seven, None))
            continue
        try:
            measured = separation_rank(
                depth, width, head, positions, arithmetic="exact", memory=memory, seconds=seconds, seed=seed
            )
        except InputError as error:
            reason = str(error)
        checked, checked_7 = None, None
        if measured:
            checked = held(measured.rank, measured.saturated, limits.lower, limits.upper)
            checked_7 = held(measured.rank, measured.saturated, *seven)
        rows.append(
            SweepRow(depth, width, head, positions, measured, reason, limits, checked, seven, checked_7)
        )
    return tuple(rows)


def random_network(depth: int, width: int, heads: int, *, exact: bool, seed: int = 0) -> Network:
    """Draw weights: uniform residues modulo `PRIME`, or Gaussian with variance 1/fan-in in float64."""
    generator = np.random.default_rng([seed, 0])
    inner = width // heads
    fan_in = {"key": width, "query": width, "value": width, "output": inner}
    drawn: list[npt.NDArray[Any]] = []
    for name, size in fan_in.items():
        shape = (depth, heads, width, inner) if name == "output" else (depth, heads, inner, width)
        drawn.append(
            generator.integers(0, PRIME, shape, dtype=np.int64)
            if exact
            else generator.normal(0, size**-0.5, shape)
        )
    key, query, into, out = drawn
    product: _Matmul = _modular_product if exact else _float_product
    # (d, d) as batch axes last, as the products below want them.
    last = [np.moveaxis(part, (0, 1), (2, 3)) for part in (out, into, key.swapaxes(2, 3), query)]
    value, score = product(last[0], last[1]), product(last[2], last[3])
    return Network(np.moveaxis(value, (2, 3), (0, 1)), np.moveaxis(score, (2, 3), (0, 1)), exact)


def modular_rank(matrix: Ints, deadline: float = math.inf) -> int:
    """The rank of a matrix of residues modulo `PRIME`, exactly.

    Panels of rows are brought to reduced echelon form and their pivot columns struck out of all rows below by one
    matrix product, so nearly all work is BLAS: a residue times the upper and the lower half of another, in float64,
    where sums of up to 64 such products are whole numbers below 2^53.
    """
    rest = np.asarray(matrix, dtype=np.int64) % PRIME
    rank = 0
    while rest.any():
        if time.monotonic() > deadline:
            raise _OutOfTimeError
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


def float_rank(matrix: Floats) -> int:
    """The number of singular values above `FLOAT_TOLERANCE` times the larger dimension times the largest one."""
    return int(np.linalg.matrix_rank(matrix, rtol=FLOAT_TOLERANCE * max(matrix.shape)))


def grid_matrix(
    network: Network,
    inside: Floats | Ints,
    outside: Floats | Ints,
    *,
    first_inside: bool,
    deadline: float = math.inf,
) -> npt.NDArray[Any]:
    """M[i, j]: coordinate 0 of the output at position 0 for the i-th input of A and the j-th of B.

    The network of eq. 3 sees its inputs through S = sum_j x^j (x^j)^T only, for one layer is

        y^i = P x^i,  P = sum_h W^O W^V S (W^K)^T W^Q,

    and then the next layer's sum is P S P^T. So S starts as S_A + S_B and each pair costs the same for any number of
    positions; the last layer needs one row of P.

    `inside` and `outside` are the inputs of A and of B, (inputs, positions, d); position 0 is the first of A, or the
    first of B where `first_inside` is false. The result is (inputs of A, inputs of B), residues or float64 as the
    weights are.
    """
    product: _Matmul = _modular_product if network.exact else _float_product
    width = network.value.shape[-1]
    # Pairs are the last axis: each product below then works on long rows.
    sums = [product(x.transpose(2, 1, 0), x.transpose(1, 2, 0)) for x in (inside, outside)]
    # The first P is linear in S, so each side gives its part once and not in every pair. One layer needs no P.
    deeper = network.value.shape[0] > 1
    sides = [(part, _mix(network, 0, part, product) if deeper else part) for part in sums]
    first = (inside if first_inside else outside)[:, 0].T[:, None]
    rows, columns = len(inside), len(outside)
    result = np.empty((rows, columns), dtype=np.int64 if network.exact else np.float64)
    high = max(1, _CHUNK // (width**2 * columns))
    wide = min(columns, max(1, _CHUNK // width**2))
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            if time.monotonic() > deadline:
                raise _OutOfTimeError
            up, across = slice(top, top + high), slice(left, left + wide)
            total, mix = (
                _reduced(network, a[:, :, up, None] + b[:, :, None, across])
                for a, b in zip(sides[0], sides[1], strict=True)
            )
            token = first[:, :, up, None] if first_inside else first[:, :, None, across]
            result[up, across] = _forward(network, total, mix, token, product)
    return result


def _forward(
    network: Network,
    total: npt.NDArray[Any],
    mix: npt.NDArray[Any],
    token: npt.NDArray[Any],
    product: _Matmul,
) -> npt.NDArray[Any]:
    """Coordinate 0 of the output for S and P of the first layer (d, d, …) and x (d, 1, …)."""
    layers, heads = network.value.shape[:2]
    for layer in range(1, layers):
        token = product(mix, token)
        if layer < layers - 1:
            total = product(product(mix, total), np.swapaxes(mix, 0, 1))
            mix = _mix(network, layer, total, product)
    output: Any = 0
    for head in range(heads):
        row = network.value[-1, head, :1, :, None, None]
        # The last S is P S P^T; a row of it is three products of a row, not two of matrices.
        past = (mix, total, np.swapaxes(mix, 0, 1)) if layers > 1 else (total,)
        for factor in past:
            row = product(row, factor)
        scored = product(network.score[-1, head, :, :, None, None], token)
        output = _reduced(network, output + product(row, scored))
    return np.asarray(output[0, 0])


def _mix(network: Network, layer: int, total: npt.NDArray[Any], product: _Matmul) -> npt.NDArray[Any]:
    """P of a layer for S of shape (d, d, …)."""
    mix: Any = 0
    for value, score in zip(network.value[layer], network.score[layer], strict=True):
        ones = (1,) * (total.ndim - 2)
        left = product(value.reshape(*value.shape, *ones), total)
        mix = _reduced(network, mix + product(left, score.reshape(*score.shape, *ones)))
    return np.asarray(mix)


def _reduced(network: Network, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return _fold(value) if network.exact else value


def _rank(
    depth: int,
    width: int,
    heads: int,
    tokens: int,
    inside: tuple[int, ...],
    grid: int,
    seed: int,
    exact: bool,
    deadline: float,
) -> int:
    network = random_network(depth, width, heads, exact=exact, seed=seed)
    # Other partitions get other inputs: the same ones would make the same matrix, and equal ranks no finding.
    generator = np.random.default_rng([seed, 1, *inside])
    shape = (2, grid, tokens // 2, width)
    inputs = generator.integers(0, PRIME, shape, dtype=np.int64) if exact else generator.normal(size=shape)
    matrix = grid_matrix(network, inputs[0], inputs[1], first_inside=0 in inside, deadline=deadline)
    return modular_rank(matrix, deadline) if exact else float_rank(matrix)


def _fold(value: Ints) -> Ints:
    """Residues of non-negative numbers, in place: 2^31 is 1 modulo 2^31 - 1, so upper bits are added to lower ones."""
    _half_fold(value)
    _half_fold(value)
    np.subtract(value, PRIME, out=value, where=value >= PRIME)
    return value


def _half_fold(value: Ints) -> None:
    """Bring numbers below 2^63 below 2^33, in place."""
    upper = value >> 31
    value &= PRIME
    value += upper


def _modular_product(left: Ints, right: Ints) -> Ints:
    """Matrix products of residues over the first two axes, elementwise over the rest: (i, k, …)·(k, j, …)."""
    total = left[:, 0, None] * right[None, 0]
    term = np.empty_like(total)
    for k in range(1, left.shape[1]):
        # A product is below 2^62 and a folded sum below 2^33: no overflow in 63 bits.
        _half_fold(total)
        total += np.multiply(left[:, k, None], right[None, k], out=term)
    return _fold(total)


def _float_product(left: Floats, right: Floats) -> Floats:
    total = left[:, 0, None] * right[None, 0]
    for k in range(1, left.shape[1]):
        total = total + left[:, k, None] * right[None, k]
    return np.asarray(total)


def _reduced_echelon(panel: Ints) -> tuple[Ints, list[int]]:
    """Bring rows to reduced echelon form; return the rows that have a pivot, and their pivots' columns."""
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
    """`target` - `factors` @ `rows` modulo `PRIME`; see `modular_rank` for why float64 is exact here."""
    upper = _fold(((factors >> 16).astype(np.float64) @ rows).astype(np.int64))
    lower = ((factors & 0xFFFF).astype(np.float64) @ rows).astype(np.int64)
    return _fold(target + PRIME - _fold((upper << 16) + lower))


def _draw_partitions(tokens: int, first: tuple[int, ...], count: int, seed: int) -> list[tuple[int, ...]]:
    chosen = [first, tuple(range(tokens // 2, tokens))][:count]
    generator = np.random.default_rng([seed, 2])
    while len(chosen) < count:
        drawn = tuple(sorted(generator.choice(tokens, tokens // 2, replace=False).tolist()))
        if drawn not in chosen:
            chosen.append(drawn)
    return chosen


def _bytes(width: int, heads: int, depth: int, tokens: int, grid: int) -> int:
    """Memory of a grid: copies of M, what grows with its side, and what does not."""
    return 8 * (_COPIES * grid**2 + _per_input(width, tokens) * grid + _fixed(width, heads, depth))


def _per_input(width: int, tokens: int) -> int:
    """Numbers held for each input: both sides' tokens, S and P with their temporaries; rows in elimination."""
    return 2 * (tokens // 2 * width + 6 * width**2) + 6 * (_ROWS + _PANEL)


def _fixed(width: int, heads: int, depth: int) -> int:
    """Numbers held whatever the grid: weights, and the temporaries of one chunk of pairs."""
    return 8 * depth * heads * width**2 + 10 * max(_CHUNK, width**2)


def _largest_grid(depth: int, width: int, heads: int, tokens: int, memory: float) -> int:
    """The largest grid that fits, 0 where none does: _COPIES·G² + per_input·G + fixed = room."""
    room = memory * _GIB / 8 - _fixed(width, heads, depth)
    if room <= 0:
        return 0
    half = _per_input(width, tokens) / 2
    grid = int((math.sqrt(half**2 + _COPIES * room) - half) / _COPIES)
    return grid if _bytes(width, heads, depth, tokens, grid) <= memory * _GIB else max(0, grid - 1)


def _does_not_fit(
    depth: int, width: int, heads: int, tokens: int, grid: int, memory: float, largest: int
) -> InputError:
    need = _bytes(width, heads, depth, tokens, grid) / _GIB
    what = f"A grid of {grid:,} for depth {depth}, width {width}, heads {heads} and {tokens} tokens"
    text = f"{what} needs {need:.3g} GiB, and --memory allows {memory:g}. "
    if largest >= 1:
        return InputError(
            text + f"A grid of up to {largest:,} fits; or allow --memory {_ceil_digit(need):g}."
        )
    fitting = width
    while fitting > 1 and not _largest_grid(depth, fitting, 1, 2, memory):
        fitting //= 2
    if not _largest_grid(depth, fitting, 1, 2, memory):
        return InputError(text + f"No width fits at this depth; allow --memory {_ceil_digit(need):g}.")
    return InputError(
        text
        + f"With 2 tokens and one head a width of {fitting:,} fits; or allow --memory {_ceil_digit(need):g}."
    )


def _ceil_digit(value: float) -> float:
    """`value` rounded up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.3g}")


def _check(depth: int, width: int, heads: int, memory: float, seconds: float) -> None:
    for name, value in (("depth", depth), ("width", width), ("heads", heads)):
        if value < 1:
            raise InputError(f"The {name} is {value}; it must be a whole number of at least 1.")
    if depth > DEEPEST:
        raise InputError(
            f"The depth is {depth}; a rank can be measured up to depth {DEEPEST}, where the network is a polynomial of "
            "too high a degree for the arithmetic. The bounds are known for every depth."
        )
    if width % heads:
        divisors = [str(h) for h in range(1, min(width, 64) + 1) if width % h == 0]
        raise InputError(
            f"{heads} heads do not divide the width {width}, so there is no such network to measure (each head has "
            f"width/heads rows); use one of {', '.join(divisors)}. The bounds alone do not need this."
        )
    for name, limit in (("memory", memory), ("seconds", seconds)):
        if not (math.isfinite(limit) and limit > 0):
            raise InputError(f"--{name} is {limit:g}; it must be a positive number.")


def _check_partition(tokens: int, partition: Sequence[int] | None) -> tuple[int, ...]:
    if tokens < 2 or tokens % 2:
        raise InputError(
            f"{tokens} tokens have no balanced partition, which puts half of the positions on each side; "
            "take an even number of at least 2."
        )
    if partition is None:
        return tuple(range(tokens // 2))
    inside = tuple(sorted(partition))
    if (
        len(set(inside)) != tokens // 2
        or len(inside) != tokens // 2
        or not all(0 <= p < tokens for p in inside)
    ):
        raise InputError(
            f"The partition {list(partition)} is not balanced: it must name {tokens // 2} different positions "
            f"from 0 to {tokens - 1}."
        )
    return inside
