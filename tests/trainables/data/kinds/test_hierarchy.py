import itertools
import math

import numpy as np
import pytest

from core.errors import InputError
from trainables.data import data_key
from trainables.data.kinds.hierarchy import HierarchyData, random_grammar, sample
from trainables.data.sources.random_rows import Draws

FIRST_RULES = [[6, 5], [3, 3]]
FIRST_ROW = [int(symbol) for symbol in "86313546650235023236313655402540242546665656613631766232254026665"]
FIRST_VALIDATION = [8, 1, 3, 0, 2]

SMALL = [
    HierarchyData(vocabulary=2, branching=2, levels=3, synonyms=2, grammar_seed=1),
    HierarchyData(vocabulary=3, branching=2, levels=2, synonyms=3, grammar_seed=2),
    HierarchyData(vocabulary=4, branching=2, levels=2, synonyms=2, grammar_seed=3),
    HierarchyData(vocabulary=3, branching=3, levels=2, synonyms=1, grammar_seed=4),
    HierarchyData(vocabulary=2, branching=3, levels=2, synonyms=4, grammar_seed=5),
]


def all_strings(grammar):
    length = grammar[0].shape[2] ** len(grammar)
    return np.array(list(itertools.product(range(len(grammar[0])), repeat=length)))


def log_probability(grammar, strings):
    """Natural log of each string's probability by the inside recursion, summed over all derivations."""
    count, length = strings.shape
    inside = np.full((count, length, len(grammar[0])), -np.inf)
    np.put_along_axis(inside, strings[:, :, None], 0.0, axis=2)
    for level in reversed(grammar):
        symbols, synonyms, branching = level.shape
        children = inside.reshape(count, -1, branching, symbols)
        rules = np.zeros((count, children.shape[1], symbols, synonyms))
        for child in range(branching):
            rules += children[:, :, child, level[:, :, child]]
        inside = np.logaddexp.reduce(rules, axis=3) - np.log(synonyms)
    return np.logaddexp.reduce(inside[:, 0], axis=1) - np.log(len(grammar[0]))


def derivations(grammar):
    """Every string with its probability, by writing down every derivation."""
    written = {(root,): 1 / len(grammar[0]) for root in range(len(grammar[0]))}
    for level in grammar:
        below = {}
        for string, p in written.items():
            for choice in itertools.product(range(level.shape[1]), repeat=len(string)):
                leaves = tuple(
                    int(x) for symbol, rule in zip(string, choice, strict=True) for x in level[symbol, rule]
                )
                below[leaves] = below.get(leaves, 0) + p / level.shape[1] ** len(string)
        written = below
    return written


def ambiguous_grammar():
    rng = np.random.default_rng(7)
    return tuple(rng.integers(0, 3, (3, 2, 2)) for _ in range(2))


@pytest.mark.parametrize("grammar", [*(random_grammar(spec) for spec in SMALL), ambiguous_grammar()])
def test_inside_probabilities_are_those_of_enumeration_and_sum_to_one(grammar):
    strings = all_strings(grammar)
    p = np.exp(log_probability(grammar, strings))
    assert p.sum() == pytest.approx(1, abs=1e-12)
    known = derivations(grammar)
    expected = [known.get(tuple(map(int, string)), 0) for string in strings]
    assert np.allclose(p, expected, atol=1e-14)


@pytest.mark.parametrize("spec", SMALL)
def test_entropy_is_that_of_enumeration(spec):
    p = np.array(list(derivations(random_grammar(spec)).values()))
    inner_nodes = (spec.length - 1) // (spec.branching - 1)
    assert len(p) == spec.vocabulary * spec.synonyms**inner_nodes
    assert spec.entropy * spec.length == pytest.approx(-(p * np.log(p)).sum(), abs=1e-12)


def test_the_entropy_of_the_default_grammar():
    assert HierarchyData().entropy == pytest.approx((math.log(8) + 31 * math.log(2)) / 32, abs=1e-12)
    assert round(HierarchyData().entropy, 4) == 0.7365


def test_samples_have_the_entropy_that_is_stated():
    grammar = ambiguous_grammar()
    known = np.array(list(derivations(grammar).values()))
    stated = -(known * np.log(known)).sum()
    seen = -log_probability(grammar, sample(grammar, 20_000, "x"))
    assert seen.mean() == pytest.approx(stated, abs=5 * seen.std() / math.sqrt(len(seen)))
    # With one probability for all strings, as in every unambiguous grammar here, the mean is exact.
    default = HierarchyData()
    seen = -log_probability(random_grammar(default), sample(random_grammar(default), 200, "x"))
    assert seen.mean() == pytest.approx(default.entropy * default.length)


@pytest.mark.parametrize(
    ("v", "s", "m"), [(8, 2, 2), (8, 2, 8), (40, 4, 3)], ids=["listed", "all strings used", "drawn"]
)
def test_rules_are_distinct_and_differ_by_seed(v, s, m):
    spec = HierarchyData(vocabulary=v, branching=s, levels=2, synonyms=m)
    grammar = random_grammar(spec)
    assert all(len(np.unique(level.reshape(v * m, s), axis=0)) == v * m for level in grammar)
    assert [level.shape for level in grammar] == [(v, m, s)] * 2
    assert all(level.min() >= 0 and level.max() < v for level in grammar)
    other = random_grammar(spec.model_copy(update={"grammar_seed": 1}))
    assert not np.array_equal(grammar[0], other[0])


def test_a_seed_means_the_same_grammar_and_rows_for_ever():
    """Numbers written down once: a change of numpy or of this code must not change what was trained on."""
    grammar = random_grammar(HierarchyData())
    assert grammar[0][0].tolist() == FIRST_RULES
    assert next(HierarchyData().rows(64, validation=False))[0].tolist() == FIRST_ROW
    assert next(HierarchyData().rows(64, validation=True))[0, :5].tolist() == FIRST_VALIDATION


def test_rows_start_with_the_start_token_and_belong_to_the_grammar():
    spec = HierarchyData(sequences=500, validation_sequences=50)
    train, validation = (np.concatenate(list(spec.rows(64, validation=side))) for side in (False, True))
    assert train.shape == (500, 65)
    assert validation.shape == (50, 65)
    assert (train[:, 0] == 8).all()
    assert train[:, 1:].max() == 7
    assert np.isfinite(log_probability(random_grammar(spec), train[:, 1:].reshape(-1, 32))).all()


def test_train_and_validation_rows_never_overlap_even_where_rows_repeat():
    spec = HierarchyData(vocabulary=4, levels=2, sequences=900, validation_sequences=100)
    train, validation = (
        {tuple(r) for piece in spec.rows(8, validation=side) for r in piece.tolist()}
        for side in (False, True)
    )
    assert len(train) < 900, "the test wants repeated rows"
    assert not train & validation


def test_rows_are_drawn_thousands_at_a_time(monkeypatch):
    """A loop over rows would ask for numbers as often as there are rows."""
    raw, asked = Draws.raw, []
    monkeypatch.setattr(Draws, "raw", lambda self, count: asked.append(count) or raw(self, count))
    pieces = [len(piece) for piece in HierarchyData().rows(64, validation=False)]
    assert sum(pieces) == 40_000
    assert len(asked) < 10 * len(pieces)
    assert len(pieces) == 5


@pytest.mark.parametrize(
    ("changes", "context", "words"),
    [
        ({}, 60, ["60", "32", "take a context of 32 or 64"]),
        ({}, 20, ["take at most 4 `levels`"]),
        ({"vocabulary": 3, "synonyms": 4}, 32, ["12 different rules", "only 9", "at most 3 synonyms"]),
        ({"vocabulary": 2, "levels": 1, "synonyms": 1}, 2, ["only 2 different sequences", "raise levels"]),
    ],
)
def test_impossible_grammars_are_refused_with_the_way_out(changes, context, words):
    with pytest.raises(InputError) as error:
        data_key(HierarchyData(**changes), context)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_grammar_with_too_few_sequences_to_hold_one_out_ends_with_an_error():
    spec = HierarchyData(vocabulary=2, levels=1, synonyms=1, branching=2, sequences=1, validation_sequences=1)
    outcomes = []
    for seed in range(12):
        other = spec.model_copy(update={"grammar_seed": seed})
        try:
            train, validation = (
                {tuple(r) for p in other.rows(2, validation=side) for r in p.tolist()}
                for side in (False, True)
            )
            outcomes.append(train & validation)
        except InputError as error:
            outcomes.append("too few different sequences" in str(error))
    assert any(outcome is True for outcome in outcomes)
    assert all(outcome is True or outcome == set() for outcome in outcomes)


def test_too_few_sequences_are_counted_exactly_and_never_written_out():
    for vocabulary, synonyms, levels, strings in itertools.product((2, 3, 5), (1, 2, 3), (1, 2, 3), (1, 2)):
        if synonyms > vocabulary:
            continue
        nodes = 2**levels - 1
        exact = (vocabulary * synonyms**nodes) ** strings
        for wanted in {max(2, exact + delta) for delta in (-1, 0, 1)} | {2 * exact, 7 * exact}:
            spec = HierarchyData(
                vocabulary=vocabulary,
                synonyms=synonyms,
                levels=levels,
                sequences=wanted - 1,
                validation_sequences=1,
            )
            assert (spec.misfit(strings * 2**levels) is not None) == (exact < wanted)
    # 3^(10^8) sequences: the number has 47 million digits.
    assert HierarchyData(vocabulary=3).misfit(100_000_000 // 32 * 32) is None
    assert "at most 4" in HierarchyData(branching=5, levels=1).misfit(4)
