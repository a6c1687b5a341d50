"""Random blocks, repeated (Elhage et al. 2021, induction heads)."""

import numpy as np

from trainables.data.drawn import Draws, Symbols
from trainables.data.tasks.spec import RepeatsData, longest_block


def draw(spec: RepeatsData, context: int, draws: Draws, count: int) -> tuple[Symbols, Symbols]:
    """Sequences and their next tokens.

    Returns:
        inputs and targets, int64 [count, context]; all targets are there, also those that are not to be scored.
    """
    shortest, longest = context // 4, longest_block(context)
    period = shortest + draws.below(longest - shortest + 1, (count, 1))
    blocks = draws.orders(count, spec.alphabet)[:, :longest]
    text = np.take_along_axis(blocks, np.arange(context) % period, axis=1)
    start = np.full((count, 1), spec.ids - 1)
    return np.concatenate([start, text[:, :-1]], axis=1), text
