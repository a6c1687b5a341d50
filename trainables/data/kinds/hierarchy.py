"""The random hierarchy model: a fixed random grammar whose exact entropy is known."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from trainables.data.kind import RowData, register
from trainables.data.sources.source import Source, Stretch
from trainables.errors import InputError

if TYPE_CHECKING:
    from trainables.data.sources.grammar import Grammar
    from trainables.data.sources.random_rows import Symbols

#: The characters of the symbols if a hierarchy is part of a mixture.
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@register
class HierarchyData(RowData):
    """The random hierarchy model: a fixed random grammar whose exact entropy is known.

    Cagnetta et al. 2024 (arXiv 2307.02129). A root symbol out of `vocabulary` is rewritten `levels` times: each
    symbol by one of its `synonyms` strings of `branching` symbols of the next level, all with equal probability.
    A sequence is a start token and as many strings of branching^levels symbols as fill `context` targets.
    """

    mixable: ClassVar[bool] = True
    too_few: ClassVar[str] = (
        "the grammar has too few different sequences for two separate splits; raise levels, synonyms or vocabulary"
    )

    kind: Literal["hierarchy"] = "hierarchy"
    vocabulary: int = Field(default=8, ge=2, description="symbols per level, v")
    branching: int = Field(default=2, ge=2, description="symbols that a rule writes, s")
    levels: int = Field(default=5, ge=1, description="rewritings from root to leaves")
    synonyms: int = Field(
        default=2, ge=1, description="rules per symbol, m; m*v <= v^s keeps parsing unambiguous"
    )
    grammar_seed: int = Field(default=0, ge=0)

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
    def distinct_strings(self) -> int:
        """Different strings of the grammar, v·m^((s^levels - 1)/(s - 1)): one per choice of root and rules."""
        return int(self.vocabulary * self.synonyms**self._inner_nodes)

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
            return (
                f"the grammar's strings have branching^levels = {self.branching}^{self.levels} symbols, more than the "
                f"context of {context} tokens; take at most {fitting} `levels`, or a longer context"
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
        rows = self.distinct_strings ** (context // self.length)
        if rows < self.sequences + self.validation_sequences:
            return (
                f"the grammar has only {rows} different sequences of {context} tokens, fewer than the "
                f"{self.sequences} `sequences` and {self.validation_sequences} `validation_sequences`; ask for fewer, "
                "or raise levels, synonyms or vocabulary"
            )
        return None

    def grammar(self) -> "Grammar":
        """Return the grammar of `grammar_seed`."""
        from trainables.data.sources.grammar import random_grammar

        return random_grammar(self.vocabulary, self.branching, self.levels, self.synonyms, self.grammar_seed)

    def row_length(self, context: int) -> int:
        """The start token and the symbols."""
        return context + 1

    def draw_piece(self, context: int, piece: int) -> "Symbols":
        """Rows without their start token."""
        from trainables.data.sources.grammar import sample
        from trainables.data.sources.random_rows import ROWS_AT_A_TIME

        count = ROWS_AT_A_TIME * (context // self.length)
        return sample(self.grammar(), count, f"rows {self.grammar_seed} {piece}").reshape(-1, context)

    def _split(self, context: int, *, validation: bool) -> Iterator["Symbols"]:
        import numpy as np

        for chosen in super()._split(context, validation=validation):
            yield np.insert(chosen, 0, self.vocabulary, axis=1)

    def source_identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """The same as for rows."""
        source: dict[str, Any] = self.identity(context, base)["source"]
        return source

    def source(self, context: int, base: Path) -> Source:
        """Write each sequence as a document of letters a, b, c, …, without start token.

        Raises:
            InputError: the context does not fit, or there are more symbols than letters.
        """
        if self.vocabulary > len(LETTERS):
            raise InputError(
                f"a hierarchy in a mixture is written in letters and digits, at most {len(LETTERS)} of them, but its "
                f"vocabulary is {self.vocabulary}; take a smaller one"
            )
        self.check(context)
        count = self.sequences + self.validation_sequences

        def stretches() -> Iterator[Stretch]:
            left, piece = count, 0
            while left > 0:
                rows = self.draw_piece(context, piece)[:left].tolist()
                for row in rows:
                    yield Stretch("".join(map(LETTERS.__getitem__, row)), last=True)
                left, piece = left - len(rows), piece + 1

        return Source("hierarchy", stretches, count * (context + 1), self.model_dump(mode="json"))

    def describe(self) -> str:
        """The size of the grammar and its seed."""
        return (
            f"a random hierarchy of {self.levels} levels, {self.vocabulary} symbols, {self.synonyms} synonyms of "
            f"{self.branching} symbols, grammar {self.grammar_seed}"
        )

    def describe_ids(self) -> str:
        """Symbols, then the start token."""
        start = self.vocabulary
        return f"symbols 0 to {start - 1} of a random grammar (a sequence begins with the id {start})"
