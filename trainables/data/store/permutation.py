"""A keyed permutation of 0 … n-1, computed point by point in O(1) memory for any size."""

import numpy as np
from numpy.typing import NDArray

#: Rounds of the Feistel network; four give a pseudo-random permutation (Luby and Rackoff 1988), the rest is margin
#: for the very small halves of small sizes.
ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permute(index: NDArray[np.uint64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the image of each index.

    An alternating Feistel network on the smallest power of two that holds `size`. A point mapped outside is mapped
    again until it is inside (cycle walking: Black and Rogaway 2002), so the result is a bijection.

    Args:
        index: [n], each below `size`.
        size: length of the permutation, at least 1.
        keys: [n], the key of each point's permutation.
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
