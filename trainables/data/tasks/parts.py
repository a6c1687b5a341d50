"""Tasks of several difficulties: which one each sequence is of."""

import numpy as np

from trainables.data.tasks.random_rows import Draws, Symbols
from trainables.data.tasks.spec import TaskData


def which_part(spec: TaskData, draws: Draws, count: int) -> Symbols:
    """The place in `spec.parts` of each of `count` sequences, int64 [count]; no number is drawn where there is one."""
    if len(spec.parts) == 1:
        return np.zeros(count, np.int64)
    return draws.below(len(spec.parts), (count,))
