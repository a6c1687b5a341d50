"""Words with a stair of k letters."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from trainables.data.kind import register
from trainables.data.task import UNSCORED, TaskData

if TYPE_CHECKING:
    from trainables.data.sources.random_rows import Draws, Symbols

Height = Annotated[int, Field(ge=1, le=1000)]

#: The ids of the letters and of the two answers.
A, B, C, OUTSIDE, MEMBER = range(5)


@register
class StairsData(TaskData):
    """Membership in STAIR_k: words over {a, b, c} that, without their letters c, contain k letters a in a row.

    Etessami and Wilke 2000 ("An until hierarchy and other applications of an Ehrenfeucht-Fraïssé game for temporal
    logic"). The formula a, then "an earlier a with only c between" k - 1 times, nests k strict `since`, and no formula
    that nests fewer defines the language. Attention to a single position under a strict causal mask, without positions,
    is this logic, one layer for each nesting (Yang, Chiang and Angluin 2024, arXiv 2310.13897), so it needs k layers.
    Attention by a softmax can count and has no such bound.

    The target at a position is whether the word so far is a member; the last half of the positions is scored, and the
    accuracy is that of the whole word. Half of the words are members. Half of the letters are c, and all words of one
    k >= 2 have as many a and b: so many that about half of their orders are members. So neither the length nor the
    number of a letter tells the answer. Of k = 1 they do, by its definition: a member has one a, another word none.
    """

    graded_by: ClassVar[str | None] = "height"

    kind: Literal["stairs"] = "stairs"
    height: Height | tuple[Height, ...] = Field(
        default=2,
        description="letters a in a row, k, or a list of which each word has one",
    )

    @property
    def vocabulary_size(self) -> int:
        """Three letters, two answers, and one start token per k."""
        return 5 + len(self.parts)

    def asked(self, context: int) -> int:
        """The whole word."""
        return 1

    def misfit(self, context: int) -> str | None:
        """Half of a word must hold k letters a and a b."""
        height = max(self.parts)
        needed = 2 * (height + 1) + 1
        if context >= needed:
            return None
        return (
            f"the task `stairs` of `height` {height} has no words of both answers in a context of {context}; take a "
            f"context of {needed} or more, or a lower height"
        )

    def draw(self, context: int, draws: "Draws", count: int) -> "tuple[Symbols, Symbols]":
        """Draw whether a word is a member, then orders of its letters until one agrees."""
        import numpy as np

        length = context - 1
        solid = length // 2
        part = self.draw_parts(draws, count)
        heights = np.array(self.parts)[part]
        wanted = draws.below(2, (count,)) == 1
        risers = np.array([letters_a(solid, height) for height in self.parts])[part]
        risers[(heights == 1) & ~wanted] = 0
        words = np.empty((count, length), np.int64)
        left = np.arange(count)
        while left.size:
            order = draws.orders(left.size, length)
            drawn = np.where(order < risers[left, None], A, np.where(order < solid, B, C))
            agree = members(drawn, heights[left])[:, -1] == wanted[left]
            words[left[agree]] = drawn[agree]
            left = left[~agree]
        inputs = np.concatenate([self.first_start + part[:, None], words], axis=1)
        targets = np.full_like(inputs, UNSCORED)
        half = context // 2
        targets[:, half:] = np.where(members(words, heights)[:, half - 1 :], MEMBER, OUTSIDE)
        return inputs, targets


def members(words: "Symbols", heights: "Symbols") -> "Symbols":
    """Return whether each beginning of each word is a member of its stair: bool [n, T].

    The words are int64 [n, T] of the letters, the heights int64 [n].
    """
    import numpy as np

    row = np.zeros(len(words), np.int64)
    reached = np.zeros(words.shape, bool)
    climbed = np.zeros(len(words), bool)
    for i in range(words.shape[1]):
        letter = words[:, i]
        row = np.where(letter == B, 0, row + (letter == A))
        climbed |= row >= heights
        reached[:, i] = climbed
    return reached


def letters_a(solid: int, height: int) -> int:
    """Return how many of `solid` letters a and b are a, so that closest to half of their orders are members."""
    low, high = height, solid - 1
    if height == 1:
        return 1
    while low < high:
        middle = (low + high) // 2
        if _member_share(middle, solid, height) < 0.5:
            low = middle + 1
        else:
            high = middle
    return min(
        (count for count in (low - 1, low) if count >= height),
        key=lambda count: abs(_member_share(count, solid, height) - 0.5),
    )


def _member_share(risers: int, solid: int, height: int) -> float:
    """The share of the orders of `risers` letters a, and b for the rest of `solid`, with `height` of a in a row.

    The others put fewer than `height` into each gap around the b, counted by inclusion and exclusion of gaps.
    """
    others = solid - risers
    lower: int = sum(
        (-1) ** full * math.comb(others + 1, full) * math.comb(risers - full * height + others, others)
        for full in range(min(others + 1, risers // height) + 1)
    )
    return 1 - lower / math.comb(solid, risers)
