"""The record of a finished cell, and the new parts of the curve of a running one."""

from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from trainables.progress import Evaluation, Point

Status = Literal["done", "diverged", "failed"]
#: The parameters of a cell by name: its shape, size, seed, learning rate and recipe.
Parameters = dict[str, str | int | float | None]


class Row(BaseModel):
    """The record of one finished cell: everything that the run table, the report and MLflow need.

    The fields from `train_seconds` to `notes` describe the training; they are empty for a failed cell.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    cell: str
    name: str
    study: str = ""
    protocol: str
    purpose: str = ""
    """Purpose of a cell outside the main study, such as `sensitivity`."""
    status: Status
    reason: str | None = None
    ended: float = 0.0
    """Time at which the cell finished, in Unix seconds. No two rows of a study have the same."""
    lost: tuple[str, ...] = ()
    """Causes of the lost trials."""
    revision: str = ""
    parameters: Parameters = {}
    loss: float | None = None
    """Final validation loss in nats per token; None unless the cell is done."""
    bits_per_byte: float | None = None
    train_seconds: float | None = None
    tokens_per_second: float | None = None
    utilisation: float | None = None
    """Model FLOPs per second over the peak on the data sheet of the device, for all ranks."""
    memory_bytes: float | None = None
    epochs: float | None = None
    trained_share: float = 1.0
    """Fraction of its steps for which the cell was trained."""
    measures: dict[str, float] = {}
    """Measures other than the loss at the end, by name; see `trainables.progress.Evaluation`."""
    start: dict[str, float] = {}
    """Measures before the first step, by name."""
    device: str = ""
    resumed_from: int = 0
    """Step of the checkpoint from which the last trial continued; 0 for none."""
    notes: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _first_format(cls, value: Any) -> Any:
        """Read a row of the first format, which had the parameters, metrics and tags of MLflow in three dicts."""
        if not isinstance(value, dict) or not {"params", "metrics", "tags"} <= value.keys():
            return value
        metrics, tags = value["metrics"], {k.removeprefix("interplay."): v for k, v in value["tags"].items()}
        lost, notes = tags.pop("lost_trials", ""), tags.pop("notes", "")
        row = {**value, **metrics, **tags, "parameters": value["params"]}
        row["lost"] = lost.split(" | ") if lost else ()
        row["notes"] = (notes,) if notes else ()
        row["resumed_from"] = tags.get("resumed_from") or 0
        row["loss"] = metrics.get("loss") if value["status"] == "done" else None
        for name, prefix in (("measures", "measure."), ("start", "start.")):
            row[name] = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
        return row

    def without_curves(self) -> Self:
        """Return the row with the validation losses as its only curve, so that memory does not grow with a study."""
        losses = tuple(one.model_copy(update={"measures": {}}) for one in self.evaluations)
        return self.model_copy(update={"points": (), "evaluations": losses})


@dataclass
class CurveUpdate:
    """New parts of the curve of a running cell, and the causes of its lost trials."""

    cell: str
    name: str
    parameters: Parameters
    points: list[Point] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    start: dict[str, float] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
