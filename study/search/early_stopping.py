"""Early stopping that keeps the truth: when a cell may end before its last step, and what its loss would have been.

A cell judges itself. When it starts, the driver gives it a judge: for each evaluation a few numbers, made from the
curves of the cells that had ended by then (`analysis.design.loss_forecast`). The judge depends on nothing but the loss
of the evaluation, so no message reaches a running trial, the ranks of a gang agree, and a cell that goes on from its
checkpoint ends where it would have.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict

from analysis.design.loss_forecast import MOST_RUNS, LossForecast, StepFit, fit_forecasts
from study.plan.plan import PlannedCell
from study.spec.study import LATEST_STOP, AshaStopping, EarlyStopping, ForecastStopping, StudySpec
from trainables.cell import Cell
from trainables.progress import Ending, Evaluation, evaluation_steps

#: Half-width of a 95 % interval over its standard error.
Z = 1.96


class Watch(BaseModel):
    """What a judge knows of one evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    step: int
    line: LossForecast | None
    """The forecast from the loss there."""
    halfwidth: float | None = None
    """A cell ends whose forecast has at most this half-width, relative to it."""
    worst: float | None = None
    """A cell ends whose loss is above this, nats per token."""


class Judge(BaseModel):
    """Says at an evaluation whether a cell ends there; a value, so that it can be sent to a trial and its ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    watches: tuple[Watch, ...]

    def __call__(self, evaluation: Evaluation) -> Ending | None:
        """Why a cell ends after an evaluation, with its forecast; None where it goes on."""
        watch = next((watch for watch in self.watches if watch.step == evaluation.step), None)
        if watch is None or not math.isfinite(evaluation.loss):
            return None
        loss, error = watch.line.at(evaluation.loss) if watch.line else (math.nan, math.inf)
        told = loss > 0 and 0 < error < loss
        where = f"at step {evaluation.step} of {self.steps}"
        if watch.halfwidth is not None and not (told and Z * error <= watch.halfwidth * loss):
            return None
        if watch.worst is not None:
            if evaluation.loss <= watch.worst:
                return None
            where += (
                f", where {evaluation.loss:.4f} is not among the best of its budget (up to {watch.worst:.4f})"
            )
        if not told or watch.line is None:
            return Ending(reason=f"{where}; too few cells of its kind are done for a forecast")
        return Ending(
            reason=f"{where}; forecast {loss:.4f} ± {Z * error:.4f} from {watch.line.runs} finished cells",
            loss=loss,
            loss_se=error,
        )


class Policy:
    """Makes the judge of each cell from what has ended when it starts; hears of every cell that ends."""

    def __init__(self, spec: StudySpec) -> None:
        """A study without the section `early_stopping` has no policy.

        Raises:
            ValueError: there is no such section.
        """
        if spec.early_stopping is None:
            raise ValueError("the spec has no early_stopping")
        self.rule: EarlyStopping = spec.early_stopping
        self.last = spec.training.step_count
        steps = evaluation_steps(self.last, spec.resources.evaluations)
        self.steps = stops(self.rule, steps, self.last)
        self._ended: dict[str, tuple[PlannedCell, str, Mapping[int, float]]] = {}
        self._fits: dict[float, tuple[StepFit, ...]] = {}

    def ended(self, planned: PlannedCell, status: str, evaluations: tuple[Evaluation, ...]) -> None:
        """Hear how a cell ended, and of its losses on the way; a cell that failed says nothing."""
        if status != "failed":
            losses = {evaluation.step: evaluation.loss for evaluation in evaluations}
            self._ended[planned.cell.key] = (planned, status, losses)
            self._fits.pop(planned.lr_factor, None)

    def judge(self, planned: PlannedCell) -> Judge | None:
        """The judge of a cell that starts now; None where it is trained to its end whatever it shows."""
        if is_whole(planned.cell.key, self.rule.whole_share):
            return None
        if isinstance(self.rule, ForecastStopping):
            watches = self._forecast(self.rule, planned)
        else:
            watches = self._halving(self.rule, planned)
        return Judge(steps=self.last, watches=watches) if watches else None

    def _forecast(self, rule: ForecastStopping, planned: PlannedCell) -> tuple[Watch, ...]:
        lines = self._lines(planned)
        return tuple(
            Watch(step=step, line=lines[step], halfwidth=rule.halfwidth)
            for step in self.steps
            if step in lines
        )

    def _halving(self, rule: AshaStopping, planned: PlannedCell) -> tuple[Watch, ...]:
        """Asynchronous halving (Li et al. 2020, arXiv 1810.05934): of each rung the best 1/reduction go on."""
        lines = self._lines(planned)
        watches = []
        for step in self.steps:
            peers = [
                losses.get(step, math.inf)
                for other, status, losses in self._ended.values()
                if other.budget == planned.budget and (step in losses or status == "diverged")
            ]
            if len(peers) >= rule.reduction:
                worst = float(np.quantile(peers, 1 / rule.reduction, method="higher"))
                watches.append(Watch(step=step, line=lines.get(step), worst=worst))
        return tuple(watches)

    def _lines(self, planned: PlannedCell) -> dict[int, LossForecast]:
        """The forecasts of a cell by step, from cells of its own multiple of the learning-rate rule."""
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
                # The cells that finished were chosen at every rung, so forecasts go from rung to rung.
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
    """The curves of cells, as `fit_forecasts` takes them."""
    lines = [
        (cell.key, cell.shape.depth, float(cell.shape.budget_params), step, loss)
        for cell, losses in cells
        for step, loss in losses.items()
    ]
    frame = pd.DataFrame(lines, columns=["run", "depth", "params", "step", "loss"])
    return frame[np.isfinite(frame["loss"].astype(float))]


def _from_rung_to_rung(curves: pd.DataFrame, steps: tuple[int, ...]) -> tuple[StepFit, ...]:
    """The regressions of the loss at each step on that at the step before, in order; those after a gap alone."""
    fits: list[StepFit] = []
    for step, after in reversed(list(pairwise(steps))):
        found = fit_forecasts(curves, [step], after)
        if not found:
            break
        fits = [*found, *fits]
    return tuple(fits)


def stops(rule: EarlyStopping, steps: tuple[int, ...], last: int) -> tuple[int, ...]:
    """Those of the evaluations after which a rule may end a cell.

    Of `asha` they are those at its rungs or next after: the share `grace` of the steps, and each `reduction` times the
    rung before.
    """
    least = rule.least_share if isinstance(rule, ForecastStopping) else rule.grace
    able = [step for step in steps if least * last <= step <= LATEST_STOP * last]
    if isinstance(rule, ForecastStopping):
        return tuple(able)
    found: list[int] = []
    share = least
    while share < 1:
        found += [step for step in able if step >= share * last][:1]
        share *= rule.reduction
    return tuple(sorted(set(found)))


def is_whole(key: str, share: float) -> bool:
    """Whether a cell belongs to the share that is always trained to its end: by its key, so by nothing it shows.

    Without such cells the forecasts of the last would lean on the first few that finished, and no seeds would be left
    to tell the noise from.
    """
    value = int.from_bytes(hashlib.sha256(f"whole {key}".encode()).digest()[:8], "big")
    return value < share * 2**64
