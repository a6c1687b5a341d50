"""The estimate of a study's objective so far, for every sampler, and the cells that come next: from its rows alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.design.next_cells import Choice
from analysis.design.objective import Estimate, estimate
from study.plan.plan import Plan
from study.search import make_search
from study.search.crossing_search import frame, next_words, row_of
from study.search.source import SearchEnd
from study.search.stopping_rule import objective_of
from study.spec.study import StudySpec
from study.tracking.ledger import outcomes
from study.tracking.rows import Row


@dataclass(frozen=True)
class Knowledge:
    """The estimate from all rows, and the state of the search."""

    cells: int
    flops: float
    """Training FLOPs of the finished cells."""
    estimate: Estimate
    next: tuple[Choice, ...] = ()
    """The next cells, best first; empty without a search or after its end."""
    next_words: str = ""
    ending: SearchEnd | None = None
    """The limit that ended the search."""

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
    """Return the estimate and the state of the search; None before the first cell has finished.

    Args:
        spec: the study.
        plan: with the cells of all rows (`study.tracking.ledger.with_recorded`).
        rows: in the order in which they finished.
        begun: keys of cells that were started and have no result.
    """
    ended = [(planned, rows[planned.cell.key]) for planned in plan.main if planned.cell.key in rows]
    if not ended:
        return None
    rows_so_far = frame(row_of(planned, row.loss, row.loss_se, row.status) for planned, row in ended)
    known = estimate(rows_so_far, objective_of(spec))
    flops = math.fsum(planned.flops * row.trained_share for planned, row in ended)
    state = make_search(spec, plan, outcomes(rows), begun).state() if spec.search.chooses_cells else None
    if state is None:
        return Knowledge(len(ended), flops, known)
    return Knowledge(len(ended), flops, known, state.next, next_words(state), state.ending)
