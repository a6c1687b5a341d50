"""What a cell reports while it trains, and what it has when it ends."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


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
    """Loss on the fixed validation set, in nats per token."""

    step: int
    loss: float


class Progress(_Record):
    """What is new since the last report."""

    step: int
    steps: int
    train_seconds: float
    points: tuple[Point, ...]
    evaluations: tuple[Evaluation, ...]


class Result(_Record):
    """How a cell ended. `done` has a finite loss; `diverged` is an outcome of its own, with the reason."""

    status: Literal["done", "diverged"]
    reason: str | None
    loss: float | None
    train_loss: float | None
    step: int
    tokens: int
    params: int
    total_params: int
    vocabulary: int
    floor: float | None
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
