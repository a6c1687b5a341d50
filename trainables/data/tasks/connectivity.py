"""Whether two vertices of a graph are connected (Sanford, Hsu and Telgarsky 2024, arXiv 2402.09268)."""

import numpy as np

from trainables.data.drawn import Draws, Symbols
from trainables.data.tasks.spec import ConnectivityData


def draw(spec: ConnectivityData, context: int, draws: Draws, count: int) -> tuple[Symbols, Symbols]:
    """Edges of two paths in random order, then the question; its target is the last one.

    Returns:
        inputs and targets, int64 [count, context]; targets but the last are 0 and not to be scored.
    """
    edges, half = 2 * spec.diameter, spec.diameter + 1
    names = draws.orders(count, spec.names)[:, : 2 * half].reshape(count, 2, half)
    tokens = pair(names[:, :, :-1], names[:, :, 1:], spec.names).reshape(count, edges)
    tokens = np.take_along_axis(tokens, draws.orders(count, edges), axis=1)
    yes = draws.below(2, (count,))
    # From one end of the first path to its other end, or to an end of the second path.
    asked = pair(names[:, 0, 0], np.where(yes == 1, names[:, 0, -1], names[:, 1, -1]), spec.names)
    inputs = np.full((count, context), spec.ids - 1)
    inputs[:, -edges - 1 : -1] = tokens
    inputs[:, -1] = spec.pairs + asked
    targets = np.zeros_like(inputs)
    targets[:, -1] = 2 * spec.pairs + yes
    return inputs, targets


def pair(one: Symbols, other: Symbols, names: int) -> Symbols:
    """The number of an unordered pair of names, counted (0, 1), (0, 2) and so on, then (1, 2)."""
    low, high = np.minimum(one, other), np.maximum(one, other)
    number: Symbols = low * (2 * names - low - 1) // 2 + high - low - 1
    return number
