"""Which vertices of a graph are connected (Sanford, Hsu and Telgarsky 2024, arXiv 2402.09268)."""

import numpy as np

from trainables.data.tasks.parts import which_part
from trainables.data.tasks.random_rows import Draws, Symbols
from trainables.data.tasks.spec import UNSCORED, ConnectivityData, cycle_length


def draw(spec: ConnectivityData, context: int, draws: Draws, count: int) -> tuple[Symbols, Symbols]:
    """The edges of graphs in random order, and the questions, each with the smallest name that is connected to it.

    Returns:
        inputs and targets, int64 [count, context].
    """
    size, asked = spec.vertices, spec.questions
    part = which_part(spec, draws, count)
    names = draws.orders(count, spec.names)[:, :size]
    turn = draws.below(2, (count, size))
    order = draws.orders(count, size)
    edges = np.stack([names, np.take_along_axis(names, _next(spec)[part], axis=1)], axis=2)
    edges = np.where(turn[..., None] == 1, edges[..., ::-1], edges)
    edges = np.take_along_axis(edges, order[:, :, None], axis=1)
    questions = np.take_along_axis(names, draws.orders(count, size)[:, :asked], axis=1)

    inputs = np.broadcast_to(spec.first_start + part[:, None], (count, context)).copy()
    inputs[:, -2 * size - asked : -asked] = edges.reshape(count, -1)
    inputs[:, -asked:] = questions
    targets = np.full_like(inputs, UNSCORED)
    joined, smallest = join(edges, spec.names)
    targets[:, -2 * size - asked + 1 : -asked : 2] = joined
    targets[:, -asked:] = np.take_along_axis(smallest, questions, axis=1)
    return inputs, targets


def join(edges: Symbols, names: int) -> tuple[Symbols, Symbols]:
    """The smallest name of what each edge is connected to by then, and of what each vertex is connected to in the end.

    Args:
        edges: int64 [n, edges, 2], names of vertices in the order in which they are joined.
        names: number of names.

    Returns:
        int64 [n, edges] and [n, names].
    """
    count = len(edges)
    smallest = np.tile(np.arange(names), (count, 1))
    joined = np.empty(edges.shape[:2], np.int64)
    for place in range(edges.shape[1]):
        ends = np.sort(np.take_along_axis(smallest, edges[:, place], axis=1), axis=1)
        joined[:, place] = ends[:, 0]
        smallest = np.where(smallest == ends[:, 1:], ends[:, :1], smallest)
    return joined, smallest


def _next(spec: ConnectivityData) -> Symbols:
    """The place of the vertex that follows each one in its cycle, int64 [parts, vertices]."""
    places = np.arange(spec.vertices)
    found = []
    for diameter in spec.parts:
        length = cycle_length(spec.vertices, diameter)
        assert length is not None, "refused with the spec"
        found.append(places - places % length + (places + 1) % length)
    return np.stack(found)
