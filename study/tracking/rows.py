"""The record of a finished cell, and what a tracker is sent while cells run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from analysis.runs.mlflow import MEASURE
from trainables.progress import Evaluation, Point

Status = Literal["done", "diverged", "failed"]
#: The tag with the causes of a cell's lost trials, separated by ` | `.
LOST_TRIALS = "interplay.lost_trials"
#: The most characters of a tag that MLflow takes from every store.
TAG_CHARACTERS = 4000
#: The tag with the time at which a cell finished, in Unix seconds. No two rows of a study have the same.
ENDED = "interplay.ended"
#: The tag that marks cells trained for a comparison outside the main study, such as `sensitivity`.
PURPOSE = "interplay.purpose"
#: Prefix of final metrics measured before the first step. Those measured with the loss at the end have `MEASURE`.
START = "start."

Params = Mapping[str, str | int | float | None]


class Row(BaseModel):
    """The record of one finished cell: everything that the run table, the tracker and the report need."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    cell: str
    name: str
    study: str = ""
    protocol: str
    status: Status
    reason: str | None
    params: dict[str, str | int | float | None]
    metrics: dict[str, float]
    tags: dict[str, str]
    points: tuple[Point, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()

    @property
    def loss(self) -> float | None:
        """Final validation loss in nats per token; None if it has none."""
        return self.metrics.get("loss") if self.status == "done" else None

    @property
    def ended(self) -> float:
        """Time at which the cell finished, in Unix seconds."""
        return float(self.tags.get(ENDED) or 0.0)

    @property
    def measures(self) -> dict[str, float]:
        """Measures other than the loss at the end, by name; see `trainables.progress.Evaluation`."""
        return self._with_prefix(MEASURE)

    @property
    def start(self) -> dict[str, float]:
        """Measures before the first step, by name."""
        return self._with_prefix(START)

    @property
    def trained_share(self) -> float:
        """Fraction of its steps for which the cell was trained."""
        return self.metrics.get("trained_share", 1.0)

    def without_curves(self) -> Self:
        """Return the row with the validation losses as its only curve, so that memory does not grow with a study."""
        losses = tuple(one.model_copy(update={"measures": {}}) for one in self.evaluations)
        return self.model_copy(update={"points": (), "evaluations": losses})

    def _with_prefix(self, prefix: str) -> dict[str, float]:
        return {k.removeprefix(prefix): value for k, value in self.metrics.items() if k.startswith(prefix)}


@dataclass
class CurveUpdate:
    """New parts of the curve of a running cell, and tags to set before the cell has finished."""

    cell: str
    name: str
    params: Params
    points: list[Point] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    start: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
