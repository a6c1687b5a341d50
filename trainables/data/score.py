"""The accuracy of a task, in total and per difficulty."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray


class Score:
    """Counts the targets asked for to which a model gives the highest probability.

    `accuracy` is their share and, with several difficulties, `accuracy_hops_8` that among sequences of eight hops.

    Args:
        asked: last targets of each sequence that count.
        first_start: the id of the first start token.
        parts: the difficulties, in the order of their start tokens.
        graded_by: name of the key that the difficulties are values of.
    """

    def __init__(self, asked: int, first_start: int, parts: Sequence[int], graded_by: str | None) -> None:
        self._asked, self._first_start = asked, first_start
        self._parts, self._graded_by = parts, graded_by

    @property
    def numbers(self) -> int:
        """Length of the counts, which add up over batches and ranks."""
        return 2 * len(self._parts)

    def count(
        self, inputs: NDArray[np.int64], targets: NDArray[np.int64], first: torch.Tensor
    ) -> torch.Tensor:
        """Count the correct targets, then the targets asked for, per difficulty: float64 [numbers].

        Inputs, targets and the most probable ids `first` are int64 [B, T].
        """
        right = (first.cpu().numpy() == targets)[:, -self._asked :].sum(axis=1)
        part = inputs[:, 0] - self._first_start
        counted = [
            np.bincount(part, weights=weights, minlength=len(self._parts))
            for weights in (right, np.full(len(part), self._asked))
        ]
        return torch.from_numpy(np.concatenate(counted))

    def measures(self, counted: Sequence[float]) -> dict[str, float]:
        """Return the accuracies; a difficulty that does not occur in the validation set has none."""
        right, asked = counted[: len(self._parts)], counted[len(self._parts) :]
        measures = {"accuracy": sum(right) / sum(asked)}
        for part, hits, of in zip(self._parts, right, asked, strict=True):
            if of and len(self._parts) > 1:
                measures[f"accuracy_{self._graded_by}_{part}"] = hits / of
        return measures
