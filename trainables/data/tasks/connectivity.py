"""Whether two vertices of a graph are connected (Sanford, Hsu and Telgarsky 2024, arXiv 2402.09268)."""

import numpy as np

from trainables.data.drawn import Draws, Symbols
from trainables.data.tasks.spec import UNSCORED, ConnectivityData


def draw(spec: ConnectivityData, context: int, draws: Draws, count: int) -> tuple[Symbols, Symbols]:
    """Edges of two cycles in random order, then the questions, each with its target at its second token.

    Returns:
        inputs and targets, int64 [count, context].
    """
    size, asked = spec.cycle, spec.questions
    names = draws.orders(count, spec.names)[:, : 2 * size].reshape(count, 2, size)
    edges = np.stack([names, np.roll(names, -1, axis=2)], axis=3).reshape(count, 2 * size, 2)
    edges = _turned(edges, draws.below(2, (count, 2 * size)))
    edges = np.take_along_axis(edges, draws.orders(count, 2 * size)[:, :, None], axis=1)

    yes = draws.below(2, (count, asked))
    first, place = draws.below(2, (count, asked)), draws.below(size, (count, asked))
    # In the same cycle at any other place, in the other one at any place.
    other = np.where(
        yes == 1,
        (place + 1 + draws.below(size - 1, (count, asked))) % size,
        draws.below(size, (count, asked)),
    )
    row = np.arange(count)[:, None]
    pairs = np.stack([names[row, first, place], names[row, first ^ (1 - yes), other]], axis=2)

    text = np.concatenate([edges.reshape(count, -1), pairs.reshape(count, -1)], axis=1)
    inputs = np.full((count, context), spec.ids - 1)
    inputs[:, -text.shape[1] :] = text
    targets = np.full_like(inputs, UNSCORED)
    targets[:, context - 2 * asked + 1 :: 2] = spec.names + yes
    return inputs, targets


def _turned(pairs: Symbols, turn: Symbols) -> Symbols:
    """Pairs [..., 2], those the other way round where `turn` is 1."""
    return np.where(turn[..., None] == 1, pairs[..., ::-1], pairs)
