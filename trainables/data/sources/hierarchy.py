"""The random hierarchy model: a fixed random grammar whose entropy, the loss floor, is known exactly.

Cagnetta, Petrini, Tomasini, Favero and Wyart 2024, "How Deep Neural Networks Learn Compositional Data: The Random
Hierarchy Model" (arXiv 2307.02129). A root symbol, uniform over v, is rewritten level by level: each symbol by one
of its m strings of s symbols, all with probability 1/m.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainables.data.spec import HierarchyData
from trainables.data.tasks.random_rows import ROWS_AT_A_TIME, Draws, Symbols, one_side
from trainables.errors import InputError

#: Up to this many possible strings of a rule, all are listed and shuffled; above, strings are drawn afresh.
LISTED_STRINGS = 1 << 20


@dataclass(frozen=True)
class Grammar:
    """Rules of every level: `rules[level][symbol, rule]` is the string of s symbols that `rule` writes.

    Each array is int64 of shape [v, m, s]; level 0 rewrites the root. Ambiguous grammars (a string with several
    derivations) are allowed here; `random_grammar` makes unambiguous ones.
    """

    rules: tuple[Symbols, ...]

    @property
    def vocabulary(self) -> int:
        """Symbols of a level, v."""
        return int(self.rules[0].shape[0])

    @property
    def length(self) -> int:
        """Leaves of one string, s^levels."""
        length: int = int(self.rules[0].shape[2]) ** len(self.rules)
        return length

    @property
    def unambiguous(self) -> bool:
        """Whether every string has at most one derivation: the strings of all rules of each level differ."""
        return all(
            len(np.unique(level.reshape(-1, level.shape[2]), axis=0)) == level.shape[0] * level.shape[1]
            for level in self.rules
        )


def strings_per_row(spec: HierarchyData, context: int) -> int:
    """Strings that fill one sequence of `context` targets, k = context / s^levels.

    Raises:
        InputError: `context` is not a multiple of the length of a string.
    """
    length: int = spec.branching**spec.levels
    if context % length:
        below = context // length * length
        choice = f"{below} or {below + length}" if below else str(length)
        raise InputError(
            f"the context of {context} tokens is not a multiple of {length}, the length of the grammar's strings "
            f"(branching^levels = {spec.branching}^{spec.levels}); take a context of {choice}"
        )
    return context // length


def check_grammar(spec: HierarchyData, context: int) -> None:
    """Refuse a grammar that cannot exist or cannot fill the splits.

    Raises:
        InputError: `context` does not fit, there are too few strings for the rules, or too few for the splits.
    """
    per_row = strings_per_row(spec, context)
    possible = spec.vocabulary**spec.branching
    if spec.synonyms * spec.vocabulary > possible:
        raise InputError(
            f"the grammar needs {spec.synonyms} synonyms x {spec.vocabulary} symbols = "
            f"{spec.synonyms * spec.vocabulary} different rules a level, but there are only {possible} strings of "
            f"{spec.branching} symbols; take at most {possible // spec.vocabulary} synonyms"
        )
    rows = distinct_strings(spec) ** per_row
    wanted = spec.sequences + spec.validation_sequences
    if rows < wanted:
        raise InputError(
            f"the grammar has only {rows} different sequences of {context} tokens, fewer than the {spec.sequences} "
            f"+ {spec.validation_sequences} asked for by sequences and validation_sequences; ask for fewer, or raise "
            "levels, synonyms or vocabulary"
        )


def distinct_strings(spec: HierarchyData) -> int:
    """Different strings of a grammar: v·m^((s^levels - 1)/(s - 1)), one for each choice of root and rules."""
    nodes = (spec.branching**spec.levels - 1) // (spec.branching - 1)
    return int(spec.vocabulary * spec.synonyms**nodes)


def random_grammar(spec: HierarchyData) -> Grammar:
    """The grammar of a seed: at each level m·v different strings of s symbols, shared out among v symbols at random.

    Raises:
        InputError: there are fewer than m·v strings.
    """
    needed = spec.synonyms * spec.vocabulary
    possible = spec.vocabulary**spec.branching
    if needed > possible:
        raise InputError(f"{needed} different rules a level are needed, but only {possible} strings exist")
    draws = Draws(f"grammar {spec.grammar_seed}")
    rules = []
    for _ in range(spec.levels):
        if possible <= LISTED_STRINGS:
            codes = np.argsort(draws.raw(possible), kind="stable")[:needed]
            powers = spec.vocabulary ** np.arange(spec.branching - 1, -1, -1)
            strings = codes[:, None] // powers % spec.vocabulary
        else:
            strings = _distinct_rows(draws, needed, spec.branching, spec.vocabulary)
        rules.append(strings.reshape(spec.vocabulary, spec.synonyms, spec.branching).astype(np.int64))
    return Grammar(tuple(rules))


def sample(grammar: Grammar, count: int, seed: str) -> Symbols:
    """`count` independent strings, int64 [count, s^levels]; the same for the same seed on every machine."""
    draws = Draws(seed)
    symbols = draws.below(grammar.vocabulary, (count, 1))
    for level in grammar.rules:
        rule = draws.below(level.shape[1], symbols.shape)
        symbols = level[symbols, rule].reshape(count, -1)
    return symbols


def log_probability(grammar: Grammar, strings: Symbols) -> NDArray[np.float64]:
    """Natural log of each string's probability by the inside recursion, summed over all derivations.

    Args:
        grammar: any grammar, also an ambiguous one.
        strings: int [n, s^levels].

    Returns:
        float64 [n]; minus infinity for a string that the grammar cannot write.
    """
    count = len(strings)
    inside = np.full((count, grammar.length, grammar.vocabulary), -np.inf)
    np.put_along_axis(inside, strings[:, :, None], 0.0, axis=2)
    for level in reversed(grammar.rules):
        symbols, synonyms, branching = level.shape
        children = inside.reshape(count, -1, branching, symbols)
        rules = np.zeros((count, children.shape[1], symbols, synonyms))
        for child in range(branching):
            rules += children[:, :, child, level[:, :, child]]
        inside = np.logaddexp.reduce(rules, axis=3) - np.log(synonyms)
    total: NDArray[np.float64] = np.logaddexp.reduce(inside[:, 0], axis=1) - np.log(grammar.vocabulary)
    return total


def entropy(grammar: Grammar) -> float:
    """Exact entropy of one string, in nats, by the inside recursion in the entropy semiring.

    H(symbol) = ln m + mean over its rules of the sum of H over the string written. This counts derivations, so it
    is the entropy of the string exactly when the grammar is unambiguous.

    Raises:
        InputError: the grammar is ambiguous.
    """
    if not grammar.unambiguous:
        raise InputError("the entropy of an ambiguous grammar has no closed recursion; use log_probability")
    below = np.zeros(grammar.vocabulary)
    for level in reversed(grammar.rules):
        below = np.log(level.shape[1]) + below[level].sum(axis=2).mean(axis=1)
    return float(np.log(grammar.vocabulary) + below.mean())


def entropy_per_token(grammar: Grammar) -> float:
    """The loss floor: entropy of a string over its length, nats per predicted token (the start token is given)."""
    return entropy(grammar) / grammar.length


def rows(spec: HierarchyData, context: int) -> tuple[Iterator[Symbols], Iterator[Symbols]]:
    """Training and validation rows in pieces of int64 [n, context + 1], each row a start token (id v) and its strings.

    A row's side is decided by a hash of its content, so equal rows are on one side.

    Raises:
        InputError: see `check_grammar`; or one side does not fill because the grammar has too few rows.
    """
    check_grammar(spec, context)
    grammar = random_grammar(spec)
    return (
        _side(spec, grammar, context, validation=False),
        _side(spec, grammar, context, validation=True),
    )


def _side(spec: HierarchyData, grammar: Grammar, context: int, *, validation: bool) -> Iterator[Symbols]:
    per_row = strings_per_row(spec, context)

    def draw(piece: int) -> Symbols:
        strings = sample(grammar, ROWS_AT_A_TIME * per_row, f"rows {spec.grammar_seed} {piece}")
        return strings.reshape(ROWS_AT_A_TIME, context)

    sizes = (spec.validation_sequences, spec.sequences)
    wanted, others = sizes if validation else sizes[::-1]
    few = "the grammar has too few different sequences for two separate splits; raise levels, synonyms or vocabulary"
    for chosen in one_side(draw, wanted, others, validation=validation, content=context, few=few):
        start = np.full((len(chosen), 1), spec.vocabulary, np.int64)
        yield np.concatenate([start, chosen], axis=1)


def _distinct_rows(draws: Draws, needed: int, width: int, symbols: int) -> Symbols:
    found = np.empty((0, width), np.int64)
    while len(found) < needed:
        found = np.concatenate([found, draws.below(symbols, (needed, width))])
        _, first = np.unique(found, axis=0, return_index=True)
        found = found[np.sort(first)]
    return found[:needed]
