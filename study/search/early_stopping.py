"""Early stopping: when a cell may end before its last step, and the forecast of its final loss.

When a cell starts, the driver gives it a judge: a few numbers per evaluation, computed from the curves of the cells
that have ended (`analysis.design.loss_forecast`). The judge depends only on the loss of the evaluation. A running trial
therefore needs no message, the ranks of a gang agree, and a cell resumed from its checkpoint ends at the same step.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict

from analysis.design.loss_forecast import MOST_RUNS, LossForecast, StepFit, fit_forecasts
from study.plan.cells import PlannedCell
from study.spec.study import StudySpec
from trainables.cell import Cell
from trainables.progress import Ending, Evaluation

#: Half-width of a 95 % interval over its standard error.
Z = 1.96


class EvaluationRule(BaseModel):
    """The criterion of one evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    step: int
    line: LossForecast
    """The forecast from the loss there."""
    halfwidth: float
    """A cell ends whose forecast has at most this half-width, relative to it."""


class Judge(BaseModel):
    """Decides at an evaluation whether a cell ends; a plain value, which can be sent to a trial and its ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    rules: tuple[EvaluationRule, ...]

    def __call__(self, evaluation: Evaluation) -> Ending | None:
        """Return why a cell ends after an evaluation, with its forecast; None if it continues."""
        rule = next((rule for rule in self.rules if rule.step == evaluation.step), None)
        if rule is None or not math.isfinite(evaluation.loss):
            return None
        loss, error = rule.line.at(evaluation.loss)
        if not (0 < error < loss and Z * error <= rule.halfwidth * loss):
            return None
        return Ending(
            reason=f"at step {evaluation.step} of {self.steps}; forecast {loss:.4f} ± {Z * error:.4f} from "
            f"{rule.line.runs} finished cells",
            loss=loss,
            loss_se=error,
        )


class Policy:
    """Makes the judge of each cell from the cells that have ended when it starts."""

    def __init__(self, spec: StudySpec) -> None:
        """Begin without ended cells.

        Raises:
            ValueError: the spec has no section `early_stopping`.
        """
        if spec.early_stopping is None:
            raise ValueError("the spec has no early_stopping")
        self.rule = spec.early_stopping
        self.last = spec.training.step_count
        self.steps = self.rule.steps(self.last, spec.resources.evaluations)
        self._done: dict[str, tuple[PlannedCell, Mapping[int, float]]] = {}
        self._fits: dict[float, tuple[StepFit, ...]] = {}

    def ended(self, planned: PlannedCell, status: str, evaluations: tuple[Evaluation, ...]) -> None:
        """Record the status and the losses of an ended cell; only those of done cells are used."""
        if status == "done":
            self._done[planned.cell.key] = (planned, {each.step: each.loss for each in evaluations})
            self._fits.pop(planned.lr_factor, None)

    def judge(self, planned: PlannedCell) -> Judge | None:
        """Return the judge of a cell that starts now; None if it is trained to its end in any case."""
        if is_whole(planned.cell.key, self.rule.whole_share):
            return None
        shape = planned.cell.shape
        rules = tuple(
            EvaluationRule(
                step=fit.step,
                line=fit.line(shape.depth, float(shape.budget_params)),
                halfwidth=self.rule.halfwidth,
            )
            for fit in self._fits_of(planned.lr_factor)
        )
        return Judge(steps=self.last, rules=rules) if rules else None

    def _fits_of(self, factor: float) -> tuple[StepFit, ...]:
        """Return the regressions over the cells with this multiple of the learning-rate rule."""
        if factor not in self._fits:
            done = [(p.cell, losses) for p, losses in self._done.values() if p.lr_factor == factor]
            enough = len(done) >= self.rule.finished
            curves = _curves(done[-MOST_RUNS:])
            self._fits[factor] = fit_forecasts(curves, self.steps, self.last) if enough else ()
        return self._fits[factor]


def _curves(cells: Iterable[tuple[Cell, Mapping[int, float]]]) -> pd.DataFrame:
    """Return the curves of cells as `fit_forecasts` takes them."""
    lines = [
        (cell.key, cell.shape.depth, float(cell.shape.budget_params), step, loss)
        for cell, losses in cells
        for step, loss in losses.items()
    ]
    frame = pd.DataFrame(lines, columns=["run", "depth", "params", "step", "loss"])
    return frame[np.isfinite(frame["loss"].astype(float))]


def is_whole(key: str, share: float) -> bool:
    """Whether a cell belongs to the share that is always trained to its end, which only its key decides.

    Without such cells late forecasts would rest on the first few finished cells, and the noise could not be estimated.
    """
    value = int.from_bytes(hashlib.sha256(f"whole {key}".encode()).digest()[:8], "big")
    return value < share * 2**64
