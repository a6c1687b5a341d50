"""k-hop induction heads (Sanford, Hsu and Telgarsky 2024, arXiv 2402.09268)."""

import numpy as np

from trainables.data.tasks.parts import which_part
from trainables.data.tasks.random_rows import Draws, Symbols
from trainables.data.tasks.spec import UNSCORED, HopsData


def draw(spec: HopsData, context: int, draws: Draws, count: int) -> tuple[Symbols, Symbols]:
    """Sequences in which no token follows itself, and what k hops lead to from each token of the last half.

    Returns:
        inputs and targets, int64 [count, context]; the target of hops that lead nowhere is the id behind the alphabet.
    """
    size = spec.alphabet
    # A step of 1 to size - 1 around the alphabet: any other token, equally likely.
    steps = draws.below(size - 1, (count, context - 1)) + 1
    steps[:, 0] = draws.below(size, (count,))
    tokens = np.cumsum(steps, axis=1) % size
    part = which_part(spec, draws, count)
    inputs = np.concatenate([spec.first_start + part[:, None], tokens], axis=1)
    targets = np.full_like(inputs, UNSCORED)
    half = context // 2
    for place, hops in enumerate(spec.parts):
        of = part == place
        targets[of, half:] = follow(tokens[of], size, hops)[:, half - 1 :]
    return inputs, targets


def follow(tokens: Symbols, alphabet: int, hops: int) -> Symbols:
    """The token that `hops` lookups from each position lead to, or `alphabet` where one of them finds nothing.

    Args:
        tokens: int64 [n, T], below `alphabet`.
        alphabet: number of tokens.
        hops: lookups.
    """
    count, length = tokens.shape
    rows = np.arange(count)
    # Positions one past the sequence stand for nowhere, which stays where it is.
    find = np.full((count, length + 1), length)
    last = np.full((count, alphabet), length - 1)
    for i in range(length):
        find[:, i] = last[rows, tokens[:, i]] + 1
        last[rows, tokens[:, i]] = i
    position = np.broadcast_to(np.arange(length), tokens.shape)
    for _ in range(hops):
        position = np.take_along_axis(find, position, axis=1)
    answers = np.concatenate([tokens, np.full((count, 1), alphabet)], axis=1)
    return np.take_along_axis(answers, position, axis=1)
