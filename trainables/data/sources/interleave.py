"""Mixing several streams by weight."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def interleave(
    streams: Sequence[Iterator[T]], weights: Sequence[float], size: Callable[[T], int]
) -> Iterator[tuple[int, T]]:
    """Merge streams so that the summed sizes of what was taken stay in proportion to the weights.

    The next item always comes from the stream whose share lags furthest behind its weight. Ends with the first
    stream that is exhausted, so the proportion holds up to the end.

    Yields:
        index of the stream, item.
    """
    total = sum(weights)
    taken = [0] * len(streams)
    while True:
        done = sum(taken)
        deficits = [weight / total * done - own for weight, own in zip(weights, taken, strict=True)]
        part = deficits.index(max(deficits))
        item = next(streams[part], None)
        if item is None:
            return
        taken[part] += size(item)
        yield part, item
