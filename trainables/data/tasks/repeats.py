"""Random blocks, repeated (Elhage et al. 2021, induction heads)."""

import numpy as np

from trainables.data.tasks.random_rows import Draws, Symbols
from trainables.data.tasks.spec import UNSCORED, RepeatsData, first_part


def draw(spec: RepeatsData, context: int, draws: Draws, count: int) -> tuple[Symbols, Symbols]:
    """Sequences and their next tokens.

    Returns:
        inputs and targets, int64 [count, context].
    """
    first = first_part(context)
    shortest = context // 4
    block = shortest + draws.below(first - shortest + 1, (count, 1))
    tokens = draws.orders(count, spec.alphabet)[:, :first]
    position = np.arange(context)
    source = np.where(position < first, position, first - block + (position - first) % block)
    text = np.take_along_axis(tokens, source, axis=1)
    start = np.full((count, 1), spec.ids - 1)
    scored = np.where(position < context // 2, UNSCORED, text)
    return np.concatenate([start, text[:, :-1]], axis=1), scored
