"""Random grammars of the random hierarchy model, and strings drawn from them.

Cagnetta, Petrini, Tomasini, Favero and Wyart 2024, "How Deep Neural Networks Learn Compositional Data: The Random
Hierarchy Model" (arXiv 2307.02129). A root symbol, uniform over v, is rewritten level by level: each symbol by one
of its m strings of s symbols, all with probability 1/m.
"""

import functools
import math

import numpy as np

from trainables.data.sources.random_rows import Draws, Symbols

#: Up to this many possible strings per rule, all are listed and shuffled; above, strings are drawn afresh.
LISTED_STRINGS = 1 << 20


#: Rules of every level, the first of which rewrites the root: of the v symbols m strings of s symbols, int64 [v, m, s].
Grammar = tuple[Symbols, ...]


@functools.lru_cache(maxsize=4)
def random_grammar(vocabulary: int, branching: int, levels: int, synonyms: int, seed: int) -> Grammar:
    """Return a grammar with m·v of the v^s strings of s symbols per level, shared out among v symbols at random."""
    needed = synonyms * vocabulary
    draws = Draws(f"grammar {seed}")
    rules = []
    for _ in range(levels):
        # By logarithms first: the power itself may have millions of digits.
        if branching * math.log(vocabulary) < 64 and (possible := vocabulary**branching) <= LISTED_STRINGS:
            codes = np.argsort(draws.raw(possible), kind="stable")[:needed]
            powers = vocabulary ** np.arange(branching - 1, -1, -1)
            strings = codes[:, None] // powers % vocabulary
        else:
            strings = _distinct_rows(draws, needed, branching, vocabulary)
        rules.append(strings.reshape(vocabulary, synonyms, branching).astype(np.int64))
    return tuple(rules)


def sample(grammar: Grammar, count: int, seed: str) -> Symbols:
    """Return `count` independent strings, int64 [count, s^levels]; the same for the same seed on every machine."""
    draws = Draws(seed)
    symbols = draws.below(len(grammar[0]), (count, 1))
    for level in grammar:
        rule = draws.below(level.shape[1], symbols.shape)
        symbols = level[symbols, rule].reshape(count, -1)
    return symbols


def _distinct_rows(draws: Draws, needed: int, width: int, symbols: int) -> Symbols:
    found = np.empty((0, width), np.int64)
    while len(found) < needed:
        found = np.concatenate([found, draws.below(symbols, (needed, width))])
        _, first = np.unique(found, axis=0, return_index=True)
        found = found[np.sort(first)]
    return found[:needed]
