"""Nested expressions over digits, after ListOps (Nangia and Bowman 2018)."""

import numpy as np
from numpy.typing import NDArray

from trainables.data.tasks.random_rows import Draws, Symbols
from trainables.data.tasks.spec import UNSCORED, ExpressionsData

#: Ids of the operators, behind those of the ten digits, and of what closes an expression.
MIN, MAX, MED, SM, CLOSE = range(10, 15)


def draw(spec: ExpressionsData, context: int, draws: Draws, count: int) -> tuple[Symbols, Symbols]:
    """Expressions that end with the sequence, and their values as the last target.

    An argument is a digit or, half of the time and where `levels` allows, an expression. They are written from left to
    right, all at once, with a stack of what is open in each.

    Returns:
        inputs and targets, int64 [n, context], of those of `count` expressions that fit.
    """
    room = context - 1
    written = np.full((count, room), spec.ids - 1)
    length = np.zeros(count, np.int64)
    level = np.zeros(count, np.int64)
    # Of each open expression: its operator, the arguments it will have, and those it has.
    operator, wanted, had = (np.zeros((count, spec.levels + 1), np.int64) for _ in range(3))
    values = np.zeros((count, spec.levels + 1, spec.arguments), np.int64)
    # Level 0 holds the whole expression as its one argument.
    wanted[:, 0] = 1
    for column in range(room):
        chance = draws.below(2, (count,)) == 1
        digit = draws.below(10, (count,))
        kind = MIN + draws.below(4, (count,))
        arguments = 2 + draws.below(spec.arguments - 1, (count,))
        rows = np.arange(count)
        full = had[rows, level] == wanted[rows, level]
        going = (level > 0) | ~full
        closes = going & full
        opens = going & ~full & ((level == 0) | (chance & (level < spec.levels)))
        adds = going & ~full & ~opens
        token = np.where(closes, CLOSE, np.where(opens, kind, digit))
        written[going, column] = token[going]
        length += going
        at = np.flatnonzero(closes)
        digit[at] = evaluate(operator[at, level[at]], values[at, level[at]], wanted[at, level[at]])
        level[at] -= 1
        at = np.flatnonzero(closes | adds)
        values[at, level[at], had[at, level[at]]] = digit[at]
        had[at, level[at]] += 1
        at = np.flatnonzero(opens)
        level[at] += 1
        operator[at, level[at]], wanted[at, level[at]], had[at, level[at]] = kind[at], arguments[at], 0
    fit = (level == 0) & (had[:, 0] == 1)
    inputs = np.full((int(fit.sum()), context), spec.ids - 1)
    # Each expression is moved to the end of its sequence, behind start tokens.
    column = np.arange(room) - (room - length[fit][:, None])
    inputs[:, 1:] = np.where(
        column >= 0, np.take_along_axis(written[fit], np.maximum(column, 0), axis=1), spec.ids - 1
    )
    targets = np.full_like(inputs, UNSCORED)
    targets[:, -1] = values[fit, 0, 0]
    return inputs, targets


def evaluate(operator: Symbols, values: Symbols, counts: Symbols) -> Symbols:
    """Values of operators on their first `counts` arguments each.

    Args:
        operator: int64 [n].
        values: int64 [n, most arguments], digits.
        counts: int64 [n].
    """
    there: NDArray[np.bool_] = np.arange(values.shape[1]) < counts[:, None]
    # What is not there sorts behind all digits.
    ordered = np.sort(np.where(there, values, 10), axis=1)
    rows = np.arange(len(operator))
    smallest, largest = ordered[:, 0], ordered[rows, counts - 1]
    median = ordered[rows, (counts - 1) // 2]
    total = np.where(there, values, 0).sum(axis=1) % 10
    result: Symbols = np.select(
        [operator == MIN, operator == MAX, operator == MED], [smallest, largest, median], total
    )
    return result
