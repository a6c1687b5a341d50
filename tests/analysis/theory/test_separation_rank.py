import itertools
from dataclasses import replace

import numpy as np
import pytest

from analysis.errors import InputError
from analysis.theory import separation_rank as separation
from analysis.theory.separation_rank import (
    FIRST_GRID,
    PRIME,
    grid_matrix,
    held,
    modular_rank,
    random_network,
    separation_rank,
)
from analysis.theory.theorems import bounds


def plain_output(network, tokens):
    """Coordinate 0 at position 0 by eq. 3 as it is written, in Python's own numbers."""
    layers, heads, width, _ = network.value.shape
    value, score = network.value.tolist(), network.score.tolist()
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


def of_rank(rank, rows, columns, seed=0):
    """A matrix of residues that has this rank with probability 1 - 1e-6: a product of random ones."""
    generator = np.random.default_rng(seed)
    left = generator.integers(0, PRIME, (rows, rank)).astype(object)
    right = generator.integers(0, PRIME, (rank, columns)).astype(object)
    return (left @ right % PRIME).astype(np.int64)


@pytest.mark.parametrize(
    ("depth", "width", "heads", "tokens"), [(1, 4, 2, 4), (2, 3, 1, 6), (2, 4, 4, 2), (3, 2, 2, 4)]
)
def test_the_matrix_is_eq_3_as_written(depth, width, heads, tokens):
    network = random_network(depth, width, heads, seed=3)
    a, b = np.random.default_rng(5).integers(0, PRIME, (2, 5, tokens // 2, width))
    found = grid_matrix(network, a, b)
    for i, j in itertools.product(range(5), range(5)):
        assert found[i, j] == plain_output(network, np.concatenate((a[i], b[j])).tolist())


def test_heads_have_rank_width_over_heads():
    """W^O W^V of a head goes through width/heads numbers; a full-rank product would be another network."""
    network = random_network(2, 6, 3)
    assert network.value.shape == network.score.shape == (2, 3, 6, 6)
    for part in (*network.value.reshape(-1, 6, 6), *network.score.reshape(-1, 6, 6)):
        assert plain_rank(part) == 2


def test_arithmetic_does_not_overflow_at_the_largest_residues():
    full = np.full((2, 2, 1), PRIME - 1)
    assert (separation._product(full, full) == 2).all()
    wide = np.full((1, 1000, 1), PRIME - 1)
    assert separation._product(wide, wide.swapaxes(0, 1)).item() == 1000
    values = [0, 1, PRIME - 1, PRIME, PRIME + 1, 2 * PRIME, (PRIME - 1) ** 2 + PRIME, 2**62, 2**63 - 1]
    assert separation._fold(np.array(values)).tolist() == [value % PRIME for value in values]
    # A panel of 64 rows at the largest residues: the sums that must stay below 2^53.
    factors, rows = np.full((3, 64), PRIME - 1), np.full((64, 5), float(PRIME - 1))
    found = separation._subtract_product(np.full((3, 5), PRIME - 1), factors, rows)
    assert (found == (PRIME - 1 - 64 * (PRIME - 1) ** 2) % PRIME).all()


@pytest.mark.parametrize("rank", [0, 1, 5, 63, 64, 65, 100, 128, 150])
def test_rank_of_products(rank):
    assert modular_rank(of_rank(rank, 150, 170, seed=rank)) == rank
    assert modular_rank(of_rank(rank, 170, 150, seed=rank)) == rank


def test_rank_agrees_with_plain_elimination():
    generator = np.random.default_rng(0)
    for trial in range(40):
        rows, columns = generator.integers(1, 100, 2)
        # Sparse small entries have pivots in odd places and rows that depend on each other.
        matrix = generator.integers(0, 3, (rows, columns)) * (generator.random((rows, columns)) < 0.04)
        assert modular_rank(matrix) == plain_rank(matrix), trial
    for matrix in (
        np.zeros((70, 90)),
        np.eye(130)[::-1],
        np.full((80, 80), PRIME - 1),
        np.arange(12).reshape(3, 4),
    ):
        assert modular_rank(matrix.astype(np.int64)) == plain_rank(matrix)


def test_rank_modulo_the_prime_is_not_that_of_rounded_numbers():
    """det = 1 over the integers, with entries that float64 cannot distinguish."""
    big = 10**9
    matrix = np.array([[big, big - 1], [big + 1, big]])
    assert big * big - (big - 1) * (big + 1) == 1
    assert modular_rank(matrix) == 2
    assert np.linalg.matrix_rank(matrix / big) == 1


#: (L, d, H, tokens) and the rank. One layer has d + 1: a function of A alone, and a form in x^0 and B of rank d.
RANKS = {
    (1, 2, 1, 4): 3,
    (1, 3, 1, 4): 4,
    (1, 4, 1, 6): 5,
    (1, 4, 2, 4): 5,
    (1, 6, 3, 4): 7,
    (1, 8, 2, 6): 9,
    (2, 2, 1, 4): 18,
    (2, 2, 2, 4): 17,
    (2, 3, 1, 2): 35,
    (2, 3, 1, 4): 49,
    (2, 3, 1, 6): 49,
    (2, 3, 1, 8): 49,
    (2, 4, 1, 6): 110,
    (2, 4, 2, 6): 107,
    (2, 5, 1, 6): 216,
    (2, 6, 2, 6): 379,
    (3, 2, 1, 4): 232,
}


@pytest.mark.parametrize("shape", RANKS, ids=str)
def test_known_ranks(shape):
    found = separation_rank(*shape)
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


def test_two_layers_grow_with_the_fourth_power_of_width():
    """The exponent (3^L - 1)/2 = 4 of Theorem 1's upper bound is the true one: a quartic, d^4/8 to leading order."""
    ranks = [separation_rank(2, width).rank for width in range(1, 7)]
    assert ranks == [5, 18, 49, 110, 216, 385]
    assert np.diff(ranks, n=4).tolist() == [3, 3]


def test_the_rank_does_not_depend_on_the_draw():
    assert {separation_rank(2, 3, 1, 4, seed=seed).rank for seed in range(5)} == {49}


def test_more_tokens_than_the_default_change_nothing():
    assert separation_rank(1, 3).tokens == 8
    assert separation_rank(2, 3).tokens == 8
    assert separation_rank(2, 3).rank == separation_rank(2, 3, 1, 20).rank == 49


def test_gaussian_weights_in_float64_have_the_same_rank_at_one_and_two_layers():
    """An independent computation: eq. 3 with real weights and einsum, and the rank by singular values."""
    for depth, width, heads, grid in ((1, 4, 2, 12), (2, 2, 1, 40), (2, 3, 1, 80)):
        generator = np.random.default_rng(1)
        value, score = generator.normal(size=(2, depth, heads, width, width // heads))
        into, query = generator.normal(size=(2, depth, heads, width // heads, width))
        a, b = generator.normal(size=(2, grid, width + 1, width))
        i, j = np.meshgrid(range(grid), range(grid), indexing="ij")
        x = np.concatenate([a[i.ravel()], b[j.ravel()]], axis=1)
        for layer in range(depth):
            values = np.einsum("hde,hef->hdf", value[layer], into[layer])
            scores = np.einsum("hde,hef->hdf", score[layer], query[layer])
            weights = np.einsum("nqd,hde,npe->hnpq", x, scores, x, optimize=True)
            x = np.einsum("hnpq,hde,nqe->npd", weights, values, x, optimize=True)
        matrix = x[:, 0, 0].reshape(grid, grid)
        assert np.linalg.matrix_rank(matrix) == separation_rank(depth, width, heads).rank


def test_a_full_grid_is_only_a_lower_bound():
    found = separation_rank(2, 2, 1, 4, grid=16)
    assert (found.rank, found.grid, found.saturated) == (16, 16, True)
    found = separation_rank(2, 2, 1, 4, grid=19)
    assert (found.rank, found.grid, found.saturated) == (18, 19, False)
    assert separation_rank(4, 2, 1, 4, grid=100).grid == 100


@pytest.mark.parametrize(
    ("rank", "saturated", "lower", "upper", "expected"),
    [
        (9, False, 1.0, 2.0, (True, True)),
        (9, False, 2.1, 1.9, (False, False)),
        # A full grid proves a lower bound and disproves an upper one; the reverse it cannot.
        (9, True, 2.1, 2.1, (None, None)),
        (9, True, 1.9, 1.9, (True, False)),
        (9, False, None, None, (None, None)),
        (0, False, -1.0, 1.0, (False, True)),
    ],
)
def test_a_rank_is_held_against_bounds(rank, saturated, lower, upper, expected):
    found = replace(separation_rank(1, 1), rank=rank, saturated=saturated)
    assert held(found, replace(bounds(1, 10), lower=lower, upper=upper)) == expected


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((0, 2), {}, "depth is 0"),
        ((1, 0), {}, "width is 0"),
        ((1, 2, 0), {}, "heads is 0"),
        ((1, 6, 4), {}, "do not divide"),
        ((19, 2), {}, "up to depth 18"),
        ((1, 2, 1, 5), {}, "even number"),
        ((1, 2, 1, 0), {}, "even number"),
        ((1, 2), {"grid": 0}, "grid is 0"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_refused_with_the_way_out(arguments, keywords, message):
    with pytest.raises(InputError, match=message):
        separation_rank(*arguments, **keywords)


@pytest.mark.extended
def test_theorem_1_at_two_layers():
    """The least width whose depth 2 lies below the threshold: log3(10) = 2.1."""
    limits = bounds(2, 10)
    assert limits.theorem == 1
    found = separation_rank(2, 10, 1, 8, grid=2200)
    # The quartic through the ranks of widths 1 to 5, at 10.
    assert found.rank == 2156 == round(np.polyval(np.polyfit(range(1, 6), [5, 18, 49, 110, 216], 4), 10))
    assert held(found, limits) == (True, True)


@pytest.mark.extended
def test_four_layers_of_width_two():
    """Ranks 3, 18, 232, 4538 of 1 to 4 layers: logarithms that grow faster than linearly."""
    found = separation_rank(4, 2, 1, 4, grid=4608)
    assert (found.rank, found.saturated) == (4538, False)
