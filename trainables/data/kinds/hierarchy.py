"""The random hierarchy model: a fixed random grammar whose exact entropy is known."""

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainables.data.kind import MOST, MOST_SYMBOLS, RowData, register

if TYPE_CHECKING:
    from trainables.data.sources.random_rows import Symbols

#: Rules of every level, the first of which rewrites the root: of the v symbols m strings of s symbols, int64 [v, m, s].
Grammar = tuple["Symbols", ...]
#: Up to this many possible strings per rule, all are listed and shuffled; above, strings are drawn afresh.
LISTED_STRINGS = 1 << 20


@register
class HierarchyData(RowData):
    """The random hierarchy model: a fixed random grammar whose exact entropy is known.

    Cagnetta et al. 2024 (arXiv 2307.02129). A root symbol out of `vocabulary` is rewritten `levels` times: each
    symbol by one of its `synonyms` strings of `branching` symbols of the next level, all with equal probability.
    A sequence is a start token and as many strings of branching^levels symbols as fill `context` targets.
    """

    has_fixed_places: ClassVar[bool] = True
    too_few: ClassVar[str] = (
        "the grammar has too few different sequences for two separate splits; raise levels, synonyms or vocabulary"
    )

    kind: Literal["hierarchy"] = "hierarchy"
    vocabulary: int = Field(default=8, ge=2, le=MOST_SYMBOLS, description="symbols per level, v")
    branching: int = Field(default=2, ge=2, le=MOST_SYMBOLS, description="symbols that a rule writes, s")
    levels: int = Field(default=5, ge=1, le=MOST_SYMBOLS, description="rewritings from root to leaves")
    synonyms: int = Field(default=2, ge=1, le=MOST, description="rules per symbol, m; at most v^(s-1)")
    grammar_seed: int = Field(default=0, ge=0, le=MOST, description="of the random rules")

    @property
    def vocabulary_size(self) -> int:
        """The symbols and the start token."""
        return self.vocabulary + 1

    @property
    def length(self) -> int:
        """Symbols per string, s^levels."""
        length: int = self.branching**self.levels
        return length

    @property
    def entropy(self) -> float:
        """Entropy of the root and of the rule at every inner node, per symbol.

        It is exact because distinct symbols write distinct strings, so a string has one tree (Cagnetta et al. 2024,
        section 2). The start token is given and not counted.
        """
        return (math.log(self.vocabulary) + self._inner_nodes * math.log(self.synonyms)) / self.length

    @property
    def _inner_nodes(self) -> int:
        return (self.length - 1) // (self.branching - 1)

    @property
    def boundaries(self) -> tuple[int, None]:
        """The start token; a sequence ends with its context."""
        return self.vocabulary, None

    def misfit(self, context: int) -> str | None:
        """The context must be a multiple of the string length, and the grammar must have enough strings."""
        # Compared by logarithms first: the powers themselves may have millions of digits.
        if self.levels * math.log(self.branching) > math.log(context) + 1e-9:
            fitting = int(math.log(context) / math.log(self.branching) + 1e-9)
            fewer = f"at most {fitting} `levels`" if fitting else f"a `branching` of at most {context}"
            return (
                f"the grammar's strings have branching^levels = {self.branching}^{self.levels} symbols, more than the "
                f"context of {context} tokens; take {fewer}, or a longer context"
            )
        if context % self.length:
            below = context // self.length * self.length
            return (
                f"the context of {context} tokens is not a multiple of {self.length}, the length of the grammar's "
                f"strings (branching^levels = {self.branching}^{self.levels}); take a context of {below} or "
                f"{below + self.length}"
            )
        if math.log(self.synonyms) > (self.branching - 1) * math.log(self.vocabulary) + 1e-9:
            most: int = self.vocabulary ** (self.branching - 1)
            return (
                f"{self.synonyms} `synonyms` x {self.vocabulary} symbols (`vocabulary`) need "
                f"{self.synonyms * self.vocabulary} different rules per level, but there are only "
                f"{most * self.vocabulary} strings of {self.branching} symbols; take at most {most} synonyms"
            )
        # One string per choice of root and rules; again by logarithms, unless there are few.
        strings = context // self.length
        log_rows = strings * self.length * self.entropy
        wanted = self.sequences + self.validation_sequences
        if log_rows > math.log(wanted) + 1:
            return None
        rows = (self.vocabulary * self.synonyms**self._inner_nodes) ** strings
        if rows < wanted:
            return (
                f"the grammar has only {rows} different sequences of {context} tokens, fewer than the "
                f"{self.sequences} `sequences` and {self.validation_sequences} `validation_sequences`; ask for fewer, "
                "or raise levels, synonyms or vocabulary"
            )
        return None

    def draw_piece(self, context: int, piece: int) -> "Symbols":
        """Rows without their start token."""
        from trainables.data.sources.random_rows import ROWS_AT_A_TIME

        count = ROWS_AT_A_TIME * (context // self.length)
        return sample(random_grammar(self), count, f"rows {self.grammar_seed} {piece}").reshape(-1, context)

    def rows(self, context: int, *, validation: bool) -> Iterator["Symbols"]:
        """Rows with their start token."""
        import numpy as np

        for chosen in super().rows(context, validation=validation):
            yield np.insert(chosen, 0, self.vocabulary, axis=1)


@functools.lru_cache(maxsize=4)
def random_grammar(spec: HierarchyData) -> Grammar:
    """Return m·v of the v^s strings of s symbols per level, shared out among v symbols at random."""
    import numpy as np

    from trainables.data.sources.random_rows import Draws

    needed, draws = spec.synonyms * spec.vocabulary, Draws(f"grammar {spec.grammar_seed}")
    rules = []
    for _ in range(spec.levels):
        # By logarithms first: the power itself may have millions of digits.
        is_short = spec.branching * math.log(spec.vocabulary) < 64
        if is_short and (possible := spec.vocabulary**spec.branching) <= LISTED_STRINGS:
            codes = np.argsort(draws.raw(possible), kind="stable")
            powers = spec.vocabulary ** np.arange(spec.branching - 1, -1, -1)
            strings = codes[:, None] // powers % spec.vocabulary
        else:
            strings = np.empty((0, spec.branching), np.int64)
            while len(strings) < needed:
                drawn = draws.below(spec.vocabulary, (needed, spec.branching))
                strings = np.concatenate([strings, drawn])
                _, first = np.unique(strings, axis=0, return_index=True)
                strings = strings[np.sort(first)]
        rules.append(strings[:needed].reshape(-1, spec.synonyms, spec.branching).astype(np.int64))
    return tuple(rules)


def sample(grammar: Grammar, count: int, seed: str) -> "Symbols":
    """Return `count` independent strings, int64 [count, s^levels]; the same for the same seed on every machine."""
    from trainables.data.sources.random_rows import Draws

    draws = Draws(seed)
    symbols = draws.below(len(grammar[0]), (count, 1))
    for level in grammar:
        rule = draws.below(level.shape[1], symbols.shape)
        symbols = level[symbols, rule].reshape(count, -1)
    return symbols
