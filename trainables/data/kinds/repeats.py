"""Random blocks, repeated: the task that induction heads solve."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainables.data.kind import register
from trainables.data.task import UNSCORED, TaskData

if TYPE_CHECKING:
    from trainables.data.sources.random_rows import Draws, Symbols


@register
class RepeatsData(TaskData):
    """Random tokens, the last of which are repeated to the end: each of the last half follows from those before.

    Elhage et al. 2021 ("A Mathematical Framework for Transformer Circuits", induction heads). The first half, less one,
    is different tokens; a block of its last ones, from a quarter of the context to all of it, is then repeated. So no
    fixed distance predicts what to copy, and the token after the last occurrence of the present one is the target.
    Two properties keep a one-layer model from other solutions: the tokens before the block, without which the target
    would be the token not seen for longest, and an alphabet larger than the sequence, whose places do not all fit into
    one vector.
    """

    kind: Literal["repeats"] = "repeats"
    alphabet: int = Field(
        default=64, ge=2, le=4096, description="tokens drawn from; half of the context, less one, at least"
    )

    @property
    def vocabulary_size(self) -> int:
        """The alphabet and the start token."""
        return self.alphabet + 1

    def misfit(self, context: int) -> str | None:
        """The shortest block is a quarter of the context, and the first tokens all differ."""
        if context < 8:
            return f"the task `repeats` needs a context of 8 tokens or more, and it has {context}; take a longer one"
        first = _first_part(context)
        if self.alphabet < first:
            return (
                f"the task `repeats` begins with {first} different tokens in a context of {context}, more than its "
                f"alphabet of {self.alphabet}; take an `alphabet` of {first} or more, or a shorter context"
            )
        return None

    def draw(self, context: int, draws: "Draws", count: int) -> "tuple[Symbols, Symbols]":
        """Draw sequences; the targets are their next tokens."""
        import numpy as np

        first = _first_part(context)
        shortest = context // 4
        block = shortest + draws.below(first - shortest + 1, (count, 1))
        tokens = draws.orders(count, self.alphabet)[:, :first]
        position = np.arange(context)
        source = np.where(position < first, position, first - block + (position - first) % block)
        text = np.take_along_axis(tokens, source, axis=1)
        start = np.full((count, 1), self.first_start)
        scored = np.where(position < context // 2, UNSCORED, text)
        return np.concatenate([start, text[:, :-1]], axis=1), scored


def _first_part(context: int) -> int:
    """Tokens before the repetition: one less than half, so that the first scored target is part of it."""
    return context // 2 - 1
