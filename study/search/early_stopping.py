"""Early stopping: when a cell may end before its last step, and the forecast of its final loss.

When a cell starts, the driver gives it a judge: a few numbers per evaluation, computed from the curves of the cells
that have ended (`analysis.design.loss_forecast`). The judge depends only on the loss of the evaluation. A running trial
therefore needs no message, the ranks of a gang agree, and a cell resumed from its checkpoint ends at the same step.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict

from analysis.design.loss_forecast import MOST_RUNS, LossForecast, StepFit, fit_forecasts
from study.plan.cells import PlannedCell
from study.spec.early_stopping import AshaStopping, EarlyStopping, ForecastStopping
from study.spec.study import StudySpec
from trainables.cell import Cell
from trainables.progress import Ending, Evaluation, evaluation_steps

#: Half-width of a 95 % interval over its standard error.
Z = 1.96


class EvaluationRule(BaseModel):
    """The criterion of one evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    step: int
    line: LossForecast | None
    """The forecast from the loss there."""
    halfwidth: float | None = None
    """A cell ends whose forecast has at most this half-width, relative to it."""
    worst: float | None = None
    """A cell ends whose loss is above this, nats per token."""


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
        loss, error = rule.line.at(evaluation.loss) if rule.line else (math.nan, math.inf)
        has_forecast = loss > 0 and 0 < error < loss
        where = f"at step {evaluation.step} of {self.steps}"
        if rule.halfwidth is not None and not (has_forecast and Z * error <= rule.halfwidth * loss):
            return None
        if rule.worst is not None:
            if evaluation.loss <= rule.worst:
                return None
            where += (
                f", where {evaluation.loss:.4f} is not among the best of its budget (up to {rule.worst:.4f})"
            )
        if not has_forecast or rule.line is None:
            return Ending(reason=f"{where}; too few cells of its kind are done for a forecast")
        return Ending(
            reason=f"{where}; forecast {loss:.4f} ± {Z * error:.4f} from {rule.line.runs} finished cells",
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
        self.rule: EarlyStopping = spec.early_stopping
        self.last = spec.training.step_count
        steps = evaluation_steps(self.last, spec.resources.evaluations)
        self.steps = self.rule.steps(steps, self.last)
        self._ended: dict[str, tuple[PlannedCell, str, Mapping[int, float]]] = {}
        self._fits: dict[float, tuple[StepFit, ...]] = {}

    def ended(self, planned: PlannedCell, status: str, evaluations: tuple[Evaluation, ...]) -> None:
        """Record the status and the losses of an ended cell; failed cells are ignored."""
        if status != "failed":
            losses = {evaluation.step: evaluation.loss for evaluation in evaluations}
            self._ended[planned.cell.key] = (planned, status, losses)
            self._fits.pop(planned.lr_factor, None)

    def judge(self, planned: PlannedCell) -> Judge | None:
        """Return the judge of a cell that starts now; None if it is trained to its end in any case."""
        if is_whole(planned.cell.key, self.rule.whole_share):
            return None
        if isinstance(self.rule, ForecastStopping):
            rules = self._forecast(self.rule, planned)
        else:
            rules = self._halving(self.rule, planned)
        return Judge(steps=self.last, rules=rules) if rules else None

    def _forecast(self, rule: ForecastStopping, planned: PlannedCell) -> tuple[EvaluationRule, ...]:
        lines = self._lines(planned)
        return tuple(
            EvaluationRule(step=step, line=lines[step], halfwidth=rule.halfwidth)
            for step in self.steps
            if step in lines
        )

    def _halving(self, rule: AshaStopping, planned: PlannedCell) -> tuple[EvaluationRule, ...]:
        """Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934): the best 1/reduction pass each rung."""
        lines = self._lines(planned)
        rules = []
        for step in self.steps:
            peers = [
                losses.get(step, math.inf)
                for other, status, losses in self._ended.values()
                if other.budget == planned.budget and (step in losses or status == "diverged")
            ]
            if len(peers) >= rule.reduction:
                worst = float(np.quantile(peers, 1 / rule.reduction, method="higher"))
                rules.append(EvaluationRule(step=step, line=lines.get(step), worst=worst))
        return tuple(rules)

    def _lines(self, planned: PlannedCell) -> dict[int, LossForecast]:
        """Return the forecasts of a cell by step, from cells with its multiple of the learning-rate rule."""
        factor = planned.lr_factor
        if factor not in self._fits:
            mine = [
                (other.cell, status, losses)
                for other, status, losses in self._ended.values()
                if other.lr_factor == factor
            ]
            done = [(cell, losses) for cell, status, losses in mine if status == "done"]
            if len(done) < self.rule.finished:
                self._fits[factor] = ()
            elif isinstance(self.rule, ForecastStopping):
                self._fits[factor] = fit_forecasts(_curves(done[-MOST_RUNS:]), self.steps, self.last)
            else:
                # Finished cells were selected at every rung, so a forecast goes from rung to rung.
                seen = [(cell, losses) for cell, status, losses in mine if status in ("done", "stopped")]
                self._fits[factor] = _from_rung_to_rung(_curves(seen), (*self.steps, self.last))
        shape = planned.cell.shape
        lines: dict[int, LossForecast] = {}
        later = None
        for fit in reversed(self._fits[factor]):
            line = fit.line(shape.depth, float(shape.budget_params))
            lines[fit.step] = line.then(later) if later else line
            later = None if isinstance(self.rule, ForecastStopping) else lines[fit.step]
        return lines


def _curves(cells: Iterable[tuple[Cell, Mapping[int, float]]]) -> pd.DataFrame:
    """Return the curves of cells as `fit_forecasts` takes them."""
    lines = [
        (cell.key, cell.shape.depth, float(cell.shape.budget_params), step, loss)
        for cell, losses in cells
        for step, loss in losses.items()
    ]
    frame = pd.DataFrame(lines, columns=["run", "depth", "params", "step", "loss"])
    return frame[np.isfinite(frame["loss"].astype(float))]


def _from_rung_to_rung(curves: pd.DataFrame, steps: tuple[int, ...]) -> tuple[StepFit, ...]:
    """Return the regressions of each step's loss on that of the step before, in order, those after the last gap."""
    fits: list[StepFit] = []
    for step, after in reversed(list(pairwise(steps))):
        found = fit_forecasts(curves, [step], after)
        if not found:
            break
        fits = [*found, *fits]
    return tuple(fits)


def is_whole(key: str, share: float) -> bool:
    """Whether a cell belongs to the share that is always trained to its end, which only its key decides.

    Without such cells late forecasts would rest on the first few finished cells, and the noise could not be estimated.
    """
    value = int.from_bytes(hashlib.sha256(f"whole {key}".encode()).digest()[:8], "big")
    return value < share * 2**64
