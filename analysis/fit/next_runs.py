"""What to train next: a deeper model, or more sizes of a study at equal FLOPs."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.fit.compute import ComputeAnswer
from analysis.fit.study import Study
from analysis.law.reading import AtSize
from analysis.law.shape import ComputeShape
from analysis.runs.columns import planned_compute

#: FLOPs of the forward and backward pass per parameter and token (Kaplan et al. 2020, section 2.1).
FLOPS = 6


@dataclass(frozen=True)
class NextDepth:
    """A depth beyond the deepest one, which is best at the largest size, and what it costs at the same sizes.

    Attributes:
        runs, flops: of the new depth with all seeds; FLOPs are None where tokens are not known.
        how: the option that adds it, empty without a spec.
    """

    depth: int
    runs: int
    flops: float | None
    how: str = ""


@dataclass(frozen=True)
class NextSizes:
    """Sizes to add to a study at equal FLOPs, because the least loss of a depth is at an end of its sizes.

    Attributes:
        smaller, larger: (depth, FLOPs) with the least loss at the smallest and at the largest size.
        runs, flops: of one more size on these sides for every depth and compute, with all seeds; 0 and None without a
            plan.
        how: the command that adds it, empty without a spec.
        refused: why the spec does not allow it as it is, a sentence; then there is no command.
    """

    smaller: tuple[tuple[int, float], ...]
    larger: tuple[tuple[int, float], ...]
    runs: int = 0
    flops: float | None = None
    how: str = ""
    refused: str = ""


def next_depth(rows: pd.DataFrame, best: Sequence[AtSize] | Sequence[ComputeShape]) -> NextDepth | None:
    """The depth to add if the deepest one is the best at the largest size and no other is near; None otherwise.

    Args:
        rows: the losses compared.
        best: of each size, or at equal FLOPs of each compute, ascending.
    """
    depths = sorted({int(depth) for depth in rows["depth"]})
    if not best or len(depths) < 2 or (best[-1].near or (best[-1].depth,)) != (depths[-1],):
        return None
    deepest_runs = rows[rows["depth"] == depths[-1]]
    tokens = deepest_runs["tokens"] if "tokens" in deepest_runs else pd.Series(dtype=float)
    flops = (
        float((FLOPS * deepest_runs["params"] * tokens).sum())
        if tokens.notna().all() and len(tokens)
        else None
    )
    return NextDepth(round(depths[-1] ** 2 / depths[-2]), len(deepest_runs), flops)


def next_sizes(study: Study, answer: ComputeAnswer | None) -> NextSizes | None:
    """The sizes missing in a study at equal FLOPs; None of another study, or with each least loss inside the sizes."""
    planned = planned_compute(study.rows)
    if study.comparison.tokens.rule != "compute" or planned is None:
        return None
    without = None if answer is None else {(item.depth, item.flops) for item in answer.lowest}
    smaller: list[tuple[int, float]] = []
    larger: list[tuple[int, float]] = []
    for _, part in study.rows.assign(at=planned).groupby(["at", "depth"]):
        place = int(part["depth"].iloc[0]), float(part["at"].iloc[0])
        means = part.groupby("params")["loss"].mean().to_numpy()
        if len(means) < 2 or (without is not None and place not in without):
            continue
        lowest = int(means.argmin())
        if lowest in (0, len(means) - 1):
            (larger if lowest else smaller).append(place)
    return NextSizes(tuple(smaller), tuple(larger)) if smaller or larger else None
