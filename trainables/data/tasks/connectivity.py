"""Which vertices of a graph are connected (Sanford, Hsu and Telgarsky 2024, arXiv 2402.09268)."""

import numpy as np

from trainables.data.drawn import Draws, Symbols
from trainables.data.tasks.spec import UNSCORED, ConnectivityData


def draw(spec: ConnectivityData, context: int, draws: Draws, count: int) -> tuple[Symbols, Symbols]:
    """A vertex, the edges of two cycles in random order, and the questions, each with its target.

    Returns:
        inputs and targets, int64 [count, context].
    """
    size, asked = spec.cycle, spec.questions
    names = draws.orders(count, spec.names)[:, : 2 * size].reshape(count, 2, size)
    edges = np.stack([names, np.roll(names, -1, axis=2)], axis=3).reshape(count, 2 * size, 2)
    edges = _turned(edges, draws.below(2, (count, 2 * size)))
    edges = np.take_along_axis(edges, draws.orders(count, 2 * size)[:, :, None], axis=1)

    # In the cycle of the first vertex any other place, in the other one any place.
    yes = draws.below(2, (count, asked))
    place = np.where(yes == 1, 1 + draws.below(size - 1, (count, asked)), draws.below(size, (count, asked)))
    questions = names[np.arange(count)[:, None], 1 - yes, place]

    text = np.concatenate([names[:, 0, :1], edges.reshape(count, -1), questions], axis=1)
    inputs = np.full((count, context), spec.ids - 1)
    inputs[:, -text.shape[1] :] = text
    targets = np.full_like(inputs, UNSCORED)
    targets[:, -asked:] = spec.names + yes
    return inputs, targets


def _turned(pairs: Symbols, turn: Symbols) -> Symbols:
    """Pairs [..., 2], those the other way round where `turn` is 1."""
    return np.where(turn[..., None] == 1, pairs[..., ::-1], pairs)
