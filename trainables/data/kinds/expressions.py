"""Nested expressions over digits, after ListOps."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainables.data.kind import register
from trainables.data.task import UNSCORED, TaskData

if TYPE_CHECKING:
    from trainables.data.sources.random_rows import Draws, Symbols

#: Ids of the operators, after those of the ten digits, and of the closing bracket.
MIN, MAX, MED, SM, CLOSE = range(10, 15)


@register
class ExpressionsData(TaskData):
    """The value of a nested expression over digits, in prefix form: [MAX 4 [SM 7 5 ] 0 ] is 4.

    After ListOps (Nangia and Bowman 2018), on which Brown et al. 2022 ("Wide Attention Is The Way Forward For
    Transformers?") compare one wide layer with a deep model. MIN, MAX, MED (the lower one of two in the middle) and SM
    (the sum modulo 10) of 2 to `arguments` values, nested up to `levels` deep; the target of the last token, which
    closes the expression, is its value. An expression that is longer than the context is drawn again.
    """

    kind: Literal["expressions"] = "expressions"
    levels: int = Field(default=3, ge=1, le=50, description="most levels that expressions are nested")
    arguments: int = Field(default=4, ge=2, le=100, description="most values per operator")

    @property
    def vocabulary_size(self) -> int:
        """Ten digits, four operators, the closing bracket and the start token."""
        return 16

    def scored(self, context: int) -> int:
        """The last one."""
        return 1

    def misfit(self, context: int) -> str | None:
        """The start token and the shortest expression of the most arguments must fit."""
        needed = self.arguments + 3
        if context < needed:
            return (
                f"the task `expressions` with up to {self.arguments} `arguments` needs a context of {needed} tokens "
                f"or more, and it has {context}; take a longer one, or fewer arguments"
            )
        return None

    def draw(self, context: int, draws: "Draws", count: int) -> "tuple[Symbols, Symbols]":
        """Draw expressions that end with the sequence, and their values; those of `count` that fit the context."""
        import numpy as np

        room = context - 1
        tokens, length, values = self._write(room, draws, count)
        inputs = np.full((len(tokens), context), self.first_start)
        # Each expression is moved to the end of its sequence, after start tokens.
        column = np.arange(room) - (room - length[:, None])
        moved = np.take_along_axis(tokens, np.maximum(column, 0), axis=1)
        inputs[:, 1:] = np.where(column >= 0, moved, self.first_start)
        targets = np.full_like(inputs, UNSCORED)
        targets[:, -1] = values
        return inputs, targets

    def _write(self, room: int, draws: "Draws", count: int) -> "tuple[Symbols, Symbols, Symbols]":
        """Draw `count` expressions and return those of at most `room` tokens: tokens [n, room], lengths and values.

        An argument is a digit or, half of the time and where `levels` allows, an expression. All expressions are
        written at the same time from left to right, each with a stack of its open operators.
        """
        import numpy as np

        written = np.full((count, room), self.first_start)
        length = np.zeros(count, np.int64)
        level = np.zeros(count, np.int64)
        # Of each open expression: its operator, the arguments it will have, and those it has.
        operator, wanted, had = (np.zeros((count, self.levels + 1), np.int64) for _ in range(3))
        values = np.zeros((count, self.levels + 1, self.arguments), np.int64)
        # Level 0 holds the whole expression as its one argument.
        wanted[:, 0] = 1
        rows = np.arange(count)
        for column in range(room):
            chance = draws.below(2, (count,)) == 1
            digit = draws.below(10, (count,))
            kind = MIN + draws.below(4, (count,))
            arguments = 2 + draws.below(self.arguments - 1, (count,))
            full = had[rows, level] == wanted[rows, level]
            going = (level > 0) | ~full
            closes = going & full
            opens = going & ~full & ((level == 0) | (chance & (level < self.levels)))
            adds = going & ~full & ~opens
            token = np.where(closes, CLOSE, np.where(opens, kind, digit))
            written[going, column] = token[going]
            length += going
            at = np.flatnonzero(closes)
            digit[at] = _evaluate(operator[at, level[at]], values[at, level[at]], wanted[at, level[at]])
            level[at] -= 1
            at = np.flatnonzero(closes | adds)
            values[at, level[at], had[at, level[at]]] = digit[at]
            had[at, level[at]] += 1
            at = np.flatnonzero(opens)
            level[at] += 1
            operator[at, level[at]], wanted[at, level[at]], had[at, level[at]] = kind[at], arguments[at], 0
        fit = (level == 0) & (had[:, 0] == 1)
        return written[fit], length[fit], values[fit, 0, 0]


def _evaluate(operator: "Symbols", values: "Symbols", counts: "Symbols") -> "Symbols":
    """Return the values of operators, int64 [n], on the first `counts` of their arguments, digits [n, arguments]."""
    import numpy as np

    present = np.arange(values.shape[1]) < counts[:, None]
    # Absent arguments sort after all digits.
    ordered = np.sort(np.where(present, values, 10), axis=1)
    rows = np.arange(len(operator))
    place = np.select([operator == MAX, operator == MED], [counts - 1, (counts - 1) // 2], 0)
    total: Symbols = np.where(present, values, 0).sum(axis=1) % 10
    return np.where(operator == SM, total, ordered[rows, place])
