"""What a cell reports while it trains, and what it has when it ends."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


def evaluation_steps(steps: int, evaluations: int) -> tuple[int, ...]:
    """The steps after which a cell of so many steps is evaluated: evenly spaced, the last one among them."""
    return tuple(sorted({round(steps * (i + 1) / evaluations) for i in range(evaluations)} - {0} | {steps}))


class _Record(BaseModel):
    # JSON has no NaN; as `null` it would not be read back, and a diverging cell is an outcome to be told.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Point(_Record):
    """One point of the training curve: means over the steps since the point before."""

    step: int
    train_loss: float
    lr: float
    grad_norm: float
    tokens_per_second: float


class Evaluation(_Record):
    """What was measured on the fixed validation set: the loss, in nats per token, and whatever else was asked for.

    `measures` are numbers by name, such as `accuracy`; of what each layer has, `NAME/LAYER`, layers from 1 on.
    """

    step: int
    loss: float
    measures: dict[str, float] = {}


class Progress(_Record):
    """What is new since the last report."""

    step: int
    steps: int
    train_seconds: float
    points: tuple[Point, ...]
    evaluations: tuple[Evaluation, ...]
    start: dict[str, float] = {}
    """Measures of the model before its first step, named as those of an `Evaluation`; in the first report alone."""


class Ending(_Record):
    """Why a cell is to end before its last step, and what its final loss would have been, where that can be told."""

    reason: str
    loss: float | None = None
    loss_se: float | None = None


class Result(_Record):
    """How a cell ended. `done` has a finite loss; `diverged` and `stopped` are outcomes too, with the reason.

    The loss of a cell that was stopped is a forecast with the standard error `loss_se`, both in nats per token; None
    where there is none.
    """

    status: Literal["done", "diverged", "stopped"]
    reason: str | None
    loss: float | None
    loss_se: float | None = None
    train_loss: float | None
    step: int
    tokens: int
    params: int
    total_params: int
    vocabulary: int
    entropy: float | None
    bytes_per_token: float | None
    train_seconds: float
    tokens_per_second: float
    utilisation: float
    memory_bytes: int
    resumed_from: int
    resumed_seconds: float
    device: str
    notes: tuple[str, ...]
    points: tuple[Point, ...]
    evaluations: tuple[Evaluation, ...]
    start: dict[str, float] = {}
    """Measures of the model before its first step, and of that step, named as those of an `Evaluation`."""
