"""What a study knows of its objective so far, whatever its sampler, and what it would train next: from its rows alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.design.objective import Estimate, estimate
from analysis.design.next_cells import Choice
from study.plan.plan import Plan
from study.search.crossing_search import CrossingSearch, frame, line_of, next_words
from study.search.stopping_rule import Ending, objective_of
from study.spec.study import StudySpec
from study.tracking.ledger import outcomes
from study.tracking.rows import Row


@dataclass(frozen=True)
class Knowledge:
    """The estimate of all rows, and where a search stands."""

    cells: int
    flops: float
    """Training FLOPs of the cells that have ended."""
    estimate: Estimate
    next: tuple[Choice, ...] = ()
    """The cells that come next, best first; none where nothing is searched or the search has ended."""
    next_words: str = ""
    ending: Ending | None = None
    """Which limit ended the search."""

    def to_json(self) -> dict[str, Any]:
        """Strict JSON types."""
        known = self.estimate
        return {
            "cells": self.cells,
            "flops": self.flops,
            "value": known.value,
            "low": known.low,
            "high": known.high,
            "halfwidth": known.halfwidth if math.isfinite(known.halfwidth) else None,
            "words": known.words,
            "next": [
                {
                    "depth": choice.option.depth,
                    "width": choice.option.width,
                    "seed": choice.option.seed,
                    "lr_factor": choice.option.lr_factor,
                    "gain": choice.gain if math.isfinite(choice.gain) else None,
                    "reason": choice.reason,
                }
                for choice in self.next
            ],
            "ended": None
            if self.ending is None
            else {"limit": self.ending.limit, "words": self.ending.words},
        }


def knowledge(spec: StudySpec, plan: Plan, rows: Mapping[str, Row], begun: list[str]) -> Knowledge | None:
    """Return what a study knows; None before its first cell has ended.

    Args:
        spec: the study.
        plan: with the cells of all rows (`study.tracking.ledger.with_recorded`).
        rows: in the order in which they ended.
        begun: keys of cells that were begun and have no result.
    """
    ended = [(planned, rows[planned.cell.key]) for planned in plan.main if planned.cell.key in rows]
    if not ended:
        return None
    rows_so_far = frame(line_of(planned, row.loss, row.loss_se, row.status) for planned, row in ended)
    known = estimate(rows_so_far, objective_of(spec))
    flops = math.fsum(planned.flops * row.trained_share for planned, row in ended)
    if spec.search.sampler != "crossing":
        return Knowledge(len(ended), flops, known)
    search = CrossingSearch(plan, spec, outcomes(rows), begun, plan.slots)
    state = search.state()
    return Knowledge(len(ended), flops, known, state.next, next_words(state), state.ending)
