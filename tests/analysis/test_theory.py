"""The bounds against the formulas and numbers of the paper, and the exact rank against eq. 3 as it is written."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from analysis import theory
from analysis.theory import (
    EXAMPLE,
    FIRST_GRID,
    PRIME,
    bounds,
    grid_matrix,
    log3,
    matching_width,
    modular_rank,
    random_weights,
    separation_rank,
)
from core.errors import InputError

DEPTHS = [*range(1, 13), 24, 96, 10**4]
WIDTHS = [1, 2, 3, 4, 9, 10, 26, 27, 28, 729, 768, 1000, 12288, 59049, 10**6, 3**40, 3**40 + 1, 10**60]
HEADS = [1, 2, 3, 16, 999, 1000, 10**6]


def test_powers_of_three_have_whole_logarithms():
    """log(243)/log(3) is 4.999…."""
    assert math.log(243) / math.log(3) != 5
    for power in range(210):
        assert log3(3**power) == power
    # Their neighbours are not rounded to whole ones.
    for power in range(1, 20):
        assert log3(3**power - 1) < power < log3(3**power + 1)


@pytest.mark.parametrize(
    ("shape", "theorem", "lower", "upper"),
    [
        ((6, 1000, 16), 1, 133.010, 2294),
        ((7, 1000, 16), 2, -384, None),
        ((12, 1000, 16), 2, 2071, 14246),
        ((24, 1000, 16), 2, 7963, 38258),
        ((96, 1000, 16), 2, 43315, 182330),
        ((1, 4, 4), 1, None, log3(8)),
        ((1, 3, 1), None, None, None),
    ],
)
def test_known_bounds(shape, theorem, lower, upper):
    found = bounds(*shape)
    assert found.theorem == theorem
    assert found.lower == (None if lower is None else pytest.approx(lower, abs=0.5))
    if shape == EXAMPLE:
        assert found.lower == pytest.approx(133.010, abs=5e-4)
        assert found.threshold == pytest.approx(6.29, abs=5e-3)
    if upper is not None:
        assert found.upper == pytest.approx(upper, abs=0.5)


def test_the_bounds_are_the_formulas():
    """With logarithms of base e throughout, and the powers written out."""
    covered = 0
    for depth, width, heads in itertools.product(DEPTHS, WIDTHS, HEADS):
        found = bounds(depth, width, heads)
        assert found.theorem == {-1: 1, 0: None, 1: 2}[(3**depth > width) - (3**depth < width)]
        if found.theorem is None:
            assert (found.lower, found.upper) == (None, None)
            continue
        assert (found.lower is None) == (heads >= width)
        d, three = float(width), math.log(3)
        if found.theorem == 1:
            upper = (3.0**depth - 1) / 2 * math.log(d + heads) / three
        else:
            scale = d / math.sqrt(8 * math.e)
            upper = 2 * d * depth + depth + math.log(d) / three - 2 * d * math.log(scale) / three
        assert found.upper == pytest.approx(upper, rel=1e-12, abs=1e-9 * d)
        if found.lower is None:
            continue
        half = math.log((width - heads) / 2) / three
        if found.theorem == 1:
            lower = 3.0**depth / 9 * (half - depth + 2)
        else:
            lower = d * depth / 2 - depth * (heads + 2) / 2 - d * (2 + half) / 2
        assert found.lower == pytest.approx(lower, rel=1e-12, abs=1e-9 * max(d, heads * depth))
        assert found.lower <= found.upper
        covered += 1
    assert covered > 800


def test_the_example_of_corollary_1_is_not_what_the_earlier_revision_prints():
    widths = [matching_width(shallow) for shallow in range(1, 6)]
    assert widths == pytest.approx([2.9e63, 7.34e15, 7.61e4, 22.6, 0], rel=5e-3)
    assert 2e17 / widths[1] == pytest.approx(27, abs=0.5)
    assert 2e5 / widths[2] == pytest.approx(2.6, abs=0.05)
    # The two bounds meet there.
    for shallow, width in enumerate(widths[:3], start=1):
        assert (3**shallow - 1) / 2 * log3(width + 16) == pytest.approx(bounds(*EXAMPLE).lower, rel=1e-12)


def plain_output(value, score, tokens):
    """Coordinate 0 at position 0 by eq. 3 as it is written, in Python's own numbers."""
    layers, heads, width, _ = value.shape
    value, score = value.tolist(), score.tolist()
    x = [list(token) for token in tokens]

    def times(matrix, vector):
        return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]

    for layer in range(layers):
        y = [[0] * width for _ in x]
        for i, j, head in itertools.product(range(len(x)), range(len(x)), range(heads)):
            # <W^Q x^i, W^K x^j> = x^j · (W^K)^T W^Q x^i
            inner = sum(a * b for a, b in zip(x[j], times(score[layer][head], x[i]), strict=True))
            y[i] = [old + inner * new for old, new in zip(y[i], times(value[layer][head], x[j]), strict=True)]
        x = [[entry % PRIME for entry in row] for row in y]
    return x[0][0]


def plain_rank(matrix):
    """Gaussian elimination modulo the prime in Python's own whole numbers."""
    rows = [[int(entry) % PRIME for entry in row] for row in matrix]
    rank = 0
    for column in range(len(rows[0])):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        inverse = pow(rows[rank][column], -1, PRIME)
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] * inverse % PRIME
            rows[r] = [(a - factor * b) % PRIME for a, b in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank


@pytest.mark.parametrize(
    ("depth", "width", "heads", "tokens"), [(1, 4, 2, 4), (2, 3, 1, 6), (2, 4, 4, 2), (3, 2, 2, 4), (4, 2, 1, 4)]
)  # fmt: skip
def test_the_matrix_is_eq_3_as_written(depth, width, heads, tokens):
    value, score = random_weights(depth, width, heads, seed=3)
    # W^O W^V of a head goes through width/heads numbers.
    for part in (*value.reshape(-1, width, width), *score.reshape(-1, width, width)):
        assert plain_rank(part) == width // heads
    a, b = np.random.default_rng(5).integers(0, PRIME, (2, 5, tokens // 2, width))
    found = grid_matrix(value, score, a, b)
    for i, j in itertools.product(range(5), range(5)):
        assert found[i, j] == plain_output(value, score, np.concatenate((a[i], b[j])).tolist())


def test_arithmetic_does_not_overflow_at_the_largest_residues():
    wide = np.full((1, 1000, 1), PRIME - 1)
    assert theory._product(wide, wide.swapaxes(0, 1)).item() == 1000
    values = [-(2**62), -1, 0, 1, PRIME - 1, PRIME, (PRIME - 1) ** 2 + PRIME, 2**63 - 1]
    assert theory._residues(np.array(values)).tolist() == [value % PRIME for value in values]
    # A panel of 64 rows with the largest factors: the sums that must stay below 2^53.
    top = np.hstack([np.eye(64, dtype=np.int64), np.full((64, 1), PRIME - 1)])
    below = np.full((1, 65), PRIME - 1)
    # 64·(PRIME - 1)² is 64 modulo the prime: only with that entry does the last row depend on the others.
    for entry, rank in ((63, 65), (64, 64)):
        below[0, 64] = entry
        assert modular_rank(np.vstack([top, below])) == rank


def test_rank_agrees_with_plain_elimination():
    generator = np.random.default_rng(0)
    for rank in (0, 1, 63, 64, 65, 100, 150):
        left = generator.integers(0, PRIME, (150, rank)).astype(object)
        right = generator.integers(0, PRIME, (rank, 170)).astype(object)
        product = (left @ right % PRIME if rank else np.zeros((150, 170))).astype(np.int64)
        assert modular_rank(product) == modular_rank(product.T) == rank
    for trial in range(40):
        rows, columns = generator.integers(1, 100, 2)
        # Sparse small entries have pivots in odd places and rows that depend on each other.
        matrix = generator.integers(0, 3, (rows, columns)) * (generator.random((rows, columns)) < 0.04)
        assert modular_rank(matrix) == plain_rank(matrix), trial
    assert modular_rank(np.eye(130, dtype=np.int64)[::-1]) == 130
    # det = 1 over the integers, with entries that float64 cannot distinguish.
    big = 10**9
    matrix = np.array([[big, big - 1], [big + 1, big]])
    assert (modular_rank(matrix), np.linalg.matrix_rank(matrix / big)) == (2, 1)


#: (L, d, H, tokens) and the rank. One layer has d + 1: a function of A alone, and a form in x^0 and B of rank d.
RANKS = {
    (1, 4, 1, 6): 5,
    (1, 6, 3, 4): 7,
    (2, 2, 1, None): 18,
    (2, 2, 2, 4): 17,
    (2, 3, 1, 2): 35,
    (2, 3, 1, 4): 49,
    (2, 3, 1, None): 49,
    (2, 3, 1, 20): 49,
    (2, 4, 2, 6): 107,
    (2, 6, 2, 6): 379,
    (3, 2, 1, 4): 232,
}


@pytest.mark.parametrize("shape", RANKS, ids=str)
def test_known_ranks(shape):
    found = separation_rank(*shape, seed=1)
    assert found.rank == RANKS[shape]
    assert not found.saturated
    assert found.rank < found.grid < 2 * max(found.rank, FIRST_GRID) + 1
    assert found.odds_too_low < 1e-4
    # Theorem 1's upper bound as a formula, which holds for all of these.
    assert found.rank <= (shape[1] + shape[2]) ** ((3 ** shape[0] - 1) // 2)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6])
def test_width_one_is_a_binomial(depth):
    """With d = 1 the output is (S_A + S_B)^C · x^0 with C = (3^L - 1)/2, whose expansion has C + 1 terms."""
    assert separation_rank(depth, 1, 1, 2).rank == (3**depth - 1) // 2 + 1


def test_a_full_grid_is_only_a_lower_bound():
    for grid, rank, saturated in ((16, 16, True), (19, 18, False)):
        found = separation_rank(2, 2, 1, 4, grid=grid)
        assert (found.rank, found.grid, found.saturated) == (rank, grid, saturated)
    assert separation_rank(4, 2, 1, 4, grid=100).grid == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "depth must be"),
        ((10**7, 2), "depth must be"),
        ((1, 10**400), "width must be"),
        ((1, 2, 0), "heads must be"),
        ((1, 6, 4), "do not divide"),
        ((19, 2), "beyond 18"),
        ((1, 2, 1, 5), "even number"),
        ((1, 2, 1, 0), "even number"),
    ],
)
def test_what_cannot_be_computed_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        separation_rank(*arguments)


@pytest.mark.extended
def test_theorem_1_at_two_layers():
    """The least width whose depth 2 lies below the threshold. The ranks are a quartic in d, as is the upper bound."""
    ranks = [separation_rank(2, width).rank for width in range(1, 7)]
    assert ranks == [5, 18, 49, 110, 216, 385]
    inputs = np.random.default_rng(1).integers(0, PRIME, (2, 2200, 4, 10))
    rank = modular_rank(grid_matrix(*random_weights(2, 10, 1), *inputs))
    assert rank == 2156 == round(np.polyval(np.polyfit(range(1, 6), ranks[:5], 4), 10))
    limits = bounds(2, 10)
    assert limits.theorem == 1
    assert limits.lower < log3(rank) < limits.upper


def test_the_table_of_least_depths_in_the_docs_follows_from_the_formula():
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| 1e")]
    assert [row[0] for row in rows] == [f"1e{power}" for power in range(6, 13)]
    for row in rows:
        params, real, least, width, built, most = (float(cell.replace(",", "")) for cell in row)
        assert 12 * real * 9**real == pytest.approx(params, rel=0.03)
        # The smallest whole depth whose threshold takes the budget.
        assert 12 * (least - 1) * 9 ** (least - 1) < params <= 12 * least * 9**least
        assert width == round(math.sqrt(params / (12 * least)))
        assert log3(width) <= least
        assert most == 3**least
        assert built % (64 if width >= 256 else 8) == 0
        assert abs(built - width) <= 32
