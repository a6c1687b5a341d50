"""The base class of synthetic tasks: inputs and separate targets that follow from the inputs, so the entropy is 0.

A sequence begins with a start token, the last id of the vocabulary. A task of several difficulties has one start token
per difficulty, the last ids. A sequence shorter than the context is padded in front with start tokens. In a packed row
the id one past the vocabulary marks a target that is not scored.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from core.errors import some
from trainables.data.kind import MOST, RowData

if TYPE_CHECKING:
    from trainables.data.score import Score
    from trainables.data.sources.random_rows import Draws, Symbols

#: The target that is not scored, until it is packed.
UNSCORED = -1


class TaskData(RowData):
    """Base of all tasks.

    A task of several difficulties is drawn in equal parts of each; the start token names the difficulty.
    """

    has_targets: ClassVar[bool] = True
    too_few: ClassVar[str] = (
        "the task has too few different sequences for two separate splits; ask for fewer by `sequences` and "
        "`validation_sequences`, or make the task larger"
    )
    #: The key that makes this task harder and may be a list; None if there is none.
    graded_by: ClassVar[str | None] = None

    draw_seed: int = Field(
        default=0,
        ge=0,
        le=MOST,
        description="seed of the sequences; the training seeds of a study share one task",
    )

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        parts = self.parts
        if not parts or len(set(parts)) < len(parts):
            raise ValueError(
                f"`{self.graded_by}` is a number or a list of different numbers, and it is [{some(parts)}]"
            )
        return self

    @property
    def parts(self) -> tuple[int, ...]:
        """The difficulties of this task, in the order of their start tokens."""
        graded: int | tuple[int, ...] = getattr(self, self.graded_by) if self.graded_by else 0
        return graded if isinstance(graded, tuple) else (graded,)

    @property
    def first_start(self) -> int:
        """The id of the first start token."""
        return self.vocabulary_size - len(self.parts)

    @property
    def entropy(self) -> float:
        """0, because the targets follow from the inputs."""
        return 0.0

    @property
    def boundaries(self) -> tuple[int | None, None]:
        """The start token, if there is only one; a sequence ends with its context."""
        return (self.first_start if len(self.parts) == 1 else None), None

    def scored(self, context: int) -> int:
        """Return the number of scored targets per sequence."""
        return context - context // 2

    def asked(self, context: int) -> int:
        """Return the number of last targets that count for the accuracy; scored targets before them help to learn."""
        return self.scored(context)

    @abstractmethod
    def draw(self, context: int, draws: "Draws", count: int) -> "tuple[Symbols, Symbols]":
        """Draw at most `count` sequences.

        Returns:
            inputs and targets, int64 [n, context]; a target that is not scored is `UNSCORED`.
        """

    def draw_piece(self, context: int, piece: int) -> "Symbols":
        """Rows of inputs and targets."""
        import numpy as np

        from trainables.data.sources.random_rows import ROWS_AT_A_TIME, Draws

        draws = Draws(f"{self.kind} {self.draw_seed} {piece}")
        inputs, targets = self.draw(context, draws, ROWS_AT_A_TIME)
        return np.concatenate([inputs, np.where(targets == UNSCORED, self.vocabulary_size, targets)], axis=1)

    def draw_parts(self, draws: "Draws", count: int) -> "Symbols":
        """Draw the index in `parts` of each of `count` sequences, int64 [count]; a single part takes no draw."""
        import numpy as np

        if len(self.parts) == 1:
            return np.zeros(count, np.int64)
        return draws.below(len(self.parts), (count,))

    def rows(self, context: int, *, validation: bool) -> Iterator["Symbols"]:
        """Rows of inputs and targets."""
        scored = self.scored(context)
        for rows in super().rows(context, validation=validation):
            # Micro-batches and ranks weigh equally in a step, so each row must have as many targets as the others.
            if ((rows[:, context:] != self.vocabulary_size).sum(axis=1) != scored).any():
                raise RuntimeError(f"a row of the task {self.kind} has other than {scored} scored targets")
            yield rows

    def score(self, context: int) -> "Score":
        """Count the targets asked for, per difficulty."""
        from trainables.data.score import Score

        return Score(self.asked(context), self.first_start, self.parts, self.graded_by)

    def describe_ids(self) -> str:
        """Also which start token stands for which difficulty."""
        if len(self.parts) == 1:
            return super().describe_ids()
        starts = (f"{self.first_start + place} for {part}" for place, part in enumerate(self.parts))
        return (
            f"the ids 0 to {self.first_start - 1} of a task (a sequence begins with the id of its {self.graded_by}: "
            f"{', '.join(starts)})"
        )
