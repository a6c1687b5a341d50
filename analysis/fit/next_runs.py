"""What to train next: rates, a deeper model, or more sizes of a study at equal FLOPs; and the runs that this takes.

A fit has what is missing. How many runs this takes is estimated from its rows (`estimated_runs`); of a study with a
spec, its plan has the exact number, their FLOPs and the command that adds them.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.fit.compute import ComputeAnswer
from analysis.fit.rate_check import RateCheck, near_crossing
from analysis.fit.study import Study
from analysis.law.reading import AtSize
from analysis.law.shape import ComputeShape
from analysis.runs.columns import compute_unit, planned_compute
from analysis.units import BudgetUnit
from core.files import from_json

#: FLOPs of the forward and backward pass per parameter and token (Kaplan et al. 2020, section 2.1).
FLOPS = 6


@dataclass(frozen=True)
class NextSizes:
    """Sizes to add to a study at equal FLOPs or time, because the least loss of a depth is at an end of its sizes.

    Attributes:
        smaller, larger: (depth, budget) with the least loss at the smallest and at the largest size.
        unit: of the budgets.
    """

    smaller: tuple[tuple[int, float], ...]
    larger: tuple[tuple[int, float], ...]
    unit: BudgetUnit = "FLOPs"


@dataclass(frozen=True)
class AddedRuns:
    """Runs that are added to a study.

    Attributes:
        runs: their number, with all seeds.
        flops, seconds: of their training, None if not known.
        how: the command that adds them; empty without a spec.
        refused: why the spec does not allow them as it is, a sentence; then there is no command.
    """

    runs: int
    flops: float | None = None
    seconds: float | None = None
    how: str = ""
    refused: str = ""


@dataclass(frozen=True)
class NextRuns:
    """The runs that check the learning rate, and add the next depth and the next sizes; None where none are missing.

    Sizes have no estimate without a plan.
    """

    rates: AddedRuns | None = None
    depth: AddedRuns | None = None
    sizes: AddedRuns | None = None


def next_runs_of(document: Mapping[str, Any]) -> NextRuns:
    """Return the runs of the next steps that a fit file has; InputError if they are wrong."""
    return from_json(NextRuns, document.get("next_runs", {}), "fit file")


def next_depth(rows: pd.DataFrame, best: Sequence[AtSize] | Sequence[ComputeShape]) -> int | None:
    """The depth to add if the deepest one is the best at the largest size and no other is near; None otherwise.

    Args:
        rows: the losses compared.
        best: of each size, or at equal FLOPs of each compute, ascending.
    """
    depths = sorted({int(depth) for depth in rows["depth"]})
    if not best or len(depths) < 2 or (best[-1].near or (best[-1].depth,)) != (depths[-1],):
        return None
    return round(depths[-1] ** 2 / depths[-2])


def next_sizes(study: Study, answer: ComputeAnswer | None) -> NextSizes | None:
    """The sizes missing in a study at equal FLOPs or time; None of another study, or if none is missing."""
    planned = planned_compute(study.rows)
    if study.comparison.tokens.rule != "compute" or planned is None:
        return None
    without = None if answer is None else {(item.depth, item.budget) for item in answer.lowest}
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
    return NextSizes(tuple(smaller), tuple(larger), compute_unit(study.rows)) if smaller or larger else None


def estimated_runs(study: Study, depth: int | None) -> NextRuns:
    """The runs that check the learning rate at half and at double the rate, and those of a next `depth`, from the rows.

    The next depth is trained at the sizes of the deepest one, with FLOPs of 6·N per token.
    """
    check = study.learning_rate
    rates = None if check is None or check.checked else AddedRuns(2 * len(_near_unchecked(study, check)))
    if depth is None:
        return NextRuns(rates)
    rows = study.rows
    deepest = rows[rows["depth"] == rows["depth"].max()]
    tokens = deepest["tokens"] if "tokens" in deepest else pd.Series(dtype=float)
    has_tokens = tokens.notna().all() and len(tokens)
    flops = float((FLOPS * deepest["params"] * tokens).sum()) if has_tokens else None
    return NextRuns(rates, AddedRuns(len(deepest), flops))


def _near_unchecked(study: Study, check: RateCheck) -> set[Hashable]:
    """The rows of the shapes next to the crossings whose learning rate is not checked."""
    crossings = {(item.shallow, item.deep): item for item in study.crossings.items}
    missing = [crossings[pair.shallow, pair.deep] for pair in check.pairs if pair.reasons]
    return {row for item in missing for row in near_crossing(study.rows, item).index}
