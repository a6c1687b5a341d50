"""The trunk that cells of several lengths share under the schedule `wsd`, and the curve of each of these cells.

Batches and dropout masks are functions of the seed and the step, so that cells which differ in steps and decay alone
are equal to the bit until the decay of the shorter one begins. There it leaves a checkpoint, from which longer ones
continue. A cell that finds none trains all of its steps: its result is the same.
"""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.cell import Cell, Recipe
from trainables.progress import Point, evaluation_steps

if TYPE_CHECKING:
    # The driver needs the names of trunks, and no torch.
    from trainables.checkpoint.checkpoint import Segment, TrainingState

#: Points of a training curve.
CURVE_POINTS = 60
#: A cell has diverged when its training loss exceeds its first loss by this factor.
DIVERGENCE_FACTOR = 2.0


@dataclass(frozen=True)
class Trunk:
    """Where the cells of one trunk leave checkpoints for each other.

    `folder` is a path or URI; `lengths` are the steps of all of these cells that a study trains.
    """

    folder: str | Path
    lengths: tuple[int, ...]


def _point_steps(steps: int, evaluated: Iterable[int]) -> frozenset[int]:
    """Return the steps of the points of a curve: evenly spaced, at the evaluations, and the last one."""
    window = max(1, steps // CURVE_POINTS)
    return frozenset((*range(window, steps + 1, window), *evaluated, steps))


@dataclass(frozen=True)
class CurveSteps:
    """The steps at which a cell has points and evaluations, and those at which it prepares them for longer cells.

    `trunk_end` is the step of its checkpoint for longer cells of its trunk; 0 without such cells.
    """

    points: frozenset[int]
    evaluations: frozenset[int]
    longer_evaluations: frozenset[int]
    ends: tuple[int, ...]
    """Ends of segments, ascending: all steps at which a point of this or a longer cell may lie."""
    trunk_end: int

    @classmethod
    def of(cls, recipe: Recipe, evaluations: int, trunk: Trunk | None) -> "CurveSteps":
        """Return the steps of a cell; without a trunk there are none for longer cells."""
        evaluated = frozenset(evaluation_steps(recipe.steps, evaluations))
        points = _point_steps(recipe.steps, evaluated)
        longer = [steps for steps in trunk.lengths if steps > recipe.steps] if trunk else []
        trunk_end = recipe.decay_start if longer else 0
        passed, also = set[int](), set[int]()
        for steps in longer:
            at = evaluation_steps(steps, evaluations)
            passed.update(step for step in at if step <= trunk_end)
            also.update(step for step in _point_steps(steps, at) if step <= trunk_end)
        ends = sorted((points | also | {trunk_end}) - {0})
        return cls(points, evaluated, frozenset(passed - evaluated), tuple(ends), trunk_end)

    def end_after(self, step: int) -> int:
        """Return the end of the segment that begins after a step before the last."""
        return self.ends[bisect.bisect_right(self.ends, step)]


def point_of(segments: "Sequence[Segment]", start: int, recipe: Recipe, ranks: int) -> Point:
    """Return the point of the curve at the end of segments that begin after the step `start`.

    Under `wsd` their losses are sums in fp64 of numbers in fp32, which have no rounding. So the point does not depend
    on the number of segments.
    """
    last, steps = segments[-1], segments[-1].step - start
    return Point(
        step=last.step,
        train_loss=sum(segment.loss for segment in segments) / ranks / steps,
        lr=last.lr,
        grad_norm=last.grad_norm,
        tokens_per_second=steps
        * recipe.batch
        * recipe.context
        / sum(segment.seconds for segment in segments),
        gpu=last.gpu,
    )


def divergence(points: Sequence[Point]) -> str | None:
    """Return why the last point of a curve shows that its cell diverged, else None."""
    first, last = points[0], points[-1]
    if last.train_loss > DIVERGENCE_FACTOR * first.train_loss:
        return (
            f"the training loss rose from {first.train_loss:.3f} to {last.train_loss:.3f} at step {last.step}"
        )
    return None


def branched(cell: Cell, curve: CurveSteps, state: "TrainingState", ranks: int) -> "TrainingState | None":
    """Return the state in which a cell continues from a trunk; None if it cannot.

    Then its own decay has begun, the trunk has not all of its points and evaluations, because it was trained for cells
    of other lengths, or the cell diverged in it by its own points.

    Args:
        cell: it continues as if it had trained the steps itself.
        curve: its own.
        state: that of a checkpoint of the trunk.
        ranks: over which the losses of the state are summed.
    """
    if state.step > cell.recipe.decay_start:
        return None
    ends = {segment.step for segment in state.segments}
    evaluations = {item.step: item for item in (*state.evaluations, *state.longer_evaluations)}
    passed = {step for step in curve.points if step <= state.step}
    if not (passed <= ends and (passed & curve.evaluations) <= evaluations.keys()):
        return None
    points: list[Point] = []
    pending: list[Segment] = []
    for segment in state.segments:
        pending.append(segment)
        if segment.step in passed:
            points.append(point_of(pending, points[-1].step if points else 0, cell.recipe, ranks))
            pending = []
            if divergence(points):
                return None
    at = [evaluations[step] for step in sorted(evaluations)]
    return state.model_copy(
        update={
            "cell": cell.key,
            "trunk_steps": state.step,
            # Those of the trunk are in the row of the cell that trained them.
            "train_seconds": 0.0,
            "points": points,
            "evaluations": [item for item in at if item.step in curve.evaluations],
            "longer_evaluations": [item for item in at if item.step in curve.longer_evaluations],
        }
    )
