"""The accuracy of a task, whole and of each difficulty."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.data.tasks.spec import TaskData


class Score:
    """Counts the targets asked for that a model puts first.

    `accuracy` is their share; where a task has several difficulties, `accuracy_hops_8` is that of the sequences of
    eight hops, and so on.

    Args:
        spec: the task.
        context: tokens of a sequence.
    """

    def __init__(self, spec: TaskData, context: int) -> None:
        self._spec = spec
        self._asked = spec.asked(context)
        self._parts = len(spec.parts)

    @property
    def numbers(self) -> int:
        """Length of what is counted, which adds up over batches and ranks."""
        return 2 * self._parts

    def count(
        self, inputs: NDArray[np.int64], targets: NDArray[np.int64], first: torch.Tensor
    ) -> torch.Tensor:
        """What is asked for and right, then what is asked for, of each difficulty: float64 [numbers].

        Args:
            inputs: int64 [B, T].
            targets: int64 [B, T].
            first: the ids that the model puts first, int64 [B, T].
        """
        right = (first.cpu().numpy() == targets)[:, -self._asked :].sum(axis=1)
        part = inputs[:, 0] - self._spec.first_start
        counted = [
            np.bincount(part, weights=weights, minlength=self._parts)
            for weights in (right, np.full(len(part), self._asked))
        ]
        return torch.from_numpy(np.concatenate(counted))

    def measures(self, counted: Sequence[float]) -> dict[str, float]:
        """The accuracies of all that was counted; of a difficulty that the validation set has nothing of, none."""
        right, asked = counted[: self._parts], counted[self._parts :]
        found = {"accuracy": sum(right) / sum(asked)}
        if self._parts > 1:
            found |= {
                f"accuracy_{self._spec.graded_by}_{part}": hits / of
                for part, hits, of in zip(self._spec.parts, right, asked, strict=True)
                if of
            }
        return found
