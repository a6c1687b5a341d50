"""Mixing parts by weight, and the hierarchy as text, so that it can be one of them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from trainables.data.sources.hierarchy import check_grammar, random_grammar, sample, strings_per_row
from trainables.data.sources.source import Source, Stretch
from trainables.data.spec import HierarchyData
from trainables.errors import InputError

T = TypeVar("T")

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


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


def hierarchy_text(spec: HierarchyData, context: int) -> Source:
    """The strings of a grammar as letters a, b, c, …; each sequence of the spec is a document, without start token.

    Raises:
        InputError: the grammar is impossible (see `check_grammar`), or has more symbols than there are letters.
    """
    if spec.vocabulary > len(LETTERS):
        raise InputError(
            f"a hierarchy in a mixture is written in letters and digits, at most {len(LETTERS)} of them, but its "
            f"vocabulary is {spec.vocabulary}; take a smaller one"
        )
    check_grammar(spec, context)
    per_row = strings_per_row(spec, context)
    rows = spec.sequences + spec.validation_sequences

    def stretches(_temporary: Path) -> Iterator[Stretch]:
        grammar = random_grammar(spec)
        piece = 8192
        for start in range(0, rows, piece):
            symbols = sample(grammar, piece * per_row, f"rows {spec.grammar_seed} {start // piece}")
            for row in symbols.reshape(piece, context)[: rows - start].tolist():
                yield Stretch("".join(map(LETTERS.__getitem__, row)), last=True)

    return Source("hierarchy", stretches, rows * (context + 1), spec.model_dump(mode="json"))
