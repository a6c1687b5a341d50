"""Progress reports of a cell in training, and its final result."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


def evaluation_steps(steps: int, evaluations: int) -> tuple[int, ...]:
    """Return the steps after which a cell is evaluated: evenly spaced, including the last step."""
    return tuple(sorted({round(steps * (i + 1) / evaluations) for i in range(evaluations)} - {0} | {steps}))


class FloatRecord(BaseModel):
    """Base of records with numbers that may not be finite: JSON has no NaN, and diverged cells must be readable."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Point(FloatRecord):
    """A point of the training curve: means over the steps since the previous point, rate and norm of the last step."""

    step: int
    train_loss: float
    lr: float
    grad_norm: float
    tokens_per_second: float
    gpu: dict[str, float] = {}
    """Readings of rank 0's GPU at its end; see `trainables.train.gpu_readings`."""


class Evaluation(FloatRecord):
    """Loss on the validation set in nats per token, and other measures: `accuracy`, or `NAME/LAYER`, layers from 1."""

    step: int
    loss: float
    measures: dict[str, float] = {}


class Progress(FloatRecord):
    """Progress since the last report; `start`, in the first one, has the measures before the first step.

    `save_seconds`: how long the last checkpoint took until it was valid, with the copy to an object store; 0 before it.
    """

    step: int
    steps: int
    train_seconds: float
    points: tuple[Point, ...]
    evaluations: tuple[Evaluation, ...]
    start: dict[str, float] = {}
    save_seconds: float = 0.0


class Result(FloatRecord):
    """The result of a cell: `done` with a finite loss in nats per token, or `diverged` with a reason.

    `start` has the measures before and of the first step. `epochs` is how often the steps read the training data:
    tokens read over the different ones that there are; above 1 some were read again.
    """

    status: Literal["done", "diverged"]
    reason: str | None
    loss: float | None
    train_loss: float | None
    step: int
    tokens: int
    epochs: float
    params: int
    total_params: int
    vocabulary: int
    entropy: float | None
    bytes_per_token: float | None
    train_seconds: float
    tokens_per_second: float
    """Median over the points of the curve, so without evaluations, checkpoints and the first steps."""
    flops_per_second: float
    """That rate in the model's own FLOPs, of all ranks; without what activation checkpointing computes again."""
    memory_bytes: int
    trunk_steps: int = 0
    """Steps that were taken from the trunk of a shorter cell, and whose seconds are not in `train_seconds`."""
    resumed_from: int
    resumed_seconds: float
    device: str
    notes: tuple[str, ...]
    points: tuple[Point, ...]
    evaluations: tuple[Evaluation, ...]
    start: dict[str, float] = {}
    """Measures before the first step, named as in `Evaluation`."""
