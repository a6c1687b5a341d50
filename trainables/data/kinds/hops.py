"""k-hop induction heads."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from trainables.data.kind import register
from trainables.data.task import UNSCORED, TaskData

if TYPE_CHECKING:
    from trainables.data.sources.random_rows import Draws, Symbols

Hops = Annotated[int, Field(ge=0, le=1000)]


@register
class HopsData(TaskData):
    """k-hop induction heads: k lookups, each to the token after the last earlier occurrence of the present one.

    Sanford, Hsu and Telgarsky 2024 (arXiv 2402.09268): find(i) is the largest j <= i with X_{j-1} = X_i, and the
    target at i is the token at find^k(i), or a special symbol if there is none. No token follows itself. The last
    half of the positions is scored. As in the paper one model may learn several k at once, which is far faster than
    learning the largest alone, because the solution for few hops is the beginning of the solution for many.
    """

    graded_by: ClassVar[str | None] = "hops"

    kind: Literal["hops"] = "hops"
    hops: Hops | tuple[Hops, ...] = Field(
        default=1,
        description="lookups, k, or a list of which each sequence has one; with 0 the target is the token itself",
    )
    alphabet: int = Field(default=4, ge=3, le=4096, description="tokens of a sequence (the paper: 4)")

    @property
    def vocabulary_size(self) -> int:
        """The alphabet, the answer `nowhere`, and one start token per k."""
        return self.alphabet + 1 + len(self.parts)

    def misfit(self, context: int) -> str | None:
        """A hop goes back by `alphabet` - 1 tokens on average; past two thirds many chains would end nowhere."""
        hops = max(self.parts)
        back = hops * (self.alphabet - 1)
        if 3 * back <= 2 * context and context >= 4:
            return None
        needed = max(4, math.ceil(3 * back / 2))
        return (
            f"the task `hops` goes back by {back} tokens on average ({hops} `hops` x {self.alphabet - 1} for an "
            f"`alphabet` of {self.alphabet}), too far for a context of {context}: too many answers would be nowhere; "
            f"take a context of {needed} or more, or fewer hops"
        )

    def draw(self, context: int, draws: "Draws", count: int) -> "tuple[Symbols, Symbols]":
        """Draw sequences in which no token follows itself; hops that lead nowhere have the id after the alphabet."""
        import numpy as np

        size = self.alphabet
        # A step of 1 to size - 1 around the alphabet: any other token, equally likely.
        steps = draws.below(size - 1, (count, context - 1)) + 1
        steps[:, 0] = draws.below(size, (count,))
        tokens = np.cumsum(steps, axis=1) % size
        part = self.draw_parts(draws, count)
        inputs = np.concatenate([self.first_start + part[:, None], tokens], axis=1)
        targets = np.full_like(inputs, UNSCORED)
        half = context // 2
        for place, hops in enumerate(self.parts):
            chosen = part == place
            targets[chosen, half:] = _follow(tokens[chosen], size, hops)[:, half - 1 :]
        return inputs, targets


def _follow(tokens: "Symbols", alphabet: int, hops: int) -> "Symbols":
    """Return the token that `hops` lookups from each position lead to, or `alphabet` where one of them finds nothing.

    The tokens are int64 [n, T], below `alphabet`.
    """
    import numpy as np

    count, length = tokens.shape
    rows = np.arange(count)
    # The position one past the sequence means nowhere, and leads to itself.
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
