"""Batches as a pure function of (seed, step): no state to save, any step at once, the same on every machine."""

import functools
import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trainables.data.store.token_store import Tokens, TokenStore

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]

#: The target that is not scored: the index that the losses of torch and HuggingFace ignore.
IGNORED = -100
#: Positions of the order computed at once: a few milliseconds of numpy, cached for many small steps.
CHUNK = 4096
#: Rounds of the Feistel network; four give a pseudo-random permutation (Luby and Rackoff 1988), the rest is margin
#: for the very small halves of small sizes.
ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def window_count(tokens: int, context: int, row: int | None) -> int:
    """Return the windows of a split of `tokens` tokens; `row` is the length of a row if the split is made of rows."""
    return tokens // row if row else max(0, tokens - 1) // context


def epochs(store: TokenStore, *, context: int, batch: int, steps: int) -> float:
    """Return how often `steps` training batches read each window of the training split, in the mean."""
    return steps * batch / window_count(len(store.train), context, store.row)


def batch(
    store: TokenStore, *, context: int, batch: int, seed: int, step: int, rows: slice = slice(None)
) -> Batch:
    """Return the training batch of a step, counted from 0, of a store that was opened for this context.

    The training split is cut into windows of `context` + 1 tokens (neighbours share one token: the last target of one
    is the first input of the next; rows of the hierarchy share none). Each epoch takes every window once, in its own
    order, which follows from the seed; a batch may end one epoch and begin the next. Of the batch only `rows` are read.

    Returns:
        inputs and targets, int64 [rows, context]; targets are inputs one token later or, if the store has targets,
        these, with `IGNORED` where none is scored.
    """
    windows = _windows(store, store.train, context)
    position = step * batch
    chosen = np.empty(batch, np.int64)
    filled = 0
    while filled < batch:
        chunk, offset = divmod(position + filled, CHUNK)
        taken = _order(len(windows), seed, chunk)[offset : offset + batch - filled]
        chosen[filled : filled + len(taken)] = taken
        filled += len(taken)
    return _pair(windows[chosen[rows]], store)


def validation_batches(store: TokenStore, *, context: int, batch: int) -> Iterator[Batch]:
    """Yield the whole validation set in order, each window once; the last batch may have fewer sequences.

    A tail of fewer than `context` targets is left out, so that all sequences have one length.
    """
    windows = _windows(store, store.validation, context)
    for start in range(0, len(windows), batch):
        yield _pair(windows[start : start + batch], store)


def _windows(store: TokenStore, tokens: Tokens, context: int) -> Tokens:
    """Return all windows as one view [windows, tokens per window] of the memory map, without reading it."""
    shape = (window_count(len(tokens), context, store.row), store.row or context + 1)
    strides = ((store.row or context) * tokens.itemsize, tokens.itemsize)
    # The constructor is several times cheaper than `as_strided`, and its bounds are checked against the buffer.
    return np.ndarray(shape, tokens.dtype, tokens, 0, strides)


@functools.lru_cache(maxsize=16)
def _order(size: int, seed: int, chunk: int) -> NDArray[np.int64]:
    """Return the windows at the positions of one chunk of the endless sequence of epochs."""
    position = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK, dtype=np.uint64)
    epoch, index = np.divmod(position, np.uint64(size))
    root = np.frombuffer(hashlib.sha256(f"order {seed}".encode()).digest()[:8], "<u8")
    order = permute(index, size, mix(root + mix(epoch)))
    order.setflags(write=False)
    return order


def _pair(windows: Tokens, store: TokenStore) -> Batch:
    wide = windows.astype(np.int64)
    if store.targets:
        inputs, targets = np.ascontiguousarray(np.split(wide, 2, axis=1))
        targets[targets == store.vocabulary] = IGNORED
        return inputs, targets
    return np.ascontiguousarray(wide[:, :-1]), np.ascontiguousarray(wide[:, 1:])


def permute(index: NDArray[np.uint64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the image of each index under a permutation of 0 … size - 1, in O(1) memory for any size.

    An alternating Feistel network on the smallest power of two that holds `size`. A point mapped outside is mapped
    again until it is inside (cycle walking: Black and Rogaway 2002), so the result is a bijection. `index` is [n], each
    below `size`, which is 1 or more; `keys` is [n], the key of each point's permutation.
    """
    bits = max(2, (size - 1).bit_length())
    result = _feistel(index, bits, keys)
    outside = np.flatnonzero(result >= np.uint64(size))
    while outside.size:
        result[outside] = _feistel(result[outside], bits, keys[outside])
        outside = outside[result[outside] >= np.uint64(size)]
    return result.astype(np.int64)


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the output depends on every bit of the input."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _feistel(index: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    high, low = index >> low_bits, index & low_mask
    for _ in range(ROUNDS // 2):
        keys = keys + _GOLDEN
        high = high ^ (mix(low ^ mix(keys)) & high_mask)
        keys = keys + _GOLDEN
        low = low ^ (mix(high ^ mix(keys)) & low_mask)
    return (high << low_bits) | low
